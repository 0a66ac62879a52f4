// This file has Python's and NumPy's arithmetic on single numbers. Whatever Python would answer by an exception, a
// warning or a larger number leaves the code before that instruction, and Python does it.
#include <opcode.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>

#include "capture/scalar/values.h"
#include "surface/promote.h"

namespace framejit::capture::scalar {
namespace {

constexpr int64_t kExactF64 = int64_t{1} << 53, kExactF32 = int64_t{1} << 24;

// --- what code calls
// --------------------------------------------------------------------------------------------------- True: *out has
// what Python answers.
template <typename T>
int64_t FloorDivide(T a, T b, T* quotient, T* remainder) {
  if (b == 0 || !std::isfinite(a) || !std::isfinite(b)) return 0;
  T mod = std::fmod(a, b), div = (a - mod) / b, floor;
  if (mod != 0) {
    if ((b < 0) != (mod < 0)) mod += b, div -= 1;
  } else {
    mod = std::copysign(T{0}, b);
  }
  if (div != 0) {
    floor = std::floor(div);
    if (div - floor > T{0.5}) floor += 1;
  } else {
    floor = std::copysign(T{0}, a / b);
  }
  *quotient = floor, *remainder = mod;
  return std::isfinite(div) && std::isfinite(floor);
}
template <typename T>
int64_t Quotient(T a, T b, T* out) {
  T other;
  return FloorDivide(a, b, out, &other);
}
template <typename T>
int64_t Remainder(T a, T b, T* out) {
  T other;
  return FloorDivide(a, b, &other, out);
}
int64_t FloatPower(double a, double b, double* out) {
  if (!std::isfinite(a) || !std::isfinite(b) || a == 0) return 0;
  *out = ::pow(a, b);
  return std::isfinite(*out) && std::fabs(*out) >= DBL_MIN;
}
double SquarePower(double a) {    // -1: the code is left
  const volatile double two = 2;  // of a constant, compilers make a product
  double v = 0;
  return a == 0 || FloatPower(a, two, &v) ? v : -1;
}
int64_t SinglePower(float a, float b, float* out) {
  if (!std::isfinite(a) || !std::isfinite(b) || a == 0) return 0;
  *out = ::powf(a, b);
  return std::isfinite(*out) && std::fabs(*out) >= FLT_MIN;
}
int64_t IntPower(int64_t base, int64_t exponent, int64_t* out) {
  if (exponent < 0) return 0;
  int64_t result = 1;
  for (;; exponent >>= 1) {
    if (exponent & 1 && __builtin_mul_overflow(result, base, &result)) return 0;
    if (exponent <= 1) break;
    if (__builtin_mul_overflow(base, base, &base)) return 0;
  }
  *out = result;
  return 1;
}

struct MathRow {
  const char* name;
  double (*f)(double);
};
// Those of math that are the C library's, where the result is finite.
constexpr MathRow kMath[] = {{"sin", ::sin},   {"cos", ::cos},    {"tan", ::tan},   {"asin", ::asin},
                             {"acos", ::acos}, {"atan", ::atan},  {"sinh", ::sinh}, {"cosh", ::cosh},
                             {"tanh", ::tanh}, {"exp", ::exp},    {"log", ::log},   {"log10", ::log10},
                             {"log2", ::log2}, {"expm1", ::expm1}};

struct MathOfTwoRow {
  const char* name;
  double (*f)(double, double);
};
constexpr MathOfTwoRow kMathOfTwo[] = {{"atan2", ::atan2}, {"copysign", ::copysign}, {"fmod", ::fmod}, {"pow", ::pow}};

// --- conversions
// -------------------------------------------------------------------------------------------------------
bool IsSingle(const Val& x) {
  return x.is == Is::kNumpy && x.dtype == DType::kFloat32;
}
bool IsSmall(const Val& x) {  // every value is a float32
  return x.is == Is::kNumpy && DTypeSize(x.dtype) <= 2 && x.integral();
}

void ExitOutside(Builder& b, int v, int64_t low, int64_t high) {
  if (low != std::numeric_limits<int64_t>::min()) b.ExitIf(b.Compare(ScalarOp::kLt, v, b.Int(low)));
  if (high != std::numeric_limits<int64_t>::max()) b.ExitIf(b.Compare(ScalarOp::kGt, v, b.Int(high)));
}

// Narrows a double to float32. NumPy warns where that makes it infinite.
int Narrow(Builder& b, int v) {
  const int narrow = b.Op(ScalarOp::kF64ToF32, ScalarType::kF32, v);
  const int lost = b.Op(ScalarOp::kXor, ScalarType::kBool, b.Op(ScalarOp::kFinite, ScalarType::kBool, v),
                        b.Op(ScalarOp::kFinite, ScalarType::kBool, narrow));
  b.ExitIf(lost);
  return narrow;
}

int SingleOf(Builder& b, const Val& x) {
  if (IsSingle(x)) return b.Value(x);
  if (!x.integral()) return Narrow(b, b.Value(x));
  const int v = Whole(b, x);
  if (!IsSmall(x) && !x.truth()) ExitOutside(b, v, -kExactF32, kExactF32);
  return b.Op(ScalarOp::kIntToF32, ScalarType::kF32, v);
}

std::pair<int64_t, int64_t> RangeOf(DType t) {
  switch (t) {
    case DType::kBool: return {0, 1};
    case DType::kUInt8: return {0, 255};
    case DType::kInt8: return {-128, 127};
    case DType::kUInt16: return {0, 65535};
    case DType::kInt16: return {-32768, 32767};
    case DType::kUInt32: return {0, 4294967295};
    case DType::kInt32: return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    case DType::kInt64: return {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
    default: throw Unsupported{"no integer type"};
  }
}
bool Unsigned(DType t) {
  return RangeOf(t).first == 0;
}

void ExitUnlessFits(Builder& b, int v, DType t) {
  auto [low, high] = RangeOf(t);
  ExitOutside(b, v, low, high);
}

// --- integers
// ----------------------------------------------------------------------------------------------------------
bool PowerOfTwo(std::optional<int64_t> v) {
  return v && *v > 0 && (*v & (*v - 1)) == 0;
}

int FloorDivision(Builder& b, int x, int y, std::optional<int64_t> divisor, int64_t lowest, bool quotient) {
  if (PowerOfTwo(divisor))
    return quotient ? b.Op(ScalarOp::kShr, ScalarType::kInt, x, b.Int(__builtin_ctzll(*divisor)))
                    : b.Op(ScalarOp::kAnd, ScalarType::kInt, x, b.Int(*divisor - 1));
  if (!divisor || !*divisor) b.ExitIf(b.Compare(ScalarOp::kEq, y, b.Int(0)));
  if (!divisor || *divisor == -1)
    b.ExitIf(b.Op(ScalarOp::kAnd, ScalarType::kBool, b.Compare(ScalarOp::kEq, y, b.Int(-1)),
                  b.Compare(ScalarOp::kEq, x, b.Int(lowest))));
  return b.Op(quotient ? ScalarOp::kFloorDiv : ScalarOp::kFloorMod, ScalarType::kInt, x, y);
}

int ShiftLeft(Builder& b, int x, int y) {
  ExitOutside(b, y, 0, 62);
  return b.Over(ScalarOp::kShlOver, x, y);
}

int ShiftRight(Builder& b, int x, int y) {
  b.ExitIf(b.Compare(ScalarOp::kLt, y, b.Int(0)));
  const int most = b.Op(ScalarOp::kSelect, ScalarType::kInt, b.Compare(ScalarOp::kGt, y, b.Int(63)), b.Int(63), y);
  return b.Op(ScalarOp::kShr, ScalarType::kInt, x, most);
}

int IntegerPower(Builder& b, int x, int y) {
  const int out = b.Emit({.op = ScalarOp::kAddress, .type = ScalarType::kPtr, .imm = b.scratch, .id = -2});
  b.ExitIf(b.Op(ScalarOp::kNot, ScalarType::kBool,
                b.CallComputes(reinterpret_cast<void*>(IntPower), ScalarType::kBool, {x, y, out})));
  return b.Emit({.op = ScalarOp::kCell, .type = ScalarType::kInt, .imm = b.scratch, .id = -2});
}

// Computes with integers of 64 bits, of whose type `lowest` is the least. An overflow is `told` of where it is NumPy's.
int Integers(Builder& b, int op, int x, int y, std::optional<int64_t> constant, int64_t lowest, bool told) {
  switch (op) {
    case NB_ADD: return b.Over(ScalarOp::kAddOver, x, y, told);
    case NB_SUBTRACT: return b.Over(ScalarOp::kSubOver, x, y, told);
    case NB_MULTIPLY: return b.Over(ScalarOp::kMulOver, x, y, told);
    case NB_FLOOR_DIVIDE: return FloorDivision(b, x, y, constant, lowest, true);
    case NB_REMAINDER: return FloorDivision(b, x, y, constant, lowest, false);
    case NB_AND: return b.Op(ScalarOp::kAnd, ScalarType::kInt, x, y);
    case NB_OR: return b.Op(ScalarOp::kOr, ScalarType::kInt, x, y);
    case NB_XOR: return b.Op(ScalarOp::kXor, ScalarType::kInt, x, y);
    case NB_LSHIFT: return ShiftLeft(b, x, y);
    case NB_RSHIFT: return ShiftRight(b, x, y);
    case NB_POWER: return IntegerPower(b, x, y);
    default: throw Unsupported{"an operator of integers"};
  }
}

// --- floats
// ------------------------------------------------------------------------------------------------------------
int Helper(Builder& b, const void* f, ScalarType t, int x, int y) {
  const int out = b.Emit({.op = ScalarOp::kAddress, .type = ScalarType::kPtr, .imm = b.scratch, .id = -2});
  b.ExitIf(b.Op(ScalarOp::kNot, ScalarType::kBool, b.CallComputes(f, ScalarType::kBool, {x, y, out})));
  return b.Emit({.op = ScalarOp::kCell, .type = t, .imm = b.scratch, .id = -2});
}

// NumPy warns where a special number comes of others, and Python refuses a divisor of zero.
int Floats(Builder& b, int op, ScalarType t, int x, int y, bool numpy) {
  const bool single = t == ScalarType::kF32;
  const auto simple = [&](ScalarOp o) {
    const int v = b.Op(o, t, x, y);
    if (numpy) b.ExitIfNewSpecial(v, x, y);
    return v;
  };
  switch (op) {
    case NB_ADD: return simple(ScalarOp::kAdd);
    case NB_SUBTRACT: return simple(ScalarOp::kSub);
    case NB_MULTIPLY: return simple(ScalarOp::kMul);
    case NB_TRUE_DIVIDE:
      b.ExitIf(b.Compare(ScalarOp::kEq, y, single ? b.Single(0) : b.Number(0)));
      return simple(ScalarOp::kDiv);
    case NB_FLOOR_DIVIDE:
      return Helper(b, single ? reinterpret_cast<void*>(Quotient<float>) : reinterpret_cast<void*>(Quotient<double>), t,
                    x, y);
    case NB_REMAINDER:
      return Helper(b, single ? reinterpret_cast<void*>(Remainder<float>) : reinterpret_cast<void*>(Remainder<double>),
                    t, x, y);
    case NB_POWER:
      return Helper(b, single ? reinterpret_cast<void*>(SinglePower) : reinterpret_cast<void*>(FloatPower), t, x, y);
    default: throw Unsupported{"an operator of floats"};
  }
}

int Bits(Builder& b, int op, int x, int y) {
  const ScalarOp o = op == NB_AND ? ScalarOp::kAnd : op == NB_OR ? ScalarOp::kOr : ScalarOp::kXor;
  return b.Op(o, ScalarType::kBool, x, y);
}
bool IsBits(int op) {
  return op == NB_AND || op == NB_OR || op == NB_XOR;
}

// Of the sum or difference of constants that is one.
std::optional<int64_t> Known(int op, std::optional<int64_t> x, std::optional<int64_t> y) {
  int64_t r;
  if (!x || !y || (op != NB_ADD && op != NB_SUBTRACT)) return {};
  const bool over = op == NB_ADD ? __builtin_add_overflow(*x, *y, &r) : __builtin_sub_overflow(*x, *y, &r);
  return over ? std::nullopt : std::optional(r);
}

bool IsSquare(int op, const Val& y) {
  return op == NB_POWER && y.is == Is::kInt && y.constant == 2;
}

Val PythonBinary(Builder& b, int op, const Val& x, const Val& y) {
  if (x.is == Is::kBool && y.is == Is::kBool && IsBits(op)) return New(Is::kBool, Bits(b, op, b.Value(x), b.Value(y)));
  if (x.integral() && y.integral()) {
    const int v = Whole(b, x), w = Whole(b, y);
    if (op != NB_TRUE_DIVIDE) {
      Val r = New(Is::kInt, Integers(b, op, v, w, y.constant, std::numeric_limits<int64_t>::min(), false));
      r.constant = Known(op, x.constant, y.constant);
      return r;
    }
    b.ExitIf(b.Compare(ScalarOp::kEq, w, b.Int(0)));
    ExitOutside(b, v, -kExactF64, kExactF64);
    if (!y.constant) ExitOutside(b, w, -kExactF64, kExactF64);
    return New(Is::kFloat, b.Op(ScalarOp::kDiv, ScalarType::kF64, Double(b, x), Double(b, y)));
  }
  if (IsSquare(op, y)) return New(Is::kFloat, b.Square(reinterpret_cast<void*>(SquarePower), Double(b, x)));
  return New(Is::kFloat, Floats(b, op, ScalarType::kF64, Double(b, x), Double(b, y), false));
}

int WholeFor(Builder& b, const Val& x, DType t) {  // an operand of Python must fit
  const int v = Whole(b, x);
  if (x.is == Is::kInt) ExitUnlessFits(b, v, t);
  return v;
}

Val NumpyBinary(Builder& b, int op, const Val& x, const Val& y) {
  DType t = CommonType(x, y);
  if (t == DType::kBool) {
    if (!IsBits(op)) throw Unsupported{"arithmetic of NumPy's bools"};
    return NewNumpy(t, Bits(b, op, b.Value(x), b.Value(y)));
  }
  if (t == DType::kUInt64 || t == DType::kFloat16) throw Unsupported{"a type of NumPy"};
  if (t < DType::kFloat16) {
    if (op == NB_TRUE_DIVIDE) {
      WholeFor(b, x, t), WholeFor(b, y, t);
      return NewNumpy(DType::kFloat64, Floats(b, op, ScalarType::kF64, Double(b, x), Double(b, y), true));
    }
    const int v = WholeFor(b, x, t), w = WholeFor(b, y, t);
    auto [low, high] = RangeOf(t);
    if (op == NB_POWER && (!y.constant || *y.constant < 0)) throw Unsupported{"a power of NumPy's integers"};
    if (op == NB_RSHIFT || op == NB_LSHIFT) ExitOutside(b, w, 0, 8 * DTypeSize(t) - 1);
    if (op == NB_LSHIFT) {  // what leaves it at the top is lost
      const int r = b.Op(ScalarOp::kShl, ScalarType::kInt, v, w);
      return NewNumpy(t, t == DType::kInt64 ? r : b.Wrap(r, t));
    }
    const int r = Integers(b, op, v, w, y.constant, low, true);
    if (t != DType::kInt64) ExitUnlessFits(b, r, t);
    return NewNumpy(t, r);
  }
  if (t == DType::kFloat64 && IsSquare(op, y))
    return NewNumpy(t, b.Square(reinterpret_cast<void*>(SquarePower), Double(b, x)));
  if (t != DType::kFloat32) return NewNumpy(t, Floats(b, op, ScalarType::kF64, Double(b, x), Double(b, y), true));
  return NewNumpy(t, Floats(b, op, ScalarType::kF32, SingleOf(b, x), SingleOf(b, y), true));
}

}  // namespace

int Whole(Builder& b, const Val& x) {
  if (!x.integral()) throw Unsupported{"an integer is wanted"};
  const int v = b.Value(x);
  return x.truth() ? b.Op(ScalarOp::kBoolToInt, ScalarType::kInt, v) : v;
}

int Double(Builder& b, const Val& x) {
  if (x.integral()) return b.Op(ScalarOp::kIntToF64, ScalarType::kF64, Whole(b, x));
  return IsSingle(x) ? b.Op(ScalarOp::kF32ToF64, ScalarType::kF64, b.Value(x)) : b.Value(x);
}

DType CommonType(const Val& x, const Val& y) {
  const auto weak = [](const Val& number, const Val& other) {
    if (number.is == Is::kBool) return other.dtype;
    if (number.is == Is::kInt) return other.dtype == DType::kBool ? DType::kInt64 : other.dtype;
    return other.integral() ? DType::kFloat64 : other.dtype;
  };
  if (x.python()) return weak(x, y);
  if (y.python()) return weak(y, x);
  return surface::NumpyPromoteTypes(x.dtype, y.dtype);
}

int NumberFor(Builder& b, const Val& x, DType t) {
  if (t == DType::kFloat64) return Double(b, x);
  if (t == DType::kFloat32) return SingleOf(b, x);
  if (t == DType::kBool) return b.Value(x);
  return WholeFor(b, x, t);
}

ScalarType Val::type() const {
  if (is == Is::kAddress) return ScalarType::kPtr;
  if (truth()) return ScalarType::kBool;
  if (integral()) return ScalarType::kInt;
  return is == Is::kNumpy && dtype == DType::kFloat32 ? ScalarType::kF32 : ScalarType::kF64;
}

std::string Val::key() const {
  std::string s(1, static_cast<char>('a' + static_cast<int>(is)));
  if (is == Is::kNumpy) s += std::to_string(static_cast<int>(dtype));
  if (is == Is::kEither) s += items[0].key();
  if (object >= 0) s += '#' + std::to_string(object);
  if (unit) s += '1';
  if (given) s += 'g';
  if (few) s += '<' + (constant ? std::to_string(*constant) : "");
  if (brief) s += '.';
  if (natural) s += 'n';
  if (ones) s += '+' + std::to_string(ones);
  if (is == Is::kView || is == Is::kRangeIter) s += std::to_string(items.size());
  if (made()) s += ':' + std::to_string(static_cast<int>(dtype)) + (whole ? 'w' : 'v') + std::to_string(born);
  if (is == Is::kView && !whole) s += '=' + std::to_string(same);
  if (is == Is::kComplex && dtype == DType::kComplex128) s += 'N';
  if (is == Is::kTupleIter) s += '@' + std::to_string(node);
  if (is == Is::kTuple || is == Is::kSlice || (iterator() && is != Is::kRangeIter)) {
    s += '(';
    for (const Val& v : items) s += v.key();
    s += ')';
  }
  return s;
}

Val New(Is is, int value) {
  Val v;
  v.is = is;
  v.value = value;
  return v;
}
Val NewNumpy(DType dtype, int value) {
  Val v = New(Is::kNumpy, value);
  v.dtype = dtype;
  return v;
}
Val Either(Val number, Val numpy) {
  Val v;
  v.is = Is::kEither;
  v.items = {std::move(number), std::move(numpy)};
  return v;
}
std::optional<DType> EitherType(const Val& v) {
  if (v.is == Is::kEither) return v.items[0].dtype;
  if (v.is == Is::kFloat) return DType::kFloat64;
  if (v.is == Is::kInt) return v.few ? std::nullopt : std::optional(DType::kInt64);
  const bool numpy = v.is == Is::kNumpy && (v.dtype == DType::kFloat64 || v.dtype == DType::kInt64);
  return numpy ? std::optional(v.dtype) : std::nullopt;
}
Val AsEither(Builder& b, Val v) {
  if (v.is == Is::kEither) return v;
  const bool numpy = v.is == Is::kNumpy;
  v.dtype = *EitherType(v);
  v.is = Is::kNumpy;
  v.constant.reset();
  return Either(std::move(v), New(Is::kBool, b.Flag(numpy)));
}
Val IntConstant(Builder& b, int64_t c) {
  Val v = New(Is::kInt, b.Int(c));
  v.constant = c;
  return v;
}
Val Object(int object) {
  Val v;
  v.is = Is::kObject;
  v.object = object;
  return v;
}
Val Tuple(std::vector<Val> items) {
  Val v;
  v.is = Is::kTuple;
  v.items = std::move(items);
  return v;
}

Val Letter(Val number) {
  Val v;
  v.is = Is::kLetter;
  v.items = {std::move(number)};
  return v;
}

Val Binary(Builder& b, int op, const Val& x, const Val& y) {
  if (op >= NB_INPLACE_ADD) op -= NB_INPLACE_ADD;  // of numbers
  if (x.is == Is::kComplex || y.is == Is::kComplex) return ComplexBinary(b, op, x, y);
  if (!x.scalar() || !y.scalar()) throw Unsupported{"an operator on something else than numbers"};
  return x.python() && y.python() ? PythonBinary(b, op, x, y) : NumpyBinary(b, op, x, y);
}

Val Compare(Builder& b, int py_op, const Val& x, const Val& y) {
  static constexpr ScalarOp kOps[] = {ScalarOp::kLt, ScalarOp::kLe, ScalarOp::kEq,
                                      ScalarOp::kNe, ScalarOp::kGt, ScalarOp::kGe};  // Py_LT ...
  if (x.is == Is::kComplex || y.is == Is::kComplex) return ComplexCompare(b, py_op, x, y);
  const ScalarOp op = kOps[py_op];
  if (x.is == Is::kLetter && y.is == Is::kLetter)
    return New(Is::kBool, b.Compare(op, b.Value(x.items[0]), b.Value(y.items[0])));
  if (!x.scalar() || !y.scalar()) throw Unsupported{"a comparison of something else than numbers"};
  const bool python = x.python() && y.python();
  const auto result = [&](int v) { return python ? New(Is::kBool, v) : NewNumpy(DType::kBool, v); };
  if (x.integral() && y.integral()) return result(b.Compare(op, Whole(b, x), Whole(b, y)));
  if (!python && CommonType(x, y) == DType::kFloat32) return result(b.Compare(op, SingleOf(b, x), SingleOf(b, y)));
  for (const Val* v : {&x, &y})  // Python compares exactly
    if (v->is == Is::kInt) ExitOutside(b, b.Value(*v), -kExactF64, kExactF64);
  return result(b.Compare(op, Double(b, x), Double(b, y)));
}

// A float of the same kind, which `op` makes of one.
static Val OfFloat(Builder& b, ScalarOp op, const Val& x) {
  const int v = b.Op(op, x.type(), b.Value(x));
  return x.is == Is::kNumpy ? NewNumpy(x.dtype, v) : New(x.is, v);
}

Val Negative(Builder& b, const Val& x) {
  if (x.is == Is::kComplex) {
    const auto negative = [&](const Val& v) {
      return New(Is::kFloat, b.Op(ScalarOp::kNeg, ScalarType::kF64, b.Value(v)));
    };
    return Complex(negative(x.items[0]), negative(x.items[1]), x.dtype == DType::kComplex128);
  }
  if (!x.scalar() || (x.is == Is::kNumpy && x.truth())) throw Unsupported{"a sign"};
  if (!x.integral()) return OfFloat(b, ScalarOp::kNeg, x);
  const DType t = x.is == Is::kNumpy ? x.dtype : DType::kInt64;
  const int v = Whole(b, x);
  if (Unsigned(t))
    b.ExitIf(b.Compare(ScalarOp::kNe, v, b.Int(0)));
  else
    b.ExitIf(b.Compare(ScalarOp::kEq, v, b.Int(RangeOf(t).first)));
  const int r = b.Op(ScalarOp::kNeg, ScalarType::kInt, v);
  Val out = x.is == Is::kNumpy ? NewNumpy(t, r) : New(Is::kInt, r);
  if (x.constant) out.constant = -*x.constant;
  return out;
}

Val Invert(Builder& b, const Val& x) {
  if (!x.integral() || x.is == Is::kBool) throw Unsupported{"an inversion"};
  if (x.truth()) return NewNumpy(DType::kBool, b.Op(ScalarOp::kNot, ScalarType::kBool, b.Value(x)));
  if (x.is == Is::kInt) return New(Is::kInt, b.Op(ScalarOp::kNot, ScalarType::kInt, b.Value(x)));
  const int v = Unsigned(x.dtype) ? b.Op(ScalarOp::kXor, ScalarType::kInt, b.Value(x), b.Int(RangeOf(x.dtype).second))
                                  : b.Op(ScalarOp::kNot, ScalarType::kInt, b.Value(x));
  return NewNumpy(x.dtype, v);
}

Val Absolute(Builder& b, const Val& x) {
  if (x.is == Is::kComplex) return ComplexAbsolute(b, x);
  if (!x.scalar() || (x.is == Is::kNumpy && x.truth())) throw Unsupported{"abs"};
  if (!x.integral()) return OfFloat(b, ScalarOp::kAbs, x);
  const DType t = x.is == Is::kNumpy ? x.dtype : DType::kInt64;
  const int v = Whole(b, x);
  if (!Unsigned(t)) b.ExitIf(b.Compare(ScalarOp::kEq, v, b.Int(RangeOf(t).first)));
  const int r = b.Op(ScalarOp::kAbs, ScalarType::kInt, v);
  if (x.is == Is::kNumpy) return NewNumpy(t, r);
  Val a = New(Is::kInt, r);  // that of what is not negative is the very object
  a.given = x.given;
  if (x.origin >= 0)
    a.origin = b.Op(ScalarOp::kSelect, ScalarType::kInt, b.Compare(ScalarOp::kLt, v, b.Int(0)), b.Int(0), x.origin);
  return a;
}

int Truth(Builder& b, const Val& x) {
  if (!x.scalar()) throw Unsupported{"the truth of something else than a number"};
  if (x.truth()) return b.Value(x);
  if (x.integral()) return b.Compare(ScalarOp::kNe, b.Value(x), b.Int(0));
  return b.Compare(ScalarOp::kNe, b.Value(x), IsSingle(x) ? b.Single(0) : b.Number(0));
}

int AsIndex(Builder& b, const Val& x) {
  if (!x.number().integral() || x.truth()) throw Unsupported{"an index that is no integer"};
  return b.Value(x.number());
}

Val LetterAt(Builder& b, const Val& number) {
  const int v = b.Value(ToInt(b, number));
  b.ExitIf(b.Op(ScalarOp::kNot, ScalarType::kBool, b.Compare(ScalarOp::kBelow, v, b.Int(256))));
  return Letter(New(Is::kInt, v));
}

Val ToInt(Builder& b, const Val& x) {
  if (!x.scalar()) throw Unsupported{"int of something else than a number"};
  if (x.is == Is::kInt) return x;
  if (x.integral()) return New(Is::kInt, Whole(b, x));
  const int v = Double(b, x);
  b.IsFinite(v);
  return New(Is::kInt, b.Over(ScalarOp::kF64ToInt, v, -1));
}

Val ToFloat(Builder& b, const Val& x) {
  if (!x.scalar()) throw Unsupported{"float of something else than a number"};
  return New(Is::kFloat, Double(b, x));
}

bool HoldsNumbers(DType t) {
  if (t == DType::kFloat64 || t == DType::kFloat32) return true;
  return t < DType::kFloat16 && t != DType::kBool && t != DType::kUInt64;
}

Val ToNumpy(Builder& b, const Val& x, DType t) {
  if (!x.scalar()) throw Unsupported{"a NumPy scalar of something else than a number"};
  if (t == DType::kFloat64) return NewNumpy(t, Double(b, x));
  if (t == DType::kFloat32) return NewNumpy(t, SingleOf(b, x));
  if (x.integral() && HoldsNumbers(t)) {
    const int v = WholeFor(b, x, t);
    return NewNumpy(t, x.is == Is::kNumpy && t != DType::kInt64 ? b.Wrap(v, t) : v);
  }
  throw Unsupported{"a conversion to a NumPy scalar"};
}

Val SquareRoot(Builder& b, const Val& x) {
  if (!x.scalar() || x.truth() || (x.is == Is::kNumpy && x.integral() && DTypeSize(x.dtype) < 4))
    throw Unsupported{"a square root"};
  const bool single = IsSingle(x);
  const int v = single ? b.Value(x) : Double(b, x);
  const ScalarType t = single ? ScalarType::kF32 : ScalarType::kF64;
  const int r = b.Op(ScalarOp::kSqrt, t, v);
  b.ExitIfNewSpecial(r, v);
  return NewNumpy(single ? DType::kFloat32 : DType::kFloat64, r);
}

static int64_t GcdOf(int64_t x, int64_t y) {
  const uint64_t gcd = std::gcd(x < 0 ? -static_cast<uint64_t>(x) : x, y < 0 ? -static_cast<uint64_t>(y) : y);
  return static_cast<int64_t>(gcd);  // negative where it has no place
}

static Val MathOfTwo(Builder& b, const std::string& name, const Val& x, const Val& y) {
  if (name == "gcd" && x.integral() && y.integral()) {
    const int gcd = b.CallComputes(reinterpret_cast<void*>(GcdOf), ScalarType::kInt, {Whole(b, x), Whole(b, y)});
    b.ExitIf(b.Compare(ScalarOp::kLt, gcd, b.Int(0)));
    return New(Is::kInt, gcd);
  }
  const auto* row = std::ranges::find_if(kMathOfTwo, [&](const MathOfTwoRow& r) { return r.name == name; });
  if (row == std::end(kMathOfTwo)) throw Unsupported{"math." + name};
  const int v = Double(b, x), w = Double(b, y);
  for (const int number : {v, w})  // of others Python has its own answers
    b.ExitIf(b.Op(ScalarOp::kNot, ScalarType::kBool, b.Op(ScalarOp::kFinite, ScalarType::kBool, number)));
  const int r = b.CallComputes(reinterpret_cast<void*>(row->f), ScalarType::kF64, {v, w});
  b.ExitIfNewSpecial(r, v, w);  // Python raises an error
  return New(Is::kFloat, r);
}

Val Rounded(Builder& b, const Val& x) {
  if (x.python() && x.integral()) return ToInt(b, x);
  if (!x.scalar() || x.integral()) throw Unsupported{"round of something else than a float"};
  const int v = Double(b, x);
  // A number plus this one has no digits behind the point.
  constexpr double kWhole = 0x1.8p52, kMost = 0x1p51;
  const int size = b.Op(ScalarOp::kAbs, ScalarType::kF64, v);
  b.ExitIf(b.Op(ScalarOp::kNot, ScalarType::kBool, b.Compare(ScalarOp::kLt, size, b.Number(kMost))));
  const int sum = b.Op(ScalarOp::kAdd, ScalarType::kF64, v, b.Number(kWhole));
  return ToInt(b, New(Is::kFloat, b.Op(ScalarOp::kSub, ScalarType::kF64, sum, b.Number(kWhole))));
}

Val MathCall(Builder& b, const std::string& name, const std::vector<Val>& args) {
  for (const Val& v : args)
    if (!v.scalar()) throw Unsupported{"math." + name + " of something else than a number"};
  if (args.size() == 2) return MathOfTwo(b, name, args[0], args[1]);
  if (args.size() != 1) throw Unsupported{"math." + name};
  const Val& x = args[0];
  if (name == "floor" || name == "ceil" || name == "trunc") {
    if (x.integral()) {
      if (x.is == Is::kNumpy) throw Unsupported{"math." + name + " of a NumPy integer"};
      return ToInt(b, x);
    }
    const int v = Double(b, x);
    if (name == "trunc" && IsSingle(x)) throw Unsupported{"math.trunc of a float32"};
    if (name == "trunc") return ToInt(b, New(Is::kFloat, v));
    if (name == "floor") return ToInt(b, New(Is::kFloat, b.Op(ScalarOp::kFloor, ScalarType::kF64, v)));
    const int down = b.Op(ScalarOp::kFloor, ScalarType::kF64, b.Op(ScalarOp::kNeg, ScalarType::kF64, v));
    return ToInt(b, New(Is::kFloat, b.Op(ScalarOp::kNeg, ScalarType::kF64, down)));
  }
  const int v = Double(b, x);
  if (name == "fabs") return New(Is::kFloat, b.Op(ScalarOp::kAbs, ScalarType::kF64, v));
  int r = -1;
  if (name == "sqrt") r = b.Op(ScalarOp::kSqrt, ScalarType::kF64, v);
  for (const MathRow& row : kMath)
    if (name == row.name) r = b.CallComputes(reinterpret_cast<void*>(row.f), ScalarType::kF64, {v});
  if (r < 0) throw Unsupported{"math." + name};
  b.ExitIfNewSpecial(r, v);  // Python raises an error
  return New(Is::kFloat, r);
}

int Stored(Builder& b, const Val& x, DType t) {
  if (!x.scalar()) throw Unsupported{"something else than a number is stored"};
  if (t == DType::kBool) return Truth(b, x);
  if (t == DType::kFloat64) return Double(b, x);
  if (t == DType::kFloat32) return SingleOf(b, x);
  const int v = x.integral() ? Whole(b, x) : b.Value(ToInt(b, x));
  ExitUnlessFits(b, v, t);
  return v;
}

}  // namespace framejit::capture::scalar
