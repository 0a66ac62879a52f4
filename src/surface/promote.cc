#include "surface/promote.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace framejit::surface {
namespace {

// Gives the rank in "bool < integer < float < complex".
int Category(DType t) {
  return IsBool(t) ? 0 : IsInteger(t) ? 1 : IsComplex(t) ? 3 : 2;
}

DType ComplexOf(DType t) {
  return t == DType::kFloat64 || t == DType::kComplex128 ? DType::kComplex128 : DType::kComplex64;
}

DType SignedOfSize(int bytes) {
  return bytes <= 1 ? DType::kInt8 : bytes == 2 ? DType::kInt16 : bytes == 4 ? DType::kInt32 : DType::kInt64;
}

DType NumberType(Arg::Kind k, DType default_float) {
  if (k == Arg::Kind::kBool) return DType::kBool;
  if (k == Arg::Kind::kInt) return DType::kInt64;
  if (k == Arg::Kind::kComplex) return ComplexOf(default_float);
  return default_float;
}

// `low` only counts if it is of a higher category.
std::optional<DType> Combine(std::optional<DType> high, std::optional<DType> low) {
  if (!high) return low;
  if (!low || IsComplex(*high)) return high;
  if (IsFloat(*high)) return IsComplex(*low) ? ComplexOf(*high) : *high;
  if (IsBool(*high) || IsFloat(*low) || IsComplex(*low)) return PromoteTypes(*high, *low);
  return high;
}

}  // namespace

DType PromoteTypes(DType a, DType b) {
  if (a == b) return a;
  int ca = Category(a), cb = Category(b);
  if (ca == 3 || cb == 3) {
    return a == DType::kComplex128 || b == DType::kComplex128 || a == DType::kFloat64 || b == DType::kFloat64
               ? DType::kComplex128
               : DType::kComplex64;
  }
  if (ca != cb) return ca > cb ? a : b;
  if (ca == 2) {
    if (DTypeSize(a) == DTypeSize(b)) return DType::kFloat32;  // f16 with bf16
    return DTypeSize(a) > DTypeSize(b) ? a : b;
  }
  int sa = DTypeSize(a), sb = DTypeSize(b);
  if (IsSigned(a) == IsSigned(b)) return sa > sb ? a : b;
  DType u = IsSigned(a) ? b : a, s = IsSigned(a) ? a : b;
  return DTypeSize(s) > DTypeSize(u) ? s : SignedOfSize(2 * DTypeSize(u));
}

DType NumpyPromoteTypes(DType a, DType b) {
  if (a == b) return a;
  int ca = Category(a), cb = Category(b);
  if (ca < cb) {
    std::swap(a, b);
    std::swap(ca, cb);
  }
  if (cb == 0) return a;
  if (ca == 1) {
    if (IsSigned(a) == IsSigned(b)) return DTypeSize(a) > DTypeSize(b) ? a : b;
    DType u = IsSigned(a) ? b : a, s = IsSigned(a) ? a : b;
    if (u == DType::kUInt64) return DType::kFloat64;
    return DTypeSize(s) > DTypeSize(u) ? s : SignedOfSize(2 * DTypeSize(u));
  }
  // A float must hold the integer's range: 8 bits fit f16, 16 bits f32, more f64.
  DType f = IsComplex(a) ? (a == DType::kComplex128 ? DType::kFloat64 : DType::kFloat32) : a;
  DType g = IsComplex(b) ? (b == DType::kComplex128 ? DType::kFloat64 : DType::kFloat32)
            : IsFloat(b) ? b
                         : NumpyFloatFor(b);
  DType wide = DTypeSize(f) >= DTypeSize(g) ? f : g;
  return IsComplex(a) ? ComplexOf(wide) : wide;
}

DType NumpyFloatFor(DType t) {
  if (IsFloat(t) || IsComplex(t)) return t;
  int size = DTypeSize(t);
  return size == 1 ? DType::kFloat16 : size == 2 ? DType::kFloat32 : DType::kFloat64;
}

DType TorchResultType(std::span<const TypeOperand> operands, DType default_float) {
  std::optional<DType> dims, zero, wrapped;
  for (const TypeOperand& o : operands) {
    std::optional<DType>& slot = !o.tensor ? wrapped : o.tensor->sizes.empty() ? zero : dims;
    DType t = o.tensor ? o.tensor->dtype : NumberType(o.number, default_float);
    slot = slot ? PromoteTypes(*slot, t) : t;
  }
  return *Combine(dims, Combine(zero, wrapped));
}

DType NumpyResultType(std::span<const TypeOperand> operands) {
  std::optional<DType> strong;
  int weak = -1;
  for (const TypeOperand& o : operands) {
    if (o.tensor) {
      strong = strong ? NumpyPromoteTypes(*strong, o.tensor->dtype) : o.tensor->dtype;
    } else {
      weak = std::max(weak, Category(NumberType(o.number, DType::kFloat64)));
    }
  }
  if (!strong)
    return weak == 0 ? DType::kBool : weak == 1 ? DType::kInt64 : weak == 2 ? DType::kFloat64 : DType::kComplex128;
  if (weak <= Category(*strong)) return *strong;
  if (weak == 1) return DType::kInt64;  // only bool is below an integer
  if (weak == 2) return DType::kFloat64;
  return IsFloat(*strong) ? ComplexOf(*strong) : DType::kComplex128;
}

bool TorchCanCast(DType from, DType to) {
  if (IsComplex(from) && !IsComplex(to)) return false;
  if (IsFloat(from) && (IsInteger(to) || IsBool(to))) return false;
  return !(!IsBool(from) && IsBool(to));
}

bool NumpyCanCastSameKind(DType from, DType to) {
  if (Category(from) != Category(to)) return Category(from) < Category(to);
  return !(IsSigned(from) && IsInteger(to) && !IsSigned(to));
}

bool IsFloatNumber(const Arg& number) {
  return number.is(Arg::Kind::kFloat) || number.is(Arg::Kind::kSymFloat);
}

bool FitsIn(shape::Env& env, const Arg& number, DType t) {
  if (!IsInteger(t) || !number.is(Arg::Kind::kInt)) return true;
  const int bits = 8 * DTypeSize(t) - IsSigned(t);
  if (bits < 63 && !env.Lt(number.i, int64_t{1} << bits)) return false;
  return (IsSigned(t) && bits == 63) || env.Le(IsSigned(t) ? -(int64_t{1} << bits) : 0, number.i);
}

std::optional<Arg> Converted(shape::Env& env, const Arg& number, DType t) {
  if (number.is(Arg::Kind::kFloat) && IsBool(t)) return Arg::Bool(number.f != 0);
  if (number.is(Arg::Kind::kFloat) && IsInteger(t)) {
    const double whole = std::trunc(number.f);
    if (!(std::abs(whole) < 0x1p62) || (number.f < 0 && !IsSigned(t))) return {};  // also of -0.5
    return Converted(env, Arg::Int(static_cast<int64_t>(whole)), t);
  }
  if (!FitsIn(env, number, t)) return {};
  if (t == DType::kFloat16 && number.is(Arg::Kind::kInt)) {  // the only floats that have no room for all integers
    constexpr int64_t kMost = 65504;
    if (!env.Le(-kMost, number.i) || !env.Le(number.i, kMost)) return {};
  }
  return number;
}

double LargestFloat(DType t) {
  return t == DType::kFloat16    ? 65504.0
         : t == DType::kBFloat16 ? 3.3895313892515355e38
         : t == DType::kFloat32  ? FLT_MAX
                                 : DBL_MAX;
}

bool FactorFits(shape::Env& env, const Arg& factor, DType t) {
  if (factor.is(Arg::Kind::kInt)) return Converted(env, factor, t).has_value();
  const bool finite = factor.is(Arg::Kind::kFloat) && std::isfinite(factor.f);
  return !finite || !IsFloat(t) || std::abs(factor.f) <= LargestFloat(t);
}

}  // namespace framejit::surface
