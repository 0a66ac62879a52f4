// This file runs segments.
#include <absl/container/fixed_array.h>
#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "capture/events.h"
#include "capture/meter.h"
#include "capture/operator_runs.h"
#include "capture/outcomes.h"
#include "capture/override.h"
#include "capture/policy/timing.h"
#include "capture/segment.h"
#include "diag/diag.h"
#include "diag/no_kernel.h"
#include "tensor/overrides.h"
#include "tensor/profiler.h"
#include "tensor/segment_node.h"
#include "tensor/undo.h"

namespace framejit::capture {

using diag::RunBy;
using diag::RunEnd;

Segment::~Segment() {
  RunsEvent(*this);
}

RunEnd Assumed::Accept(const Guess& guess, PyObject* value) {
  const int holds = Holds(guess, value);
  if (holds == 1) return RunEnd::kOk;
  if (holds < 0) return tensor::EndOfCall();
  *wrong = true;
  book->Refuse(guess.code.get(), guess.at, PyLong_CheckExact(guess.value.get()));
  PyErr_SetString(PyExc_RuntimeError, "framejit: data says something else than it did");
  return RunEnd::kGuessFailed;
}

std::function<void()> Assumed::Refutation() const {
  struct Place {
    PyObject* code;  // The book keeps it alive.
    int at;
    bool number;
  };
  std::vector<Place> places;
  for (const auto& [output, g] : guesses)
    places.push_back({g.code.get(), g.at, static_cast<bool>(PyLong_CheckExact(g.value.get()))});
  return [flag = wrong, kept = book, all = std::move(places)] {
    *flag = true;
    for (const Place& p : all) kept->Refuse(p.code, p.at, p.number);
  };
}

int Assumed::Versions() const {
  constexpr int kVersions = 3;
  const bool cheap = std::any_of(sizes.begin(), sizes.end(), [](const Where& w) { return w.cheap; });
  return cheap ? 1 : kVersions;
}

void Assumed::SizesMissed(int64_t versions) {
  book->measured = true;
  if (versions < Versions()) return;
  *wrong = true;
  for (const Where& w : sizes) book->Refuse(w.code.get(), w.at);
}

tensor::RunCheck Assumed::Check() {
  tensor::RunCheck check;
  for (auto& [output, guess] : guesses) check.outputs.push_back(output);
  check.accept = [this](size_t k, PyObject* value) { return Accept(guesses[k].second, value); };
  return check;
}

const char* Segment::RangeName() {
  if (range_name.empty()) {
    const size_t at = place.rfind('@'), colon = place.rfind(':');
    range_name =
        "framejit: " + place.substr(0, at) + " (" + place.substr(at + 1, colon - at) + std::to_string(line) + ")";
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
    if (auto compiled = pending->compiled.lock())
      NoteCompiled(*compiled, place, executable->stats(), executable->stats().seconds);
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

[[gnu::always_inline]] inline RunEnd Segment::RunOnce(RunBy by, PyObject* const* inputs, int64_t* symbols,
                                                      PyObject** out) {
  RunEnd end = RunEnd::kOk;
  int failed;
  if (graph_runner && (by != RunBy::kTrace || !trace_runner))
    return graph_runner->Run(inputs, symbols, out);  // looks at the guesses itself
  std::optional<tensor::GivesMemory> as_program;
  if (backend_runner) {
    end = backend_runner->Run(inputs, symbols, out);
  } else if (trace_runner) {
    as_program.emplace();
    end = trace_runner->Run(inputs, symbols, out, &failed);
  } else {  // no operations: every tensor is an input
    for (size_t i = 0; i < passed_on.size(); ++i) out[i] = Py_NewRef(inputs[passed_on[i]]);
  }
  const auto& guesses = assumed.guesses;
  for (size_t k = 0; end == RunEnd::kOk && k < guesses.size(); ++k)
    end = assumed.Accept(guesses[k].second, out[guesses[k].first]);
  if (as_program && end != RunEnd::kOk) as_program->TakeBack();
  return end;
}

RunEnd Segment::RunChecked(RunBy by, PyObject* const* inputs, int64_t* symbols, PyObject** out) {
  if (by == RunBy::kTrace) return RunOnce(by, inputs, symbols, out);
  Ref expected;
  if (!check->Before(inputs, symbols, num_symbols, &expected)) return RunEnd::kRaised;
  const RunEnd end = RunOnce(by, inputs, symbols, out);
  return end == RunEnd::kOk && !check->After(expected, out) ? RunEnd::kRaised : end;
}

[[gnu::hot]] RunEnd Segment::Run(PyObject* const* inputs, int64_t* symbols, PyObject** out) {
  std::optional<tensor::ProfilerRange> range;
  const RunBy by = runner();  // another one may come while this run lets other threads in
  if (tensor::ProfilerOn() && by != RunBy::kNone) range.emplace(RangeName());
  std::optional<tensor::Undo> before;
  const tensor::UndoPlan& plan = by == RunBy::kTrace && (graph_runner || pending) ? undo_calls : undo;
  if (plan.needed()) before.emplace(plan, inputs);
  std::optional<Meter::Pause> pause;
  if (has_event && Meter::alive) [[unlikely]]
    pause.emplace();
  const RunEnd end = check ? RunChecked(by, inputs, symbols, out) : RunOnce(by, inputs, symbols, out);
  if (end == RunEnd::kOk) {
    failures = 0;
    outcomes->Add(by);
    return end;
  }
  for (size_t i = 0; i < exit.recipe.outputs.size(); ++i) Py_CLEAR(out[i]);
  outcomes->Add(end);
  if (end != RunEnd::kCondition) ++failures;
  if (end == RunEnd::kRaised) return end;
  const bool restored = before && before->Restore();
  const bool wrote = end == RunEnd::kCondition ? before.has_value() : changes && by != RunBy::kGraph;
  if (!wrote || restored) return end;
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "framejit: what a run has written cannot be taken back");
  return RunEnd::kRaised;
}

std::string Segment::WhyMissed(FjFrame* frame) const {
  return floats.missed() ? floats.WhyMissed()
                         : guards->Explain(frame::PointersOf(frame), fj_code(frame)->co_localsplusnames);
}

[[gnu::hot]] RunEnd Segment::Try(PyObject** slots_in, FjFrame* frame, PyObject** result) {
  if (draws.empty()) [[likely]]
    return TryDrawn(slots_in, frame, result);
  GeneratorStates before;
  {
    std::optional<SuspendScope> off;
    if (frame) off.emplace();
    if (!draws.Run(*guards, slots_in, &before)) {  // What raised will raise again, but for KeyboardInterrupt.
      before.Restore();
      if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return RunEnd::kRaised;
      PyErr_Clear();
      return RunEnd::kMiss;
    }
  }
  const RunEnd end = TryDrawn(slots_in, frame, result);
  if (end == RunEnd::kOk)
    draws.Drop();
  else if (end != RunEnd::kRaised)
    before.Restore();
  return end;
}

[[gnu::hot]] RunEnd Segment::TryDrawn(PyObject** slots_in, FjFrame* frame, PyObject** result) {
  return calls_operators ? TryNoted(slots_in, frame, result) : TryMeasured(slots_in, frame, result);
}

RunEnd Segment::TryNoted(PyObject** slots_in, FjFrame* frame, PyObject** result) {
  OperatorRun run(runner() != RunBy::kGraph);
  const RunEnd end = TryMeasured(slots_in, frame, result);
  Retry* const within = frame ? Retry::Current() : nullptr;
  run.End(end != RunEnd::kOk && end != RunEnd::kRaised && (within || !frame), within);
  return end;
}

[[gnu::hot]] RunEnd Segment::TryMeasured(PyObject** slots_in, FjFrame* frame, PyObject** result) {
  if (has_event) [[unlikely]] {
    if (const int weight = RunClock::Weight(*this)) return TryTimed(weight, slots_in, frame, result);
  }
  return TryOnce(slots_in, frame, result);
}

RunEnd Segment::TryTimed(int weight, PyObject** slots_in, FjFrame* frame, PyObject** result) {
  RunClock clock(*this, weight);
  const RunEnd end = TryOnce(slots_in, frame, result);
  if (end == RunEnd::kOk) clock.Done();
  return end;
}

[[gnu::hot]] RunEnd Segment::TryOnce(PyObject** slots_in, FjFrame* frame, PyObject** result) {
  assumed.missed = false;
  floats.Forget();
  if (*assumed.wrong) return RunEnd::kMiss;
  if (compiling() && !Publish()) [[unlikely]]
    return RunEnd::kRaised;
  absl::FixedArray<PyObject*, 256> inputs(num_inputs);
  absl::FixedArray<int64_t, 256> symbols(num_symbols);
  // Hooks on saved tensors (torch.utils.checkpoint) count what the program itself saves, and raise when they have
  // enough.
  if (trace_runner && tensor::SavedTensorHooks()) return RunEnd::kMiss;
  if (!guards->Check(slots_in, inputs.data(), symbols.data())) {
    ++tally.missed_guards;
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
  if (!floats.Run({symbols.data(), symbols.size()})) return RunEnd::kMiss;
  std::vector<Ref> asked;
  if (!cached.empty() && !cached.Ask(inputs.data(), {symbols.data(), symbols.size()}, &asked)) {
    outcomes->Add(RunEnd::kLeft);
    return RunEnd::kLeft;
  }
  // A kernel of the program's, and another thread, may let go of what the guards have found.
  absl::InlinedVector<Ref, 8> held;
  for (int i = calls_operators ? 0 : num_tensor_inputs; i < num_inputs; ++i) held.push_back(Borrow(inputs[i]));
  absl::FixedArray<PyObject*, 16> out(exit.recipe.outputs.size(), nullptr);
  std::optional<SuspendScope> off;
  if (frame) off.emplace();  // the hot path has nothing to suspend
  tensor::AutocastOff plain;
  tensor::OverridesOff own;
  if (const RunEnd end = Run(inputs.data(), symbols.data(), out.data()); end != RunEnd::kOk) {
    assumed.missed = end == RunEnd::kCondition;
    return end;
  }
  RunEnd end = RunEnd::kOk;
  if (exit.ReturnsOutput())  // the common case
    *result = out[0];
  else
    end = exit.Take(inputs.data() + num_tensor_inputs, out.data(), symbols.data(), num_symbols, changes, frame, result);
  if (end != RunEnd::kOk) return end;
  ++tally.runs;
  if (has_event && !exit.returns) Meter::Broke(*this);
  return end;
}

}  // namespace framejit::capture
