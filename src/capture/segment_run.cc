// Running segments.
#include <absl/container/fixed_array.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "bytecode/code.h"
#include "capture/events.h"
#include "capture/override.h"
#include "capture/segment.h"
#include "diag/diag.h"
#include "tensor/profiler.h"
#include "tensor/undo.h"

namespace framejit::capture {

Segment::~Segment() {
  RunsEvent(*this);
}

int Segment::Accept(const Guess& guess, PyObject* value) {
  const int holds = Holds(guess, value);
  if (holds == 1) return 0;
  if (holds < 0) return -1;
  guessed_wrong = true;
  guess_book->Refuse(guess.code.get(), guess.at, PyLong_CheckExact(guess.value.get()));
  PyErr_SetString(PyExc_RuntimeError, "framejit: data says something else than it did");
  return -1;
}

int Segment::Versions() const {
  constexpr int kVersions = 3;
  const bool cheap = std::any_of(data_places.begin(), data_places.end(), [](auto& p) { return p.cheap; });
  return cheap ? 1 : kVersions;
}

void Segment::RefuseSizes() {
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

int Segment::Run(PyObject* const* inputs, int64_t* symbols, PyObject** out) {
  if (!graph_runner && !backend_runner && !trace_runner) {  // no operations: every tensor is an input
    for (size_t i = 0; i < recipe.outputs.size(); ++i)
      out[i] = Py_NewRef(inputs[trace->tensors[recipe.outputs[i]].input]);
    int r = 0;
    for (size_t k = 0; r == 0 && k < guesses.size(); ++k) r = Accept(guesses[k].second, out[guesses[k].first]);
    for (size_t i = 0; r < 0 && i < recipe.outputs.size(); ++i) Py_CLEAR(out[i]);
    return r;
  }
  std::optional<tensor::ProfilerRange> range;
  if (tensor::ProfilerOn()) range.emplace(RangeName());
  std::optional<tensor::Undo> before;
  if (undo.needed()) before.emplace(undo, inputs);
  int failed;
  int r = graph_runner     ? graph_runner->Run(inputs, symbols, out)
          : backend_runner ? backend_runner->Run(inputs, symbols, out)
                           : trace_runner->Run(inputs, symbols, out, &failed);
  for (size_t k = 0; r == 0 && !graph_runner && k < guesses.size(); ++k)
    r = Accept(guesses[k].second, out[guesses[k].first]);
  if (r == 0) return failures = 0;
  for (size_t i = 0; i < recipe.outputs.size(); ++i) Py_CLEAR(out[i]);
  if (r == 1) {  // of what data decides
    if (!before || before->Restore()) return 1;
    PyErr_SetString(PyExc_RuntimeError, "framejit: what a run has written cannot be taken back");
    return -2;
  }
  ++failures;
  if (diag::Enabled(diag::Channel::perf_))
    diag::Log(diag::Channel::perf_, "a run ended early and starts over in Python");
  if (r == -1 && changes && !graph_runner && !(before && before->Restore())) return -2;
  if (r == -1 && before && graph_runner) before->Restore();
  return r;
}

int Segment::Try(PyObject** slots_in, FjFrame* frame, PyObject** result) {
  missed = false;
  if (guessed_wrong) return 0;
  absl::FixedArray<PyObject*, 256> inputs(num_inputs);
  absl::FixedArray<int64_t, 256> symbols(num_symbols);
  // Hooks on saved tensors (torch.utils.checkpoint) count what the program itself saves, and raise when they have
  // enough.
  if (trace_runner && tensor::SavedTensorHooks()) return 0;
  if (!guards->Check(slots_in, inputs.data(), symbols.data())) return 0;
  if (left) return kLeft;
  if (failures >= kFailures && ++passed % kRetry) {
    PyErr_SetString(PyExc_RuntimeError, "framejit: failed before");
    return -1;
  }
  for (const FloatOp& op : float_ops) symbols[op.result] = std::bit_cast<int64_t>(op.Eval(symbols.data()));
  size_t n = recipe.outputs.size();
  absl::FixedArray<PyObject*, 16> out(n, nullptr);
  std::optional<SuspendScope> off;
  if (frame) off.emplace();  // the hot path has nothing to suspend
  tensor::AutocastOff plain;
  if (int r = Run(inputs.data(), symbols.data(), out.data())) {
    missed = r == 1;
    return missed ? 0 : r;
  }
  // The common case: one tensor is returned.
  if (returns && n == 1 && recipe.nodes.size() == 1 && recipe.nodes[0].kind == RecipeNode::kOutput && stores.empty() &&
      calls.empty() && cells.empty() && grad_after < 0) {
    *result = out[0];
    ++runs;
    return 1;
  }
  std::vector<Ref> held, values;
  for (size_t i = 0; i < n; ++i) held.emplace_back(out[i]);
  if (recipe.Build(inputs.data() + num_tensor_inputs, out.data(), symbols.data(), num_symbols, &values) < 0)
    return changes ? -2 : -1;
  for (const Store& st : stores) {
    PyObject* d = values[st.dict].get();
    int bad = st.value >= 0 ? PyDict_SetItem(d, values[st.key].get(), values[st.value].get())
                            : PyDict_DelItem(d, values[st.key].get());
    if (bad < 0) return -2;
  }
  for (PendingCall& c : calls) {
    if (std::exchange(c.made, false)) continue;
    std::vector<PyObject*> args;
    for (int node : c.args) args.push_back(values[node].get());
    Ref r(PyObject_Vectorcall(c.method.get(), args.data(), args.size(), nullptr));
    if (!r) return -2;
  }
  for (auto [cell, value] : cells)
    if (PyCell_Set(values[cell].get(), value < 0 ? nullptr : values[value].get()) < 0) return -2;
  if (grad_after >= 0) tensor::SetGradMode(grad_after);
  ++runs;
  if (returns) {
    *result = values[return_node].get();
    Py_INCREF(*result);
    return 1;
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
  return 1;
}

}  // namespace framejit::capture
