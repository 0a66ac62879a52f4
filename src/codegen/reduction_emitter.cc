#include "codegen/reduction_emitter.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace framejit::codegen {

bool SumsInPairs(const Kernel& k, const Stage& stage) {
  return !k.column && stage.loop && std::any_of(stage.insts.begin(), stage.insts.end(), [&](int i) {
    const Inst& inst = k.insts[i];
    return inst.kind == IKind::kReduce && inst.op == Op::kSum && inst.numpys;
  });
}

std::vector<ReductionEmitter::State> ReductionEmitter::MakeStates(const Stage& stage, int copies) {
  std::vector<State> states;
  for (int n : stage.insts) {
    const Inst& inst = k_.insts[n];
    if (inst.kind == IKind::kScan) {
      const DType t = ScanType(inst);
      for (int u = 0; u < copies; ++u) {
        scans_[{n, u}] = Slot(ops_.RegisterType(t, lanes_));
        // NumPy's begin with the first element, whose sign a zero keeps.
        const bool signs = inst.numpys && IsFloat(t);
        Set(scans_[{n, u}], signs ? ops_.Constant(-0.0, t, lanes_) : ops_.Identity(Op::kSum, t, lanes_));
      }
    }
    if (inst.kind != IKind::kReduce) continue;
    State s{.inst = n,
            .op = inst.op,
            .type = ComputeType(inst.dtype),
            .arg = inst.op == Op::kArgMax || inst.op == Op::kArgMin};
    if (s.arg) s.type = ComputeType(k_.insts[inst.operands[0]].dtype);
    if (inst.op == Op::kAny || inst.op == Op::kAll) s.type = DType::kBool;
    // Pairs have eight accumulators however many lanes there are, what is multiplied in order has one.
    s.pairs = inst.numpys && s.op == Op::kSum && !k_.column;
    s.ordered = inst.numpys && s.op == Op::kProd && !k_.column;
    const int lanes = s.ordered ? 1 : s.pairs ? std::min(lanes_, kAccumulators) : lanes_;
    const int slots = s.ordered ? 1 : s.pairs ? kAccumulators / lanes : copies;
    for (int u = 0; u < slots; ++u) {
      s.low.push_back(Slot(ops_.RegisterType(s.type, lanes)));
      Set(s.low[u], ops_.Identity(s.op, s.type, lanes));
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
  if (copy.mask) x = b_.CreateSelect(copy.mask, OfMask(x, copy), ops_.Identity(s.op, s.type, lanes_));
  if (s.ordered) return OneByOne(s.low[0], s, x);
  if (s.pairs && lanes_ > kAccumulators) {
    for (int from = 0; from < lanes_; from += kAccumulators)
      Set(s.low[0], b_.CreateFAdd(Get(s.low[0]), Eight(x, from)));
    return;
  }
  u %= static_cast<int>(s.low.size());
  Set(s.low[u], ops_.Combine(s.op, s.type, Get(s.low[u]), x));
}

Value* ReductionEmitter::Eight(Value* x, int from) {
  std::vector<int> part(kAccumulators);
  std::iota(part.begin(), part.end(), from);
  return b_.CreateShuffleVector(x, part);
}

void ReductionEmitter::OneByOne(llvm::AllocaInst* all, const State& s, Value* x) {
  const int lanes = LanesOf(x);
  for (int lane = 0; lane < lanes; ++lane)
    Set(all,
        ops_.Combine(s.op, s.type, Get(all), lanes == 1 ? x : b_.CreateExtractElement(x, static_cast<uint64_t>(lane))));
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

void ReductionEmitter::Pairwise(Value* from, Value* size, const std::vector<llvm::AllocaInst*>& sums,
                                absl::FunctionRef<void(Value* at, Value* count)> part) {
  constexpr int64_t kPart = 128, kDepth = 64;
  if (auto known = Number(size); known && *known <= kPart) return part(from, size);
  // By level: how many elements the right half has, 0 while that is summed; and the sums of the left half.
  auto *at = Slot(b_.getInt64Ty()), *count = Slot(b_.getInt64Ty()), *level = Slot(b_.getInt64Ty());
  llvm::AllocaInst* rights = Memory(kDepth * 8);
  std::vector<llvm::AllocaInst*> lefts;
  for (size_t i = 0; i < sums.size(); ++i) lefts.push_back(Memory(kDepth * 8));
  auto right = [&] { return b_.CreateGEP(b_.getInt64Ty(), rights, Get(level)); };
  auto left = [&](size_t i) { return b_.CreateGEP(sums[i]->getAllocatedType(), lefts[i], Get(level)); };
  auto deeper = [&](int64_t by) { Set(level, b_.CreateAdd(Get(level), I64(by))); };
  auto *look = Block("pairwise"), *halve = Block("halve"), *leaf = Block("part"), *up = Block("up");
  auto *whose = Block("whose"), *join = Block("join"), *other = Block("right"), *done = Block("summed");
  Set(at, from);
  Set(count, size);
  Set(level, I64(0));
  b_.CreateBr(look);
  b_.SetInsertPoint(look);
  b_.CreateCondBr(b_.CreateICmpSGT(Get(count), I64(kPart)), halve, leaf);
  b_.SetInsertPoint(halve);
  Value* half = b_.CreateAnd(b_.CreateLShr(Get(count), I64(1)), I64(-kAccumulators));
  b_.CreateStore(b_.CreateSub(Get(count), half), right());
  Set(count, half);
  deeper(1);
  b_.CreateBr(look);
  b_.SetInsertPoint(leaf);
  part(Get(at), Get(count));
  Set(at, b_.CreateAdd(Get(at), Get(count)));
  b_.CreateBr(up);
  b_.SetInsertPoint(up);
  b_.CreateCondBr(b_.CreateICmpEQ(Get(level), I64(0)), done, whose);
  b_.SetInsertPoint(whose);
  deeper(-1);
  Value* rest = b_.CreateLoad(b_.getInt64Ty(), right());
  b_.CreateCondBr(b_.CreateICmpEQ(rest, I64(0)), join, other);
  b_.SetInsertPoint(join);
  for (size_t i = 0; i < sums.size(); ++i) {
    Value* first = b_.CreateLoad(sums[i]->getAllocatedType(), left(i));
    Set(sums[i], b_.CreateFAdd(first, Get(sums[i])));
  }
  b_.CreateBr(up);
  b_.SetInsertPoint(other);
  for (size_t i = 0; i < sums.size(); ++i) b_.CreateStore(Get(sums[i]), left(i));
  b_.CreateStore(I64(0), right());
  Set(count, rest);
  deeper(1);
  b_.CreateBr(look);
  b_.SetInsertPoint(done);
}

Value* ReductionEmitter::Neighbours(const State& s) {
  std::vector<Value*> left;
  for (llvm::AllocaInst* slot : s.low) {
    Value* v = Get(slot);
    for (int n = LanesOf(v); n > 1; n /= 2) {
      std::vector<int> even, odd;
      for (int i = 0; i < n; i += 2) {
        even.push_back(i);
        odd.push_back(i + 1);
      }
      auto half = [&](const std::vector<int>& lanes) -> Value* {
        if (n == 2) return b_.CreateExtractElement(v, uint64_t(lanes[0]));
        return b_.CreateShuffleVector(v, lanes);
      };
      v = b_.CreateFAdd(half(even), half(odd));
    }
    left.push_back(v);
  }
  for (; left.size() > 1; left.resize(left.size() / 2))
    for (size_t i = 0; i < left.size() / 2; ++i) left[i] = b_.CreateFAdd(left[2 * i], left[2 * i + 1]);
  return left[0];
}

void ReductionEmitter::PairwiseLoopStage(const Stage& stage, Value* from, Value* size,
                                         absl::FunctionRef<void(absl::FunctionRef<void()>)> rows,
                                         absl::FunctionRef<void(Value* i)> fetch) {
  auto states = MakeStates(stage, std::max(Vectors(), schedule_.unroll));
  MakeHigh(states);
  std::vector<llvm::AllocaInst*> sums, totals;  // of a row, of all rows, by those states that are in pairs
  for (const State& s : states) {
    if (!s.pairs) continue;
    sums.push_back(Slot(ops_.RegisterType(s.type, 1)));
    totals.push_back(Slot(ops_.RegisterType(s.type, 1)));
    Set(totals.back(), ops_.Identity(Op::kSum, s.type, 1));
  }
  Splats(stage);
  rows([&] {
    Pairwise(from, size, sums, [&](Value* at, Value* count) { SumPart(stage, states, sums, at, count, fetch); });
    for (size_t k = 0; k < sums.size(); ++k) Set(totals[k], b_.CreateFAdd(Get(totals[k]), Get(sums[k])));
  });
  size_t k = 0;
  for (const State& s : states) scalar_[s.inst] = s.pairs ? Get(totals[k++]) : Finish(s, 0, s.low.size());
}

// Up to 128 elements: whole eights in the accumulators, several at once where the code is short, and the rest one by
// one.
void ReductionEmitter::SumPart(const Stage& stage, std::vector<State>& states,
                               const std::vector<llvm::AllocaInst*>& sums, Value* at, Value* count,
                               absl::FunctionRef<void(Value* i)> fetch) {
  const int vectors = Vectors(), several = std::max(vectors, schedule_.unroll);
  for (State& s : states) {
    if (!s.pairs) continue;
    for (llvm::AllocaInst* slot : s.low) Set(slot, llvm::Constant::getNullValue(slot->getAllocatedType()));
  }
  Value* from = at;
  for (int unroll = several; unroll; unroll = unroll > vectors ? vectors : 0) {
    const int step = unroll * lanes_;
    Value* limit = Add(at, b_.CreateAnd(count, I64(-step)));
    For(from, limit, step, [&](Value* i) {
      std::vector<Copy> copies(unroll);
      for (int u = 0; u < unroll; ++u) {
        copies[u].number = u;
        copies[u].i = Add(i, I64(u * lanes_));
        fetch(copies[u].i);
      }
      Emit(stage, copies);
      for (State& s : states)
        for (int u = 0; u < unroll; ++u) Accumulate(s, u, copies[u]);
    });
    from = limit;
  }
  // Where a vector has two eights, the first of the last one may be whole.
  const bool wide = lanes_ > kAccumulators;
  std::vector<llvm::AllocaInst*> rests;
  for (const State& s : states) {
    if (!wide || !s.pairs) continue;
    rests.push_back(Slot(ops_.RegisterType(s.type, kAccumulators)));
    Set(rests.back(), llvm::ConstantFP::getNegativeZero(rests.back()->getAllocatedType()));
  }
  const auto neighbours = [&] {
    size_t k = 0;
    for (const State& s : states)
      if (s.pairs) Set(sums[k++], Neighbours(s));
  };
  if (!wide) neighbours();
  Value* end = Add(at, count);
  For(from, end, lanes_, [&](Value* i) {
    std::vector<Copy> copies(1);
    SetMask(copies[0], i, end);
    Emit(stage, copies);
    size_t k = 0;
    for (State& s : states) {
      if (!s.pairs) {
        Accumulate(s, 0, copies[0]);
        continue;
      }
      Value* x = In(k_.insts[s.inst].operands[0], copies[0]);
      x = OfMask(x, copies[0]);
      if (copies[0].mask) x = b_.CreateSelect(copies[0].mask, x, llvm::ConstantFP::getNegativeZero(x->getType()));
      if (!wide) {
        OneByOne(sums[k++], s, x);
        continue;
      }
      Value* whole = b_.CreateICmpSGE(copies[0].valid, I64(kAccumulators));
      Set(s.low[0], b_.CreateSelect(whole, b_.CreateFAdd(Get(s.low[0]), Eight(x, 0)), Get(s.low[0])));
      Set(rests[k++], b_.CreateSelect(whole, Eight(x, kAccumulators), Eight(x, 0)));
    }
  });
  if (wide) {
    neighbours();
    size_t k = 0;
    for (const State& s : states) {
      if (!s.pairs) continue;
      OneByOne(sums[k], s, Get(rests[k]));
      ++k;
    }
  }
  Flush(states);
}

void ReductionEmitter::SetMask(Copy& copy, Value* i, Value* end) {
  copy.i = i;
  if (lanes_ == 1) return;
  copy.valid = b_.CreateSub(end, i);
  Value* lane = LaneNumbers(b_.getInt32Ty());
  Value* valid = b_.CreateTrunc(Min(copy.valid, I64(lanes_)), b_.getInt32Ty());
  copy.mask = b_.CreateICmpULT(lane, b_.CreateVectorSplat(lanes_, valid));
  copy.valid = Min(copy.valid, I64(lanes_));
}

Value* ReductionEmitter::Finish(const State& s, size_t from, size_t to) {
  const DType t = s.high.empty() ? s.type : DType::kFloat64;
  const auto& slots = s.high.empty() ? s.low : s.high;
  Value* v = Get(slots[from]);
  if (s.ordered) return v;
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
