// What the functions of math.cc are made of: arithmetic on f32 or f64, numbers or vectors, polynomials and powers of
// two.
#pragma once

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/Module.h>

#include <cstring>

#include "codegen/emit_scalar.h"
#include "codegen/isa.h"

namespace framejit::codegen {

constexpr double kLn2Hi = 0x1.62e42fefa39efp-1, kLn2Lo = 0x1.abc9e3b39803fp-56;

class Arithmetic {
 public:
  // `exact` asks for f64 arithmetic for an f64 result. Otherwise polynomials are short.
  Arithmetic(llvm::IRBuilder<>& b, const Isa& isa, llvm::Value* like, bool exact)
      : b_(b), isa_(isa), type_(like->getType()), f64_(type_->getScalarType()->isDoubleTy()), exact_(exact) {
    bits_ = llvm::IntegerType::get(b.getContext(), f64_ ? 64 : 32);
    if (LanesOf(like) > 1) bits_ = llvm::FixedVectorType::get(bits_, LanesOf(like));
  }

  // Without AVX-512's broadcasts from memory a vector constant costs an instruction to broadcast it; as a whole vector
  // in memory it is an operand of the instruction that needs it. LLVM would shrink a constant, so it is a load for it.
  llvm::Value* C(double v) {
    llvm::Constant* c = llvm::ConstantFP::get(type_, v);
    if (isa_.avx512 || !type_->isVectorTy() || v == 0) return c;
    uint64_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    llvm::Module* m = b_.GetInsertBlock()->getModule();
    const std::string name = "c" + std::to_string(LanesOf(c)) + (f64_ ? "d" : "f") + std::to_string(bits);
    llvm::GlobalVariable* g = m->getNamedGlobal(name);
    if (!g) {
      g = new llvm::GlobalVariable(*m, type_, true, llvm::GlobalValue::PrivateLinkage, c, name);
      g->setAlignment(llvm::Align(32));
    }
    return b_.CreateAlignedLoad(type_, g, llvm::Align(32));
  }
  llvm::Value* Bits(uint64_t v) { return llvm::ConstantInt::get(bits_, v); }
  llvm::Value* Add(llvm::Value* a, llvm::Value* b) { return b_.CreateFAdd(a, b); }
  llvm::Value* Sub(llvm::Value* a, llvm::Value* b) { return b_.CreateFSub(a, b); }
  llvm::Value* Mul(llvm::Value* a, llvm::Value* b) { return b_.CreateFMul(a, b); }
  llvm::Value* Div(llvm::Value* a, llvm::Value* b) { return b_.CreateFDiv(a, b); }
  llvm::Value* Neg(llvm::Value* a) { return b_.CreateFNeg(a); }
  llvm::Value* Fma(llvm::Value* a, llvm::Value* b, llvm::Value* c) {
    return b_.CreateIntrinsic(type_, llvm::Intrinsic::fma, {a, b, c});
  }
  llvm::Value* Abs(llvm::Value* a) { return b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, a); }
  llvm::Value* Sqrt(llvm::Value* a) { return b_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, a); }
  llvm::Value* CopySign(llvm::Value* a, llvm::Value* s) {
    return b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, a, s);
  }
  llvm::Value* Trunc(llvm::Value* a) { return b_.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, a); }
  llvm::Value* If(llvm::Value* c, llvm::Value* a, llvm::Value* b) { return b_.CreateSelect(c, a, b); }
  llvm::Value* Less(llvm::Value* a, llvm::Value* b) { return b_.CreateFCmpOLT(a, b); }
  llvm::Value* Equal(llvm::Value* a, llvm::Value* b) { return b_.CreateFCmpOEQ(a, b); }
  llvm::Value* And(llvm::Value* a, llvm::Value* b) { return b_.CreateAnd(a, b); }
  // nan goes through
  llvm::Value* AtMost(llvm::Value* x, double limit) { return If(b_.CreateFCmpOGT(x, C(limit)), C(limit), x); }
  llvm::Value* AtLeast(llvm::Value* x, double limit) { return If(Less(x, C(limit)), C(limit), x); }

  template <size_t N>
  llvm::Value* Horner(llvm::Value* x, const double (&c)[N]) {
    llvm::Value* p = C(c[N - 1]);
    for (size_t i = N - 1; i-- > 0;) p = Fma(p, x, C(c[i]));
    return p;
  }
  template <size_t N>
  llvm::Value* Poly(llvm::Value* x, const double (&c)[N]) {
    if (N < 5) return Horner(x, c);
    // Evaluates in pairs over the square, which has half the latency of Horner for one more multiplication.
    llvm::Value* square = Mul(x, x);
    llvm::Value* p = nullptr;
    for (size_t i = (N - 1) / 2 * 2 + 2; i > 0;) {
      i -= 2;
      llvm::Value* pair = i + 1 < N ? Fma(x, C(c[i + 1]), C(c[i])) : C(c[i]);
      p = p ? Fma(p, square, pair) : pair;
    }
    return p;
  }
  template <size_t N, size_t M>
  llvm::Value* Poly(llvm::Value* x, const double (&full)[N], const double (&low)[M]) {
    return exact_ ? Poly(x, full) : Poly(x, low);
  }

  // --- integers in floats
  double Magic() const { return f64_ ? 0x1.8p52 : 0x1.8p23; }
  int MantissaBits() const { return f64_ ? 52 : 23; }
  int Bias() const { return f64_ ? 1023 : 127; }
  llvm::Value* AsBits(llvm::Value* x) { return b_.CreateBitCast(x, bits_); }
  llvm::Value* AsFloat(llvm::Value* x) { return b_.CreateBitCast(x, type_); }
  llvm::Value* PowerOfTwo(llvm::Value* magic) {  // 2^n from n + Magic(), n in the exponent range
    return AsFloat(b_.CreateShl(b_.CreateAdd(AsBits(magic), Bits(Bias())), Bits(MantissaBits())));
  }
  // p * 2^n in one instruction that rounds once, whatever n is. Null if the machine or the width has none.
  llvm::Value* Scalef(llvm::Value* p, llvm::Value* n) {
    if (!isa_.avx512 || isa_.lowered || type_->getPrimitiveSizeInBits() != 512) return nullptr;
    const auto id =
        f64_ ? llvm::Intrinsic::x86_avx512_mask_scalef_pd_512 : llvm::Intrinsic::x86_avx512_mask_scalef_ps_512;
    llvm::Value* all = llvm::ConstantInt::get(b_.getIntNTy(f64_ ? 8 : 16), -1);
    return b_.CreateIntrinsic(id, {}, {p, n, p, all, b_.getInt32(4)});  // 4: the current rounding mode
  }
  llvm::Value* Scale(llvm::Value* p, llvm::Value* n) {  // p * 2^n, a normal number
    if (llvm::Value* v = Scalef(p, n)) return v;
    return Mul(p, PowerOfTwo(Add(n, C(Magic()))));
  }
  llvm::Value* ScaleTwice(
      llvm::Value* p, llvm::Value* n) {  // p * 2^n, n past the exponent range: overflow and subnormals come out right
    if (llvm::Value* v = Scalef(p, n)) return v;
    llvm::Value* half = Fma(n, C(0.5), C(Magic()));
    llvm::Value* rest = Add(Sub(n, Sub(half, C(Magic()))), C(Magic()));
    return Mul(Mul(p, PowerOfTwo(half)), PowerOfTwo(rest));
  }

 protected:
  llvm::IRBuilder<>& b_;
  const Isa& isa_;
  llvm::Type* type_;
  llvm::Type* bits_;
  bool f64_, exact_;
};

}  // namespace framejit::codegen
