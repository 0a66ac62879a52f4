// Elementary functions on f32 and f64, scalars or vectors: polynomials as IR for those that matter, the C library by
// symbol for the rest. NaN, infinities, signed zeros and subnormals as the C library has them.
#pragma once

#include <llvm/IR/IRBuilder.h>

#include <span>

#include "codegen/isa.h"
#include "framejit/graph.h"

namespace framejit::codegen {

llvm::Value* EmitMath(llvm::IRBuilder<>& b, const Isa& isa, Op op, std::span<llvm::Value* const> v);

// x / y on a GPU: to two units in the last place where isa.approximate or the divisor (of a logistic function) allow a
// quarter of the instructions of the exact quotient.
llvm::Value* DivideOnGpu(llvm::IRBuilder<>& b, const Isa& isa, llvm::Value* x, llvm::Value* y);
// x + y; one polynomial for the 1 + erf(..) of gelu where isa.approximate.
llvm::Value* AddOnGpu(llvm::IRBuilder<>& b, const Isa& isa, llvm::Value* x, llvm::Value* y);

// exp(x) of x <= 0 whose small results count for nothing: subnormal ones are 0.
llvm::Value* FallingExpOnGpu(llvm::IRBuilder<>& b, llvm::Value* x);
// x/2 * (1 + erf(x/sqrt(2))), to 2^-15 of it, where it becomes a bfloat16 to 2^-11. sm_80.
llvm::Value* GeluOnGpu(llvm::IRBuilder<>& b, llvm::Value* x, bool bfloat16);

// A function of helpers.cc on every lane (on a GPU: of libdevice); operands of one type.
llvm::Value* CallHelper(llvm::IRBuilder<>& b, const Isa& isa, const char* name, std::span<llvm::Value* const> v);
inline llvm::Value* CallHelper(llvm::IRBuilder<>& b, const Isa& isa, const char* name,
                               std::initializer_list<llvm::Value*> v) {
  return CallHelper(b, isa, name, std::span<llvm::Value* const>(v.begin(), v.size()));
}

// Notes a Status of the run if `bad` in any lane: one branch.
void Note(llvm::IRBuilder<>& b, llvm::Value* bad, int status);
// Notes the IEEE exceptions of a function that its code does not raise by itself.
void NoteExceptions(llvm::IRBuilder<>& b, Op op, std::span<llvm::Value* const> v);

// Address of a symbol that emitted code may refer to; null if there is none.
void* HelperAddress(std::string_view name);

}  // namespace framejit::codegen
