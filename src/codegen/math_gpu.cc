// Short ways that only a GPU has, for what is rounded to 16 bits or summed (gpu_rough.h).
#include <llvm/IR/IntrinsicsNVPTX.h>

#include <span>

#include "codegen/math.h"
#include "codegen/math_coefs.h"

namespace framejit::codegen {

using llvm::Value;

namespace {

Value* C(llvm::IRBuilder<>& b, double c) {
  return llvm::ConstantFP::get(b.getFloatTy(), c);
}
Value* Ex2(llvm::IRBuilder<>& b, Value* t) {
  return b.CreateIntrinsic(b.getFloatTy(), llvm::Intrinsic::nvvm_ex2_approx_ftz_f, {t});
}
Value* Fma(llvm::IRBuilder<>& b, Value* x, Value* y, Value* z) {
  return b.CreateIntrinsic(llvm::Intrinsic::fma, {b.getFloatTy()}, {x, y, z});
}

}  // namespace

Value* FallingExpOnGpu(llvm::IRBuilder<>& b, Value* x) {
  return Ex2(b, b.CreateFMul(x, C(b, 0x1.71547652b82fep+0)));
}

// max(x, 0) - |x| q(|x|), where q(t) is the part of a normal distribution past t: 0 long before 16. nan and infinities
// as the formula has them: -inf gives nan.
Value* GeluOnGpu(llvm::IRBuilder<>& b, Value* x, bool bfloat16) {
  Value* t =
      b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, b.CreateBinaryIntrinsic(llvm::Intrinsic::minimum, x, C(b, 16)));
  const std::span<const double> coefs = bfloat16 ? std::span<const double>(kLog2NormalTail8) : kLog2NormalTail;
  Value* log = C(b, coefs.back());
  for (size_t i = coefs.size() - 1; i-- > 0;) log = Fma(b, log, t, C(b, coefs[i]));
  return Fma(b, b.CreateFNeg(t), Ex2(b, log), b.CreateMaxNum(x, C(b, 0)));
}

}  // namespace framejit::codegen
