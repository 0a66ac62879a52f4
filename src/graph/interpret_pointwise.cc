// The meaning of pointwise operations, one element at a time. The templates are instantiated for bool, the integers,
// float and double.
#include <cstring>

#include "graph/interpret.h"

namespace framejit::interpret {
namespace {

[[noreturn]] void NotFor(Op op) {
  throw Unsupported(std::string(Info(op).name) + " is not defined for this dtype");
}

template <class C>
C UnaryFloat(Op op, C x) {
  switch (op) {
    case Op::kNeg: return -x;
    case Op::kAbs: return std::fabs(x);
    case Op::kSign: return x > 0 ? C(1) : x < 0 ? C(-1) : x == 0 ? C(0) : x;
    case Op::kCeil: return std::ceil(x);
    case Op::kFloor: return std::floor(x);
    case Op::kTrunc: return std::trunc(x);
    case Op::kRound: return std::nearbyint(x);  // the default rounding mode: half to even
    case Op::kSqrt: return std::sqrt(x);
    case Op::kRsqrt: return C(1) / std::sqrt(x);
    case Op::kReciprocal: return C(1) / x;
    case Op::kExp: return std::exp(x);
    case Op::kExp2: return std::exp2(x);
    case Op::kExpm1: return std::expm1(x);
    case Op::kLog: return std::log(x);
    case Op::kLog2: return std::log2(x);
    case Op::kLog10: return std::log10(x);
    case Op::kLog1p: return std::log1p(x);
    case Op::kSin: return std::sin(x);
    case Op::kCos: return std::cos(x);
    case Op::kTan: return std::tan(x);
    case Op::kAsin: return std::asin(x);
    case Op::kAcos: return std::acos(x);
    case Op::kAtan: return std::atan(x);
    case Op::kSinh: return std::sinh(x);
    case Op::kCosh: return std::cosh(x);
    case Op::kTanh: return std::tanh(x);
    case Op::kAsinh: return std::asinh(x);
    case Op::kAcosh: return std::acosh(x);
    case Op::kAtanh: return std::atanh(x);
    case Op::kErf: return std::erf(x);
    case Op::kErfc: return std::erfc(x);
    default: NotFor(op);
  }
}

template <class C>
C UnaryInteger(Op op, C x) {
  switch (op) {
    case Op::kNeg: return static_cast<C>(0 - static_cast<uint64_t>(x));
    case Op::kAbs: return x < 0 ? static_cast<C>(0 - static_cast<uint64_t>(x)) : x;
    case Op::kSign: return static_cast<C>((x > 0) - (x < 0));
    case Op::kNot: return static_cast<C>(~x);
    case Op::kCeil:
    case Op::kFloor:
    case Op::kTrunc:
    case Op::kRound: return x;
    default: NotFor(op);
  }
}

template <class C>
C Unary(Op op, C x) {
  if constexpr (std::is_floating_point_v<C>) {
    return UnaryFloat(op, x);
  } else if constexpr (std::is_same_v<C, bool>) {
    return op == Op::kNot ? !x : UnaryInteger<uint8_t>(op, x) != 0;
  } else {
    return UnaryInteger(op, x);
  }
}

template <class C>
bool Predicate(Op op, C x) {
  if constexpr (std::is_floating_point_v<C>) {
    if (op == Op::kIsNan) return std::isnan(x);
    if (op == Op::kIsInf) return std::isinf(x);
    return std::signbit(x);
  } else {
    return op == Op::kSignbit && x < C(0);
  }
}

template <class C>
bool Comparison(Op op, C a, C b) {
  switch (op) {
    case Op::kEq: return a == b;
    case Op::kNe: return a != b;
    case Op::kLt: return a < b;
    case Op::kLe: return a <= b;
    default: NotFor(op);
  }
}

// Python's float //: the quotient of a minus its remainder, so that a == (a // b) * b + a % b up to rounding.
template <class C>
C FloorDivFloat(C a, C b) {
  if (b == 0) return a / b;
  C mod = std::fmod(a, b), div = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) div -= 1;
  if (div == 0) return std::copysign(C(0), a / b);
  C floor = std::floor(div);
  return div - floor > C(0.5) ? floor + 1 : floor;
}

template <class C>
C BinaryFloat(Op op, C a, C b) {
  switch (op) {
    case Op::kAdd: return a + b;
    case Op::kSub: return a - b;
    case Op::kMul: return a * b;
    case Op::kDiv: return a / b;
    case Op::kFloorDiv: return FloorDivFloat(a, b);
    case Op::kRem: {
      C mod = std::fmod(a, b);
      return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
    }
    case Op::kFmod: return std::fmod(a, b);
    case Op::kPow: return std::pow(a, b);
    case Op::kAtan2: return std::atan2(a, b);
    case Op::kHypot: return std::hypot(a, b);
    case Op::kCopysign: return std::copysign(a, b);
    case Op::kMaximum: return std::isnan(a) ? a : std::isnan(b) ? b : a < b ? b : a;
    case Op::kMinimum: return std::isnan(a) ? a : std::isnan(b) ? b : b < a ? b : a;
    default: NotFor(op);
  }
}

template <class C>
C PowInteger(C base, C exponent) {
  if (exponent < 0) return base == C(1) ? C(1) : base == C(-1) ? (exponent % 2 ? C(-1) : C(1)) : C(0);
  uint64_t result = 1, square = static_cast<uint64_t>(base);
  for (uint64_t e = static_cast<uint64_t>(exponent); e; e >>= 1, square *= square)
    if (e & 1) result *= square;
  return static_cast<C>(result);
}

template <class C>
C BinaryInteger(Op op, C a, C b) {
  const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);  // wraps instead of being undefined
  const bool minus_one = std::is_signed_v<C> && b == static_cast<C>(-1);      // INT_MIN / -1 wraps too
  switch (op) {
    case Op::kAdd: return static_cast<C>(x + y);
    case Op::kSub: return static_cast<C>(x - y);
    case Op::kMul: return static_cast<C>(x * y);
    case Op::kTruncDiv: return b == 0 ? C(0) : minus_one ? static_cast<C>(0 - x) : static_cast<C>(a / b);
    case Op::kFloorDiv: {
      if (b == 0) return 0;
      if (minus_one) return static_cast<C>(0 - x);
      return static_cast<C>(a / b - (a % b != 0 && (a < 0) != (b < 0)));
    }
    case Op::kRem: {
      if (b == 0 || minus_one) return 0;
      C r = static_cast<C>(a % b);
      return r != 0 && (r < 0) != (b < 0) ? static_cast<C>(r + b) : r;
    }
    case Op::kFmod: return b == 0 || minus_one ? C(0) : static_cast<C>(a % b);
    case Op::kPow: return PowInteger(a, b);
    case Op::kMaximum: return a < b ? b : a;
    case Op::kMinimum: return b < a ? b : a;
    case Op::kAnd: return static_cast<C>(x & y);
    case Op::kOr: return static_cast<C>(x | y);
    case Op::kXor: return static_cast<C>(x ^ y);
    case Op::kShl: return y < sizeof(C) * 8 ? static_cast<C>(x << y) : C(0);
    case Op::kShr: return y < sizeof(C) * 8 ? static_cast<C>(a >> y) : a < 0 ? static_cast<C>(-1) : C(0);
    default: NotFor(op);
  }
}

HostTensor Where(const std::vector<HostTensor>& in) {  // It moves bytes, and so serves every dtype.
  HostTensor c = Contiguous(in[0]), a = Contiguous(in[1]), b = Contiguous(in[2]);
  HostTensor out = HostTensor::Empty(a.dtype, a.sizes);
  int64_t n = Count(a.sizes), size = DTypeSize(a.dtype);
  for (int64_t k = 0; k < n; ++k) {
    bool first = c.data()[k] != std::byte{0};
    std::memcpy(out.data() + k * size, (first ? a : b).data() + k * size, size);
  }
  return out;
}

}  // namespace

template <class C>
C Binary(Op op, C a, C b) {
  if constexpr (std::is_floating_point_v<C>) {
    return BinaryFloat(op, a, b);
  } else if constexpr (std::is_same_v<C, bool>) {
    switch (op) {
      case Op::kAdd:
      case Op::kOr:
      case Op::kMaximum: return a || b;
      case Op::kMul:
      case Op::kAnd:
      case Op::kMinimum: return a && b;
      case Op::kXor: return a != b;
      default: NotFor(op);
    }
  } else {
    return BinaryInteger(op, a, b);
  }
}
#define INSTANTIATE(C) template C Binary<C>(Op, C, C);
INSTANTIATE(bool)
INSTANTIATE(uint8_t)
INSTANTIATE(int8_t)
INSTANTIATE(int16_t)
INSTANTIATE(int32_t)
INSTANTIATE(int64_t)
INSTANTIATE(uint16_t)
INSTANTIATE(uint32_t)
INSTANTIATE(uint64_t)
INSTANTIATE(float)
INSTANTIATE(double)
#undef INSTANTIATE

HostTensor Cast(const HostTensor& x, DType to) {
  if (x.dtype == to) return x;
  return Visit(x.dtype, [&](auto tag) {
    using C = ComputeOf<decltype(tag)>;
    return StoreAll(to, x.sizes, LoadAll<C>(x));
  });
}

HostTensor Pointwise(const Node& n, const std::vector<HostTensor>& in) {
  for (const HostTensor& x : in)
    if (x.sizes != in[0].sizes) throw std::runtime_error(std::string(Info(n.op).name) + ": operand sizes differ");
  if (n.op == Op::kCast) return Cast(in[0], n.attrs.dtype);
  if (n.op == Op::kBitcast) {
    HostTensor out = Contiguous(in[0]);
    out.dtype = n.attrs.dtype;
    return out;
  }
  if (n.op == Op::kWhere) return Where(in);
  bool to_bool = std::string_view(Info(n.op).type) == "bool";
  return Visit(in[0].dtype, [&](auto tag) {
    using C = ComputeOf<decltype(tag)>;
    Lanes<C> a = LoadAll<C>(in[0]), b;
    if (in.size() > 1) b = LoadAll<C>(in[1]);
    if (to_bool) {
      Lanes<bool> out(a.size());
      for (size_t i = 0; i < a.size(); ++i)
        out[i] = in.size() > 1 ? Comparison<C>(n.op, a[i], b[i]) : Predicate<C>(n.op, a[i]);
      return StoreAll(DType::kBool, in[0].sizes, out);
    }
    Lanes<C> out(a.size());
    for (size_t i = 0; i < a.size(); ++i) out[i] = in.size() > 1 ? Binary<C>(n.op, a[i], b[i]) : Unary<C>(n.op, a[i]);
    return StoreAll(in[0].dtype, in[0].sizes, out);
  });
}

}  // namespace framejit::interpret
