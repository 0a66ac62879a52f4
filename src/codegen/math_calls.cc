// What elementary functions need besides polynomials: calls of the C library or libdevice, and the IEEE exceptions that
// their code does not raise by itself.
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>

#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "codegen/codegen.h"
#include "codegen/emit_scalar.h"
#include "codegen/math.h"

namespace framejit::codegen {

using llvm::Value;

void Note(llvm::IRBuilder<>& b, Value* bad, int status) {
  Value* any = LanesOf(bad) > 1 ? b.CreateOrReduce(bad) : bad;
  llvm::Function* f = b.GetInsertBlock()->getParent();
  auto* rare = llvm::BasicBlock::Create(b.getContext(), "note", f);
  auto* join = llvm::BasicBlock::Create(b.getContext(), "join", f);
  auto* unlikely = llvm::MDBuilder(b.getContext()).createBranchWeights(1, 1 << 16);
  b.CreateCondBr(any, rare, join, unlikely);
  b.SetInsertPoint(rare);
  auto* type = llvm::FunctionType::get(b.getVoidTy(), {b.getInt64Ty()}, false);
  b.CreateCall(f->getParent()->getOrInsertFunction("fj_note", type), {b.getInt64(status)});
  b.CreateBr(join);
  b.SetInsertPoint(join);
}

void NoteExceptions(llvm::IRBuilder<>& b, Op op, std::span<Value* const> v) {
  Value* x = v[0];
  auto number = [&](double c) { return llvm::ConstantFP::get(x->getType(), c); };
  auto below_and_at = [&](double pole) {  // invalid below, infinite at
    Note(b, b.CreateFCmpOLT(x, number(pole)), kInvalid);
    Note(b, b.CreateFCmpOEQ(x, number(pole)), kDivide);
  };
  switch (op) {
    case Op::kLog:
    case Op::kLog2:
    case Op::kLog10: return below_and_at(0);
    case Op::kLog1p: return below_and_at(-1);
    case Op::kAcosh: return Note(b, b.CreateFCmpOLT(x, number(1)), kInvalid);
    case Op::kAtanh: {
      Value* size = b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
      Note(b, b.CreateFCmpOGT(size, number(1)), kInvalid);
      return Note(b, b.CreateFCmpOEQ(size, number(1)), kDivide);
    }
    case Op::kPow: {
      Value* zero = b.CreateFCmpOEQ(x, number(0));
      Note(b, b.CreateAnd(zero, b.CreateFCmpOLT(v[1], number(0))), kDivide);
      Value* whole = b.CreateFCmpOEQ(b.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, v[1]), v[1]);
      Value* finite = b.CreateAnd(b.CreateFCmpOLT(x, number(0)),
                                  b.CreateFCmpOGT(x, number(-std::numeric_limits<double>::infinity())));
      Value* number_power = b.CreateFCmpORD(v[1], v[1]);
      return Note(b, b.CreateAnd(b.CreateAnd(finite, number_power), b.CreateNot(whole)), kInvalid);
    }
    default: return;
  }
}

namespace {

// A GPU has no C library: the integer power is a function of the module, floats call NVIDIA's.
llvm::FunctionCallee IntegerPower(llvm::Module& m) {
  llvm::LLVMContext& c = m.getContext();
  llvm::IRBuilder<> b(c);
  auto* i64 = b.getInt64Ty();
  auto callee = m.getOrInsertFunction("fj_ipow", i64, i64, i64);
  auto* f = llvm::cast<llvm::Function>(callee.getCallee());
  if (!f->empty()) return callee;
  f->setLinkage(llvm::GlobalValue::InternalLinkage);
  auto* entry = llvm::BasicBlock::Create(c, "entry", f);
  auto* loop = llvm::BasicBlock::Create(c, "loop", f);
  auto* done = llvm::BasicBlock::Create(c, "done", f);
  Value *base = f->getArg(0), *exponent = f->getArg(1), *one = b.getInt64(1), *zero = b.getInt64(0);
  b.SetInsertPoint(entry);
  b.CreateBr(loop);
  b.SetInsertPoint(loop);
  auto *result = b.CreatePHI(i64, 2), *square = b.CreatePHI(i64, 2), *left = b.CreatePHI(i64, 2);
  Value* odd = b.CreateICmpNE(b.CreateAnd(left, one), zero);
  Value* next = b.CreateSelect(odd, b.CreateMul(result, square), result);
  Value* rest = b.CreateLShr(left, 1);
  Value* squared = b.CreateMul(square, square);
  b.CreateCondBr(b.CreateICmpNE(rest, zero), loop, done);
  for (auto [phi, first, then] : {std::tuple{result, one, next}, {square, base, squared}, {left, exponent, rest}}) {
    phi->addIncoming(first, entry);
    phi->addIncoming(then, loop);
  }
  b.SetInsertPoint(done);
  Value* minus = b.CreateSelect(b.CreateICmpNE(b.CreateAnd(exponent, one), zero), base, one);
  Value* negative =
      b.CreateSelect(b.CreateICmpEQ(base, one), one, b.CreateSelect(b.CreateICmpEQ(base, b.getInt64(-1)), minus, zero));
  b.CreateRet(b.CreateSelect(b.CreateICmpSLT(exponent, zero), negative, next));
  return callee;
}

Value* CallOnGpu(llvm::IRBuilder<>& b, const Isa& isa, const std::string& name, std::span<Value* const> v) {
  llvm::Module& m = *b.GetInsertBlock()->getModule();
  if (name == "fj_ipow") return b.CreateCall(IntegerPower(m), {v[0], v[1]});
  if (!isa.libdevice) throw CodegenUnsupported(name + " on a GPU without libdevice");
  std::vector<llvm::Type*> types(v.size(), v[0]->getType());
  auto callee = m.getOrInsertFunction("__nv_" + name, llvm::FunctionType::get(v[0]->getType(), types, false));
  return b.CreateCall(callee, std::vector<Value*>(v.begin(), v.end()));
}

}  // namespace

// The lanes go through memory: the helper is a loop over an array, so that the code stays small at any width.
Value* CallHelper(llvm::IRBuilder<>& b, const Isa& isa, const char* name, std::span<Value* const> v) {
  if (!isa.c_library) return CallOnGpu(b, isa, name, v);
  llvm::Function* f = b.GetInsertBlock()->getParent();
  llvm::Module* m = f->getParent();
  llvm::Type* type = v[0]->getType();
  const int lanes = LanesOf(v[0]);
  const uint64_t bytes = type->getScalarSizeInBits() / 8 * lanes;
  llvm::IRBuilder<> entry(&f->getEntryBlock(), f->getEntryBlock().begin());
  llvm::AllocaInst* memory = entry.CreateAlloca(entry.getInt8Ty(), entry.getInt64(bytes * v.size()));
  memory->setAlignment(llvm::Align(64));
  for (size_t i = 0; i < v.size(); ++i) {
    b.CreateAlignedStore(v[i], b.CreateConstInBoundsGEP1_64(b.getInt8Ty(), memory, i * bytes), llvm::Align(4));
  }
  auto* callee_type = llvm::FunctionType::get(b.getVoidTy(), {b.getPtrTy(), b.getInt64Ty()}, false);
  b.CreateCall(m->getOrInsertFunction(name, callee_type), {memory, b.getInt64(lanes)});
  return b.CreateAlignedLoad(type, memory, llvm::Align(64));
}

}  // namespace framejit::codegen
