#include "codegen/instruction_emitter.h"

#include <algorithm>

#include "codegen/math.h"
#include "graph/raises.h"

namespace framejit::codegen {
namespace {

llvm::Align AlignmentOf(DType t) {  // complex numbers lie as their parts do
  return llvm::Align(IsComplex(t) ? DTypeSize(t) / 2 : DTypeSize(t));
}

}  // namespace

void InstructionEmitter::Splats(const Stage& stage) {
  std::vector<bool> here(k_.insts.size(), false);
  for (int n : stage.insts) here[n] = true;
  for (int n : stage.insts) {
    if (uniform_[n] && k_.insts[n].kind != IKind::kReduce) continue;
    auto want = [&](int o) {
      if (o < 0 || !uniform_[o] || here[o] || splat_[o] || !scalar_[o]) return;
      if (lanes_ > 1) splat_[o] = b_.CreateVectorSplat(lanes_, scalar_[o]);
    };
    for (int o : k_.insts[n].operands) want(o);
  }
}

Value* InstructionEmitter::In(int n, const Copy& copy) {
  if (!uniform_[n]) return copy.values[n];
  if (lanes_ == 1) return scalar_[n];
  if (llvm::isa<llvm::Constant>(scalar_[n])) return b_.CreateVectorSplat(lanes_, scalar_[n]);
  if (!splat_[n]) return b_.CreateVectorSplat(lanes_, scalar_[n]);
  return splat_[n];
}

void InstructionEmitter::Emit(const Stage& stage, std::vector<Copy>& copies) {
  for (Copy& c : copies) {
    if (c.values.empty()) c.values.assign(k_.insts.size(), nullptr);
  }
  for (int n : stage.insts) {
    const Inst& inst = k_.insts[n];
    if (inst.kind == IKind::kReduce) continue;
    if (uniform_[n]) {
      splat_[n] = nullptr;
      EmitScalar(n, inst, nullptr);
    } else {
      for (Copy& c : copies) c.values[n] = EmitVector(n, inst, c);
    }
  }
}

void InstructionEmitter::Emit(const Stage& stage, std::vector<Copy>&& copies) {
  Emit(stage, copies);
}

Value* InstructionEmitter::Position(int n, const Inst& inst, Value* i) {  // of iota, inbounds
  Value* v = base_[n];
  for (size_t d = 0; d < red_.size(); ++d) {
    if (!IsZero(inst.index.red[d])) v = Add(v, Mul(red_[d], IntOf(inst.index.red[d])));
  }
  if (i && !IsZero(inst.index.inner)) v = Add(v, Mul(i, IntOf(inst.index.inner)));
  return v;
}

Value* InstructionEmitter::Offset(const Inst& inst, Value* i) {
  Value* v = I64(0);
  for (size_t d = 0; d < red_.size(); ++d) {
    if (!IsZero(inst.index.red[d])) v = Add(v, Mul(red_[d], IntOf(inst.index.red[d])));
  }
  if (i) v = Add(v, Mul(i, IntOf(inst.index.inner)));
  if (inst.kind == IKind::kLoadAt) {
    for (size_t o = 0; o < inst.operands.size(); ++o) {
      if (uniform_[inst.operands[o]] || lanes_ == 1) v = Add(v, Mul(scalar_[inst.operands[o]], IntOf(inst.strides[o])));
    }
  }
  return v;
}

Value* InstructionEmitter::LoadScalar(int n, const Inst& inst, Value* offset, Value* predicate) {
  const DType t = MemoryType(inst);
  Value* p = Element(inst, pointer_[n], offset);
  if (predicate) p = b_.CreateSelect(predicate, p, zeros_);
  Value* v = b_.CreateAlignedLoad(ops_.StorageType(t, 1), p, AlignmentOf(t));
  if (!predicate || !k_.ieee) return ops_.FromStorage(v, t);
  return Kept(ops_.FromStorage(b_.CreateSelect(predicate, v, Nothing(v->getType(), t)), t));
}

// What stands for elements that are not there is computed with, too, and LLVM, which sees that nobody asks for the
// result, would take any other value for it: one that raises.
Value* InstructionEmitter::Kept(Value* v) {
  return k_.ieee && v->getType()->isFPOrFPVectorTy() ? ops_.Opaque(v) : v;
}

// What was computed of such ones may be anything: 1 - 1 divides by zero. An operation that costs more than the choice
// is given 1 there.
bool InstructionEmitter::Spares(int n) const {
  const Inst& inst = k_.insts[n];
  return k_.ieee && meant_[n] >= 0 && Info(inst.op).cost > 1 && MayRaise(inst.op, OperandType(inst), inst.dtype);
}

void InstructionEmitter::Spare(const Inst& inst, Value* where, std::vector<Value*>& operands) {
  for (size_t o = 0; o < operands.size(); ++o) {
    const Inst& from = k_.insts[inst.operands[o]];
    if (from.kind != IKind::kOp || meant_[inst.operands[o]] < 0) continue;
    const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(operands[o]->getType());
    llvm::Constant* one = ops_.Constant(Scalar(1), from.dtype, vector ? lanes_ : 1);
    operands[o] = Kept(b_.CreateSelect(where, operands[o], one));
  }
}

void InstructionEmitter::EmitScalar(int n, const Inst& inst, Value* i) {
  auto operands = [&] {
    std::vector<Value*> v;
    for (int o : inst.operands) v.push_back(scalar_[o]);
    return v;
  };
  Value*& out = scalar_[n];
  switch (inst.kind) {
    case IKind::kConst: out = ops_.Constant(inst.scalar, inst.dtype, 1); break;
    case IKind::kSym: out = ops_.Cast(IntOf(inst.sym), DType::kInt64, inst.dtype); break;
    case IKind::kIota: out = ops_.Cast(Position(n, inst, i), DType::kInt64, inst.dtype); break;
    case IKind::kInBounds: out = b_.CreateICmpULT(Position(n, inst, i), IntOf(inst.sym)); break;
    case IKind::kOp: {
      auto v = operands();
      if (Spares(n)) Spare(inst, scalar_[meant_[n]], v);
      out = ops_.Emit(inst.op, inst.dtype, OperandType(inst), v);
      break;
    }
    case IKind::kLoad:
    case IKind::kLoadAt:
      out = LoadScalar(n, inst, Offset(inst, i), inst.predicate >= 0 ? scalar_[inst.predicate] : nullptr);
      break;
    case IKind::kStore: {
      const DType t = MemoryType(inst);
      Value* v = scalar_[inst.operands[0]];
      b_.CreateAlignedStore(ops_.ToStorage(v, t), Element(inst, pointer_[n], Offset(inst, i)), AlignmentOf(t));
      break;
    }
    case IKind::kCheck: Note(b_, scalar_[inst.operands[0]], inst.scalar.AsInt()); break;
    case IKind::kReduce:
    case IKind::kScan: break;
  }
}

DType InstructionEmitter::OperandType(const Inst& inst) const {
  const int which = inst.op == Op::kWhere ? 1 : 0;
  return k_.insts[inst.operands[which]].dtype;
}

Value* InstructionEmitter::EmitVector(int n, const Inst& inst, Copy& copy) {
  if (inst.kind == IKind::kScan) {
    auto* slot = scans_.at({n, copy.number});
    const DType t = ScanType(inst);
    Value* sum =
        ops_.Combine(Op::kSum, t, Get(slot), ops_.Cast(In(inst.operands[0], copy), ComputeType(inst.dtype), t));
    Set(slot, sum);
    return scalar_[n] = ops_.Cast(sum, t, inst.dtype);
  }
  if (lanes_ == 1) {
    EmitScalar(n, inst, copy.i);
    return scalar_[n];
  }
  switch (inst.kind) {
    case IKind::kOp: {
      std::vector<Value*> v;
      for (int o : inst.operands) v.push_back(In(o, copy));
      if (Spares(n)) Spare(inst, And(copy.mask, In(meant_[n], copy)), v);  // in other lanes nothing was loaded, too
      return ops_.Emit(inst.op, inst.dtype, OperandType(inst), v);
    }
    case IKind::kIota: return Iota(n, inst, copy);
    case IKind::kInBounds: {
      if (IsOne(inst.index.inner)) {  // lanes [-at, bound - at): compared in 32 bits
        Value* at = Position(n, inst, copy.i);
        Value* low = Clamp(b_.CreateNeg(at));
        Value* high = Clamp(b_.CreateSub(IntOf(inst.sym), at));
        Value* lane = LaneNumbers(b_.getInt32Ty());
        return b_.CreateAnd(b_.CreateICmpSGE(lane, b_.CreateVectorSplat(lanes_, low)),
                            b_.CreateICmpSLT(lane, b_.CreateVectorSplat(lanes_, high)));
      }
      return b_.CreateICmpULT(Lanes64(Position(n, inst, copy.i), inst), b_.CreateVectorSplat(lanes_, IntOf(inst.sym)));
    }
    case IKind::kLoad:
    case IKind::kLoadAt: return LoadVector(n, inst, copy);
    case IKind::kStore: StoreVector(n, inst, copy); return nullptr;
    case IKind::kCheck: {
      Value* bad = In(inst.operands[0], copy);
      Note(b_, copy.mask ? b_.CreateAnd(bad, copy.mask) : bad, inst.scalar.AsInt());
      return nullptr;
    }
    default: throw CodegenUnsupported("instruction in a vector");
  }
}

Value* InstructionEmitter::Clamp(Value* v) {  // to [0, lanes], as i32
  Value* low = b_.CreateSelect(b_.CreateICmpSLT(v, I64(0)), I64(0), v);
  return b_.CreateTrunc(Min(low, I64(lanes_)), b_.getInt32Ty());
}

Value* InstructionEmitter::Lanes64(Value* first, const Inst& inst) {
  Value* steps = b_.CreateMul(LaneNumbers(b_.getInt64Ty()), b_.CreateVectorSplat(lanes_, IntOf(inst.index.inner)));
  return b_.CreateAdd(b_.CreateVectorSplat(lanes_, first), steps);
}

Value* InstructionEmitter::Iota(int n, const Inst& inst, const Copy& copy) {
  Value* first = Position(n, inst, copy.i);
  if (!IsFloat(inst.dtype)) return ops_.Cast(Lanes64(first, inst), DType::kInt64, inst.dtype);
  // This is exact in f64, and cheaper than converting 64-bit lanes.
  Value* at = b_.CreateVectorSplat(lanes_, b_.CreateSIToFP(first, b_.getDoubleTy()));
  Value* step = b_.CreateVectorSplat(lanes_, b_.CreateSIToFP(IntOf(inst.index.inner), b_.getDoubleTy()));
  Value* v = b_.CreateFAdd(at, b_.CreateFMul(LaneNumbers(b_.getDoubleTy()), step));
  return ops_.Cast(v, DType::kFloat64, inst.dtype);
}

bool InstructionEmitter::NativeMask(DType t) const {
  return isa_.avx512 || DTypeSize(t) >= 4;
}

Value* InstructionEmitter::And(Value* a, Value* b) {
  return !a ? b : !b ? a : b_.CreateAnd(a, b);
}

bool InstructionEmitter::IndirectVector(const Inst& inst) const {
  if (inst.kind != IKind::kLoadAt) return false;
  return std::any_of(inst.operands.begin(), inst.operands.end(), [&](int o) { return !uniform_[o]; });
}

Value* InstructionEmitter::LoadVector(int n, const Inst& inst, const Copy& copy) {
  const DType t = MemoryType(inst);
  const llvm::Align align(DTypeSize(t));
  Value* predicate = inst.predicate >= 0 ? In(inst.predicate, copy) : nullptr;
  Value* offset = Offset(inst, copy.i);
  if (!IndirectVector(inst)) {
    if (IsZero(inst.index.inner)) {  // under a predicate that varies
      Value* any = b_.CreateOrReduce(And(copy.mask, predicate));
      Value* nothing = ops_.FromStorage(Nothing(ops_.StorageType(t, lanes_), t), t);
      Value* all = b_.CreateVectorSplat(lanes_, LoadScalar(n, inst, offset, any));
      return Kept(b_.CreateSelect(predicate, all, nothing));
    }
    llvm::Type* type = ops_.StorageType(t, lanes_);
    if (IsOne(inst.index.inner)) {
      Value* p = Element(inst, pointer_[n], offset);
      if (predicate && uniform_[inst.predicate] && !k_.ieee) {  // the whole row or nothing of it
        p = b_.CreateSelect(scalar_[inst.predicate], p, zeros_);
        predicate = nullptr;
      }
      Value* mask = And(copy.mask, predicate);
      if (!mask) return ops_.FromStorage(b_.CreateAlignedLoad(type, p, align), t);
      if (!predicate && !NativeMask(t)) return ops_.FromStorage(LoadThroughMemory(type, t, p, copy), t);
      if (!NativeMask(t)) return Kept(ops_.FromStorage(LoadSome(type, p, align, mask, Nothing(type, t)), t));
      if (predicate) return Kept(ops_.FromStorage(b_.CreateMaskedLoad(type, p, align, mask, Nothing(type, t)), t));
      return ops_.FromStorage(b_.CreateMaskedLoad(type, p, align, mask, Absent(type, p, align)), t);
    }
    if (inst.index.inner == Int(-1) && !copy.mask && !predicate) {
      Value* p = Element(inst, pointer_[n], b_.CreateSub(offset, I64(lanes_ - 1)));
      std::vector<int> reverse;
      for (int i = lanes_; i-- > 0;) reverse.push_back(i);
      return ops_.FromStorage(b_.CreateShuffleVector(b_.CreateAlignedLoad(type, p, align), reverse), t);
    }
  }
  Value* v = ops_.FromStorage(Gather(n, inst, copy, offset, predicate), t);
  return predicate ? Kept(v) : v;
}

llvm::Constant* InstructionEmitter::Nothing(llvm::Type* storage, DType t) {
  if (k_.ieee && storage->isFPOrFPVectorTy()) return llvm::ConstantFP::get(storage, 1);
  if (k_.ieee && t == DType::kFloat16) return llvm::ConstantInt::get(storage, 0x3C00);
  if (k_.ieee && t == DType::kBFloat16) return llvm::ConstantInt::get(storage, 0x3F80);
  if (k_.ieee && storage->isIntOrIntVectorTy()) return llvm::ConstantInt::get(storage, 1);
  return llvm::Constant::getNullValue(storage);
}

Value* InstructionEmitter::Absent(llvm::Type* type, Value* p, llvm::Align align) {
  if (!k_.ieee) return llvm::Constant::getNullValue(type);
  return b_.CreateVectorSplat(lanes_, b_.CreateAlignedLoad(type->getScalarType(), p, align));
}

Value* InstructionEmitter::LoadThroughMemory(llvm::Type* type, DType t, Value* p, const Copy& copy) {
  auto* memory = Memory(DTypeSize(t) * lanes_);
  b_.CreateAlignedStore(Absent(type, p, llvm::Align(DTypeSize(t))), memory, llvm::Align(64));
  b_.CreateMemCpy(memory, llvm::Align(64), p, llvm::Align(DTypeSize(t)), Mul(copy.valid, I64(DTypeSize(t))));
  return b_.CreateAlignedLoad(type, memory, llvm::Align(64));
}

// The element at p, if that lane of the mask has one.
Value* InstructionEmitter::LoadLane(Value* p, llvm::Align align, Value* mask, llvm::Constant* absent, int lane) {
  llvm::Type* type = absent->getType()->getScalarType();
  Value* there = b_.CreateExtractElement(mask, uint64_t(lane));
  Value* element = b_.CreateAlignedLoad(type, b_.CreateSelect(there, p, zeros_), align);
  return b_.CreateSelect(there, element, absent->getAggregateElement(lane));
}

Value* InstructionEmitter::LoadSome(llvm::Type* type, Value* p, llvm::Align align, Value* mask,
                                    llvm::Constant* absent) {
  auto* all = Block("all");
  auto* check = Block("check");
  auto* some = Block("some");
  auto* join = Block("join");
  auto* result = Slot(type);
  b_.CreateCondBr(b_.CreateAndReduce(mask), all, check);
  b_.SetInsertPoint(all);
  Set(result, b_.CreateAlignedLoad(type, p, align));
  b_.CreateBr(join);
  b_.SetInsertPoint(check);
  Set(result, absent);
  b_.CreateCondBr(b_.CreateOrReduce(mask), some, join);
  b_.SetInsertPoint(some);
  Value* v = absent;
  for (int lane = 0; lane < lanes_; ++lane) {
    Value* at = b_.CreateConstGEP1_64(type->getScalarType(), p, lane);
    v = b_.CreateInsertElement(v, LoadLane(at, align, mask, absent, lane), uint64_t(lane));
  }
  Set(result, v);
  b_.CreateBr(join);
  b_.SetInsertPoint(join);
  return Get(result);
}

Value* InstructionEmitter::IndirectIndex(const Inst& inst,
                                         const Copy& copy) {  // i64 vector, 0 in lanes that do not exist
  Value* index = nullptr;
  for (size_t o = 0; o < inst.operands.size(); ++o) {
    if (uniform_[inst.operands[o]]) continue;
    Value* v = In(inst.operands[o], copy);
    if (!IsOne(inst.strides[o])) v = b_.CreateMul(v, b_.CreateVectorSplat(lanes_, IntOf(inst.strides[o])));
    index = index ? b_.CreateAdd(index, v) : v;
  }
  if (index && copy.mask) index = b_.CreateSelect(copy.mask, index, llvm::Constant::getNullValue(index->getType()));
  return index;
}

Value* InstructionEmitter::Gather(int n, const Inst& inst, const Copy& copy, Value* offset, Value* predicate) {
  const DType t = MemoryType(inst);
  const llvm::Align align(DTypeSize(t));
  llvm::Type* type = ops_.StorageType(t, lanes_);
  Value* indirect = IndirectIndex(inst, copy);
  Value* stride = IntOf(inst.index.inner);
  if (isa_.avx512 && DTypeSize(t) >= 4) {
    Value* at = Lanes64(offset, inst);
    if (indirect) at = b_.CreateAdd(at, indirect);
    Value* pointers = b_.CreateGEP(type->getScalarType(), pointer_[n], at);
    Value* mask = And(copy.mask, predicate);
    if (!mask) mask = llvm::Constant::getAllOnesValue(llvm::FixedVectorType::get(b_.getInt1Ty(), lanes_));
    return b_.CreateMaskedGather(type, pointers, align, mask, Nothing(type, t));
  }
  Value* v = llvm::PoisonValue::get(type);
  for (int lane = 0; lane < lanes_; ++lane) {
    Value* p = LanePointer(n, inst, copy, offset, stride, indirect, lane);
    // Lanes that do not exist point to the last that does, of which their own predicate says nothing.
    Value* element = predicate ? LoadLane(p, align, And(copy.mask, predicate), Nothing(type, t), lane)
                               : b_.CreateAlignedLoad(type->getScalarType(), p, align);
    v = b_.CreateInsertElement(v, element, uint64_t(lane));
  }
  return v;
}

Value* InstructionEmitter::LanePointer(int n, const Inst& inst, const Copy& copy, Value* offset, Value* stride,
                                       Value* indirect, int lane) {
  Value* number = I64(lane);
  if (copy.mask && lane > 0) number = Min(number, b_.CreateSub(copy.valid, I64(1)));
  Value* at = Add(Add(offset, Mul(number, stride)), I64(0));
  if (indirect) at = b_.CreateAdd(at, b_.CreateExtractElement(indirect, uint64_t(lane)));
  return Element(inst, pointer_[n], at);
}

void InstructionEmitter::StoreVector(int n, const Inst& inst, const Copy& copy) {
  const DType t = MemoryType(inst);
  const llvm::Align align(DTypeSize(t));
  Value* v = ops_.ToStorage(OfMask(In(inst.operands[0], copy), copy), t);
  Value* offset = Offset(inst, copy.i);
  if (IsOne(inst.index.inner)) {
    Value* p = Element(inst, pointer_[n], offset);
    if (!copy.mask) {
      const bool streams = stream_ && Streams(inst);
      auto* store =
          b_.CreateAlignedStore(v, p, streams ? llvm::Align(std::min<int64_t>(kLine, DTypeSize(t) * lanes_)) : align);
      if (streams) {
        auto* one = llvm::ConstantAsMetadata::get(b_.getInt32(1));
        store->setMetadata(llvm::LLVMContext::MD_nontemporal, llvm::MDNode::get(m_.getContext(), one));
      }
    } else if (NativeMask(t)) {
      b_.CreateMaskedStore(v, p, align, copy.mask);
    } else {
      auto* memory = Memory(DTypeSize(t) * lanes_);
      b_.CreateAlignedStore(v, memory, llvm::Align(64));
      b_.CreateMemCpy(p, align, memory, llvm::Align(64), Mul(copy.valid, I64(DTypeSize(t))));
    }
    return;
  }
  Value* stride = IntOf(inst.index.inner);
  if (isa_.avx512 && DTypeSize(t) >= 4) {
    Value* pointers = b_.CreateGEP(v->getType()->getScalarType(), pointer_[n], Lanes64(offset, inst));
    Value* mask =
        copy.mask ? copy.mask : llvm::Constant::getAllOnesValue(llvm::FixedVectorType::get(b_.getInt1Ty(), lanes_));
    b_.CreateMaskedScatter(v, pointers, align, mask);
    return;
  }
  // Backwards, so that the last lane that exists is the last to write where the ones past the end point to as well.
  for (int lane = lanes_; lane-- > 0;) {
    Value* p = LanePointer(n, inst, copy, offset, stride, nullptr, lane);
    if (copy.mask && lane > 0) {
      if (!sink_) sink_ = Memory(64);
      p = b_.CreateSelect(b_.CreateICmpSLT(I64(lane), copy.valid), p, sink_);
    }
    b_.CreateAlignedStore(b_.CreateExtractElement(v, uint64_t(lane)), p, align);
  }
}

Value* InstructionEmitter::CanStream() {
  constexpr int64_t kShort = 512;  // elements
  if (!k_.stream) return nullptr;
  const Inst* first = nullptr;
  // Can each row begin with what lies before its first whole line? That pays where rows are long.
  heads_ = !k_.column && !(k_.inner.is_const() && k_.inner.value() < kShort);
  for (const Stage& stage : k_.stages) {
    const auto is = [&](auto kind) {
      return std::any_of(stage.insts.begin(), stage.insts.end(), [&](int n) { return kind(k_.insts[n]); });
    };
    const bool sums = is([](const Inst& inst) { return inst.kind == IKind::kReduce || inst.kind == IKind::kScan; });
    for (int n : stage.insts) {
      const Inst& inst = k_.insts[n];
      if (!Streams(inst)) continue;
      if (!first) first = &inst;
      const bool alike = inst.index == first->index && DTypeSize(MemoryType(inst)) == DTypeSize(MemoryType(*first));
      heads_ = heads_ && !sums && alike;
    }
  }
  if (!first) return nullptr;
  Value* const of_first = b_.CreatePtrToInt(buffers_[first->buffer], b_.getInt64Ty());
  Value* misaligned = heads_ ? b_.CreateAnd(of_first, I64(DTypeSize(MemoryType(*first)) - 1)) : I64(0);
  Value* apart = b_.getTrue();
  for (const Inst& inst : k_.insts) {
    if (!Streams(inst)) continue;
    Value* address = b_.CreatePtrToInt(buffers_[inst.buffer], b_.getInt64Ty());
    if (heads_) {
      address = b_.CreateXor(address, of_first);
    } else {
      Value* steps = IntOf(inst.index.offset);
      for (Int stride : inst.index.outer) steps = b_.CreateOr(steps, IntOf(stride));
      for (Int stride : inst.index.red) steps = b_.CreateOr(steps, IntOf(stride));
      address = b_.CreateOr(address, b_.CreateMul(steps, I64(DTypeSize(MemoryType(inst)))));
    }
    misaligned = b_.CreateOr(misaligned, address);
    for (size_t other = 0; other < k_.buffers.size(); ++other) {
      if (static_cast<int>(other) == inst.buffer) continue;
      apart = b_.CreateAnd(apart, b_.CreateICmpNE(buffers_[other], buffers_[inst.buffer]));
    }
  }
  return b_.CreateAnd(apart, b_.CreateICmpEQ(b_.CreateAnd(misaligned, I64(kLine - 1)), I64(0)));
}

Value* InstructionEmitter::FirstLine(const Stage& stage, Value* begin, Value* end) {
  if (!stream_ || !heads_) return nullptr;
  for (int n : stage.insts) {
    const Inst& inst = k_.insts[n];
    if (!Streams(inst)) continue;
    const int64_t size = DTypeSize(MemoryType(inst));
    Value* at = b_.CreatePtrToInt(Element(inst, pointer_[n], Add(Offset(inst, begin), I64(0))), b_.getInt64Ty());
    Value* bytes = b_.CreateAnd(b_.CreateNeg(at), I64(kLine - 1));
    return Min(Add(begin, b_.CreateUDiv(bytes, I64(size))), end);
  }
  return nullptr;
}

}  // namespace framejit::codegen
