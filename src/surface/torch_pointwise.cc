// Elementwise rows of torch and NumPy: one table, since they differ in promotion and layout only (Scope knows which).
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "rules/compose.h"
#include "rules/decompose.h"
#include "surface/library_facts.h"
#include "surface/rows.h"
#include "surface/views.h"

namespace framejit::surface {
namespace {

using rules::Like;

ValueId Times(Builder& b, ValueId x, double v) {
  return b.Binary(Op::kMul, x, Like(b, x, v));
}

TypeOperand Typed(const Operand& o) {
  return {o.meta, o.is_tensor() ? Arg::Kind::kNone : o.number.kind};
}

DType ResultType(Scope& s, std::span<const Operand> operands) {
  std::vector<TypeOperand> typed;
  bool tensor = false;
  for (const Operand& o : operands) {
    typed.push_back(Typed(o));
    tensor |= o.is_tensor();
  }
  if (!tensor && s.torch()) Scope::Skip();
  DType t = s.torch() ? TorchResultType(typed, s.default_float()) : NumpyResultType(typed);
  if (IsComplex(t)) Scope::Skip();
  for (const Operand& o : operands) {
    if (!o.is_tensor() && !FitsIn(s.env, o.number, t))
      Scope::Skip();  // torch wraps around; NumPy raises or takes another loop
  }
  return t;
}

ValueId As(Scope& s, const Operand& o, DType t) {
  return o.is_tensor() ? s.b.Cast(o.value, t) : s.Constant(o.number, t);
}

DType FloatOf(Scope& s, DType t) {
  if (IsFloat(t)) return t;
  return s.torch() ? s.default_float() : NumpyFloatFor(t);
}

// --- one operand ----------------------------------------------------------------------------------------------------

Outs FloatUnary(Scope& s) {
  Operand x = s.tensor(0);
  return s.Elementwise(s.b.Unary(s.row.op, s.b.Cast(x.value, FloatOf(s, x.meta->dtype))), {&x, 1});
}

template <ValueId (*F)(Builder&, ValueId)>
Outs FloatComposite(Scope& s) {
  Operand x = s.tensor(0);
  DType t = FloatOf(s, x.meta->dtype);
  return s.Elementwise(F(s.b, s.b.Cast(x.value, t)), {&x, 1});
}

// Functions of NumPy and SciPy that are no plain ufuncs: only where their result dtype is the obvious one.
template <LowerFn F>
Outs WideOnly(Scope& s) {
  DType t = s.tensor(0).meta->dtype;
  if (NumpyFloatFor(t) == DType::kFloat16) Scope::Skip();
  return F(s);
}

bool (*ask_numpy)() = nullptr;

Outs SameUnary(Scope& s) {
  Operand x = s.tensor(0);
  DType t = x.meta->dtype;
  if (IsBool(t)) Scope::Skip();
  bool rounding = s.row.op == Op::kCeil || s.row.op == Op::kFloor || s.row.op == Op::kTrunc || s.row.op == Op::kRound;
  if (rounding && IsInteger(t) && !s.torch() && s.row.op != Op::kRound && ask_numpy && !ask_numpy()) Scope::Skip();
  if (rounding && IsInteger(t)) return s.Elementwise(x.value, {&x, 1});
  if (!IsSigned(t) && IsInteger(t)) {
    if (s.row.op == Op::kAbs) return s.Elementwise(x.value, {&x, 1});
    if (s.row.op == Op::kSign) Scope::Skip();
  }
  const bool turns = s.row.op == Op::kNeg || s.row.op == Op::kAbs;
  if (x.meta->is_scalar && turns && IsInteger(t)) {  // 0 - x overflows where these do
    ValueId v = s.b.Unary(s.row.op, x.value);
    return s.Elementwise(NoOverflow(s, Op::kSub, Like(s.b, v, 0), x.value, v), {&x, 1});
  }
  return s.Elementwise(s.b.Unary(s.row.op, x.value), {&x, 1});
}

Outs TorchSign(Scope& s) {  // nan gives 0
  Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype) && !IsSigned(x.meta->dtype)) Scope::Skip();
  return s.Elementwise(rules::SignOrZero(s.b, x.value), {&x, 1});
}

Outs RoundDecimals(Scope& s) {
  if (s.has(1) && s.env.Specialize(s.integer(1)) != 0) Scope::Skip();
  return SameUnary(s);
}

Outs Positive(Scope& s) {
  Operand x = s.tensor(0);
  if (IsBool(x.meta->dtype)) Scope::Fail("positive of bool");
  if (!s.torch()) return s.Elementwise(x.value, {&x, 1});
  return Same(x);
}

Outs Reciprocal(Scope& s) {
  Operand x = s.tensor(0);
  if (!s.torch() && !IsFloat(x.meta->dtype)) Scope::Skip();
  return FloatUnary(s);
}

Outs SquareOf(Scope& s) {
  Operand x = s.tensor(0);
  if (IsBool(x.meta->dtype)) Scope::Skip();
  return s.Elementwise(rules::Square(s.b, x.value), {&x, 1});
}

// v, of a composite of torch's that compares abs(x) with a number.
Out OfMagnitude(Scope& s, ValueId v, const Operand& x) {
  Out out = s.Elementwise(v, {&x, 1});
  if (!s.torch()) return out;
  TensorMeta magnitude = *x.meta;
  magnitude.strides = out.strides;
  const TensorMeta* operand = &magnitude;
  out.strides = TorchPointwise(s.env, magnitude.sizes, {&operand, 1}, /*scalars=*/true);
  return out;
}

Outs Classify(Scope& s) {  // isnan, isinf, signbit
  Operand x = s.tensor(0);
  if (IsFloat(x.meta->dtype)) {
    ValueId v = s.b.Unary(s.row.op, x.value);
    return s.row.op == Op::kIsInf ? OfMagnitude(s, v, x) : s.Elementwise(v, {&x, 1});
  }
  ValueId no = s.row.op == Op::kSignbit && IsSigned(x.meta->dtype)
                   ? s.b.Binary(Op::kLt, x.value, Like(s.b, x.value, 0))
                   : s.b.Constant(Scalar(false), DType::kBool, x.meta->sizes);
  return s.Elementwise(no, {&x, 1});
}

Outs IsFinite(Scope& s) {
  Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype)) return s.Elementwise(s.b.Constant(Scalar(true), DType::kBool, x.meta->sizes), {&x, 1});
  ValueId bad = s.b.Binary(Op::kOr, s.b.Unary(Op::kIsNan, x.value), s.b.Unary(Op::kIsInf, x.value));
  Out out = OfMagnitude(s, s.b.Unary(Op::kNot, bad), x);
  if (!s.torch()) return out;
  std::array<TensorMeta, 2> both{*x.meta, *x.meta};  // times x == x
  both[0].strides = s.Pointwise(out.value, {&x, 1});
  both[1].strides = out.strides;
  std::array<const TensorMeta*, 2> operands{&both[0], &both[1]};
  out.strides = TorchPointwise(s.env, both[0].sizes, operands, /*scalars=*/false);
  return out;
}

Outs IsSignedInf(Scope& s) {  // op kLt: negative, kLe: positive
  Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype)) Scope::Skip();
  double inf = std::numeric_limits<double>::infinity();
  return s.Elementwise(s.b.Binary(Op::kEq, x.value, Like(s.b, x.value, s.row.op == Op::kLt ? -inf : inf)), {&x, 1});
}

Outs LogicalNot(Scope& s) {
  Operand x = s.tensor(0);
  return s.Elementwise(s.b.Unary(Op::kNot, s.b.Cast(x.value, DType::kBool)), {&x, 1});
}

Outs BitwiseNot(Scope& s) {
  Operand x = s.tensor(0);
  if (IsFloat(x.meta->dtype)) Scope::Fail("bitwise not of a float");
  return s.Elementwise(s.b.Unary(Op::kNot, x.value), {&x, 1});
}

Outs Clone(Scope& s) {
  Operand x = s.tensor(0);
  Out out;
  out.value = x.value;
  std::string format = s.has(1) ? s.arg(1).s : "preserve_format";
  if (format.ends_with("preserve_format"))
    out.strides = PreserveFormat(s.env, *x.meta);
  else if (!format.ends_with("contiguous_format"))
    Scope::Skip();
  return out;
}

Outs NanToNum(Scope& s) {
  Operand x = s.tensor(0);
  DType t = x.meta->dtype;
  if (!IsFloat(t) || t == DType::kFloat16 || t == DType::kBFloat16) Scope::Skip();
  double largest = t == DType::kFloat32 ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max();
  ValueId v = rules::NanToNum(s.b, x.value, s.has(1) ? s.number(1) : 0, s.has(2) ? s.number(2) : largest,
                              s.has(3) ? s.number(3) : -largest);
  s.b.SetDerivative(v, {"finite", {x.value}});
  return s.Elementwise(v, {&x, 1});
}

// --- two operands ---------------------------------------------------------------------------------------------------

struct Pair {
  std::array<Operand, 2> operands;
  DType type;
  ValueId a, b;
};

Pair ReadPair(Scope& s) {
  Pair p{{s.Read(s.arg(0)), s.Read(s.arg(1))}, DType::kBool, 0, 0};
  p.type = ResultType(s, p.operands);
  p.a = As(s, p.operands[0], p.type);
  p.b = As(s, p.operands[1], p.type);
  return p;
}

// Torch's rarer binary functions take tensors only, while NumPy's take numbers, too.
Pair ReadTensors(Scope& s) {
  if (s.torch() && !(s.arg(0).is(Arg::Kind::kTensor) && s.arg(1).is(Arg::Kind::kTensor)))
    Scope::Fail("operands must be tensors");
  return ReadPair(s);
}

void RefuseBools(const Pair& p) {
  for (const Operand& o : p.operands) {
    if (o.is_tensor() ? IsBool(o.meta->dtype) : o.number.is(Arg::Kind::kBool)) Scope::Fail("subtraction of bools");
  }
}

Outs Done(Scope& s, const Pair& p, ValueId v) {
  std::array<Operand, 2> operands = p.operands;
  std::array<TensorMeta, 2> cast;
  for (int i = 0; i < 2; ++i) {  // torch's iterator sees, on the CPU, the operands after their conversion
    const Operand& o = operands[i];
    if (!s.torch() || !o.is_tensor() || o.meta->dtype == p.type || o.meta->device.kind != DeviceKind::kCpu) continue;
    cast[i] = *o.meta;
    cast[i].strides = PreserveFormat(s.env, *o.meta);
    operands[i].meta = &cast[i];
  }
  return s.Elementwise(v, operands);
}

// torch's kernels that take their numbers as arguments: only the tensors decide the layout.
Out OverTensors(Scope& s, ValueId v, std::span<const Operand> operands) {
  std::vector<Operand> tensors;
  for (const Operand& o : operands)
    if (o.is_tensor() || !s.torch()) tensors.push_back(o);
  return s.Elementwise(v, tensors);
}

bool OnCpu(std::span<const Operand> operands) {
  return std::none_of(operands.begin(), operands.end(),
                      [](const Operand& o) { return o.is_tensor() && o.meta->device.kind != DeviceKind::kCpu; });
}

bool IsNumber(Scope& s, const Pair& p, int i) {
  return TakenAsNumber(s, p.operands[i], p.operands[1 - i], i == 1);
}

// f16 and bf16 with a number: that one keeps f32 precision, the other operand is rounded to the type, and then only the
// result is. What torch's kernel rounds to the type before is left as it is read.
void Widen(Scope& s, Pair& p, bool rounds_numbers = false) {
  if (!s.torch() || !IsFloat(p.type) || DTypeSize(p.type) >= 4 || rounds_numbers) return;
  const bool a = IsNumber(s, p, 0), b = IsNumber(s, p, 1);
  if (!a && !b) return;
  p.a = a ? As(s, p.operands[0], DType::kFloat32) : s.b.Cast(p.a, DType::kFloat32);
  p.b = b ? As(s, p.operands[1], DType::kFloat32) : s.b.Cast(p.b, DType::kFloat32);
}

bool AllScalars(Scope& s, std::span<const Operand> operands) {
  return !s.torch() && std::all_of(operands.begin(), operands.end(),
                                   [](const Operand& o) { return !o.is_tensor() || o.meta->is_scalar; });
}

Outs Arithmetic(Scope& s) {  // add, sub, mul; torch's add and sub take alpha
  Pair p = ReadPair(s);
  Op op = s.row.op;
  if (op == Op::kSub && (s.torch() || IsBool(p.type))) RefuseBools(p);
  bool has_alpha = op != Op::kMul && s.has(2) && !(s.arg(2).is(Arg::Kind::kInt) && s.integer(2) == shape::Int(1));
  if (has_alpha && (IsBool(p.type) || (!IsFloat(p.type) && !s.arg(2).is(Arg::Kind::kInt)))) Scope::Skip();
  if (has_alpha && s.arg(2).is(Arg::Kind::kBool)) Scope::Fail("a truth value as a factor");
  const DType held = !IsFloat(p.type) || OnCpu(p.operands) || DTypeSize(p.type) > 4 ? p.type : DType::kFloat32;
  if (has_alpha && !FactorFits(s.env, s.arg(2), held)) Scope::Fail("a factor that its dtype cannot hold");
  bool narrow = IsFloat(p.type) && DTypeSize(p.type) < 4;
  Widen(s, p, op != Op::kMul && OnCpu(p.operands));
  for (ValueId* v : {&p.a, &p.b})
    if (has_alpha && narrow) *v = s.b.Cast(*v, DType::kFloat32);
  if (has_alpha) p.b = s.b.Binary(Op::kMul, p.b, s.Factor(2, s.b.type(p.b).dtype));
  ValueId v = s.b.Cast(s.b.Binary(op, p.a, p.b), p.type);
  return Done(s, p, AllScalars(s, p.operands) ? NoOverflow(s, op, p.a, p.b, v) : v);
}

Outs ReverseSub(Scope& s) {  // torch.rsub(input, other): other - input
  Pair p = ReadPair(s);
  RefuseBools(p);
  if (s.has(2) && !(s.arg(2).is(Arg::Kind::kInt) && s.integer(2) == shape::Int(1))) Scope::Skip();
  Widen(s, p, OnCpu(p.operands));
  std::swap(p.operands[0], p.operands[1]);  // as the framework's iterator sees them
  return Done(s, p, s.b.Cast(s.b.Binary(Op::kSub, p.b, p.a), p.type));
}

// Only a divisor known not to be zero is computed here: it traps. NumPy tells of the smallest integer by -1.
void CheckDivisor(const Scope& s, const Pair& p) {
  if (IsFloat(p.type)) return;
  const Operand& d = p.operands[1];
  const bool known = !d.is_tensor() && d.number.is(Arg::Kind::kInt) && d.number.i.is_const();
  if (!known || d.number.i.value() == 0 || (d.number.i.value() == -1 && !s.torch())) Scope::Skip();
}

Outs TrueDivide(Scope& s) {
  Pair p = ReadPair(s);
  DType t = p.type;
  p.type = IsFloat(t) ? t : s.default_float();
  p.a = As(s, p.operands[0], p.type);
  p.b = As(s, p.operands[1], p.type);
  Widen(s, p);
  return Done(s, p, s.b.Cast(s.b.Binary(Op::kDiv, p.a, p.b), p.type));
}

// torch multiplies by the reciprocal, which shows: 0 / x is nan where 1 / x overflows
Outs NumberOverTensor(Scope& s) {
  Pair p = ReadPair(s);
  DType t = FloatOf(s, p.operands[1].meta->dtype);
  if (p.operands[0].is_tensor() || (IsFloat(p.type) && p.type != t)) Scope::Skip();
  p.type = t;
  DType wide = DTypeSize(t) < 4 ? DType::kFloat32 : t;
  ValueId reciprocal = s.b.Unary(Op::kReciprocal, As(s, p.operands[1], t));
  return Done(s, p, s.b.Cast(s.b.Binary(Op::kMul, s.b.Cast(reciprocal, wide), As(s, p.operands[0], wide)), t));
}

Outs Quotient(Scope& s) {  // floordiv, rem, fmod
  Pair p = ReadPair(s);
  // Torch has no derivative for the remainder of a number.
  const bool of_number = s.row.op == Op::kRem && s.torch() && !p.operands[0].is_tensor();
  if (IsBool(p.type) || (of_number && p.operands[1].meta->requires_grad && s.mode.grad)) Scope::Skip();
  CheckDivisor(s, p);
  Widen(s, p, s.row.op != Op::kFloorDiv || !IsNumber(s, p, 1));
  ValueId v = s.b.Binary(s.row.op, p.a, p.b);
  if (s.row.op == Op::kRem && IsFloat(p.type) && !s.torch() && !s.cupy) {  // NumPy's zero has the sign of the divisor
    const ValueId zero = Like(s.b, v, 0), sign = s.b.Broadcast(p.b, s.b.type(v).shape);
    v = s.b.Where(s.b.Binary(Op::kEq, v, zero), s.b.Binary(Op::kCopysign, zero, sign), v);
  }
  return Done(s, p, s.b.Cast(v, p.type));
}

Outs Divide(Scope& s) {  // torch.div with rounding_mode
  if (!s.has(2)) return TrueDivide(s);
  Pair p = ReadPair(s);
  if (IsBool(p.type)) Scope::Skip();
  CheckDivisor(s, p);
  Widen(s, p, !IsNumber(s, p, 1));
  const std::string& mode = s.arg(2).s;
  if (mode == "floor") return Done(s, p, s.b.Cast(s.b.Binary(Op::kFloorDiv, p.a, p.b), p.type));
  if (mode != "trunc") Scope::Fail("rounding_mode");
  const bool rounds = IsFloat(p.type) && s.b.type(p.a).dtype == p.type;  // two tensors: before it cuts the quotient off
  const ValueId v = rounds ? s.b.Unary(Op::kTrunc, s.b.Cast(s.b.Binary(Op::kDiv, s.Up(p.a), s.Up(p.b)), p.type))
                           : s.b.Cast(rules::DivTrunc(s.b, p.a, p.b), p.type);
  return Done(s, p, IsFloat(p.type) ? ValueId(rules::Ruled({s.b, v}, "flat", {p.a, p.b})) : v);
}

Outs NumpyPower(Scope& s, Pair& p) {
  if (!IsFloat(p.type)) {
    const Operand& e = p.operands[1];
    bool safe = !e.is_tensor() && e.number.is(Arg::Kind::kInt) && e.number.i.is_const() && e.number.i.value() >= 0;
    if (!safe || IsBool(p.type)) Scope::Skip();
  }
  return Done(s, p, s.b.Binary(Op::kPow, p.a, p.b));
}

Outs Power(Scope& s) {
  Pair p = ReadPair(s);
  const Operand& e = p.operands[1];
  if (IsBool(p.type) || (!s.torch() && p.operands[0].is_tensor() && IsBool(p.operands[0].meta->dtype))) Scope::Skip();
  if (e.is_tensor() || (e.number.is(Arg::Kind::kInt) && !e.number.i.is_const())) {
    if (!IsFloat(p.type)) Scope::Skip();  // negative integer exponents are the framework's business
    if (s.torch() && !p.operands[0].is_tensor()) return s.b.Binary(Op::kPow, p.a, p.b);  // always row-major
    return s.torch() ? Done(s, p, s.b.Binary(Op::kPow, p.a, p.b)) : NumpyPower(s, p);
  }
  double n = e.number.is(Arg::Kind::kInt)    ? static_cast<double>(e.number.i.value())
             : e.number.is(Arg::Kind::kBool) ? e.number.b
                                             : e.number.f;
  if (!IsFloat(p.type) && n < 0) Scope::Fail("integers to negative integer powers");
  auto done = [&](ValueId v) { return OverTensors(s, v, p.operands); };
  auto wide = [&](auto f) { return done(s.b.Cast(f(s.Up(p.a)), p.type)); };
  if (n == 2) return wide([&](ValueId x) { return rules::Square(s.b, x); });
  if (s.torch()) {
    if (n == 0 && p.operands[0].meta->requires_grad) Scope::Skip();  // its gradient is zero, and there
    if (n == 0) return done(Like(s.b, p.a, 1));
    if (n == 1) return done(p.a);
    if (n == 3) return wide([&](ValueId x) { return s.b.Binary(Op::kMul, rules::Square(s.b, x), x); });
  }
  // On the CPU the framework asks pow() for these in float16: of -inf and -0 it says something else.
  const bool asks = s.torch() && p.type == DType::kFloat16 && p.operands[0].meta->device.kind == DeviceKind::kCpu;
  if (IsFloat(p.type) && !(asks && std::abs(n) == 0.5)) {
    const Op op = n == 0.5 ? Op::kSqrt : n == -1 ? Op::kReciprocal : s.torch() && n == -0.5 ? Op::kRsqrt : Op::kPow;
    if (!asks && s.torch() && std::abs(n - 0.5) == 1) return wide([&](ValueId x) { return rules::Power({s.b, x}, n); });
    if (op != Op::kPow && s.torch())  // of the power the framework keeps x, of a root the result
      return wide([&](ValueId x) { return rules::Ruled({s.b, s.b.Unary(op, x)}, "half_power", {x}, {n}); });
    if (op != Op::kPow) return wide([&](ValueId x) { return s.b.Unary(op, x); });
    if (s.torch() && n == -2)
      return wide([&](ValueId x) {
        return rules::Ruled({s.b, s.b.Unary(Op::kReciprocal, rules::Square(s.b, x))}, "inverse_square", {x});
      });
  }
  return s.torch() ? done(s.b.Binary(Op::kPow, p.a, p.b)) : NumpyPower(s, p);
}

// `**`. Of NumPy's scalars it is C's pow, also where the exponent is 2: that is not x * x, which rounds once.
Outs PowerOperator(Scope& s) {
  Pair p = ReadPair(s);
  if (!IsFloat(p.type) || !AllScalars(s, p.operands)) return Power(s);
  if (p.type != DType::kFloat64) Scope::Skip();
  return Done(s, p, s.b.Binary(Op::kPow, p.a, p.b));
}

Outs FloatBinary(Scope& s) {  // atan2, hypot, copysign, logaddexp
  Pair p = s.row.op == Op::kCopysign ? ReadPair(s) : ReadTensors(s);
  if (s.torch() && s.row.op == Op::kHypot && !IsFloat(p.type)) Scope::Skip();
  const Operand &a = p.operands[0], &b = p.operands[1];
  // NumPy takes the first of its loops for floats that holds both integers: of int8 and uint8 it is float16's.
  const bool each = !s.torch() && !IsFloat(p.type) && a.is_tensor() && b.is_tensor();
  p.type = each ? NumpyPromoteTypes(FloatOf(s, a.meta->dtype), FloatOf(s, b.meta->dtype)) : FloatOf(s, p.type);
  p.a = As(s, a, p.type);
  p.b = As(s, b, p.type);
  return Done(s, p, s.b.Binary(s.row.op, p.a, p.b));
}

Outs LogAddExp(Scope& s) {
  Pair p = ReadTensors(s);
  if (!IsFloat(p.type)) Scope::Skip();
  return Done(s, p, rules::LogAddExp(s.b, p.a, p.b));
}

template <bool kSwapped>
Outs Compare(Scope& s) {
  Pair p = ReadPair(s);
  if (!s.torch() && IsFloat(p.type)) {  // NumPy compares 64-bit integers of different sign exactly
    bool integers = true;
    for (const Operand& o : p.operands) integers &= o.is_tensor() ? !IsFloat(o.meta->dtype) : !IsFloatNumber(o.number);
    if (integers) Scope::Skip();
  }
  return Done(s, p, kSwapped ? s.b.Binary(s.row.op, p.b, p.a) : s.b.Binary(s.row.op, p.a, p.b));
}

// maximum, minimum: of 0.0 and -0.0, which are equal, NumPy's loops for 32 and 64 bits give the second.
Outs Extreme(Scope& s) {
  Pair p = ReadTensors(s);
  const bool second = !s.torch() && IsFloat(p.type) && DTypeSize(p.type) >= 4;
  return Done(s, p, second ? s.b.Binary(s.row.op, p.b, p.a) : s.b.Binary(s.row.op, p.a, p.b));
}

bool (*ask_torch)() = nullptr;

bool SharesTies(const Scope& s) {
  return s.torch() && ask_torch && ask_torch();
}

void CheckBounds(const Scope& s, std::span<const Operand> all) {  // of tensors, with gradients to share: not ours
  const auto tensor = [](const Operand& o) { return o.is_tensor(); };
  const auto wanted = [](const Operand& o) { return o.is_tensor() && o.meta->requires_grad; };
  if (std::any_of(all.begin() + 1, all.end(), tensor) && std::any_of(all.begin(), all.end(), wanted) && SharesTies(s))
    Scope::Skip();
}

Outs FExtreme(Scope& s) {  // fmax, fmin: a nan loses. Of two zeros torch gives the second in bfloat16 on the CPU.
  Pair p = ReadTensors(s);
  const bool second = s.torch() && p.type == DType::kBFloat16 && p.operands[0].meta->device.kind == DeviceKind::kCpu;
  ValueId v = second ? s.b.Binary(s.row.op, p.b, p.a) : s.b.Binary(s.row.op, p.a, p.b);
  if (!IsFloat(p.type)) return Done(s, p, v);
  ValueId x = s.b.Broadcast(p.a, s.b.type(v).shape), y = s.b.Broadcast(p.b, s.b.type(v).shape);
  v = s.b.Where(s.b.Unary(Op::kIsNan, x), y, v);
  v = s.b.Where(s.b.Unary(Op::kIsNan, y), x, v);
  return Done(
      s, p,
      rules::Ruled({s.b, v}, "fextreme", {x, y}, {(s.row.op == Op::kMaximum ? 1.0 : -1.0) * (SharesTies(s) ? 2 : 1)}));
}

Outs Bitwise(Scope& s) {
  Pair p = ReadPair(s);
  if (IsFloat(p.type)) Scope::Fail("bitwise operation on floats");
  if (IsBool(p.type) && (s.row.op == Op::kShl || s.row.op == Op::kShr)) Scope::Skip();
  if (s.row.op == Op::kShl || s.row.op == Op::kShr) {  // defined only for counts within the width
    const Operand& n = p.operands[1];
    bool fine = !n.is_tensor() && n.number.is(Arg::Kind::kInt) && n.number.i.is_const() && n.number.i.value() >= 0 &&
                n.number.i.value() < 8 * DTypeSize(p.type);
    if (!fine) Scope::Skip();
  }
  return Done(s, p, s.b.Binary(s.row.op, p.a, p.b));
}

Outs Logical(Scope& s) {
  Pair p{{s.Read(s.arg(0)), s.Read(s.arg(1))}, DType::kBool, 0, 0};
  if (!p.operands[0].is_tensor() && !p.operands[1].is_tensor()) Scope::Skip();
  if (s.torch() && !(p.operands[0].is_tensor() && p.operands[1].is_tensor())) Scope::Fail("operands must be tensors");
  if (s.torch()) p.type = ResultType(s, p.operands);  // 1e-9 beside float16 is zero
  auto truth = [&](const Operand& o) {
    if (o.is_tensor()) return s.b.Cast(s.torch() ? s.b.Cast(o.value, p.type) : o.value, DType::kBool);
    if (o.number.is(Arg::Kind::kBool)) return s.Constant(o.number, DType::kBool);
    return s.b.Cast(s.Constant(o.number, o.number.is(Arg::Kind::kInt) ? DType::kInt64 : DType::kFloat64), DType::kBool);
  };
  return s.Elementwise(s.b.Binary(s.row.op, truth(p.operands[0]), truth(p.operands[1])), p.operands);
}

Outs XLogY(Scope& s) {
  Pair p = ReadPair(s);
  if (!IsFloat(p.type)) Scope::Skip();
  ValueId zero = s.b.Binary(Op::kEq, p.a, Like(s.b, p.a, 0));
  ValueId log = s.b.Cast(s.b.Unary(Op::kLog, s.Up(p.b)), p.type);  // rounded in between, as in torch
  ValueId v = s.b.Binary(Op::kMul, s.Up(p.a), s.Up(log));
  const shape::Ints sizes = s.b.type(v).shape;
  ValueId x = s.b.Broadcast(s.Up(p.a), sizes), y = s.b.Broadcast(s.Up(p.b), sizes);
  v = s.b.Where(s.b.Broadcast(zero, sizes), Like(s.b, v, 0), v);
  v = s.b.Where(s.b.Unary(Op::kIsNan, y), Like(s.b, v, std::nan("")), v);
  return Done(s, p, s.b.Cast(rules::Ruled({s.b, v}, "xlogy", {x, y}), p.type));
}

// --- more -----------------------------------------------------------------------------------------------------------
Outs Where(Scope& s) {
  Operand c = s.tensor(0);
  if (s.torch() && !IsBool(c.meta->dtype)) Scope::Skip();
  std::array<Operand, 2> ab{s.Read(s.arg(1)), s.Read(s.arg(2))};
  DType t;
  if (!ab[0].is_tensor() && !ab[1].is_tensor()) {
    std::array<TypeOperand, 2> typed{Typed(ab[0]), Typed(ab[1])};
    t = s.torch() ? TorchResultType(typed, s.default_float()) : NumpyResultType(typed);
  } else {
    t = ResultType(s, ab);
  }
  ValueId v = s.b.Where(s.b.Cast(c.value, DType::kBool), As(s, ab[0], t), As(s, ab[1], t));
  std::array<Operand, 3> all{c, ab[0], ab[1]};
  Out out = s.Elementwise(v, all);
  out.array = true;
  if (s.torch() || s.cupy) return out;
  std::vector<const TensorMeta*> tensors;
  for (const Operand& o : all)
    if (o.is_tensor()) tensors.push_back(o.meta);
  out.strides = NumpyPointwise(s.env, s.b.type(v).shape, tensors, true);  // it is no ufunc: there is always an iterator
  return out;
}

Outs Clamp(Scope& s) {
  std::vector<Operand> all{s.tensor(0)};
  for (int i : {1, 2})
    if (s.has(i)) all.push_back(s.Read(s.arg(i)));
  const bool mixed = all.size() == 3 && all[1].is_tensor() != all[2].is_tensor() && all[1].rank() + all[2].rank() > 0;
  if (all.size() == 1 || (mixed && s.torch())) Scope::Fail("clamp takes one bound, or two of a kind");
  DType t = ResultType(s, all);
  if (IsBool(t)) Scope::Skip();
  // Versions of torch differ: not-a-number as a bound is ignored, or gives not-a-number.
  for (const Operand& o : all)
    if (!o.is_tensor() && o.number.is(Arg::Kind::kFloat) && std::isnan(o.number.f)) Scope::Skip();
  CheckBounds(s, all);
  ValueId v = s.b.Cast(all[0].value, t);
  size_t next = 1;
  const char* name = s.has(1) && s.has(2) ? "clamp" : s.has(1) ? "clamp_min" : "clamp_max";
  Derivative rule{name, {v}, {double(SharesTies(s))}, {}};
  auto bound = [&] { return rule.operands.emplace_back(As(s, all[next++], t)); };
  ValueId lo = s.has(1) ? bound() : kNoValue, hi = s.has(2) ? bound() : kNoValue;
  v = rules::Clamp(s.b, v, lo, hi);
  s.b.SetDerivative(v, rule);
  return OverTensors(s, v, all);
}

Outs ClampOne(Scope& s) {  // clamp_min, clamp_max
  Pair p = ReadPair(s);
  CheckBounds(s, p.operands);
  ValueId v = s.b.Binary(s.row.op, p.a, p.b);
  s.b.SetDerivative(v, {s.row.op == Op::kMaximum ? "clamp_min" : "clamp_max", {p.a, p.b}, {double(SharesTies(s))}, {}});
  return OverTensors(s, v, p.operands);
}

ValueId SincOf(Builder& b, ValueId x) {
  ValueId wide = rules::Widen(b, x), angle = Times(b, wide, std::numbers::pi);
  ValueId zero = b.Binary(Op::kEq, wide, Like(b, wide, 0));
  ValueId v = b.Where(zero, Like(b, wide, 1), b.Binary(Op::kDiv, b.Unary(Op::kSin, angle), angle));
  return b.Cast(rules::Ruled({b, v}, "sinc", {wide}), b.type(x).dtype);
}

Outs AddCMul(Scope& s) {  // addcmul, addcdiv: input + value * t1 (*|/) t2
  std::array<Operand, 3> all{s.tensor(0), s.tensor(1), s.tensor(2)};
  DType t = ResultType(s, all);
  if (!IsFloat(t)) Scope::Skip();
  if (s.row.op == Op::kDiv && !IsFloat(all[1].meta->dtype) && !IsFloat(all[2].meta->dtype))
    Scope::Fail("addcdiv divides no integers");
  auto wide = [&](int i) { return s.Up(s.b.Cast(all[i].value, t)); };
  ValueId v = s.b.Binary(Op::kMul, s.Factor(3, ComputeType(t)), wide(1));
  v = s.b.Binary(Op::kAdd, wide(0), s.b.Binary(s.row.op, v, wide(2)));
  return s.Elementwise(s.b.Cast(v, t), all);
}

Outs Lerp(Scope& s) {
  std::array<Operand, 3> all{s.tensor(0), s.tensor(1), s.Read(s.arg(2))};
  DType t = all[0].meta->dtype;
  if (!IsFloat(t) || all[1].meta->dtype != t || (all[2].is_tensor() && all[2].meta->dtype != t)) Scope::Skip();
  ValueId w = all[2].is_tensor() ? all[2].value : s.Constant(all[2].number, ComputeType(t));
  return OverTensors(s, rules::Lerp(s.b, all[0].value, all[1].value, w), all);
}

template <double factor>
ValueId Scaled(Builder& b, ValueId x) {
  return Times(b, x, factor);
}

#define UNARY(op, NAMES) {NAMES, "(Tensor input)", &FloatUnary, Op::op}
#define BINARY "(Operand input, Operand other)"

// clang-format off: a table
constexpr Row kRows[] = {
    UNARY(kExp, "tmIN:exp"), UNARY(kExp2, "tmIsN:exp2"), UNARY(kExpm1, "tmIsN:expm1"), UNARY(kLog, "tmIN:log"),
    UNARY(kLog2, "tmIN:log2"), UNARY(kLog10, "tmIN:log10"), UNARY(kLog1p, "tmIsN:log1p"), UNARY(kSqrt, "tmIN:sqrt"),
    UNARY(kRsqrt, "tmI:rsqrt"), UNARY(kSin, "tmIN:sin"), UNARY(kCos, "tmIN:cos"), UNARY(kTan, "tmIN:tan"),
    UNARY(kAsin, "tmI:asin tmIN:arcsin N:asin"), UNARY(kAcos, "tmI:acos tmIN:arccos N:acos"),
    UNARY(kAtan, "tmI:atan tmIN:arctan N:atan"), UNARY(kSinh, "tmIN:sinh"), UNARY(kCosh, "tmIN:cosh"),
    UNARY(kTanh, "tmIN:tanh"), UNARY(kAsinh, "tmI:asinh tmIN:arcsinh N:asinh"), UNARY(kAcosh, "tmI:acosh tmIN:arccosh N:acosh"),
    UNARY(kAtanh, "tmI:atanh tmIN:arctanh N:atanh"), UNARY(kErf, "tmIs:erf"), UNARY(kErfc, "tmIs:erfc"),
    {"tmIN:reciprocal", "(Tensor input)", &Reciprocal, Op::kReciprocal},
    {"S:erf", "(Tensor input)", &WideOnly<&FloatUnary>, Op::kErf}, {"S:erfc", "(Tensor input)", &WideOnly<&FloatUnary>, Op::kErfc},
    {"S:expm1", "(Tensor input)", &WideOnly<&FloatUnary>, Op::kExpm1}, {"S:log1p", "(Tensor input)", &WideOnly<&FloatUnary>, Op::kLog1p},
    {"S:expit", "(Tensor input)", &WideOnly<&FloatComposite<&rules::Sigmoid>>},
    {"tmI:sigmoid s:expit n:sigmoid", "(Tensor input)", &FloatComposite<&rules::Sigmoid>},
    {"s:sinc tmI:sinc", "(Tensor input)", &FloatComposite<&SincOf>}, {"N:sinc", "(Tensor input)", &WideOnly<&FloatComposite<&SincOf>>},
    {"tmIN:deg2rad N:radians", "(Tensor input)", &FloatComposite<&Scaled<std::numbers::pi / 180>>, Op::kInput, kEmptyLike},
    {"tmIN:rad2deg N:degrees", "(Tensor input)", &FloatComposite<&Scaled<180 / std::numbers::pi>>, Op::kInput, kEmptyLike},
    {"tmI:neg tmIN:negative oO:neg", "(Tensor input)", &SameUnary, Op::kNeg},
    {"tmIN:abs tmIN:absolute oO:abs", "(Tensor input)", &SameUnary, Op::kAbs},
    {"N:fabs", "(Tensor input)", &FloatUnary, Op::kAbs},
    {"N:sign", "(Tensor input)", &SameUnary, Op::kSign}, {"tmI:sign tmI:sgn", "(Tensor input)", &TorchSign},
    {"tmIN:ceil", "(Tensor input)", &SameUnary, Op::kCeil}, {"tmIN:floor", "(Tensor input)", &SameUnary, Op::kFloor},
    {"tmIN:trunc tmIN:fix", "(Tensor input)", &SameUnary, Op::kTrunc}, {"N:rint", "(Tensor input)", &FloatUnary, Op::kRound},
    {"tmI:round", "(Tensor input, *, int decimals=0)", &RoundDecimals, Op::kRound},
    {"NM:round N:around", "(Tensor input, int decimals=0)", &RoundDecimals, Op::kRound},
    {"tmN:positive oO:pos", "(Tensor input)", &Positive},
    {"tmIN:square", "(Tensor input)", &SquareOf},
    {"tmN:isnan", "(Tensor input)", &Classify, Op::kIsNan}, {"tmN:isinf", "(Tensor input)", &Classify, Op::kIsInf},
    {"tmN:signbit", "(Tensor input)", &Classify, Op::kSignbit}, {"tmN:isfinite", "(Tensor input)", &IsFinite},
    {"tmN:isposinf", "(Tensor input)", &IsSignedInf, Op::kLe}, {"tmN:isneginf", "(Tensor input)", &IsSignedInf, Op::kLt},
    {"tmIN:logical_not", "(Tensor input)", &LogicalNot},
    {"tmIN:bitwise_not oO:invert N:invert", "(Tensor input)", &BitwiseNot},
    {"tm:clone", "(Tensor input, *, MemoryFormat? memory_format=None)", &Clone},
    {"tmI:nan_to_num", "(Tensor input, Scalar? nan=None, Scalar? posinf=None, Scalar? neginf=None)", &NanToNum, Op::kInput, kEmptyLike},

    {"tmI:add orAORB:add", "(Operand input, Operand other, *, Factor alpha=1)", &Arithmetic, Op::kAdd},
    {"tmI:sub tmI:subtract orAORB:sub", "(Operand input, Operand other, *, Factor alpha=1)", &Arithmetic, Op::kSub},
    {"tmI:mul tmIN:multiply orAORB:mul", BINARY, &Arithmetic, Op::kMul},
    {"t:rsub", "(Operand input, Operand other, *, Scalar alpha=1)", &ReverseSub},
    {"N:add", "(Operand input, Operand other, *, Scalar? alpha=None)", &Arithmetic, Op::kAdd},
    {"N:subtract", "(Operand input, Operand other, *, Scalar? alpha=None)", &Arithmetic, Op::kSub},
    {"tmI:div tmI:divide", "(Operand input, Operand other, *, str? rounding_mode=None)", &Divide},
    {"tmIN:true_divide N:divide oAORB:truediv o:div", BINARY, &TrueDivide},
    {"r:truediv r:div", BINARY, &NumberOverTensor},
    {"tmIN:floor_divide orAORB:floordiv", BINARY, &Quotient, Op::kFloorDiv},
    {"tmIN:remainder orAORB:mod N:mod", BINARY, &Quotient, Op::kRem},
    {"tmIN:fmod", BINARY, &Quotient, Op::kFmod},
    {"tmI:pow N:power N:pow", "(Operand input, Operand exponent)", &Power},
    {"orAORB:pow", "(Operand input, Operand exponent)", &PowerOperator},
    {"tmI:atan2 tmIN:arctan2 N:atan2", BINARY, &FloatBinary, Op::kAtan2},
    {"tmIN:hypot", BINARY, &FloatBinary, Op::kHypot}, {"tmIN:copysign", BINARY, &FloatBinary, Op::kCopysign},
    {"tmN:logaddexp", BINARY, &LogAddExp}, {"tmI:xlogy s:xlogy", BINARY, &XLogY},
    {"tmI:eq oO:eq N:equal", BINARY, &Compare<false>, Op::kEq}, {"tmI:ne tmI:not_equal oO:ne N:not_equal", BINARY, &Compare<false>, Op::kNe},
    {"tmI:lt tmIN:less oO:lt", BINARY, &Compare<false>, Op::kLt}, {"tmI:le tmIN:less_equal oO:le", BINARY, &Compare<false>, Op::kLe},
    {"tmI:gt tmIN:greater oO:gt", BINARY, &Compare<true>, Op::kLt},
    {"tmI:ge tmIN:greater_equal oO:ge", BINARY, &Compare<true>, Op::kLe},
    {"tmN:maximum", BINARY, &Extreme, Op::kMaximum}, {"tmN:minimum", BINARY, &Extreme, Op::kMinimum},
    {"tm:max", "(Tensor input, Tensor other)", &Extreme, Op::kMaximum}, {"tm:min", "(Tensor input, Tensor other)", &Extreme, Op::kMinimum},
    {"tmN:fmax", BINARY, &FExtreme, Op::kMaximum}, {"tmN:fmin", BINARY, &FExtreme, Op::kMinimum},
    {"tmIN:bitwise_and orAORB:and", BINARY, &Bitwise, Op::kAnd}, {"tmIN:bitwise_or orAORB:or", BINARY, &Bitwise, Op::kOr},
    {"tmIN:bitwise_xor orAORB:xor", BINARY, &Bitwise, Op::kXor},
    {"tmIN:bitwise_left_shift orAORB:lshift N:left_shift", BINARY, &Bitwise, Op::kShl},
    {"tmIN:bitwise_right_shift orAORB:rshift N:right_shift", BINARY, &Bitwise, Op::kShr},
    {"tmIN:logical_and", BINARY, &Logical, Op::kAnd}, {"tmIN:logical_or", BINARY, &Logical, Op::kOr},
    {"tmIN:logical_xor", BINARY, &Logical, Op::kXor},
    {"tN:where", "(Tensor condition, Operand input, Operand other)", &Where},
    {"tmI:clamp tmI:clip", "(Tensor input, Operand? min=None, Operand? max=None)", &Clamp},
    {"tmI:clamp_min", "(Tensor input, Operand min)", &ClampOne, Op::kMaximum},
    {"tmI:clamp_max", "(Tensor input, Operand max)", &ClampOne, Op::kMinimum},
    {"tmI:addcmul", "(Tensor input, Tensor tensor1, Tensor tensor2, *, Factor value=1)", &AddCMul, Op::kMul},
    {"tmI:addcdiv", "(Tensor input, Tensor tensor1, Tensor tensor2, *, Factor value=1)", &AddCMul, Op::kDiv},
    {"tmI:lerp", "(Tensor input, Tensor end, Operand weight)", &Lerp},
};
// clang-format on
#undef UNARY
#undef BINARY
}  // namespace

void AskNumpyKeepsIntegers(bool (*ask)()) {
  ask_numpy = ask;
}

void AskTorchSharesTies(bool (*ask)()) {
  ask_torch = ask;
}

std::span<const Row> PointwiseRows() {
  return kRows;
}

}  // namespace framejit::surface
