#include "codegen/reduction_emitter.h"

#include <limits>

namespace framejit::codegen {

std::vector<ReductionEmitter::State> ReductionEmitter::MakeStates(const Stage& stage, int copies) {
  std::vector<State> states;
  for (int n : stage.insts) {
    const Inst& inst = k_.insts[n];
    if (inst.kind == IKind::kScan) {  // floats in double
      const DType t = IsFloat(inst.dtype) ? DType::kFloat64 : inst.dtype;
      for (int u = 0; u < copies; ++u) {
        scans_[{n, u}] = Slot(ops_.RegisterType(t, lanes_));
        Set(scans_[{n, u}], ops_.Identity(Op::kSum, t, lanes_));
      }
    }
    if (inst.kind != IKind::kReduce) continue;
    State s{.inst = n,
            .op = inst.op,
            .type = ComputeType(inst.dtype),
            .arg = inst.op == Op::kArgMax || inst.op == Op::kArgMin};
    if (s.arg) s.type = ComputeType(k_.insts[inst.operands[0]].dtype);
    if (inst.op == Op::kAny || inst.op == Op::kAll) s.type = DType::kBool;
    for (int u = 0; u < copies; ++u) {
      s.low.push_back(Slot(ops_.RegisterType(s.type, lanes_)));
      Set(s.low[u], ops_.Identity(s.op, s.type, lanes_));
      if (s.arg) {
        s.position.push_back(Slot(ops_.RegisterType(DType::kInt64, lanes_)));
        Set(s.position[u], ops_.Constant(std::numeric_limits<int64_t>::max(), DType::kInt64, lanes_));
      }
    }
    states.push_back(std::move(s));
  }
  return states;
}

void ReductionEmitter::MakeHigh(std::vector<State>& states) {
  for (State& s : states) {
    if (!Sums(s)) continue;
    for (size_t u = 0; u < s.low.size(); ++u) {
      s.high.push_back(Slot(ops_.RegisterType(DType::kFloat64, lanes_)));
      Set(s.high[u], ops_.Identity(Op::kSum, DType::kFloat64, lanes_));
    }
  }
}
void ReductionEmitter::Flush(std::vector<State>& states) {
  for (State& s : states) {
    for (size_t u = 0; u < s.high.size(); ++u) {
      Set(s.high[u], b_.CreateFAdd(Get(s.high[u]), ops_.Cast(Get(s.low[u]), s.type, DType::kFloat64)));
      Set(s.low[u], ops_.Identity(Op::kSum, s.type, lanes_));
    }
  }
}

void ReductionEmitter::Accumulate(State& s, int u, const Copy& copy) {
  const Inst& inst = k_.insts[s.inst];
  Value* x = In(inst.operands[0], copy);
  if (s.arg) {
    Value* position = In(inst.operands[1], copy);
    Value* wins = ops_.Better(s.op, s.type, x, position, Get(s.low[u]), Get(s.position[u]));
    if (copy.mask) wins = b_.CreateAnd(wins, copy.mask);
    Set(s.low[u], b_.CreateSelect(wins, x, Get(s.low[u])));
    Set(s.position[u], b_.CreateSelect(wins, position, Get(s.position[u])));
    return;
  }
  if (copy.mask) x = b_.CreateSelect(copy.mask, x, ops_.Identity(s.op, s.type, lanes_));
  Set(s.low[u], ops_.Combine(s.op, s.type, Get(s.low[u]), x));
}

Value* ReductionEmitter::Horizontal(const State& s, DType t, Value* v, Value* position) {
  for (int n = LanesOf(v); n > 1; n /= 2) {
    std::vector<int> low, high;
    for (int i = 0; i < n / 2; ++i) {
      low.push_back(i);
      high.push_back(i + n / 2);
    }
    auto half = [&](Value* x, const std::vector<int>& lanes) -> Value* {
      if (n == 2) return b_.CreateExtractElement(x, uint64_t(lanes[0]));
      return b_.CreateShuffleVector(x, lanes);
    };
    Value* a = half(v, low);
    Value* z = half(v, high);
    if (s.arg) {
      Value* pa = half(position, low);
      Value* pz = half(position, high);
      Value* wins = ops_.Better(s.op, t, a, pa, z, pz);
      v = b_.CreateSelect(wins, a, z);
      position = b_.CreateSelect(wins, pa, pz);
    } else {
      v = ops_.Combine(s.op, t, a, z);
    }
  }
  return s.arg ? position : v;
}

Value* ReductionEmitter::Finish(const State& s, size_t from, size_t to) {
  const DType t = s.high.empty() ? s.type : DType::kFloat64;
  const auto& slots = s.high.empty() ? s.low : s.high;
  Value* v = Get(slots[from]);
  Value* position = s.arg ? Get(s.position[from]) : nullptr;
  for (size_t u = from + 1; u < to; ++u) {
    Value* x = Get(slots[u]);
    if (s.arg) {
      Value* p = Get(s.position[u]);
      Value* wins = ops_.Better(s.op, t, v, position, x, p);
      v = b_.CreateSelect(wins, v, x);
      position = b_.CreateSelect(wins, position, p);
    } else {
      v = ops_.Combine(s.op, t, v, x);
    }
  }
  if (!k_.column)
    v = Horizontal(s, t, v, position);
  else if (s.arg)
    v = position;
  return s.arg ? v : ops_.Cast(v, t, s.type);
}

}  // namespace framejit::codegen
