// This file makes LLVM IR of the instructions, one by one. Variables are stack slots at first.
#include "codegen/scalar_code.h"

#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/PassManager.h>
#include <llvm/IR/PatternMatch.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>

#include <atomic>
#include <map>

#include "codegen/codegen.h"
#include "codegen/late_checks.h"
#include "codegen/machine.h"
#include "codegen/math_power.h"
#include "codegen/modulo.h"
#include "codegen/scalar_passes.h"
#include "codegen/scalar_ranges.h"
#include "codegen/sure_loads.h"
#include "codegen/told_numbers.h"
#include "codegen/undone_checks.h"

namespace framejit::codegen {
namespace {

using llvm::Value;

class Emitter {
 public:
  Emitter(llvm::Module& m, const ScalarCode& code, const std::string& symbol, llvm::StringRef features)
      : m_(m),
        code_(code),
        b_(m.getContext()),
        values_(code.num_values),
        ranges_(RangesOf(code)),
        low_bits_(LowBitsOf(code)),
        only_compared_(OnlyCompared(code)),
        returned_(code.num_values) {
    auto* type = llvm::FunctionType::get(b_.getInt64Ty(), {b_.getPtrTy(), b_.getInt64Ty()}, false);
    f_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, symbol, m);
    f_->addFnAttr(llvm::Attribute::NoUnwind);
    f_->addFnAttr("prefer-vector-width", "256");
#if defined(__x86_64__)
    f_->addFnAttr("tune-cpu", llvm::sys::getHostCPUName());  // such as whether small numbers are divided faster
    // Elements far apart: loads one by one, which are foreseen by their even distance, are faster than one gather.
    f_->addFnAttr("target-features", (features + ",+prefer-no-gather,+prefer-no-scatter").str());
#endif
    f_->addParamAttr(0, llvm::Attribute::NoAlias);
    if (const auto undo = std::ranges::find(code_.exits, true, &ScalarExit::undo); undo != code_.exits.end())
      f_->addFnAttr(kUndoes, std::to_string(undo - code_.exits.begin()));
    unlikely_ = llvm::MDBuilder(m.getContext()).createBranchWeights(1, 1 << 16);
    llvm::MDBuilder md(m.getContext());
    natural_ = md.createRange(llvm::APInt(64, 0), llvm::APInt::getSignedMinValue(64));
    small_ = md.createRange(llvm::APInt(64, 0), llvm::APInt(64, kSmallNumber + 1));
    llvm::MDNode* root = md.createTBAARoot("framejit");
    for (const ScalarType t : {ScalarType::kInt, ScalarType::kPtr}) {
      llvm::MDNode* node = md.createTBAAScalarTypeNode(t == ScalarType::kInt ? "element" : "cell", root);
      (t == ScalarType::kInt ? element_ : cell_) = md.createTBAAStructTagNode(node, node, 0);
    }
  }

  void Emit() {
    auto* entry = llvm::BasicBlock::Create(m_.getContext(), "entry", f_);
    b_.SetInsertPoint(entry);
    for (ScalarType t : code_.variables) variables_.push_back(b_.CreateAlloca(Type(t)));
    for (size_t i = 0; i < code_.variables.size(); ++i)
      b_.CreateStore(llvm::Constant::getNullValue(Type(code_.variables[i])), variables_[i]);
    for (size_t i = 0; i < code_.blocks.size(); ++i)
      blocks_.push_back(llvm::BasicBlock::Create(m_.getContext(), "b" + std::to_string(i), f_));
    for (const auto& block : code_.blocks)
      for (const ScalarInst& i : block)
        if (i.op == ScalarOp::kInput) Input(i);
    if (code_.apart) Scopes();
    auto* none = llvm::BasicBlock::Create(m_.getContext(), "none", f_);
    auto* choose = b_.CreateSwitch(f_->getArg(1), none, code_.entries.size());
    for (size_t i = 0; i < code_.entries.size(); ++i) choose->addCase(b_.getInt64(i), blocks_[code_.entries[i]]);
    b_.SetInsertPoint(none);
    b_.CreateUnreachable();
    for (size_t i = 0; i < code_.blocks.size(); ++i) {
      b_.SetInsertPoint(blocks_[i]);
      exits_.clear();
      for (const ScalarInst& inst : code_.blocks[i]) One(inst);
    }
    llvm::EliminateUnreachableBlocks(*f_);
  }

 private:
  llvm::Type* Type(ScalarType t) {
    switch (t) {
      case ScalarType::kBool: return b_.getInt1Ty();
      case ScalarType::kInt: return b_.getInt64Ty();
      case ScalarType::kF32: return b_.getFloatTy();
      case ScalarType::kF64: return b_.getDoubleTy();
      case ScalarType::kPtr: return b_.getPtrTy();
    }
    return nullptr;
  }
  llvm::Type* ElementType(DType t) {
    if (t == DType::kFloat32) return b_.getFloatTy();
    if (t == DType::kFloat64) return b_.getDoubleTy();
    return b_.getIntNTy(8 * DTypeSize(t));
  }
  Value* Cell(int64_t i) { return b_.CreateConstInBoundsGEP1_64(b_.getInt64Ty(), f_->getArg(0), i); }
  Value* LoadCell(const ScalarInst& i) {  // a bool is an int there
    const ScalarType t = i.type;
    auto* load = b_.CreateLoad(t == ScalarType::kBool ? b_.getInt64Ty() : Type(t), Cell(i.imm));
    load->setMetadata(llvm::LLVMContext::MD_tbaa, cell_);
    load->setMetadata(llvm::LLVMContext::MD_noundef, llvm::MDNode::get(m_.getContext(), {}));
    if (i.natural) load->setMetadata(llvm::LLVMContext::MD_range, i.small ? small_ : natural_);
    return t == ScalarType::kBool ? b_.CreateTrunc(load, b_.getInt1Ty()) : load;
  }
  void Input(const ScalarInst& i) {
    Value*& known = inputs_[{i.imm, i.type}];
    if (!known) known = LoadCell(i);
  }

  // Gives the block that leaves by this exit, which is one for all conditions of an instruction of the program, or of
  // all if there is nothing to write.
  llvm::BasicBlock* ExitBlock(int exit) {
    llvm::BasicBlock*& block = code_.exits[exit].cells.empty() ? plain_exits_[exit] : exits_[exit];
    if (block) return block;
    llvm::IRBuilderBase::InsertPointGuard guard(b_);
    block = llvm::BasicBlock::Create(m_.getContext(), "exit", f_);
    b_.SetInsertPoint(block);
    for (auto [cell, value] : code_.exits[exit].cells) {
      Value* v = values_[value];
      if (v->getType()->isIntegerTy(1)) v = b_.CreateZExt(v, b_.getInt64Ty());
      b_.CreateStore(v, Cell(cell))->setMetadata(llvm::LLVMContext::MD_tbaa, cell_);
    }
    b_.CreateRet(b_.getInt64(exit));
    return block;
  }
  void ExitIf(Value* condition, int exit) {
    auto* next = llvm::BasicBlock::Create(m_.getContext(), "next", f_);
    b_.CreateCondBr(condition, ExitBlock(exit), next, unlikely_);
    b_.SetInsertPoint(next);
  }

  void ExitIfLong(const ScalarInst& i) {
    constexpr int64_t kFew = 4;
    if (ranges_[i.a].hi <= kFew) return;
    ExitIf(b_.CreateICmpSGT(values_[i.a], b_.CreateSub(b_.getInt64(i.imm), values_[i.b])), i.exit);
  }

  Value* Overflowing(llvm::Intrinsic::ID id, const ScalarInst& i) {
    if (!MayOverflow(i.op, ranges_[i.a], ranges_[i.b])) {
      Value *x = values_[i.a], *y = values_[i.b];
      if (i.op == ScalarOp::kMulOver) return b_.CreateNSWMul(x, y);
      return i.op == ScalarOp::kAddOver ? b_.CreateNSWAdd(x, y) : b_.CreateNSWSub(x, y);
    }
    if (low_bits_[i.id]) {
      Value *x = values_[i.a], *y = values_[i.b];
      if (i.op == ScalarOp::kMulOver) return b_.CreateMul(x, y);
      return i.op == ScalarOp::kAddOver ? b_.CreateAdd(x, y) : b_.CreateSub(x, y);
    }
    for (auto [x, factor] : {std::pair(i.b, i.a), std::pair(i.a, i.b)}) {
      const std::optional<int64_t> most = i.op == ScalarOp::kMulOver ? MostFactor(ranges_[factor]) : std::nullopt;
      if (!most) continue;
      const bool natural = ranges_[x].lo >= 0;
      Value* up = natural ? values_[x] : b_.CreateAdd(values_[x], b_.getInt64(*most));
      ExitIf(b_.CreateICmpUGT(up, b_.getInt64(natural ? *most : 2 * *most)), i.exit);
      return b_.CreateNSWMul(values_[x], values_[factor]);
    }
    Value* pair = b_.CreateBinaryIntrinsic(id, values_[i.a], values_[i.b]);
    ExitIf(b_.CreateExtractValue(pair, 1), i.exit);
    return b_.CreateExtractValue(pair, 0);
  }

  Value* ShiftedLeft(const ScalarInst& i) {
    Value *x = values_[i.a], *y = values_[i.b], *v = b_.CreateShl(x, y);
    if (!low_bits_[i.id]) ExitIf(b_.CreateICmpNE(b_.CreateAShr(v, y), x), i.exit);
    return v;
  }

  Value* Finite(Value* v) {  // of what is not, v - v is not-a-number
    Value* nothing = b_.CreateFSub(v, v);
    return b_.CreateFCmpORD(nothing, nothing);
  }

  Value* IsFinite(int v) {
    if (!distances_.contains(v)) return Finite(values_[v]);
    return Either(b_.CreateFCmpOLT(SquareOf(v), Number(1e300)), b_.getTrue(), [&] { return Finite(Distance(v)); });
  }

  // Two ways to one number: where `likely` holds it is `usual`, else what `other` makes.
  Value* Either(Value* likely, Value* usual, llvm::function_ref<Value*()> other) {
    llvm::LLVMContext& c = m_.getContext();
    auto* seldom = llvm::BasicBlock::Create(c, "seldom", f_);
    auto* next = llvm::BasicBlock::Create(c, "next", f_);
    auto* here = b_.GetInsertBlock();
    b_.CreateCondBr(likely, next, seldom, llvm::MDBuilder(c).createBranchWeights(1 << 16, 1));
    b_.SetInsertPoint(seldom);
    Value* v = other();
    auto* from = b_.GetInsertBlock();
    b_.CreateBr(next);
    b_.SetInsertPoint(next);
    auto* both = b_.CreatePHI(usual->getType(), 2);
    both->addIncoming(usual, here);
    both->addIncoming(v, from);
    return both;
  }

  Value* CallOfNumbers(int64_t imm, llvm::ArrayRef<Value*> args) {  // has no effect
    const std::vector<llvm::Type*> types(args.size(), b_.getDoubleTy());
    Value* address = b_.CreateIntToPtr(b_.getInt64(imm), b_.getPtrTy());
    auto* call = b_.CreateCall(llvm::FunctionType::get(b_.getDoubleTy(), types, false), address, args);
    call->setDoesNotAccessMemory();
    return call;
  }

  Value* Number(double v) { return llvm::ConstantFP::get(b_.getDoubleTy(), v); }
  // Of a number, or of a distance that has not been computed.
  Value* Distance(int v) {
    const auto it = distances_.find(v);
    return it == distances_.end() ? values_[v]
                                  : CallOfNumbers(it->second.imm, {values_[it->second.a], values_[it->second.b]});
  }
  Value* SquareOf(int v) {
    const auto it = distances_.find(v);
    if (it == distances_.end()) return b_.CreateFMul(values_[v], values_[v]);
    Value *x = values_[it->second.a], *y = values_[it->second.b];
    return b_.CreateFAdd(b_.CreateFMul(x, x), b_.CreateFMul(y, y));
  }
  Value* Between(Value* v, double lo, double hi) {
    return b_.CreateAnd(b_.CreateFCmpOGT(v, Number(lo)), b_.CreateFCmpOLT(v, Number(hi)));
  }
  // The squares say which of two distances, or of a distance and a number, is greater, but where they are almost equal
  // or may have left the range of floats: rounding moves none of all these by more than some 2^-51 of it.
  Value* CompareDistance(const ScalarInst& i, llvm::CmpInst::Predicate p) {
    const int other = distances_.contains(i.a) ? i.b : i.a;
    const bool both = distances_.contains(other);
    Value *x = SquareOf(i.a), *y = SquareOf(i.b), *of = other == i.a ? x : y;
    Value* apart = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, b_.CreateFSub(x, y));
    Value* sure = b_.CreateAnd(b_.CreateFCmpOGT(apart, b_.CreateFMul(of, Number(1e-12))),
                               both ? Between(of, 1e-280, 1e280) : Between(values_[other], 1e-140, 1e140));
    return Either(sure, b_.CreateFCmp(p, x, y), [&] { return b_.CreateFCmp(p, Distance(i.a), Distance(i.b)); });
  }

  Value* Hypot(const ScalarInst& i) {
    if (!only_compared_[i.id]) return CallOfNumbers(i.imm, {values_[i.a], values_[i.b]});
    return distances_.insert_or_assign(i.id, i), nullptr;
  }

  Value* Square(const ScalarInst& i) {
    Value *x = values_[i.a], *product = b_.CreateFMul(x, x);
    return Either(IsPowOfTwo(b_, x, product), product, [&] {
      Value* call = CallOfNumbers(i.imm, {x});
      ExitIf(b_.CreateFCmpOLT(call, Number(0)), i.exit);
      return call;
    });
  }

  // x86 answers with the least of all ints where the number has no place among them.
  Value* Truncated(const ScalarInst& i) {
    Value* x = values_[i.a];
#if defined(__x86_64__)
    Value* lanes =
        b_.CreateInsertElement(llvm::PoisonValue::get(llvm::FixedVectorType::get(b_.getDoubleTy(), 2)), x, uint64_t{0});
    Value* v = b_.CreateIntrinsic(b_.getInt64Ty(), llvm::Intrinsic::x86_sse2_cvttsd2si64, {lanes});
    ExitIf(b_.CreateICmpEQ(v, b_.getInt64(std::numeric_limits<int64_t>::min())), i.exit);
    return v;
#else
    constexpr double kMost = 4.0e18;
    Value* size = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
    ExitIf(b_.CreateFCmpUGE(size, llvm::ConstantFP::get(b_.getDoubleTy(), kMost)), i.exit);
    return b_.CreateFPToSI(x, b_.getInt64Ty());
#endif
  }

  Value* Index(const ScalarInst& i) {
    Value *v = values_[i.a], *size = values_[i.b];
    if (IsRemainderOf(v, size)) return v;
    // LLVM does not know that a product is natural: it asks as the program does whether that is below a size.
    using llvm::PatternMatch::match, llvm::PatternMatch::m_ExtractValue, llvm::PatternMatch::m_Intrinsic,
        llvm::PatternMatch::m_Value;
    const bool product = match(v, m_ExtractValue<0>(m_Intrinsic<llvm::Intrinsic::smul_with_overflow>(m_Value())));
    if (ranges_[i.a].lo >= 0) return ExitIf(product ? b_.CreateICmpSGE(v, size) : b_.CreateICmpUGE(v, size), i.exit), v;
    return Either(b_.CreateICmpULT(v, size), v, [&] {
      Value* from_end = b_.CreateAdd(v, size);
      ExitIf(b_.CreateNot(b_.CreateAnd(b_.CreateICmpSLT(v, b_.getInt64(0)), b_.CreateICmpULT(from_end, size))), i.exit);
      return from_end;
    });
  }

  // As Python rounds.
  Value* FloorDivision(const ScalarInst& i) {
    Value *x = values_[i.a], *y = values_[i.b];
    const bool natural = ranges_[i.a].lo >= 0 && ranges_[i.b].lo >= 0;
    if (i.op == ScalarOp::kFloorMod && !llvm::isa<llvm::ConstantInt>(y)) {
      return b_.CreateCall(Modulo(m_, natural                ? Signs::kNatural
                                      : ranges_[i.b].lo >= 0 ? Signs::kDivisorNatural
                                                             : Signs::kAny),
                           {x, y});
    }
    if (natural) return i.op == ScalarOp::kFloorMod ? b_.CreateURem(x, y) : b_.CreateUDiv(x, y);
    Value* rem = b_.CreateSRem(x, y);
    Value* wrong =
        b_.CreateAnd(b_.CreateICmpNE(rem, b_.getInt64(0)), b_.CreateICmpSLT(b_.CreateXor(rem, y), b_.getInt64(0)));
    if (i.op == ScalarOp::kFloorMod) return b_.CreateAdd(rem, b_.CreateSelect(wrong, y, b_.getInt64(0)));
    return b_.CreateSub(b_.CreateSDiv(x, y), b_.CreateZExt(wrong, b_.getInt64Ty()));
  }

  // What functions return is looked at: what they do to make it is theirs.
  ScalarSpecials Asked(const ScalarSpecials& made) {
    ScalarSpecials asked;
    for (const ScalarSpecials::Made& one : made.all) {
      if (!returned_[one.value]) {
        TellOf(b_, values_[one.value]);
        continue;
      }
      asked.all.push_back(one);
      asked.last.push_back(one.value);
    }
    return asked;
  }

  void NewSpecial(const ScalarInst& i) {
    const ScalarSpecials& all = code_.specials[i.imm];
    const ScalarSpecials made = code_.status ? Asked(all) : all;
    if (made.last.empty()) return;
    auto* special = llvm::BasicBlock::Create(m_.getContext(), "special", f_);
    auto* next = llvm::BasicBlock::Create(m_.getContext(), "next", f_);
    Value* good = nullptr;
    for (ScalarType t : {ScalarType::kF32, ScalarType::kF64}) {
      Value* nothing = nullptr;  // not-a-number if one of them is special
      for (int v : made.last) {
        if (values_[v]->getType() != Type(t)) continue;
        Value* none = b_.CreateFSub(values_[v], values_[v]);
        nothing = nothing ? b_.CreateFAdd(nothing, none) : none;
      }
      if (!nothing) continue;
      Value* finite = b_.CreateFCmpORD(nothing, nothing);
      good = good ? b_.CreateAnd(good, finite) : finite;
    }
    auto* branch =
        b_.CreateCondBr(good, next, special, llvm::MDBuilder(m_.getContext()).createBranchWeights(1 << 16, 1));
    branch->setMetadata(kLateCheck, llvm::MDNode::get(m_.getContext(), {}));
    b_.SetInsertPoint(special);
    Value* told = b_.getFalse();
    for (const ScalarSpecials::Made& one : made.all) {
      Value *v = values_[one.value], *finite = b_.getTrue(), *numbers = b_.CreateFCmpUNO(v, v);
      for (int operand : {one.a, one.b}) {
        if (operand < 0) continue;
        finite = b_.CreateAnd(finite, Finite(values_[operand]));
        numbers = b_.CreateAnd(numbers, b_.CreateFCmpORD(values_[operand], values_[operand]));
      }
      told = b_.CreateOr(told, b_.CreateAnd(b_.CreateNot(Finite(v)), b_.CreateOr(finite, numbers)));
    }
    b_.CreateCondBr(told, ExitBlock(i.exit), next);
    b_.SetInsertPoint(next);
  }

  Value* Compare(const ScalarInst& i) {
    using P = llvm::CmpInst::Predicate;
    const int k = static_cast<int>(i.op) - static_cast<int>(ScalarOp::kEq);
    Value *x = values_[i.a], *y = values_[i.b];
    if (i.type == ScalarType::kBool && y && y->getType()->isIntegerTy(64))
      if (const std::optional<bool> known = Decided(i.op, ranges_[i.a], ranges_[i.b])) return b_.getInt1(*known);
    static constexpr P kFloat[] = {P::FCMP_OEQ, P::FCMP_UNE, P::FCMP_OLT, P::FCMP_OLE, P::FCMP_OGT, P::FCMP_OGE};
    static constexpr P kInt[] = {P::ICMP_EQ, P::ICMP_NE, P::ICMP_SLT, P::ICMP_SLE, P::ICMP_SGT, P::ICMP_SGE};
    if (distances_.contains(i.a) || distances_.contains(i.b)) return CompareDistance(i, kFloat[k]);
    return x->getType()->isFloatingPointTy() ? b_.CreateFCmp(kFloat[k], x, y) : b_.CreateICmp(kInt[k], x, y);
  }

  // What is known of an element's place: of which array it is, and of which loop's rounds.
  void Describe(llvm::Instruction* access, const ScalarInst& i) {
    access->setMetadata(llvm::LLVMContext::MD_tbaa, element_);
    if (i.parallel) access->setMetadata(llvm::LLVMContext::MD_access_group, Group(i.parallel));
    if (!code_.apart || i.array < 0) return;
    std::vector<llvm::Metadata*> others;
    for (auto& [array, scope] : scopes_)
      if (array != i.array) others.push_back(scope);
    llvm::LLVMContext& c = m_.getContext();
    access->setMetadata(llvm::LLVMContext::MD_alias_scope, llvm::MDNode::get(c, {scopes_.at(i.array)}));
    if (!others.empty()) access->setMetadata(llvm::LLVMContext::MD_noalias, llvm::MDNode::get(c, others));
  }
  llvm::MDNode* Group(int loop) {
    llvm::MDNode*& group = groups_[loop];
    if (!group) group = llvm::MDNode::getDistinct(m_.getContext(), {});
    return group;
  }
  void Scopes() {
    llvm::MDBuilder md(m_.getContext());
    llvm::MDNode* domain = md.createAnonymousAliasScopeDomain();
    for (const auto& block : code_.blocks)
      for (const ScalarInst& i : block)
        if (i.array >= 0 && !scopes_.contains(i.array)) scopes_[i.array] = md.createAnonymousAliasScope(domain);
  }
  // The jump back of a loop whose rounds do not meet in memory.
  Value* JumpBack(const ScalarInst& i) {
    llvm::LLVMContext& c = m_.getContext();
    auto* jump = b_.CreateBr(blocks_[i.imm]);
    auto* parallel = llvm::MDNode::get(c, {llvm::MDString::get(c, "llvm.loop.parallel_accesses"), Group(i.parallel)});
    auto* loop = llvm::MDNode::getDistinct(c, {nullptr, parallel});
    loop->replaceOperandWith(0, loop);
    jump->setMetadata(llvm::LLVMContext::MD_loop, loop);
    return jump;
  }

  // The same value, computed where the code is entered; nothing if it is made of others than are known there.
  Value* AtEntry(Value* v) {
    llvm::BasicBlock& entry = f_->getEntryBlock();
    auto* i = llvm::dyn_cast<llvm::Instruction>(v);
    if (!i || i->getParent() == &entry) return v;
    if (!llvm::isa<llvm::BinaryOperator, llvm::GetElementPtrInst>(i)) return nullptr;
    std::vector<Value*> operands;
    for (Value* operand : i->operands()) {
      operands.push_back(AtEntry(operand));
      if (!operands.back()) return nullptr;
    }
    llvm::Instruction* copy = i->clone();
    for (unsigned k = 0; k < operands.size(); ++k) copy->setOperand(k, operands[k]);
    copy->insertBefore(entry.getTerminator());
    return copy;
  }

  Value* Load(const ScalarInst& i) {
    Value* at = b_.CreateGEP(b_.getInt8Ty(), values_[i.a], values_[i.b]);
    Value* known = i.sure ? AtEntry(at) : nullptr;
    if (known) at = known;
    const bool address = i.type == ScalarType::kPtr;
    auto* v = b_.CreateAlignedLoad(address ? b_.getPtrTy() : ElementType(i.dtype), at, llvm::Align(DTypeSize(i.dtype)));
    Describe(v, i);
    if (known) v->setMetadata(kSureLoad, llvm::MDNode::get(m_.getContext(), {}));
    if (address) return v;
    if (DTypeClass(i.dtype) == 'b') return b_.CreateICmpNE(v, llvm::Constant::getNullValue(v->getType()));
    if (DTypeClass(i.dtype) == 'u') return b_.CreateZExt(v, b_.getInt64Ty());
    return DTypeClass(i.dtype) == 'i' && DTypeSize(i.dtype) < 8 ? b_.CreateSExt(v, b_.getInt64Ty()) : v;
  }
  void Store(const ScalarInst& i) {
    Value* at = b_.CreateGEP(b_.getInt8Ty(), values_[i.a], values_[i.b]);
    Value* v = values_[i.c];
    if (DTypeClass(i.dtype) == 'b')
      v = b_.CreateZExt(v, b_.getInt8Ty());
    else if (DTypeClass(i.dtype) != 'f')
      v = b_.CreateTrunc(v, ElementType(i.dtype));
    Describe(b_.CreateAlignedStore(v, at, llvm::Align(DTypeSize(i.dtype))), i);
  }

  Value* Call(const ScalarInst& i) {
    return i.a < 0 ? Called(i) : Either(values_[i.a], values_[i.b], [&] { return Called(i); });
  }
  Value* Called(const ScalarInst& i) {
    std::vector<Value*> args;
    std::vector<llvm::Type*> types;
    for (int x : i.args) args.push_back(values_[x]), types.push_back(values_[x]->getType());
    Value* address = b_.CreateIntToPtr(b_.getInt64(i.imm), b_.getPtrTy());
    llvm::Type* result = i.type == ScalarType::kBool ? b_.getInt64Ty() : Type(i.type);
    auto* v = b_.CreateCall(llvm::FunctionType::get(result, types, false), address, args);
    if (i.looks) v->setMetadata(llvm::LLVMContext::MD_tbaa, cell_);
    return i.type == ScalarType::kBool ? b_.CreateICmpNE(v, b_.getInt64(0)) : static_cast<Value*>(v);
  }

  Value* Constant(const ScalarInst& i) {
    if (i.type == ScalarType::kBool) return b_.getInt1(i.imm != 0);
    if (i.type == ScalarType::kInt) return b_.getInt64(i.imm);
    if (i.type == ScalarType::kPtr) return b_.CreateIntToPtr(b_.getInt64(i.imm), b_.getPtrTy());
    return llvm::ConstantFP::get(Type(i.type), i.number);
  }

  void One(const ScalarInst& i) {
    Value* v = Make(i);
    if (i.op == ScalarOp::kCall || i.op == ScalarOp::kSquare || i.op == ScalarOp::kHypot) returned_[i.id] = true;
    if (i.id >= 0) values_[i.id] = v;
  }

  Value* Arithmetic(const ScalarInst& i) {
    Value *x = values_[i.a], *y = i.b < 0 ? nullptr : values_[i.b];
    const bool f = x->getType()->isFloatingPointTy();
    switch (i.op) {
      case ScalarOp::kAdd: return f ? b_.CreateFAdd(x, y) : b_.CreateAdd(x, y);
      case ScalarOp::kSub: return f ? b_.CreateFSub(x, y) : b_.CreateSub(x, y);
      case ScalarOp::kMul: return f ? b_.CreateFMul(x, y) : b_.CreateMul(x, y);
      case ScalarOp::kDiv: return b_.CreateFDiv(x, y);
      case ScalarOp::kNeg: return f ? b_.CreateFNeg(x) : b_.CreateNeg(x);
      case ScalarOp::kAbs:
        return f ? b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x)
                 : b_.CreateBinaryIntrinsic(llvm::Intrinsic::abs, x, b_.getFalse());
      case ScalarOp::kSqrt: return b_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, x);
      case ScalarOp::kFma: return b_.CreateIntrinsic(llvm::Intrinsic::fma, {x->getType()}, {x, y, values_[i.c]});
      case ScalarOp::kFloor: return b_.CreateUnaryIntrinsic(llvm::Intrinsic::floor, x);
      case ScalarOp::kDivTrunc: return b_.CreateSDiv(x, y);
      case ScalarOp::kAnd: return b_.CreateAnd(x, y);
      case ScalarOp::kOr: return b_.CreateOr(x, y);
      case ScalarOp::kXor: return b_.CreateXor(x, y);
      case ScalarOp::kNot: return b_.CreateNot(x);
      case ScalarOp::kShl: return b_.CreateShl(x, y);
      case ScalarOp::kShr: return b_.CreateAShr(x, y);
      case ScalarOp::kSelect: return b_.CreateSelect(x, y, values_[i.c]);
      case ScalarOp::kIntToF64: return b_.CreateSIToFP(x, b_.getDoubleTy());
      case ScalarOp::kIntToF32: return b_.CreateSIToFP(x, b_.getFloatTy());
      case ScalarOp::kF32ToF64: return b_.CreateFPExt(x, b_.getDoubleTy());
      case ScalarOp::kF64ToF32: return b_.CreateFPTrunc(x, b_.getFloatTy());
      case ScalarOp::kBoolToInt: return b_.CreateZExt(x, b_.getInt64Ty());
      default: throw std::runtime_error("scalar code: unknown instruction");
    }
  }

  // As the element's type holds it.
  Value* Wrap(const ScalarInst& i) {
    Value* v = b_.CreateTrunc(values_[i.a], ElementType(i.dtype));
    return DTypeClass(i.dtype) == 'u' ? b_.CreateZExt(v, b_.getInt64Ty()) : b_.CreateSExt(v, b_.getInt64Ty());
  }

  Value* Make(const ScalarInst& i) {
    switch (i.op) {
      case ScalarOp::kConst: return Constant(i);
      case ScalarOp::kInput: return inputs_.at({i.imm, i.type});
      case ScalarOp::kCell: return LoadCell(i);
      case ScalarOp::kAddress: return Cell(i.imm);
      case ScalarOp::kGet: return b_.CreateLoad(Type(i.type), variables_[i.imm]);
      case ScalarOp::kSet: return b_.CreateStore(values_[i.a], variables_[i.imm]);
      case ScalarOp::kAddOver: return Overflowing(llvm::Intrinsic::sadd_with_overflow, i);
      case ScalarOp::kSubOver: return Overflowing(llvm::Intrinsic::ssub_with_overflow, i);
      case ScalarOp::kMulOver: return Overflowing(llvm::Intrinsic::smul_with_overflow, i);
      case ScalarOp::kShlOver: return ShiftedLeft(i);
      case ScalarOp::kEq:
      case ScalarOp::kNe:
      case ScalarOp::kLt:
      case ScalarOp::kLe:
      case ScalarOp::kGt:
      case ScalarOp::kGe: return Compare(i);
      case ScalarOp::kBelow: return b_.CreateICmpULT(values_[i.a], values_[i.b]);
      case ScalarOp::kIndex: return Index(i);
      case ScalarOp::kFloorDiv:
      case ScalarOp::kFloorMod: return FloorDivision(i);
      case ScalarOp::kWithin: return values_[i.a];
      case ScalarOp::kNext: return b_.CreateNSWAdd(values_[i.a], b_.getInt64(1));
      case ScalarOp::kFinite: return IsFinite(i.a);
      case ScalarOp::kHypot: return Hypot(i);
      case ScalarOp::kF64ToInt: return Truncated(i);
      case ScalarOp::kSquare: return Square(i);
      case ScalarOp::kWrap: return Wrap(i);
      case ScalarOp::kAt: return b_.CreateGEP(b_.getInt8Ty(), values_[i.a], values_[i.b]);
      case ScalarOp::kLoad: return Load(i);
      case ScalarOp::kStore: return Store(i), nullptr;
      case ScalarOp::kCall: return Call(i);
      case ScalarOp::kAssume: return b_.CreateAssumption(values_[i.a]), nullptr;
      case ScalarOp::kExitIf: return ExitIf(values_[i.a], i.exit), nullptr;
      case ScalarOp::kExitIfLong: return ExitIfLong(i), nullptr;
      case ScalarOp::kNewSpecial: return NewSpecial(i), nullptr;
      case ScalarOp::kExitAtBreak: {
        auto* word = b_.CreateLoad(b_.getInt32Ty(), values_[i.a], true);
        word->setMetadata(llvm::LLVMContext::MD_tbaa, cell_);  // no element
        Value* bits = b_.CreateAnd(word, b_.getInt32(static_cast<uint32_t>(i.number)));
        return ExitIf(b_.CreateICmpNE(bits, b_.getInt32(0)), i.exit), nullptr;
      }
      case ScalarOp::kJump: return i.parallel ? JumpBack(i) : b_.CreateBr(blocks_[i.imm]);
      case ScalarOp::kBranch:
        return b_.CreateCondBr(values_[i.a], blocks_[i.imm], blocks_[i.other], i.seldom ? unlikely_ : nullptr);
      case ScalarOp::kExit: return b_.CreateBr(ExitBlock(i.exit));
      default: return Arithmetic(i);
    }
  }

  static char DTypeClass(DType t) {
    static constexpr char kClasses[] = {
#define X(e, n, s, c) c,
        FRAMEJIT_DTYPES(X)
#undef X
    };
    return kClasses[static_cast<int>(t)];
  }

  llvm::Module& m_;
  const ScalarCode& code_;
  llvm::IRBuilder<> b_;
  llvm::Function* f_;
  llvm::MDNode *unlikely_, *element_, *cell_, *natural_, *small_;
  std::vector<llvm::AllocaInst*> variables_;
  std::vector<llvm::BasicBlock*> blocks_;
  std::vector<Value*> values_;
  std::vector<ScalarRange> ranges_;
  std::vector<bool> low_bits_, only_compared_, returned_;
  std::map<int, ScalarInst> distances_;  // values that are not computed but where it must be
  std::map<std::pair<int64_t, ScalarType>, Value*> inputs_;
  std::map<int, llvm::BasicBlock*> exits_, plain_exits_;  // of this block of code; that say nothing but their number
  std::map<int, llvm::MDNode*> groups_;                   // of loops
  std::map<int, llvm::MDNode*> scopes_;                   // of arrays
};

auto Filler(const ScalarCode& code, const std::string& symbol) {
  return [&code, &symbol](llvm::Module& m, llvm::TargetMachine& machine) {
    Emitter(m, code, symbol, machine.getTargetFeatureString()).Emit();
    std::string text;
    llvm::raw_string_ostream out(text);
    if (llvm::verifyModule(m, &out)) throw std::runtime_error("LLVM: invalid scalar code: " + text);
    OptimizeScalar(m, machine);
  };
}

}  // namespace

CompiledScalar CompileScalar(const ScalarCode& code) {
  static std::atomic<int64_t> serial = 0;
  const std::string symbol = "fj_scalar_" + std::to_string(serial++);
  Code made = CompileModule(IsaOf("", true), symbol, Filler(code, symbol));
  return {reinterpret_cast<ScalarFn>(made.address), std::move(made.memory)};
}

std::string ScalarText(const ScalarCode& code, bool assembly) {
  return ModuleText(IsaOf("", true), assembly, Filler(code, "fj_scalar"));
}

}  // namespace framejit::codegen
