// One instruction of a kernel as LLVM IR: on one lane or on a vector, with the memory accesses of every stride and
// mask. EmitKernel derives from it and adds the loops.
#pragma once

#include <absl/functional/function_ref.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <algorithm>
#include <map>
#include <optional>

#include "codegen/absent_lanes.h"
#include "codegen/codegen.h"
#include "codegen/emit_kernel.h"
#include "codegen/emit_scalar.h"

namespace framejit::codegen {

using llvm::Value;
using loop::IKind;
using loop::Inst;
using loop::Kernel;
using loop::Stage;
using shape::Int;

constexpr int64_t kLine = 64;  // The bytes of a cache line.

inline bool IsZero(Int v) {
  return v == Int(0);
}
inline bool IsOne(Int v) {
  return v == Int(1);
}

class InstructionEmitter {
 protected:
  InstructionEmitter(llvm::Module& m, const Kernel& k, const Isa& isa, const Schedule& schedule)
      : k_(k),
        isa_(isa),
        schedule_(schedule),
        lanes_(schedule.lanes),
        m_(m),
        b_(m.getContext()),
        ops_(b_, isa, k.ieee) {
    if (k.ieee) meant_ = MeantWhere(k);
  }

  struct Copy {  // one of the `unroll` bodies that run side by side
    int number = 0;
    Value* i = nullptr;     // The inner index of lane 0.
    Value* mask = nullptr;  // lanes that exist; null: all
    Value* valid = nullptr;
    std::vector<Value*> values;
  };
  // --- small things
  llvm::BasicBlock* Block(const char* name) { return llvm::BasicBlock::Create(m_.getContext(), name, f_); }
  Value* I64(int64_t v) { return b_.getInt64(static_cast<uint64_t>(v)); }
  Value* IntOf(Int e) {
    if (e.is_const()) return I64(e.value());
    auto s = e.as_symbol();
    if (!s || *s >= symbols_.size()) throw CodegenUnsupported("kernel sizes must be numbers or symbols");
    return symbols_[*s];
  }
  static std::optional<int64_t> Number(Value* v) {
    if (auto* c = llvm::dyn_cast<llvm::ConstantInt>(v)) return c->getSExtValue();
    return std::nullopt;
  }
  Value* Add(Value* a, Value* b) {
    if (Number(a) == 0) return b;
    if (Number(b) == 0) return a;
    return b_.CreateAdd(a, b, "", false, true);
  }
  Value* Mul(Value* a, Value* b) {
    if (Number(a) == 0 || Number(b) == 0) return I64(0);
    if (Number(a) == 1) return b;
    if (Number(b) == 1) return a;
    return b_.CreateMul(a, b, "", false, true);
  }
  Value* Min(Value* a, Value* b) { return b_.CreateSelect(b_.CreateICmpSLT(a, b), a, b); }
  llvm::AllocaInst* Slot(llvm::Type* t) {
    llvm::IRBuilder<> entry(entry_, entry_->begin());
    auto* slot = entry.CreateAlloca(t);
    slots_.push_back(slot);
    return slot;
  }
  llvm::AllocaInst* Memory(int64_t bytes) {
    llvm::IRBuilder<> entry(entry_, entry_->begin());
    auto* memory = entry.CreateAlloca(entry.getInt8Ty(), entry.getInt64(bytes));
    memory->setAlignment(llvm::Align(64));
    return memory;
  }
  Value* Get(llvm::AllocaInst* slot) { return b_.CreateLoad(slot->getAllocatedType(), slot); }
  void Set(llvm::AllocaInst* slot, Value* v) { b_.CreateStore(v, slot); }

  // for (i = from; i < to; i += step) body(i)
  void For(Value* from, Value* to, int64_t step, absl::FunctionRef<void(Value*)> body) {
    auto a = Number(from), z = Number(to);
    if (a && z && *a >= *z) return;
    if (a && z && *a + step >= *z) return body(from);
    auto* counter = Slot(b_.getInt64Ty());
    auto* loop = Block("loop");
    auto* after = Block("after");
    Set(counter, from);
    if (a && z)
      b_.CreateBr(loop);
    else
      b_.CreateCondBr(b_.CreateICmpSLT(from, to), loop, after);
    b_.SetInsertPoint(loop);
    Value* i = Get(counter);
    body(i);
    Value* next = b_.CreateAdd(i, I64(step), "", true, true);
    Set(counter, next);
    b_.CreateCondBr(b_.CreateICmpSLT(next, to), loop, after);
    b_.SetInsertPoint(after);
  }
  // Sums of floats so far are kept in double, but NumPy's.
  static DType ScanType(const Inst& inst) { return IsFloat(inst.dtype) && !inst.numpys ? DType::kFloat64 : inst.dtype; }
  DType MemoryType(const Inst& inst) const {
    const int n = static_cast<int>(k_.buffers.size());
    return inst.buffer < n ? k_.buffers[inst.buffer].dtype : k_.scratch[inst.buffer - n];
  }
  // A store of whole vectors to memory that the kernel does not read.
  bool Streams(const Inst& inst) const {
    if (inst.kind != IKind::kStore || !IsOne(inst.index.inner) || inst.buffer >= k_.buffers.size() || lanes_ == 1)
      return false;
    return std::none_of(k_.insts.begin(), k_.insts.end(), [&](const Inst& other) {
      return other.buffer == inst.buffer && (other.kind == IKind::kLoad || other.kind == IKind::kLoadAt);
    });
  }
  // Large results go past the caches where whole aligned lines of memory are written that nothing else here reads.
  Value* CanStream();
  // Where the whole lines of what the loop streams begin. It is null where they begin with the row, or nothing does.
  Value* FirstLine(const Stage& stage, Value* begin, Value* end);
  Value* Element(const Inst& inst, Value* pointer, Value* offset) {
    if (Number(offset) == 0) return pointer;
    return b_.CreateGEP(ops_.StorageType(MemoryType(inst), 1), pointer, offset);
  }
  llvm::Constant* LaneNumbers(llvm::Type* t) {
    std::vector<llvm::Constant*> lanes;
    for (int i = 0; i < lanes_; ++i) {
      lanes.push_back(t->isIntegerTy() ? llvm::ConstantInt::get(t, i) : llvm::ConstantFP::get(t, i));
    }
    return llvm::ConstantVector::get(lanes);
  }

  // --- instructions
  // Vectors of the scalars that the loop reads, before the loop.
  void Splats(const Stage& stage);
  // Operand as the copy sees it; as a vector.
  Value* In(int n, const Copy& copy);
  void Emit(const Stage& stage, std::vector<Copy>& copies);
  void Emit(const Stage& stage, std::vector<Copy>&& copies);
  Value* Position(int n, const Inst& inst, Value* i);
  // Elements from pointer_[n] to lane 0.
  Value* Offset(const Inst& inst, Value* i);
  Value* LoadScalar(int n, const Inst& inst, Value* offset, Value* predicate);
  // One lane: of a uniform instruction (no i), or of a kernel without vectors.
  void EmitScalar(int n, const Inst& inst, Value* i);
  DType OperandType(const Inst& inst) const;
  Value* EmitVector(int n, const Inst& inst, Copy& copy);
  Value* Clamp(Value* v);
  Value* Lanes64(Value* first, const Inst& inst);
  Value* Iota(int n, const Inst& inst, const Copy& copy);
  // --- memory
  bool NativeMask(DType t) const;
  Value* And(Value* a, Value* b);
  bool IndirectVector(const Inst& inst) const;
  Value* LoadVector(int n, const Inst& inst, const Copy& copy);
  // What lanes hold that a predicate switches off: zero, or one, of which few functions raise an exception.
  llvm::Constant* Nothing(llvm::Type* storage, DType t);
  // What lanes that do not exist hold: zero, or the first element, which raises no exception of its own.
  Value* Absent(llvm::Type* type, Value* p, llvm::Align align);
  // 8- and 16-bit elements have no masked moves before AVX-512: the rest of the row goes through memory.
  Value* LoadThroughMemory(llvm::Type* type, DType t, Value* p, const Copy& copy);
  // Elements without masked moves under any mask. Most vectors of a pad or cat are all or none.
  Value* LoadLane(Value* p, llvm::Align align, Value* mask, llvm::Constant* absent, int lane);
  Value* LoadSome(llvm::Type* type, Value* p, llvm::Align align, Value* mask, llvm::Constant* absent);
  Value* Kept(Value* v);
  // For what only the lanes of a mask are taken of: where LLVM knows the mask, it would compute others of anything.
  Value* OfMask(Value* v, const Copy& copy) { return copy.mask && llvm::isa<llvm::Constant>(copy.mask) ? Kept(v) : v; }
  bool Spares(int n) const;
  void Spare(const Inst& inst, Value* where, std::vector<Value*>& operands);
  Value* IndirectIndex(const Inst& inst, const Copy& copy);
  Value* Gather(int n, const Inst& inst, const Copy& copy, Value* offset, Value* predicate);
  // Lanes past the end repeat the last one that exists.
  Value* LanePointer(int n, const Inst& inst, const Copy& copy, Value* offset, Value* stride, Value* indirect,
                     int lane);
  void StoreVector(int n, const Inst& inst, const Copy& copy);

  const Kernel& k_;
  const Isa& isa_;
  const Schedule& schedule_;
  const int lanes_;
  llvm::Module& m_;
  llvm::IRBuilder<> b_;
  OpEmitter ops_;
  llvm::Function* f_ = nullptr;
  llvm::BasicBlock* entry_ = nullptr;
  std::vector<llvm::AllocaInst*> slots_;
  std::vector<Value*> symbols_, buffers_, heap_, outer_, red_, red_extent_;
  Value *inner_ = nullptr, *i0_ = nullptr, *i1_ = nullptr, *span_ = nullptr, *zeros_ = nullptr, *sink_ = nullptr;
  std::vector<bool> uniform_;
  bool stream_ = false;                                     // what Streams is stored past the caches
  bool heads_ = false;                                      // each row from its first whole line on
  std::map<std::pair<int, int>, llvm::AllocaInst*> scans_;  // sum so far, by instruction and copy
  std::vector<Value*> base_, pointer_;                      // By instruction; those of this row.
  std::vector<Value*> scalar_, splat_;                      // The values of uniform instructions.
  std::vector<int> meant_;                                  // MeantWhere; only where IEEE exceptions are looked at.
};

}  // namespace framejit::codegen
