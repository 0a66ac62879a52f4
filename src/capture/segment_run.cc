// Running segments.
#include <absl/container/fixed_array.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "bytecode/code.h"
#include "capture/events.h"
#include "capture/meter.h"
#include "capture/outcomes.h"
#include "capture/override.h"
#include "capture/segment.h"
#include "diag/diag.h"
#include "diag/no_kernel.h"
#include "tensor/overrides.h"
#include "tensor/profiler.h"
#include "tensor/undo.h"

namespace framejit::capture {

using diag::RunEnd;

Segment::~Segment() {
  RunsEvent(*this);
}

RunEnd Segment::Accept(const Guess& guess, PyObject* value) {
  const int holds = Holds(guess, value);
  if (holds == 1) return RunEnd::kOk;
  if (holds < 0) return tensor::EndOfCall();
  guessed_wrong = true;
  guess_book->Refuse(guess.code.get(), guess.at, PyLong_CheckExact(guess.value.get()));
  PyErr_SetString(PyExc_RuntimeError, "framejit: data says something else than it did");
  return RunEnd::kGuessFailed;
}

int Segment::Versions() const {
  constexpr int kVersions = 3;
  const bool cheap = std::any_of(data_places.begin(), data_places.end(), [](auto& p) { return p.cheap; });
  return cheap ? 1 : kVersions;
}

void Segment::SizesMissed(int64_t versions) {
  guess_book->measured = true;
  if (versions < Versions()) return;
  guessed_wrong = true;
  for (const DataPlace& p : data_places) guess_book->Refuse(p.code.get(), p.at);
}

tensor::RunCheck Segment::Check() {
  tensor::RunCheck check;
  for (auto& [output, guess] : guesses) check.outputs.push_back(output);
  check.accept = [this](size_t k, PyObject* value) { return Accept(guesses[k].second, value); };
  return check;
}

const char* Segment::RangeName() {
  if (range_name.empty()) {
    auto* co = reinterpret_cast<PyCodeObject*>(code.get());
    auto text = [](PyObject* o) { return std::string(PyUnicode_AsUTF8(o)); };
    range_name = "framejit: " + text(co->co_qualname) + " (" + text(co->co_filename) + ":" +
                 std::to_string(bytecode::LocationOf(co, begins).line) + ")";
  }
  return range_name.c_str();
}

bool Segment::Publish() {
  if (!pending->compilation->done()) return true;
  auto finish = std::exchange(pending->finish, nullptr);  // making the runner may let other threads in
  diag::CompileEnd end = diag::CompileEnd::kOk;
  std::string problem;
  try {
    executable = pending->compilation->Take();
    std::unique_ptr<tensor::GraphRunner> made = finish(executable);
    if (!pending->gradients) pending->past = std::move(trace_runner);
    graph_runner = std::move(made);
    if (auto config = pending->config.lock())
      NoteCompiled(*config, place, executable->stats(), executable->stats().seconds);
  } catch (const diag::NoKernel& e) {
    end = diag::CompileEnd::kNoKernel;
    problem = e.what();
  } catch (const std::exception& e) {
    end = diag::CompileEnd::kInternal;
    problem = std::string("internal error of framejit: ") + e.what();
  }
  outcomes->Add(end);
  return problem.empty() || Report(problem + ": runs through the framework  [" + place + "]");
}

RunEnd Segment::RunOnce(PyObject* const* inputs, int64_t* symbols, PyObject** out) {
  RunEnd end = RunEnd::kOk;
  int failed;
  if (graph_runner) return graph_runner->Run(inputs, symbols, out);  // looks at the guesses itself
  if (backend_runner)
    end = backend_runner->Run(inputs, symbols, out);
  else if (trace_runner)
    end = trace_runner->Run(inputs, symbols, out, &failed);
  else  // no operations: every tensor is an input
    for (size_t i = 0; i < recipe.outputs.size(); ++i)
      out[i] = Py_NewRef(inputs[trace->tensors[recipe.outputs[i]].input]);
  for (size_t k = 0; end == RunEnd::kOk && k < guesses.size(); ++k)
    end = Accept(guesses[k].second, out[guesses[k].first]);
  return end;
}

RunEnd Segment::Run(PyObject* const* inputs, int64_t* symbols, PyObject** out) {
  std::optional<tensor::ProfilerRange> range;
  const diag::RunBy by = runner();  // another one may come while this run lets other threads in
  if (tensor::ProfilerOn() && by != diag::RunBy::kNone) range.emplace(RangeName());
  std::optional<tensor::Undo> before;
  const tensor::UndoPlan& plan = pending && by == diag::RunBy::kTrace ? pending->undo : undo;
  if (plan.needed()) before.emplace(plan, inputs);
  std::optional<RunClock> clock;
  if (traced) clock.emplace(*this);
  const RunEnd end = RunOnce(inputs, symbols, out);
  if (end == RunEnd::kOk) {
    if (clock) clock->Done();
    failures = 0;
    outcomes->Add(by);
    return end;
  }
  for (size_t i = 0; i < recipe.outputs.size(); ++i) Py_CLEAR(out[i]);
  outcomes->Add(end);
  if (end != RunEnd::kCondition) ++failures;
  if (end == RunEnd::kRaised) return end;
  const bool restored = before && before->Restore();
  const bool wrote = end == RunEnd::kCondition ? before.has_value() : changes && by != diag::RunBy::kGraph;
  if (!wrote || restored) return end;
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "framejit: what a run has written cannot be taken back");
  return RunEnd::kRaised;
}

// False: the program would go another way.
bool Segment::Floats(int64_t* symbols) {
  const std::span<const int64_t> known(symbols, num_symbols);
  for (const FloatOp& op : float_ops) {
    const std::optional<double> value = op.Eval(known);
    if (!value) return missed_float = static_cast<int>(&op - float_ops.data()), false;
    symbols[op.result] = std::bit_cast<int64_t>(*value);
  }
  for (const FloatCheck& check : float_checks)
    if (!check.Holds(known))
      return missed_float = static_cast<int>(float_ops.size() + (&check - float_checks.data())), false;
  return true;
}

std::string Segment::WhyMissed(FjFrame* frame) const {
  if (missed_float < 0) return guards->Explain(fj_localsplus(frame), fj_code(frame)->co_localsplusnames);
  const size_t ops = float_ops.size(), at = missed_float;
  if (at < ops) return "a float that is computed from numbers that change: Python raises an error now";
  static constexpr const char* kCompare[] = {"<", "<=", "==", "!=", ">", ">="};
  const FloatCheck& check = float_checks[at - ops];
  return std::string("a float that is computed from numbers that change: expected ") + (check.answer ? "" : "not ") +
         kCompare[check.op] + " " + std::to_string(check.c);
}

RunEnd Segment::Try(PyObject** slots_in, FjFrame* frame, PyObject** result) {
  missed = false;
  missed_float = -1;
  if (guessed_wrong) return RunEnd::kMiss;
  if (compiling() && !Publish()) [[unlikely]]
    return RunEnd::kRaised;
  absl::FixedArray<PyObject*, 256> inputs(num_inputs);
  absl::FixedArray<int64_t, 256> symbols(num_symbols);
  // Hooks on saved tensors (torch.utils.checkpoint) count what the program itself saves, and raise when they have
  // enough.
  if (trace_runner && tensor::SavedTensorHooks()) return RunEnd::kMiss;
  if (!guards->Check(slots_in, inputs.data(), symbols.data())) {
    ++missed_guards;
    return RunEnd::kMiss;
  }
  if (left != diag::Leave::kNone) {
    outcomes->Add(RunEnd::kLeft);
    return RunEnd::kLeft;
  }
  if (failures >= kFailures && ++passed % kRetry) {
    outcomes->Add(RunEnd::kFailing);
    return RunEnd::kFailing;
  }
  if (!Floats(symbols.data())) return RunEnd::kMiss;
  size_t n = recipe.outputs.size();
  absl::FixedArray<PyObject*, 16> out(n, nullptr);
  std::optional<SuspendScope> off;
  if (frame) off.emplace();  // the hot path has nothing to suspend
  tensor::AutocastOff plain;
  tensor::OverridesOff own;
  if (const RunEnd end = Run(inputs.data(), symbols.data(), out.data()); end != RunEnd::kOk) {
    missed = end == RunEnd::kCondition;
    return end;
  }
  // The common case: one tensor is returned.
  if (returns && n == 1 && recipe.nodes.size() == 1 && recipe.nodes[0].kind == RecipeNode::kOutput && stores.empty() &&
      calls.empty() && cells.empty() && grad_after < 0) {
    *result = out[0];
    ++runs;
    return RunEnd::kOk;
  }
  return Build(inputs.data(), out.data(), symbols.data(), frame, result);
}

// The results' place in the program.
RunEnd Segment::Build(PyObject** inputs, PyObject** out, int64_t* symbols, FjFrame* frame, PyObject** result) {
  const size_t n = recipe.outputs.size();
  std::vector<Ref> held, values;
  for (size_t i = 0; i < n; ++i) held.emplace_back(out[i]);
  if (recipe.Build(inputs + num_tensor_inputs, out, symbols, num_symbols, &values) < 0)
    return changes ? RunEnd::kRaised : tensor::EndOfCall();
  for (const Store& st : stores) {
    PyObject* d = values[st.dict].get();
    int bad = st.value >= 0 ? PyDict_SetItem(d, values[st.key].get(), values[st.value].get())
                            : PyDict_DelItem(d, values[st.key].get());
    if (bad < 0) return RunEnd::kRaised;
  }
  for (PendingCall& c : calls) {
    if (std::exchange(c.made, false)) continue;
    std::vector<PyObject*> args;
    for (int node : c.args) args.push_back(values[node].get());
    Ref r(PyObject_Vectorcall(c.method.get(), args.data(), args.size(), nullptr));
    if (!r) return RunEnd::kRaised;
  }
  for (auto [cell, value] : cells)
    if (PyCell_Set(values[cell].get(), value < 0 ? nullptr : values[value].get()) < 0) return RunEnd::kRaised;
  if (grad_after >= 0) tensor::SetGradMode(grad_after);
  ++runs;
  if (returns) {
    *result = values[return_node].get();
    Py_INCREF(*result);
    return RunEnd::kOk;
  }
  PyObject** p = fj_localsplus(frame);
  int nlocals = fj_nlocalsplus(frame), old_depth = fj_stack_depth(frame);
  std::vector<Ref> dropped;  // destructors run when the frame is whole again
  for (auto [slot, node] : slots) {
    dropped.emplace_back(p[slot]);
    p[slot] = node < 0 ? nullptr : Borrow(values[node].get()).release();
  }
  for (int i = 0; i < old_depth; ++i) dropped.emplace_back(p[nlocals + i]);
  for (int i = 0; i < depth; ++i) p[nlocals + i] = stack[i] < 0 ? nullptr : Borrow(values[stack[i]].get()).release();
  fj_set_stack_depth(frame, depth);
  fj_set_next(frame, next);
  *result = nullptr;
  if (traced) Meter::Broke(*this);
  return RunEnd::kOk;
}

}  // namespace framejit::capture
