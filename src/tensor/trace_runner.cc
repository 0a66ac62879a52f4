// This file replays a captured trace with the framework, call by call. Slots hold the tensors by TraceId. Inputs are
// borrowed by taking a reference for the run. A temporary is dropped after its last use, as the user's own program
// would do.
#include <absl/container/fixed_array.h>

#include <algorithm>

#include "graph/arguments.h"
#include "tensor/call_step.h"
#include "tensor/tensor.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

namespace {

class Runner : public TraceRunner {
 public:
  bool Init(const Trace& trace, const std::vector<PyObject*>& constants) {
    for (const TraceTensor& t : trace.tensors) num_slots_ = std::max<size_t>(num_slots_, t.id + 1);
    auto slot_of = [&](TraceId id) {
      num_slots_ = std::max<size_t>(num_slots_, id + 1);
      return static_cast<int>(id);
    };
    steps_.resize(trace.calls.size());
    for (size_t i = 0; i < trace.calls.size(); ++i) {
      if (!steps_[i].Init(trace.calls[i], constants, slot_of)) return false;
      (FrameworkOf(trace.calls[i].callee) == Framework::kTorch ? uses_torch_ : uses_numpy_) = true;
    }
    inputs_.assign(trace.inputs.begin(), trace.inputs.end());
    outputs_.assign(trace.outputs.begin(), trace.outputs.end());
    for (TraceId id : inputs_) slot_of(id);
    for (TraceId id : outputs_) slot_of(id);
    std::vector<int> last(num_slots_, -1);
    for (size_t i = 0; i < trace.calls.size(); ++i) {
      auto use = [&](TraceId id) { last[id] = static_cast<int>(i); };
      EachTensor(trace.calls[i], use);
      for (TraceId id : trace.calls[i].results) use(id);
    }
    for (TraceId id : inputs_) last[id] = -1;
    for (TraceId id : outputs_) last[id] = -1;
    for (size_t id = 0; id < num_slots_; ++id) {
      if (last[id] >= 0) steps_[last[id]].dead.push_back(static_cast<int>(id));
    }
    conditions_ = trace.conditions;
    for (const shape::Guard& g : conditions_)
      for (shape::Int e : {g.lhs, g.rhs})
        e.ForEachSymbol([&](uint32_t id) { num_symbols_ = std::max<size_t>(num_symbols_, id + 1); });
    for (const Trace::DataSymbol& d : trace.data_symbols)
      for (size_t i = 0; i < trace.calls.size(); ++i) {
        const auto& made = trace.calls[i].results;
        if (std::find(made.begin(), made.end(), d.tensor) == made.end()) continue;
        sizes_.push_back({static_cast<int>(i), trace.tensors[d.tensor].meta.sizes.size(), d});
        break;
      }
    std::stable_sort(sizes_.begin(), sizes_.end(), [](auto& a, auto& b) { return a.call < b.call; });
    return true;
  }

  RunEnd Run(PyObject* const* inputs, int64_t* symbols, PyObject** outputs, int* failed_call) override {
    absl::FixedArray<PyObject*, 64> slots(num_slots_, nullptr);
    for (size_t i = 0; i < inputs_.size(); ++i) slots[inputs_[i]] = Py_NewRef(inputs[i]);
    RunEnd end = RunEnd::kOk;
    {
      std::optional<ModeSwitch> modes;
      std::optional<NumpyRaises> raises;
      if (uses_torch_) modes.emplace();
      if (uses_numpy_) raises.emplace();
      size_t known = 0;
      for (size_t i = 0; i < steps_.size(); ++i) {
        const CallStep& s = steps_[i];
        if (modes) modes->Set(s.mode);
        if (s.Run(slots.data(), symbols) < 0) {
          if (failed_call) *failed_call = static_cast<int>(i);
          end = EndOfCall();
          break;
        }
        for (; known < sizes_.size() && sizes_[known].call == static_cast<int>(i); ++known) {
          const Trace::DataSymbol& d = sizes_[known].symbol;
          Meta m;
          if (!ReadMeta(slots[d.tensor], &m) || static_cast<size_t>(m.rank) != sizes_[known].rank) {
            end = RunEnd::kCondition;  // a number that is no size
            break;
          }
          symbols[d.symbol] = d.dim < m.rank ? m.sizes[d.dim] : m.strides[d.dim - m.rank];
        }
        if (end != RunEnd::kOk) break;
        for (int d : s.dead) Py_CLEAR(slots[d]);
      }
    }
    for (const shape::Guard& g : conditions_)
      if (end == RunEnd::kOk && !g.Holds({symbols, num_symbols_})) end = RunEnd::kCondition;
    for (size_t i = 0; end == RunEnd::kOk && i < outputs_.size(); ++i) {
      if (!slots[outputs_[i]]) {
        PyErr_Format(PyExc_SystemError, "framejit: output %zu was never made", i);
        if (failed_call) *failed_call = -1;
        for (size_t j = 0; j < i; ++j) Py_CLEAR(outputs[j]);
        end = RunEnd::kInternal;
        break;
      }
      outputs[i] = Py_NewRef(slots[outputs_[i]]);
    }
    for (size_t i = 0; i < num_slots_; ++i) Py_XDECREF(slots[i]);
    return end;
  }

 private:
  std::vector<CallStep> steps_;
  std::vector<TraceId> inputs_, outputs_;
  struct Size {
    int call;
    size_t rank;  // of the result that has it
    Trace::DataSymbol symbol;
  };
  std::vector<Size> sizes_;  // in the order in which they become known
  std::vector<shape::Guard> conditions_;
  size_t num_symbols_ = 0;
  size_t num_slots_ = 0;
  bool uses_torch_ = false, uses_numpy_ = false;
};

}  // namespace

std::unique_ptr<TraceRunner> MakeTraceRunner(const Trace& trace, const std::vector<PyObject*>& constants) {
  auto r = std::make_unique<Runner>();
  if (!r->Init(trace, constants)) throw std::runtime_error(TakeErrorText());  // steps hold the constants they use
  return r;
}

}  // namespace framejit::tensor
