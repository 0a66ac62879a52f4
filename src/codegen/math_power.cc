#include "codegen/math_power.h"

#include "codegen/math_coefs.h"

namespace framejit::codegen {

using llvm::Value;

namespace {

constexpr uint64_t kNormal = uint64_t{1} << 52;  // the smallest normal number
// Of a unit in the last place: the C library's pow is wrong by 0.52 of it at most where the result lies between 2^-256
// and 2^256 (0.511, and 0.0325 of the share of its exponent in 1024).
constexpr double kSurelyLost = 0.475;

// Of what has no sign.
Value* IsNormal(Arithmetic m, llvm::IRBuilder<>& b, Value* bits) {
  return b.CreateICmpULT(b.CreateSub(bits, m.Bits(kNormal)), m.Bits(2046 * kNormal));
}

// The base 2 logarithm of a positive normal f64 number as a sum of two, to 2^-66 of it.
void Log2InTwo(Arithmetic m, llvm::IRBuilder<>& b, Value* x, Value** high, Value** low) {
  constexpr double kFirst = 0x1.71547652b82fep+1, kFirstLo = 0x1.777d0ffda0d24p-55;  // 2 / ln 2, and a third of it
  constexpr double kThird = 0x1.ec709dc3a03fdp-1, kThirdLo = 0x1.d27f05548af0cp-55;
  // x = 2^e k, k in [sqrt(1/2), sqrt(2)); f = k - 1
  constexpr uint64_t kOne = 0x3FF0000000000000, kRoot = 0x3FE6A09E667F3BCD, kMantissa = (uint64_t{1} << 52) - 1;
  Value* shifted = b.CreateAdd(m.AsBits(x), m.Bits(kOne - kRoot));
  Value* exponent = b.CreateOr(b.CreateLShr(shifted, m.Bits(52)), m.AsBits(m.C(0x1p52)));
  Value* e = m.Sub(m.AsFloat(exponent), m.C(0x1p52 + 1023));
  Value* f = m.Sub(m.AsFloat(b.CreateAdd(b.CreateAnd(shifted, m.Bits(kMantissa)), m.Bits(kRoot))), m.C(1));
  // s = f / (f + 2); log2(1 + f) = s (kFirst + z (kThird + z ..)), z = s^2, where all but the last is of two numbers
  Value* d = m.Add(f, m.C(2));
  Value* d_low = m.Sub(f, m.Sub(d, m.C(2)));
  Value* inverse = m.Div(m.C(1), d);
  Value* s = m.Mul(f, inverse);
  Value* s_low = m.Mul(m.Fma(m.Neg(s), d_low, m.Fma(m.Neg(s), d, f)), inverse);
  Value* z = m.Mul(s, s);
  Value* z_low = m.Fma(m.Add(s, s), s_low, m.Fma(s, s, m.Neg(z)));
  Value* q = m.Mul(z, m.Poly(z, kLog2InTwo53));
  Value* p = m.Add(m.C(kThird), q);
  Value* p_low = m.Add(m.Sub(q, m.Sub(p, m.C(kThird))), m.C(kThirdLo));
  Value* w = m.Mul(z, p);
  Value* w_low = m.Fma(z_low, p, m.Fma(z, p_low, m.Fma(z, p, m.Neg(w))));
  Value* u = m.Add(m.C(kFirst), w);
  Value* u_low = m.Add(m.Add(m.Sub(w, m.Sub(u, m.C(kFirst))), m.C(kFirstLo)), w_low);
  Value* l = m.Mul(s, u);
  Value* l_low = m.Fma(s_low, u, m.Fma(s, u_low, m.Fma(s, u, m.Neg(l))));
  *high = m.Add(e, l);
  *low = m.Add(m.Sub(l, m.Sub(*high, e)), l_low);
}

}  // namespace

Value* PowOfVectors(Arithmetic m, llvm::IRBuilder<>& b, Value* x, Value* y, Value** ok) {
  // The least logarithm but 0 is 2^-53, so that the square of a logarithm times 2^-400 does not underflow.
  constexpr uint64_t kSmallPower = uint64_t{1023 - 400} << 52;
  Value *t = m.Abs(x), *size = m.AsBits(m.Abs(y));
  Value* normal = IsNormal(m, b, m.AsBits(t));
  Value* plain = b.CreateICmpULT(b.CreateSub(size, m.Bits(kSmallPower)), m.Bits(460 * kNormal));
  Value* none = b.CreateICmpEQ(size, m.Bits(0));
  plain = b.CreateOr(plain, none);
  t = m.If(normal, t, m.C(1));
  Value* power = m.If(plain, y, m.C(1));
  Value* whole = m.Equal(m.Trunc(power), power);
  Value* half = m.Mul(power, m.C(0.5));
  Value* odd = m.And(whole, b.CreateFCmpUNE(m.Trunc(half), half));
  Value* negative = b.CreateICmpSLT(m.AsBits(x), m.Bits(0));
  Value* zero = m.And(b.CreateICmpEQ(m.AsBits(x), m.Bits(0)), b.CreateICmpSGT(m.AsBits(power), m.Bits(0)));
  Value *high, *low;
  Log2InTwo(m, b, t, &high, &low);
  Value* l = m.Mul(power, high);
  Value* l_low = m.Fma(power, low, m.Fma(power, high, m.Neg(l)));
  Value* inside = m.Less(m.Abs(l), m.C(1021));
  l = m.If(inside, l, m.C(0));
  // 2^l = 2^n e^u; the sum of the first two terms of e^u is one of two numbers
  Value* n = m.Sub(m.Add(l, m.C(m.Magic())), m.C(m.Magic()));
  Value* rest = m.Sub(l, n);
  Value* r = m.Add(rest, l_low);
  Value* r_low = m.Sub(l_low, m.Sub(r, rest));
  Value* u = m.Mul(r, m.C(kLn2Hi));
  Value* u_low = m.Fma(r_low, m.C(kLn2Hi), m.Fma(r, m.C(kLn2Lo), m.Fma(r, m.C(kLn2Hi), m.Neg(u))));
  Value* tail = m.Fma(m.Mul(u, u), m.Poly(u, kExp53), u_low);
  Value* one = m.Add(m.C(1), u);
  Value* result = m.Scale(m.Add(one, m.Add(m.Sub(u, m.Sub(one, m.C(1))), tail)), n);
  result = m.If(m.And(negative, odd), m.Neg(result), result);
  *ok = m.And(m.And(normal, inside), b.CreateOr(b.CreateNot(negative), whole));
  *ok = m.And(plain, b.CreateOr(*ok, zero));
  return m.If(zero, m.C(0), result);
}

Value* Log10OfVectors(Arithmetic m, llvm::IRBuilder<>& b, Value* x, Value** ok) {
  constexpr double kLog10Of2 = 0x1.34413509f79ffp-2, kLog10Of2Lo = -0x1.9dc1da994fd21p-59;
  *ok = IsNormal(m, b, m.AsBits(x));
  Value *high, *low;
  Log2InTwo(m, b, m.If(*ok, x, m.C(1)), &high, &low);
  Value* y = m.Mul(high, m.C(kLog10Of2));
  Value* rest = m.Fma(high, m.C(kLog10Of2Lo), m.Fma(high, m.C(kLog10Of2), m.Neg(y)));
  return m.Add(y, m.Fma(low, m.C(kLog10Of2), rest));
}

Value* IsPowOfTwo(llvm::IRBuilder<>& b, Value* x, Value* product) {
  llvm::Type* type = x->getType();
  const auto number = [&](double v) { return llvm::ConstantFP::get(type, v); };
  Value* lost = b.CreateIntrinsic(llvm::Intrinsic::fma, {type}, {x, x, b.CreateFNeg(product)});  // exact
  lost = b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, lost);
  Value* exponent = b.CreateAnd(b.CreateBitCast(product, b.getInt64Ty()), b.getInt64(0x7ff0'0000'0000'0000));
  Value* most_lost = b.CreateFMul(b.CreateBitCast(exponent, type), number(kSurelyLost * 0x1p-52));
  Value* normal = b.CreateAnd(b.CreateFCmpOGE(product, number(0x1p-256)), b.CreateFCmpOLE(product, number(0x1p256)));
  return b.CreateAnd(normal, b.CreateFCmpOLE(lost, most_lost));
}

}  // namespace framejit::codegen
