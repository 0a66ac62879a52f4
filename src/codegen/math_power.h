// Powers and decimal logarithms of vectors of f64, by logarithms that are sums of two numbers.
#pragma once

#include "codegen/math_arithmetic.h"

namespace framejit::codegen {

// x^y to a little more than half a unit in the last place, where `ok`: not where the result is or may be no normal
// number, nor for powers of what is none itself. No operand raises an IEEE exception here that is not `ok`.
llvm::Value* PowOfVectors(Arithmetic m, llvm::IRBuilder<>& b, llvm::Value* x, llvm::Value* y, llvm::Value** ok);

// The decimal logarithm to half a unit in the last place, so that those of powers of ten are whole, where `ok`: of
// positive normal numbers.
llvm::Value* Log10OfVectors(Arithmetic m, llvm::IRBuilder<>& b, llvm::Value* x, llvm::Value** ok);

// Is x * x, which is `product`, surely what the C library's pow(x, 2) gives, a normal number? pow is wrong by less than
// 0.54 units in the last place: so it is, unless the square lies near the middle between two floats.
llvm::Value* IsPowOfTwo(llvm::IRBuilder<>& b, llvm::Value* x, llvm::Value* product);

}  // namespace framejit::codegen
