// How the functions are made. All are polynomials after an argument reduction (coefficients: math_coefs.h), evaluated
// with llvm.fma. Two ways to get an f32 result:
//   hot functions (exp, expm1, log, log1p, tanh, erf, sin, cos) in f32 arithmetic, at most 1 to 2 ulp;
//   the others in f64 arithmetic with short polynomials (`30`: about 2^-30) and one rounding: half an ulp and no
//   special care for cancellation, overflow or subnormals.
// f64 results use the long polynomials (`53`); erfc, hypot and a single pow or log10 of f64 call the C library, and so
// do sin, cos, tan past 2^30 (f32: sin, cos past 2^17), fmod of huge quotients and pow near the ends of the range (one
// branch a vector).
//
// Integers travel in the low mantissa bits of a float: x + 1.5 * 2^52 rounds x to an integer whose two's complement is
// the low bits of the sum. Unlike conversions this is one instruction on every vector width.
#include "codegen/math.h"

#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/IntrinsicsNVPTX.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "codegen/codegen.h"
#include "codegen/emit_scalar.h"
#include "codegen/math_arithmetic.h"
#include "codegen/math_coefs.h"
#include "codegen/math_power.h"

namespace framejit::codegen {

using llvm::Value;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kLn2HiF = 0x1.62e43p-1, kLn2LoF = -0x1.05c61p-29;
constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr const char *kPositive = "framejit.positive", *kErf = "framejit.erf";  // what a value is known to be
constexpr double kPi = 0x1.921fb54442d18p+1, kPiLo = 0x1.1a62633145c07p-53;
constexpr double kHalfPi = 0x1.921fb54442d18p+0, kHalfPiLo = 0x1.1a62633145c07p-54,
                 kHalfPiLo2 = -0x1.f1976b7ed8fbcp-110;

class Math : public Arithmetic {
 public:
  using Arithmetic::Arithmetic;

  // x = n ln2 + r, |r| <= ln2 / 2
  void ReduceExp(Value* x, Value** n, Value** r) {
    *n = Sub(Fma(x, C(kLog2E), C(Magic())), C(Magic()));
    *r = Fma(*n, C(-(f64_ ? kLn2Hi : kLn2HiF)), x);
    if (exact_ || !f64_) *r = Fma(*n, C(-(f64_ ? kLn2Lo : kLn2LoF)), *r);
  }
  Value* ExpPoly(Value* r) {
    Value* q = f64_ ? Poly(r, kExp53, kExp30) : Poly(r, kExpF32);
    return Add(Fma(Mul(r, r), q, r), C(1));
  }
  // --- f32 on a GPU, whose own 2^t and 1/t are good to about two units in the last place
  Value* Ex2(Value* t) {  // arguments and results that are subnormal become 0
    return b_.CreateIntrinsic(b_.getFloatTy(), llvm::Intrinsic::nvvm_ex2_approx_ftz_f, {t});
  }
  Value* Rcp(Value* t) { return b_.CreateIntrinsic(b_.getFloatTy(), llvm::Intrinsic::nvvm_rcp_approx_ftz_f, {t}); }
  Value* ExpOnGpu(Value* x) {
    if (isa_.approximate)
      return Positive(b_.CreateIntrinsic(llvm::Intrinsic::nvvm_ex2_approx_f, {}, {Mul(x, C(kLog2E))}));
    // x log2(e) = n + f, n a normal number's exponent; past its ends f grows instead, and the product overflows or
    // becomes subnormal as it should. n + 126 as a part of 252 is saturated to [0, 1]: nan becomes 0.
    auto* f32 = b_.getFloatTy();
    auto* saturated = llvm::InlineAsm::get(llvm::FunctionType::get(f32, {f32, f32, f32}, false),
                                           "fma.rn.sat.f32 $0, $1, $2, $3;", "=f,f,f,f", /*hasSideEffects=*/false);
    Value* part = b_.CreateCall(saturated, {x, C(kLog2E / 252), C(0.5)});
    Value* magic = b_.CreateIntrinsic(f32, llvm::Intrinsic::nvvm_fma_rm_f, {part, C(252), C(0x1.8p23 + 1)});
    Value* f = Fma(x, C(kLog2E), Neg(Sub(magic, C(0x1.8p23 + 127))));
    f = Fma(x, C(0x1.4ae0c0p-26), f);
    return Positive(Mul(Ex2(f), AsFloat(b_.CreateShl(AsBits(magic), Bits(23)))));
  }
  Value* TanhOnGpu(Value* x) {
    Value* t = Abs(x);
    Value* z = Mul(x, x);
    Value* poly = isa_.approximate ? Fma(z, C(2.0 / 15), C(-1.0 / 3)) : Horner(z, kTanhF32);
    Value* near = Fma(Mul(x, z), poly, x);
    Value* far = Fma(Rcp(Add(Ex2(Mul(t, C(2 * kLog2E))), C(1))), C(-2), C(1));
    return If(Less(t, C(isa_.approximate ? 0.25 : 0.6)), near, CopySign(far, x));
  }
  Value* OnePlusErf(Value* x) {  // 2^-18 of the result, also where it is small
    Value* tail = Ex2(Horner(Abs(x), kLog2ErfcRough));
    return If(Less(x, C(0)), tail, Sub(C(2), tail));
  }
  Value* Positive(Value* v) { return Mark(v, kPositive); }
  Value* Mark(Value* v, const char* what) {
    if (auto* i = llvm::dyn_cast<llvm::Instruction>(v)) i->setMetadata(what, llvm::MDNode::get(b_.getContext(), {}));
    return v;
  }
  Value* Exp(Value* x) {
    if (isa_.function_instructions && !f64_) return ExpOnGpu(x);
    Value *n, *r;
    ReduceExp(AtLeast(AtMost(x, f64_ ? 710.0 : 89.0), f64_ ? -746.0 : -104.5), &n, &r);
    return ScaleTwice(ExpPoly(r), n);
  }
  Value* ExpSmallRange(Value* x) {  // where the result is a normal number
    Value *n, *r;
    ReduceExp(x, &n, &r);
    return Scale(ExpPoly(r), n);
  }
  Value* Exp2SmallRange(Value* x) {  // f32; where the result is a normal number
    Value* n = Sub(Add(x, C(Magic())), C(Magic()));
    return Scale(Horner(Sub(x, n), kExp2F32), n);
  }
  Value* HalfExp(Value* x) {  // exp(x) / 2, for x where exp(x) may overflow
    Value *n, *r;
    ReduceExp(AtMost(x, f64_ ? 711.0 : 90.0), &n, &r);
    return ScaleTwice(ExpPoly(r), Sub(n, C(1)));
  }
  Value* Exp2(Value* x) {
    x = AtLeast(AtMost(x, f64_ ? 1025.0 : 129.0), f64_ ? -1076.0 : -151.0);
    Value* n = Sub(Add(x, C(Magic())), C(Magic()));
    Value* d = Sub(x, n);
    Value* r =
        f64_ && !exact_ ? Mul(d, C(kLn2Hi)) : Fma(d, C(f64_ ? kLn2Lo : kLn2LoF), Mul(d, C(f64_ ? kLn2Hi : kLn2HiF)));
    return ScaleTwice(ExpPoly(r), n);
  }
  Value* Expm1(Value* x) {
    x = AtLeast(AtMost(x, f64_ ? 710.0 : 89.0), f64_ ? -40.0 : -20.0);
    Value *n, *r;
    ReduceExp(x, &n, &r);
    Value* q = f64_ ? Poly(r, kExpm153, kExpm130) : Poly(r, kExpm1F32);
    Value* tail = Mul(Mul(r, r), Fma(r, q, C(0.5)));
    // 2^n (1 + r + tail) - 1 with half of 2^n, so that n = 128 (1024) does not overflow early; r before the tail,
    // because for n = 1 it cancels
    Value* s = PowerOfTwo(Add(n, C(Magic() - 1)));
    Value* y = Fma(s, tail, Fma(s, r, Sub(s, C(0.5))));
    y = Add(y, y);
    return If(Equal(n, C(0)), If(Equal(x, C(0)), x, Add(r, tail)), y);
  }

  // x = 2^e m, m in [sqrt(1/2), sqrt(2)); f = m - 1. x positive and finite.
  void Split(Value* x, Value** e, Value** f, Value** small) {
    const uint64_t one = uint64_t(Bias()) << MantissaBits();
    const uint64_t root = f64_ ? 0x3FE6A09E667F3BCD : 0x3F3504F3;
    *small = Less(x, C(f64_ ? 0x1p-1022 : 0x1p-126));
    const double up = f64_ ? 54 : 24;
    x = If(*small, Mul(x, C(f64_ ? 0x1p54 : 0x1p24)), x);
    Value* shifted = b_.CreateAdd(AsBits(x), Bits(one - root));
    Value* exponent = b_.CreateLShr(shifted, Bits(MantissaBits()));
    Value* m = b_.CreateAdd(b_.CreateAnd(shifted, Bits((uint64_t{1} << MantissaBits()) - 1)), Bits(root));
    const double magic = f64_ ? 0x1p52 : 0x1p23;
    Value* number = AsFloat(b_.CreateOr(exponent, AsBits(C(magic))));
    *e = Sub(number, If(*small, C(magic + Bias() + up), C(magic + Bias())));
    *f = Sub(AsFloat(m), C(1));
  }
  // log(1 + f) - f, for the callers to add what f lacks
  Value* LogTail(Value* f) {
    if (!f64_) return Mul(Mul(f, f), Fma(f, Poly(f, kLogF32), C(-0.5)));
    Value* s = Div(f, Add(f, C(2)));
    Value* z = Mul(s, s);
    Value* r = Mul(z, Poly(z, kLog53, kLog30));
    Value* half = Mul(Mul(f, f), C(0.5));
    return Sub(Mul(s, Add(half, r)), half);
  }
  Value* LogSpecial(Value* x, Value* y) {
    y = If(Equal(x, C(kInf)), x, y);
    y = If(Equal(x, C(0)), C(-kInf), y);
    return If(b_.CreateFCmpULT(x, C(0)), C(kNan), y);
  }
  Value* Log(Value* x, Value* correction = nullptr) {  // of x + correction
    Value *e, *f, *small;
    Split(x, &e, &f, &small);
    if (correction) f = Fma(correction, PowerOfTwo(Sub(C(Magic()), AtMost(e, Bias() - 1))), f);
    Value* tail = LogTail(f);
    Value* y = Add(Fma(e, C(f64_ ? kLn2Lo : kLn2LoF), tail), f);
    return LogSpecial(x, Fma(e, C(f64_ ? kLn2Hi : kLn2HiF), y));
  }
  Value* Log2(Value* x) {
    Value *e, *f, *small;
    Split(x, &e, &f, &small);
    Value* tail = LogTail(f);
    // f and the tail are multiplied apart: their sum would be rounded before it grows by log2(e)
    Value* y = Fma(f, C(kLog2E), Fma(tail, C(kLog2E), Mul(f, C(0x1.777d0ffda0d24p-56))));
    return LogSpecial(x, Add(e, y));
  }
  Value* Log10(Value* x) {
    Value *e, *f, *small;
    Split(x, &e, &f, &small);
    Value* y = Mul(Add(LogTail(f), f), C(0.43429448190325182));
    return LogSpecial(x, Fma(e, C(0.3010299956639812), y));
  }
  Value* Log1p(Value* x) {
    Value* u = Add(x, C(1));
    Value* d = Sub(u, x);  // what was lost: (x - (u - d)) + (1 - d)
    Value* lost = Add(Sub(x, Sub(u, d)), Sub(C(1), d));
    Value* y = Log(u, If(Less(Abs(u), C(kInf)), lost, C(0)));
    return If(Equal(u, C(1)), x, y);  // also keeps -0
  }

  // An odd f32 function that ends at 1, by polynomials around the multiples of `width`; their coefficients lie in
  // registers that the lanes choose from (16 or 32 pieces). Null if there is no such instruction.
  template <int kNodes, typename F>
  Value* Pieces(Value* x, F f, double width, int pieces) {
    if (f64_ || !isa_.avx512 || isa_.lowered || type_->getPrimitiveSizeInBits() != 512) return nullptr;
    std::vector<float> table(kNodes * 32);
    for (int piece = 0; piece < pieces; ++piece) {
      double at[kNodes], c[kNodes] = {};  // Newton's divided differences at Chebyshev's nodes, then powers
      for (int k = 0; k < kNodes; ++k) {
        at[k] = std::cos(kPi * (k + 0.5) / kNodes) * width / 2;
        c[k] = f(piece * width + at[k]);
      }
      for (int level = 1; level < kNodes; ++level) {
        for (int k = kNodes - 1; k >= level; --k) c[k] = (c[k] - c[k - 1]) / (at[k] - at[k - level]);
      }
      for (int first = kNodes - 2; first >= 0; --first) {
        for (int k = first; k < kNodes - 1; ++k) c[k] -= at[first] * c[k + 1];
      }
      c[1] -= 1;  // the function is d + ..., so that little is rounded where it is small
      // What rounding takes from the first coefficient is given back where the results are smallest; in the last piece
      // where it ends, so that what lies behind is exactly 1.
      const double lost = 2 / width * (c[0] - static_cast<float>(c[0]));
      if (piece) c[1] += piece == pieces - 1 ? lost : -lost;
      for (int k = 0; k < kNodes; ++k) table[k * 32 + piece] = piece == 0 && k % 2 == 0 ? 0 : static_cast<float>(c[k]);
    }
    Value* t = AtMost(Abs(x), (pieces - 0.51) * width);
    Value* magic = Fma(t, C(1 / width), C(Magic()));
    Value* d = Fma(Sub(magic, C(Magic())), C(-width), t);
    auto coefficient = [&](int k) -> Value* {
      auto part = [&](int from) {
        return Constants({table.begin() + k * 32 + from, table.begin() + k * 32 + from + 16});
      };
      if (pieces == 16)
        return b_.CreateIntrinsic(llvm::Intrinsic::x86_avx512_permvar_sf_512, {}, {part(0), AsBits(magic)});
      return b_.CreateIntrinsic(llvm::Intrinsic::x86_avx512_vpermi2var_ps_512, {}, {part(0), AsBits(magic), part(16)});
    };
    Value* y = coefficient(kNodes - 1);
    for (int k = kNodes - 1; k-- > 1;) y = Fma(y, d, coefficient(k));
    return CopySign(Add(Fma(y, d, d), coefficient(0)), x);
  }
  Value* Constants(const std::vector<float>& v) {
    return llvm::ConstantDataVector::get(b_.getContext(), llvm::ArrayRef<float>(v));
  }

  Value* Tanh(Value* x) {
    if (isa_.function_instructions && !f64_) return TanhOnGpu(x);
    Value* t = Abs(x);
    if (Value* y = Pieces<7>(x, [](double v) { return std::tanh(v); }, 37.0 / 128, 32)) return y;
    if (!f64_) {
      Value* z = Mul(x, x);
      Value* near = Fma(Mul(t, z), Horner(z, kTanhF32), t);
      Value* e = Exp2SmallRange(Mul(AtMost(t, 10.0), C(2 * 0x1.71547652b82fep+0)));
      Value* far = Sub(C(1), Div(C(2), Add(e, C(1))));
      return CopySign(If(Less(t, C(0.6)), near, far), x);
    }
    Value* e = Expm1(Mul(AtMost(t, f64_ ? 20.0 : 10.0), C(2)));
    Value* large = Less(C(0.55), t);
    Value* q = Div(If(large, C(2), e), Add(e, C(2)));
    return CopySign(If(large, Sub(C(1), q), q), x);
  }
  Value* Erf(Value* x) {
    Value* t = Abs(x);
    if (Value* y = Pieces<6>(x, [](double v) { return std::erf(v); }, 33.0 / 128, 16)) return y;
    if (!f64_) {
      Value* z = Mul(x, x);
      Value* near = Fma(x, Horner(z, kErfF32), x);
      Value* log = Horner(isa_.function_instructions ? b_.CreateMinNum(t, C(4.0)) : AtMost(t, 4.0), kLog2ErfcF32);
      Value* far = Sub(C(1), isa_.function_instructions ? Ex2(log) : Exp2SmallRange(log));
      Value* y = If(b_.CreateFCmpULT(t, C(0.921875)), near, CopySign(far, x));  // near: nan, too
      return isa_.function_instructions ? Mark(y, kErf) : y;
    }
    Value* z = Mul(x, x);
    Value* near = Fma(x, Poly(z, kErf53), x);
    Value* a = AtMost(t, 6.0);
    Value* far = Sub(C(1), ErfcPositive(a));
    return If(Less(t, C(1)), near, CopySign(far, x));
  }
  Value* ErfcPositive(Value* t) {  // t in [0, 10] (30 bits), [1, 6] (absolute 53 bits)
    Value* q = Div(Sub(t, C(2)), Add(t, C(2)));
    Value* w = Div(Poly(q, kErfcx53, kErfcx30), Fma(t, C(2), C(1)));
    return Mul(w, Exp(Neg(Mul(t, t))));
  }
  Value* Erfc(Value* x) {
    Value* y = ErfcPositive(AtMost(Abs(x), 10.4));
    return If(Less(x, C(0)), Sub(C(2), y), y);
  }

  // f32, |x| <= 2^17. One polynomial over half a period: x = n pi + r (cos: n an odd number of halves). The first
  // product is subtracted exactly.
  Value* SinCosF32(Value* x, bool cosine) {
    Value* magic;
    Value* r = x;
    if (cosine) {
      magic = Add(Fma(x, C(1 / kPi), C(-0.5)), C(Magic()));
      Value* n = Fma(Sub(magic, C(Magic())), C(2), C(1));
      for (double part : {0x1.921fb6p+0, -0x1.777a5cp-25, -0x1.ee59dap-50}) r = Fma(n, C(-part), r);
    } else {
      magic = Fma(x, C(1 / kPi), C(Magic()));
      Value* n = Sub(magic, C(Magic()));
      for (double part : {0x1.921fb6p+1, -0x1.777a5cp-24, -0x1.ee59dap-49}) r = Fma(n, C(-part), r);
    }
    Value* z = Mul(r, r);
    Value* y = Fma(Mul(r, z), Horner(z, kSinF32), r);
    Value* odd = AsBits(magic);
    if (cosine) odd = b_.CreateAdd(odd, Bits(1));
    y = AsFloat(b_.CreateXor(AsBits(y), b_.CreateShl(odd, Bits(31))));
    return cosine ? y : If(Equal(x, C(0)), x, y);
  }

  // x = n pi/2 + r + low, |r| <= pi/4
  void ReduceTrig(Value* x, Value** magic, Value** r, Value** low) {
    *magic = Fma(x, C(0x1.45f306dc9c883p-1), C(Magic()));
    Value* n = Sub(*magic, C(Magic()));
    Value* a = Fma(n, C(-kHalfPi), x);
    Value* b = Fma(n, C(-kHalfPiLo), a);
    *r = b;
    *low = nullptr;
    if (!exact_) return;
    Value* lost = Fma(n, C(-kHalfPiLo), Sub(a, b));
    *low = Fma(n, C(-kHalfPiLo2), lost);
  }
  Value* SinPoly(Value* r, Value* low) {
    Value* z = Mul(r, r);
    Value* p = Mul(z, Poly(z, kSin53, kSin30));
    Value* y = Mul(r, p);
    if (low) y = Add(y, Mul(low, Fma(z, C(-0.5), C(1))));
    return Add(y, r);
  }
  Value* CosPoly(Value* r, Value* low) {
    Value* z = Mul(r, r);
    Value* half = Mul(z, C(0.5));
    Value* w = Sub(C(1), half);
    Value* lost = Sub(Sub(C(1), w), half);
    Value* y = Fma(Mul(z, z), Poly(z, kCos53, kCos30), lost);
    if (low) y = Sub(y, Mul(low, r));
    return Add(w, y);
  }
  Value* SinCos(Value* x, bool cosine) {
    Value *magic, *r, *low;
    ReduceTrig(x, &magic, &r, &low);
    Value* q = AsBits(magic);
    if (cosine) q = b_.CreateAdd(q, Bits(1));
    Value* odd = b_.CreateICmpNE(b_.CreateAnd(q, Bits(1)), Bits(0));
    Value* y = If(odd, CosPoly(r, low), SinPoly(r, low));
    Value* sign = b_.CreateShl(b_.CreateAnd(q, Bits(2)), Bits(f64_ ? 62 : 30));
    y = AsFloat(b_.CreateXor(AsBits(y), sign));
    return cosine ? y : If(Equal(x, C(0)), x, y);
  }
  Value* Tan(Value* x) {
    Value *magic, *r, *low;
    ReduceTrig(x, &magic, &r, &low);
    Value* s = SinPoly(r, low);
    Value* c = CosPoly(r, low);
    Value* odd = b_.CreateICmpNE(b_.CreateAnd(AsBits(magic), Bits(1)), Bits(0));
    Value* y = Div(If(odd, Neg(c), s), If(odd, s, c));
    return If(Equal(x, C(0)), x, y);
  }

  Value* AtanPositive(Value* numerator, Value* denominator) {  // both >= 0; of the quotient, in [0, pi/2]
    Value* a = numerator;
    Value* b = denominator;
    Value* high = Less(Mul(b, C(2.414213562373095)), a);
    Value* middle = Less(Mul(b, C(0.41421356237309503)), a);
    Value* n = If(high, Neg(b), If(middle, Sub(a, b), a));
    Value* d = If(high, a, If(middle, Add(a, b), b));
    Value* t = Div(n, d);
    Value* z = Mul(t, t);
    Value* p = Mul(Mul(t, z), Poly(z, kAtan53, kAtan30));
    Value* base = If(high, C(kHalfPi), If(middle, C(kHalfPi / 2), C(0)));
    Value* base_low = If(high, C(kHalfPiLo), If(middle, C(kHalfPiLo / 2), C(0)));
    return Add(base, Add(t, Add(p, base_low)));
  }
  Value* Atan(Value* x) {
    Value* t = Abs(x);
    Value* infinite = Equal(t, C(kInf));
    return CopySign(If(infinite, C(kHalfPi), AtanPositive(t, C(1))), x);
  }
  Value* Atan2(Value* y, Value* x) {
    Value* a = Abs(y);
    Value* b = Abs(x);
    Value* zero = And(Equal(a, C(0)), Equal(b, C(0)));
    Value* infinite = And(Equal(a, C(kInf)), Equal(b, C(kInf)));
    // scaled, so that sums do not overflow nor products underflow
    Value* big = b_.CreateOr(Less(C(0x1p1000), a), Less(C(0x1p1000), b));
    Value* scale = If(big, C(0x1p-100), C(0x1p100));
    scale = If(b_.CreateOr(big, And(Less(a, C(0x1p-900)), Less(b, C(0x1p-900)))), scale, C(1));
    Value* r = AtanPositive(If(infinite, C(1), Mul(a, scale)), If(infinite, C(1), If(zero, C(1), Mul(b, scale))));
    r = If(Equal(b, C(kInf)), If(infinite, r, If(Less(a, C(kInf)), C(0), r)), r);
    r = If(And(Equal(a, C(kInf)), Less(b, C(kInf))), C(kHalfPi), r);
    Value* negative = b_.CreateICmpSLT(AsBits(x), Bits(0));
    r = If(negative, Add(Sub(C(kPi), r), C(kPiLo)), r);
    Value* nan = b_.CreateFCmpUNO(x, y);
    return If(nan, Add(x, y), CopySign(r, y));
  }
  Value* AsinPoly(Value* x, Value* z) { return Fma(Mul(x, z), Poly(z, kAsin53, kAsin30), x); }
  Value* Asin(Value* x) {
    Value* t = Abs(x);
    Value* large = Less(C(0.5), t);
    Value* z = If(large, Mul(Sub(C(1), t), C(0.5)), Mul(t, t));
    Value* s = If(large, Sqrt(z), t);
    Value* tail = Mul(Mul(s, z), Poly(z, kAsin53, kAsin30));
    Value* far = Add(Fma(s, C(-2), C(kHalfPi)), Fma(tail, C(-2), C(kHalfPiLo)));
    return CopySign(If(large, far, Add(s, tail)), x);
  }
  Value* Acos(Value* x) {
    Value* t = Abs(x);
    Value* large = Less(C(0.5), t);
    Value* z = If(large, Mul(Sub(C(1), t), C(0.5)), Mul(t, t));
    Value* s = If(large, Sqrt(z), x);
    Value* p = AsinPoly(s, z);
    Value* small = Sub(C(kHalfPi), Sub(p, C(kHalfPiLo)));
    Value* twice = Add(p, p);
    return If(large, If(Less(x, C(0)), Add(Sub(C(kPi), twice), C(kPiLo)), twice), small);
  }
  Value* Sinh(Value* x) {
    Value* t = Abs(x);
    Value* e = Expm1(AtMost(t, 40));
    Value* small = Mul(C(0.5), Add(e, Div(e, Add(e, C(1)))));
    return CopySign(If(Less(C(22), t), HalfExp(t), small), x);
  }
  Value* Cosh(Value* x) {
    Value* t = Abs(x);
    Value* half = HalfExp(t);
    return Add(half, Div(C(0.25), half));
  }
  Value* Asinh(Value* x) {
    Value* t = Abs(x);
    Value* large = Less(C(0x1p28), t);
    Value* s = If(large, C(1), t);
    Value* square = Mul(s, s);
    Value* small = Add(s, Div(square, Add(C(1), Sqrt(Add(square, C(1))))));
    Value* y = Log1p(If(large, Sub(t, C(1)), small));
    return CopySign(Add(y, If(large, C(kLn2Hi), C(0))), x);
  }
  Value* Acosh(Value* x) {
    Value* large = Less(C(0x1p28), x);
    Value* t = If(large, C(1), Sub(x, C(1)));
    Value* y = Log1p(If(large, Sub(x, C(1)), Add(t, Sqrt(Fma(t, t, Add(t, t))))));
    return If(Less(x, C(1)), C(kNan), Add(y, If(large, C(kLn2Hi), C(0))));
  }
  Value* Atanh(Value* x) {
    Value* t = Abs(x);
    Value* y = Mul(C(0.5), Log1p(Div(Add(t, t), Sub(C(1), t))));
    return CopySign(y, x);
  }
  Value* Pow(Value* x, Value* y) {  // of f32 numbers
    Value* t = Abs(x);
    Value* r = Exp2(Mul(y, Log2(t)));
    Value* whole = Equal(Trunc(y), y);
    Value* half = Mul(y, C(0.5));
    Value* odd = And(whole, b_.CreateFCmpUNE(Trunc(half), half));
    Value* negative = b_.CreateICmpSLT(AsBits(x), Bits(0));
    r = If(And(negative, odd), Neg(r), r);
    Value* undefined = And(And(Less(x, C(0)), Less(C(-kInf), x)), b_.CreateNot(whole));
    r = If(undefined, C(kNan), r);
    Value* one = b_.CreateOr(Equal(x, C(1)), Equal(y, C(0)));
    one = b_.CreateOr(one, And(Equal(x, C(-1)), Equal(Abs(y), C(kInf))));
    return If(one, C(1), r);
  }
  Value* Hypot(Value* x, Value* y) {  // of f32 numbers
    Value* r = Sqrt(Fma(x, x, Mul(y, y)));
    return If(b_.CreateOr(Equal(Abs(x), C(kInf)), Equal(Abs(y), C(kInf))), C(kInf), r);
  }
  Value* Fmod(Value* x, Value* y, Value** ok) {  // |quotient| below 2^52 (2^23)
    Value* a = Abs(x);
    Value* b = Abs(y);
    Value* q = Trunc(Div(a, b));
    *ok = And(Less(q, C(f64_ ? 0x1p52 : 0x1p23)), Less(b, C(kInf)));
    *ok = b_.CreateOr(*ok, b_.CreateFCmpUNO(x, y));
    Value* r = Fma(Neg(q), b, a);
    r = If(Less(r, C(0)), Add(r, b), r);
    r = If(b_.CreateFCmpOGE(r, b), Sub(r, b), r);
    return CopySign(r, x);
  }
};

// `value`, but what the C library says if not all lanes are `ok`.
Value* OrLibrary(llvm::IRBuilder<>& b, const Isa& isa, Value* value, Value* ok, const std::string& name,
                 std::span<Value* const> v) {
  Value* all = LanesOf(ok) > 1 ? b.CreateAndReduce(ok) : ok;
  llvm::BasicBlock* here = b.GetInsertBlock();
  llvm::Function* f = here->getParent();
  auto* rare = llvm::BasicBlock::Create(b.getContext(), "rare", f);
  auto* join = llvm::BasicBlock::Create(b.getContext(), "join", f);
  b.CreateCondBr(all, join, rare);
  b.SetInsertPoint(rare);
  Value* exact = CallHelper(b, isa, name.c_str(), v);
  rare = b.GetInsertBlock();
  b.CreateBr(join);
  b.SetInsertPoint(join);
  llvm::PHINode* phi = b.CreatePHI(value->getType(), 2);
  phi->addIncoming(value, here);
  phi->addIncoming(exact, rare);
  return phi;
}

Value* FullRangeDivide(llvm::IRBuilder<>& b, Value* x, Value* y) {
  auto* f32 = b.getFloatTy();
  auto* divide = llvm::InlineAsm::get(llvm::FunctionType::get(f32, {f32, f32}, false), "div.full.f32 $0, $1, $2;",
                                      "=f,f,f", /*hasSideEffects=*/false);
  return b.CreateCall(divide, {x, y});
}

bool IsOne(Value* v) {
  auto* one = llvm::dyn_cast<llvm::ConstantFP>(v);
  return one && one->isExactlyValue(1.0);
}
bool Marked(Value* v, const char* what) {
  auto* i = llvm::dyn_cast<llvm::Instruction>(v);
  return i && i->getMetadata(what);
}
bool AtLeastOne(Value* v) {
  auto* sum = llvm::dyn_cast<llvm::BinaryOperator>(v);
  return sum && sum->getOpcode() == llvm::Instruction::FAdd && IsOne(sum->getOperand(1)) &&
         Marked(sum->getOperand(0), kPositive);
}

}  // namespace

Value* DivideOnGpu(llvm::IRBuilder<>& b, const Isa& isa, Value* x, Value* y) {
  if (!y->getType()->isFloatTy()) return b.CreateFDiv(x, y);
  if (!AtLeastOne(y)) return isa.approximate ? FullRangeDivide(b, x, y) : b.CreateFDiv(x, y);
  // The quotient of a logistic function: no small divisor, and a quarter of a large one has a normal reciprocal.
  Math m(b, isa, y, true);
  Value* quarter = m.C(0.25);
  return m.Mul(m.Mul(x, quarter), m.Rcp(m.Mul(y, quarter)));
}

Value* AddOnGpu(llvm::IRBuilder<>& b, const Isa& isa, Value* x, Value* y) {
  if (!isa.approximate || !IsOne(y) || !Marked(x, kErf)) return b.CreateFAdd(x, y);
  auto* far = llvm::cast<llvm::CallInst>(llvm::cast<llvm::SelectInst>(x)->getFalseValue());  // copysign(.., argument)
  Value* argument = far->getArgOperand(1);
  return Math(b, isa, argument, true).OnePlusErf(argument);
}

Value* EmitMath(llvm::IRBuilder<>& b, const Isa& isa, Op op, std::span<Value* const> v) {
  const bool f64 = v[0]->getType()->getScalarType()->isDoubleTy();
  Value* x = v[0];
  const std::string name = std::string(Info(op).name) + (f64 ? "" : "f");
  Math own(b, isa, x, true);
  switch (op) {  // in their own arithmetic
    case Op::kExp: return own.Exp(x);
    case Op::kExp2: return own.Exp2(x);
    case Op::kExpm1: return own.Expm1(x);
    case Op::kLog: return own.Log(x);
    case Op::kLog1p: return own.Log1p(x);
    case Op::kTanh: return own.Tanh(x);
    case Op::kErf: return own.Erf(x);
    case Op::kSin:
    case Op::kCos:
      if (f64) break;
      return OrLibrary(b, isa, own.SinCosF32(x, op == Op::kCos), own.Less(own.Abs(x), own.C(0x1p17)), name, v);
    case Op::kFmod: {
      Value* ok;
      Value* r = own.Fmod(v[0], v[1], &ok);
      return OrLibrary(b, isa, r, ok, name, v);
    }
    default: break;
  }
  if (f64 && !isa.libdevice && LanesOf(x) > 1 &&
      (op == Op::kPow || op == Op::kLog10)) {  // one power is the C library's, as in NumPy
    Value* ok;
    Value* y = op == Op::kPow ? PowOfVectors(own, b, x, v[1], &ok) : Log10OfVectors(own, b, x, &ok);
    return OrLibrary(b, isa, y, ok, name, v);
  }
  if (isa.libdevice && !f64) return CallHelper(b, isa, name.c_str(), v);
  if (f64 && (op == Op::kPow || op == Op::kErfc || op == Op::kHypot || op == Op::kLog10))
    return CallHelper(b, isa, name.c_str(), v);
  llvm::Type* wide_type = b.getDoubleTy();
  if (LanesOf(x) > 1) wide_type = llvm::FixedVectorType::get(wide_type, LanesOf(x));
  std::vector<Value*> wide;
  for (Value* a : v) wide.push_back(f64 ? a : b.CreateFPExt(a, wide_type));
  Math m(b, isa, wide[0], f64);
  Value* w = wide[0];
  Value* y = nullptr;
  switch (op) {
    case Op::kLog2: y = m.Log2(w); break;
    case Op::kLog10: y = m.Log10(w); break;
    case Op::kSin:
    case Op::kCos:
    case Op::kTan: {
      y = op == Op::kTan ? m.Tan(w) : m.SinCos(w, op == Op::kCos);
      if (!f64) y = b.CreateFPTrunc(y, x->getType());
      return OrLibrary(b, isa, y, m.Less(m.Abs(w), m.C(0x1p30)), name, v);
    }
    case Op::kAsin: y = m.Asin(w); break;
    case Op::kAcos: y = m.Acos(w); break;
    case Op::kAtan: y = m.Atan(w); break;
    case Op::kSinh: y = m.Sinh(w); break;
    case Op::kCosh: y = m.Cosh(w); break;
    case Op::kAsinh: y = m.Asinh(w); break;
    case Op::kAcosh: y = m.Acosh(w); break;
    case Op::kAtanh: y = m.Atanh(w); break;
    case Op::kErfc: y = m.Erfc(w); break;
    case Op::kPow: y = m.Pow(w, wide[1]); break;
    case Op::kAtan2: y = m.Atan2(w, wide[1]); break;
    case Op::kHypot: y = m.Hypot(w, wide[1]); break;
    default: throw CodegenUnsupported(Info(op).name);
  }
  return f64 ? y : b.CreateFPTrunc(y, x->getType());
}

}  // namespace framejit::codegen
