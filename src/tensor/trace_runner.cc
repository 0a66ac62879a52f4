// This file replays a captured trace with the framework, call by call. Slots hold the tensors by TraceId. Inputs are
// borrowed by taking a reference for the run. A temporary is dropped after its last use, as the user's own program
// would do.
#include <absl/container/fixed_array.h>

#include <algorithm>
#include <unordered_map>

#include "graph/arguments.h"
#include "tensor/call_step.h"
#include "tensor/tensor.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

namespace {

// The calls, for all who run them.
struct Program {
  std::vector<CallStep> steps;
  std::vector<TraceId> inputs;
  std::vector<int> last;  // By slot: the last call that reads or makes it; -1: an input, or nothing does.
  struct Size {
    int call;
    size_t rank;  // of the result that has it
    Trace::DataSymbol symbol;
  };
  std::vector<Size> sizes;  // in the order in which they become known
  std::vector<shape::Guard> conditions;
  size_t num_symbols = 0;
  bool uses_torch = false, uses_numpy = false;

  bool Init(const Trace& trace, const std::vector<PyObject*>& constants) {
    size_t num_slots = 0;
    auto slot_of = [&](TraceId id) {
      num_slots = std::max<size_t>(num_slots, id + 1);
      return static_cast<int>(id);
    };
    for (const TraceTensor& t : trace.tensors) slot_of(t.id);
    steps.resize(trace.calls.size());
    std::unordered_map<const void*, Ref> callables;  // by callee
    for (size_t i = 0; i < trace.calls.size(); ++i) {
      Ref& known = callables[trace.calls[i].callee.id()];
      if (!known) known = Ref(ResolveCallee(trace.calls[i].callee));
      if (!known || !steps[i].Init(trace.calls[i], constants, slot_of, known.get())) return false;
      (FrameworkOf(trace.calls[i].callee) == Framework::kTorch ? uses_torch : uses_numpy) = true;
    }
    inputs.assign(trace.inputs.begin(), trace.inputs.end());
    for (TraceId id : inputs) slot_of(id);
    for (TraceId id : trace.outputs) slot_of(id);
    last.assign(num_slots, -1);
    for (size_t i = 0; i < trace.calls.size(); ++i) {
      auto use = [&](TraceId id) { last[id] = static_cast<int>(i); };
      EachTensor(trace.calls[i], use);
      for (TraceId id : trace.calls[i].results) use(id);
    }
    for (TraceId id : inputs) last[id] = -1;
    conditions = trace.conditions;
    for (const shape::Guard& g : conditions)
      for (shape::Int e : {g.lhs, g.rhs})
        e.ForEachSymbol([&](uint32_t id) { num_symbols = std::max<size_t>(num_symbols, id + 1); });
    for (const Trace::DataSymbol& d : trace.data_symbols)
      for (size_t i = 0; i < trace.calls.size(); ++i) {
        const auto& made = trace.calls[i].results;
        if (std::find(made.begin(), made.end(), d.tensor) == made.end()) continue;
        sizes.push_back({static_cast<int>(i), trace.tensors[d.tensor].meta.sizes.size(), d});
        break;
      }
    std::stable_sort(sizes.begin(), sizes.end(), [](auto& a, auto& b) { return a.call < b.call; });
    return true;
  }
};

class Runner : public TraceRunner {
 public:
  Runner(std::shared_ptr<const Program> program, std::vector<TraceId> outputs)
      : program_(std::move(program)), outputs_(std::move(outputs)) {
    const std::vector<int>& last = program_->last;
    std::vector<bool> stays(last.size());
    for (TraceId id : outputs_) stays.at(id) = true;
    for (size_t id = 0; id < last.size(); ++id)
      if (last[id] >= 0 && !stays[id]) dead_.push_back(static_cast<int>(id));
    std::stable_sort(dead_.begin(), dead_.end(), [&](int a, int b) { return last[a] < last[b]; });
  }

  std::unique_ptr<TraceRunner> With(const std::vector<TraceId>& outputs) const override {
    return std::make_unique<Runner>(program_, outputs);
  }

  RunEnd Run(PyObject* const* inputs, int64_t* symbols, PyObject** outputs, int* failed_call) override {
    const Program& p = *program_;
    absl::FixedArray<PyObject*, 64> slots(p.last.size(), nullptr);
    for (size_t i = 0; i < p.inputs.size(); ++i) slots[p.inputs[i]] = Py_NewRef(inputs[i]);
    RunEnd end = RunEnd::kOk;
    {
      std::optional<ModeSwitch> modes;
      std::optional<NumpyRaises> raises;
      if (p.uses_torch) modes.emplace();
      if (p.uses_numpy) raises.emplace();
      size_t known = 0, dropped = 0;
      for (size_t i = 0; i < p.steps.size(); ++i) {
        const CallStep& s = p.steps[i];
        if (modes) modes->Set(s.mode);
        if (s.Run(slots.data(), symbols) < 0) {
          if (failed_call) *failed_call = static_cast<int>(i);
          end = EndOfCall();
          break;
        }
        for (; known < p.sizes.size() && p.sizes[known].call == static_cast<int>(i); ++known) {
          const Trace::DataSymbol& d = p.sizes[known].symbol;
          Meta m;
          if (!ReadMeta(slots[d.tensor], &m) || static_cast<size_t>(m.rank) != p.sizes[known].rank) {
            end = RunEnd::kCondition;  // a number that is no size
            break;
          }
          symbols[d.symbol] = d.dim < m.rank ? m.sizes[d.dim] : m.strides[d.dim - m.rank];
        }
        if (end != RunEnd::kOk) break;
        for (; dropped < dead_.size() && p.last[dead_[dropped]] == static_cast<int>(i); ++dropped)
          Py_CLEAR(slots[dead_[dropped]]);
      }
    }
    for (const shape::Guard& g : p.conditions)
      if (end == RunEnd::kOk && !g.Holds({symbols, p.num_symbols})) end = RunEnd::kCondition;
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
    for (PyObject* o : slots) Py_XDECREF(o);
    return end;
  }

 private:
  std::shared_ptr<const Program> program_;
  std::vector<TraceId> outputs_;
  std::vector<int> dead_;  // The slots that are dropped, in the order of the calls that nothing reads them behind.
};

}  // namespace

std::unique_ptr<TraceRunner> MakeTraceRunner(const Trace& trace, const std::vector<PyObject*>& constants) {
  auto program = std::make_shared<Program>();
  if (!program->Init(trace, constants)) throw std::runtime_error(TakeErrorText());  // steps hold the constants they use
  return std::make_unique<Runner>(std::move(program), trace.outputs);
}

}  // namespace framejit::tensor
