#include "codegen/math.h"

#include <llvm/IR/Module.h>

#include "codegen/codegen.h"
#include "codegen/emit_scalar.h"

namespace framejit::codegen {

using llvm::Value;

// The lanes go through memory: the helper is a loop over an array, so that the code stays small at any width.
Value* CallHelper(llvm::IRBuilder<>& b, const char* name, std::span<Value* const> v) {
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

Value* EmitMath(llvm::IRBuilder<>& b, const Isa& isa, Op op, std::span<Value* const> v) {
  const bool f64 = v[0]->getType()->getScalarType()->isDoubleTy();
  if (Info(op).kind != 'P') throw CodegenUnsupported(Info(op).name);
  const std::string name = std::string(Info(op).name) + (f64 ? "" : "f");
  if (!HelperAddress(name)) throw CodegenUnsupported(Info(op).name);
  return CallHelper(b, name.c_str(), v);
}

}  // namespace framejit::codegen
