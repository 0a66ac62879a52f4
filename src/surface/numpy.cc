// This file has the NumPy rows whose signature or meaning differs from torch's. Elementwise ufuncs and views share the
// torch tables.
#include <algorithm>
#include <array>
#include <cmath>

#include "rules/decompose.h"
#include "surface/library_facts.h"
#include "surface/numpy_transforms.h"
#include "surface/reduce.h"
#include "surface/views.h"

namespace framejit::surface {
namespace {

using shape::Int;
using shape::Ints;

// Reductions keep the memory order of what remains; only row-major operands (the usual case) are known here.
Outs Reduced(Scope& s, const Operand& x, ValueId v) {
  if (!IsRowMajor(*x.meta) && !(s.cupy && s.b.type(v).rank() < 2)) Scope::Skip();
  return v;
}
bool Keep(Scope& s, int i) {
  return s.has(i) && s.flag(i);
}

// Without an axis NumPy adds 0, which changes -0.
void SkipNoAxis(Scope& s, const Operand& x) {
  if (x.rank() > 0 && s.Dims(1, x.rank()).empty()) Scope::Skip();
}

Outs Sum(Scope& s) {  // (a, axis, dtype, keepdims)
  Operand x = s.tensor(0);
  SkipNoAxis(s, x);
  return Reduced(
      s, x, rules::Sum(s.b, x.value, s.Dims(1, x.rank()), Keep(s, 3), s.dtype(2).value_or(SumType(s, x.meta->dtype))));
}

void WarnOfEmpty(Scope& s, const Operand& x) {
  for (int64_t axis : s.Dims(1, x.rank())) {
    if (s.env.Eq(x.meta->sizes[axis], 0)) Scope::Fail("NumPy warns of an empty slice");
  }
}

// A NumPy scalar is a sum of one, or an extreme of one.
Outs OfOne(Scope& s) {
  const Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype) || !x.meta->is_scalar) Scope::Skip();
  const ValueId v = s.b.Barrier(x.value, "leaf");
  s.b.SetDerivative(v, {"leaf", {x.value}, {}, {}});
  return v;
}

Outs Mean(Scope& s) {
  Operand x = s.tensor(0);
  DType t = s.dtype(2).value_or(IsFloat(x.meta->dtype) ? x.meta->dtype : DType::kFloat64);
  if (!IsFloat(t)) Scope::Skip();
  SkipNoAxis(s, x);
  WarnOfEmpty(s, x);
  return Reduced(s, x, rules::Mean(s.b, s.b.Cast(x.value, t), s.Dims(1, x.rank()), Keep(s, 3)));
}

Outs Prod(Scope& s) {
  Operand x = s.tensor(0);
  DType t = s.dtype(2).value_or(SumType(s, x.meta->dtype)), wide = ComputeType(t);
  ValueId v = s.b.Reduce(Op::kProd, s.b.Cast(x.value, wide), s.Dims(1, x.rank()), Keep(s, 3), wide);
  return Reduced(s, x, s.b.Cast(v, t));
}

Outs Extreme(Scope& s) {  // (a, axis, keepdims)
  Operand x = s.tensor(0);
  if (IsBool(x.meta->dtype)) Scope::Skip();
  std::vector<int64_t> axes = s.Dims(1, x.rank());
  RefuseEmpty(s, x.value, axes);
  return Reduced(s, x, s.b.Reduce(s.row.op, x.value, axes, Keep(s, 2)));
}

Outs PeakToPeak(Scope& s) {
  Operand x = s.tensor(0);
  if (IsBool(x.meta->dtype)) Scope::Skip();
  std::vector<int64_t> axes = s.Dims(1, x.rank());
  RefuseEmpty(s, x.value, axes);
  ValueId top = s.b.Reduce(Op::kMax, x.value, axes, Keep(s, 2)), low = s.b.Reduce(Op::kMin, x.value, axes, Keep(s, 2));
  return Reduced(s, x, s.b.Binary(Op::kSub, top, low));
}

Outs AnyAll(Scope& s) {
  Operand x = s.tensor(0);
  return Reduced(s, x, s.b.Reduce(s.row.op, s.b.Cast(x.value, DType::kBool), s.Dims(1, x.rank()), Keep(s, 2)));
}

Outs ArgExtremeOf(Scope& s) {
  Operand x = s.tensor(0);
  std::optional<int> axis;
  if (s.has(1)) axis = s.dim(1, x.rank());
  return Reduced(s, x, ArgExtreme(s, s.row.op, x.value, axis, Keep(s, 2)));
}

Outs Var(Scope& s) {  // (a, axis, dtype, ddof, keepdims); op kSqrt: std
  Operand x = s.tensor(0);
  DType t = IsFloat(x.meta->dtype) ? x.meta->dtype : DType::kFloat64;
  if (s.has(2)) Scope::Skip();
  const std::vector<int64_t> axes = s.Dims(1, x.rank());
  RefuseFew(s, x, axes, s.number(3));
  ValueId v = rules::VarMean(s.b, s.b.Cast(x.value, t), axes, s.number(3), Keep(s, 4)).variance;
  if (s.row.op == Op::kSqrt) v = s.b.Unary(Op::kSqrt, v);
  return Reduced(s, x, s.b.Cast(v, t));
}

Outs CumSum(Scope& s) {
  Operand x = s.tensor(0);
  if (!IsRowMajor(*x.meta) || x.rank() == 0) Scope::Skip();
  DType t = s.dtype(2).value_or(SumType(s, x.meta->dtype));
  if (DTypeSize(t) < 4) Scope::Skip();
  ValueId v = s.b.Cast(x.value, t);
  int axis = 0;
  if (s.has(1)) {
    axis = s.dim(1, x.rank());
  } else {
    v = s.b.Reshape(v, {shape::Product(x.meta->sizes)});
  }
  Attrs attrs;
  attrs.axes = {axis};
  attrs.dtype = t;
  return s.b.Add(Op::kCumSum, {v}, attrs);
}

Outs Clip(Scope& s) {
  std::vector<Operand> all{s.tensor(0)};
  std::vector<TypeOperand> typed{{all[0].meta, Arg::Kind::kNone}};
  for (int i : {1, 2}) {
    if (!s.has(i)) continue;
    all.push_back(s.Read(s.arg(i)));
    typed.push_back({all.back().meta, all.back().is_tensor() ? Arg::Kind::kNone : all.back().number.kind});
  }
  DType t = NumpyResultType(typed);
  if (IsBool(t) || IsComplex(t) || all.size() == 1) Scope::Skip();
  auto as = [&](const Operand& o) {
    if (!o.is_tensor() && !FitsIn(s.env, o.number, t)) Scope::Skip();
    return o.is_tensor() ? s.b.Cast(o.value, t) : s.Constant(o.number, t);
  };
  ValueId v = as(all[0]);
  size_t next = 1;
  // One bound alone is np.maximum or np.minimum, and zeros are compared as there (torch_pointwise.cc).
  const bool second = all.size() == 2 && IsFloat(t) && DTypeSize(t) >= 4;
  const auto limit = [&](Op op) {
    const ValueId bound = as(all[next++]);
    v = second ? s.b.Binary(op, bound, v) : s.b.Binary(op, v, bound);
  };
  if (s.has(1)) limit(Op::kMaximum);
  if (s.has(2)) limit(Op::kMinimum);
  return s.Elementwise(v, all);
}

Outs AsType(Scope& s) {  // (dtype, order, casting, subok, copy)
  Operand x = s.tensor(0);
  if ((s.has(2) && s.arg(2).s != "K") || (s.has(3) && s.arg(3).s != "unsafe") || !s.flag(5)) Scope::Skip();
  DType t = *s.dtype(1), from = x.meta->dtype;
  if (IsFloat(from) && IsInteger(t) && !IsSigned(t))
    Scope::Skip();  // C leaves negative numbers undefined: the framework's choice
  Out out;
  out.value = s.b.Cast(x.value, t);
  out.strides = KeepOrder(s, *x.meta);
  out.array = !x.meta->is_scalar;
  return out;
}

Outs Copy(Scope& s) {  // ndarray.copy is C order, numpy.copy keeps the order
  Operand x = s.tensor(0);
  std::string order = s.has(1) ? s.arg(1).s : s.row.op == Op::kCast ? "K" : "C";
  if (order != "C" && (!IsRowMajor(*x.meta) || (order != "K" && order != "A" && x.rank() > 1))) Scope::Skip();
  Out out;
  out.value = x.value;
  out.array = true;
  return out;
}

Outs Filled(Scope& s, const Arg& number, DType t, const Ints& sizes) {
  RefuseNegative(s, sizes);
  if (!FitsIn(s.env, number, t)) Scope::Fail("fill value does not fit");
  if (IsInteger(t) && IsFloatNumber(number)) Scope::Skip();  // it may be out of range: NumPy warns
  Out out;
  out.value = s.b.Broadcast(s.Constant(number, t), sizes);
  out.array = true;
  return out;
}
Arg FillOf(Scope& s) {
  return Arg::Int(s.row.op == Op::kReciprocal ? 1 : 0);
}
void COrder(Scope& s, int i) {
  if (s.has(i) && s.arg(i).s != "C") Scope::Skip();
}

Outs Zeros(Scope& s) {
  COrder(s, 2);
  if (s.has(3) || s.has(4)) Scope::Skip();
  return Filled(s, FillOf(s), s.dtype(1).value_or(DType::kFloat64), s.ints(0));
}
Outs Full(Scope& s) {
  COrder(s, 3);
  const Arg& n = s.arg(1);
  DType t = n.is(Arg::Kind::kBool) ? DType::kBool : n.is(Arg::Kind::kInt) ? DType::kInt64 : DType::kFloat64;
  return Filled(s, n, s.dtype(2).value_or(t), s.ints(0));
}
Outs Eye(Scope& s) {  // (N, M, k, dtype, order)
  COrder(s, 4);
  const Ints sizes = {s.integer(0), s.has(1) ? s.integer(1) : s.integer(0)};
  RefuseNegative(s, sizes);
  ValueId row = s.b.Iota(DType::kInt64, sizes, 0), column = s.b.Iota(DType::kInt64, sizes, 1);
  if (!(s.integer(2) == Int(0))) row = s.b.Binary(Op::kAdd, row, s.b.SymConstant(s.integer(2), DType::kInt64, sizes));
  return s.b.Cast(s.b.Binary(Op::kEq, row, column), s.dtype(3).value_or(DType::kFloat64));
}

// This is numpy.float64(x), which makes a scalar, or an array of that type. An array that has the type is handed back.
template <DType T>
Outs ScalarOf(Scope& s) {
  const Operand x = s.Read(s.arg(0));
  if (!x.is_tensor()) {
    if (!FitsIn(s.env, x.number, T) || (IsInteger(T) && IsFloatNumber(x.number))) Scope::Skip();
    return s.Constant(x.number, T);
  }
  if (x.meta->dtype == T && x.rank() != 0) {
    if (x.meta->framework != Framework::kNumpy) Scope::Skip();
    return Same(x);
  }
  if (IsFloat(x.meta->dtype) && !IsFloat(T)) Scope::Skip();
  Out out;
  out.value = s.b.Cast(x.value, T);
  if (!IsRowMajor(*x.meta)) out.strides = KeepOrder(s, *x.meta);
  return out;
}

Outs ZerosLike(Scope& s) {
  Operand x = s.tensor(0);
  if (!IsRowMajor(*x.meta)) Scope::Skip();
  return Filled(s, FillOf(s), s.dtype(1).value_or(x.meta->dtype), x.meta->sizes);
}
Outs FullLike(Scope& s) {
  Operand x = s.tensor(0);
  if (!IsRowMajor(*x.meta)) Scope::Skip();
  return Filled(s, s.arg(1), s.dtype(2).value_or(x.meta->dtype), x.meta->sizes);
}

// Of floats: the second element less the first is the step, as NumPy takes it.
Outs ARangeOfFloats(Scope& s, const Arg& start, const Arg& end, const Arg& step, std::optional<DType> dtype) {
  if (dtype.value_or(DType::kFloat64) != DType::kFloat64) Scope::Skip();
  auto number = [&](const Arg& a) {
    if (!a.is(Arg::Kind::kFloat) && !(a.is(Arg::Kind::kInt) && a.i.is_const())) Scope::Skip();
    return a.is(Arg::Kind::kFloat) ? a.f : static_cast<double>(a.i.value());
  };
  const double first = number(start), by = number(step), count = std::ceil((number(end) - first) / by);
  if (!(count >= 1 && count < 0x1p40)) Scope::Skip();
  const double delta = (first + by) - first;
  ValueId v = s.b.Iota(DType::kFloat64, {Int(static_cast<int64_t>(count))}, 0);
  if (delta != 1) v = s.b.Binary(Op::kMul, v, rules::Like(s.b, v, delta));
  return first == 0 ? v : s.b.Binary(Op::kAdd, v, rules::Like(s.b, v, first));
}

// NumPy raises where the first two numbers are none of the type, and for most ranges of bools.
bool ARangeRaises(const Arg& start, const Arg& step, DType dtype) {
  if (IsBool(dtype)) return true;
  if (!IsInteger(dtype) || dtype == DType::kInt64 || !start.is(Arg::Kind::kInt) || !step.is(Arg::Kind::kInt))
    return false;
  if (!start.i.is_const() || !step.i.is_const()) return true;
  const bool sign = dtype == DType::kInt8 || dtype == DType::kInt16 || dtype == DType::kInt32;
  const int bits = 8 * DTypeSize(dtype) - sign;
  const auto fits = [&](__int128 n) { return n >= (sign ? -(__int128{1} << bits) : 0) && n < __int128{1} << bits; };
  return !fits(start.i.value()) || !fits(__int128{start.i.value()} + step.i.value());
}

Outs ARangeOf(Scope& s, const Arg& start, const Arg& end, const Arg& step, std::optional<DType> dtype) {
  if (dtype && ARangeRaises(start, step, *dtype)) Scope::Skip();
  for (const Arg* a : {&start, &end, &step})
    if (a->is(Arg::Kind::kFloat)) return ARangeOfFloats(s, start, end, step, dtype);
  for (const Arg* a : {&start, &end, &step}) {
    if (!a->is(Arg::Kind::kInt)) Scope::Skip();
  }
  int64_t by = s.env.Specialize(step.i);
  if (by == 0) Scope::Fail("arange step");
  Int span = by > 0 ? end.i - start.i : start.i - end.i;
  Int count = s.env.Lt(span, 0) ? Int(0) : shape::CeilDiv(span, Int(by > 0 ? by : -by));
  ValueId v = s.b.Iota(DType::kInt64, {count}, 0);
  if (by != 1) v = s.b.Binary(Op::kMul, v, s.b.Constant(Scalar(by), DType::kInt64));
  if (!(start.i == Int(0))) v = s.b.Binary(Op::kAdd, v, s.b.SymConstant(start.i, DType::kInt64));
  return s.b.Cast(v, dtype.value_or(DType::kInt64));
}
Outs ARangeEnd(Scope& s) {
  return ARangeOf(s, Arg::Int(0), s.arg(0), Arg::Int(1), s.dtype(1));
}
Outs ARange(Scope& s) {
  return ARangeOf(s, s.arg(0), s.arg(1), s.arg(2), s.dtype(3));
}

Outs LinSpace(Scope& s) {  // start + i * ((stop - start) / div), the end exact
  const Int n = s.integer(2);
  bool endpoint = s.flag(3);
  const bool few = s.env.Lt(n, 2);
  if (few && s.flag(4)) Scope::Fail("numpy.linspace: the step is a float of Python");
  if (few || s.flag(4) || s.dtype(5).value_or(DType::kFloat64) != DType::kFloat64) Scope::Skip();
  const double start = s.number(0), stop = s.number(1), most = n.is_const() ? static_cast<double>(n.value()) : 0x1p63;
  if ((stop - start) / most == 0) Scope::Skip();
  ValueId i = s.b.Iota(DType::kFloat64, {n}, 0);
  auto number = [&](double v) { return rules::Like(s.b, i, v); };
  const auto count = [&](const Int& v) { return s.b.Cast(s.b.SymConstant(v, DType::kInt64), DType::kFloat64); };
  const ValueId step = s.b.Binary(Op::kDiv, number(stop - start), count(endpoint ? n - Int(1) : n));
  ValueId v = s.b.Binary(Op::kAdd, s.b.Binary(Op::kMul, i, step), number(start));
  if (endpoint) v = s.b.Where(s.b.Binary(Op::kEq, i, count(n - Int(1))), number(stop), v);
  Out out;
  out.value = v;
  if (!s.cupy) out.owner = Out::kHidden;  // what NumPy's arange() made
  return out;
}

Outs TakeRow(Scope& s) {  // (a, indices, axis): the first axis of a row-major array
  Operand x = s.tensor(0), i = s.tensor(1);
  if (!IsInteger(i.meta->dtype) || !IsRowMajor(*x.meta) || s.has(3)) Scope::Skip();
  ValueId data = x.value;
  Int size = shape::Product(x.meta->sizes);
  int axis = 0;
  if (s.has(2)) {
    axis = s.dim(2, x.rank());
    size = x.meta->sizes[axis];
  } else {
    data = s.b.Reshape(data, {size});
  }
  Attrs attrs;
  attrs.axes = {axis};
  attrs.flag = true;  // the user's indices may be out of range
  return s.b.Add(Op::kTake, {data, WrapIndex(s, i.value, size)}, attrs);
}

Outs FlipOf(Scope& s) {  // a view
  Operand x = s.tensor(0);
  if (x.rank() == 0) Scope::Fail("flip of nothing makes a scalar");
  ViewChain v(s, x);
  for (int64_t axis : s.Dims(1, x.rank())) v.Flip(static_cast<int>(axis));
  return v.Done();
}

Outs Triangle(Scope& s) {
  Operand x = s.tensor(0);
  if (x.rank() < 2 || !IsRowMajor(*x.meta)) Scope::Skip();
  return s.row.op == Op::kLe ? rules::Tril(s.b, x.value, s.integer(1)) : rules::Triu(s.b, x.value, s.integer(1));
}

Outs Trace(Scope& s) {  // (a, offset, axis1, axis2, dtype): of a row-major matrix
  Operand x = s.tensor(0);
  if (x.rank() != 2 || !IsRowMajor(*x.meta) || s.integer(2) != Int(0) || s.integer(3) != Int(1)) Scope::Skip();
  const Int rows = x.meta->sizes[0], columns = x.meta->sizes[1], offset = s.integer(1);
  const bool below = s.env.Lt(offset, 0);
  const Int high = below ? rows + offset : rows, wide = below ? columns : columns - offset;
  const Int count = s.env.Lt(high, wide) ? high : wide;
  if (s.env.Lt(count, 1)) Scope::Skip();
  const Int start = below ? Int(0) - offset * columns : offset;
  const ValueId all = s.b.Reshape(x.value, {rows * columns});
  const DType t = s.dtype(4).value_or(SumType(s, x.meta->dtype));
  return rules::Sum(s.b, s.b.Slice(all, 0, start, count, columns + Int(1)), {0}, false, t);
}

Outs DiagonalMatrix(Scope& s) {  // of one axis; of a matrix it would be a view that cannot be written to
  Operand x = s.tensor(0);
  if (x.rank() != 1 || s.integer(1) != Int(0)) Scope::Skip();
  const Ints sizes = {x.meta->sizes[0], x.meta->sizes[0]};
  const ValueId row = s.b.Iota(DType::kInt64, sizes, 0), column = s.b.Iota(DType::kInt64, sizes, 1);
  const ValueId wide = s.b.Broadcast(x.value, sizes);
  return s.b.Where(s.b.Binary(Op::kEq, row, column), wide, rules::Like(s.b, wide, 0));
}

// --- complex128: ufuncs of NumPy that kernels compute part by part, as NumPy's own loops do

bool (*ask_fused)() = nullptr;

// Its loop for one element, and for results that lie among its operands, rounds each part of a product twice.
void CheckProduct(const Ints& shape) {
  if (ask_fused && !ask_fused()) Scope::Skip();
  if (std::all_of(shape.begin(), shape.end(), [](Int n) { return n == Int(1); })) Scope::Skip();
}

ValueId AsComplex(Scope& s, const Operand& o, const Ints& shape) {
  ValueId v;
  if (o.is_tensor()) {
    v = s.b.Cast(o.value, DType::kComplex128);
  } else if (o.number.is(Arg::Kind::kComplex)) {
    const auto call = s.CallOf("numpy.asarray", {o.number});
    v = s.b.Extern(call, {}, {TensorType{DType::kComplex128, {}, {}}}, {Ints{}});
  } else {
    v = s.b.Cast(s.Constant(o.number, DType::kFloat64), DType::kComplex128);
  }
  return s.b.Broadcast(v, shape);
}

// Of scalars alone NumPy's results are made by other code.
void CheckComplex(Scope& s, std::span<const Operand> operands) {
  std::vector<TypeOperand> typed;
  bool array = false;
  for (const Operand& o : operands) {
    typed.push_back({o.meta, o.is_tensor() ? Arg::Kind::kNone : o.number.kind});
    if (!o.is_tensor()) {
      const bool number = o.number.is_number() || o.number.is(Arg::Kind::kSymFloat);
      if (!number && !o.number.is(Arg::Kind::kComplex)) Scope::Skip();
      continue;
    }
    const DType t = o.meta->dtype;
    if (t != DType::kComplex128 && (IsComplex(t) || DTypeClass(t) == 'p')) Scope::Skip();
    if (o.meta->device.kind != DeviceKind::kCpu || o.meta->requires_grad || o.meta->lazy()) Scope::Skip();
    array |= o.rank() > 0;
  }
  if (s.torch() || s.cupy || !array || NumpyResultType(typed) != DType::kComplex128) Scope::Skip();
}

Outs ComplexBinary(Scope& s) {
  const std::array<Operand, 2> operands{s.Read(s.arg(0)), s.Read(s.arg(1))};
  CheckComplex(s, operands);
  Ints shape;
  for (const Operand& o : operands)
    if (o.is_tensor()) shape = BroadcastShapes(shape, o.meta->sizes, s.env);
  if (s.row.op == Op::kMul) CheckProduct(shape);
  const ValueId a = AsComplex(s, operands[0], shape), b = AsComplex(s, operands[1], shape);
  return s.Elementwise(s.b.Binary(s.row.op, a, b), operands);
}

Outs ComplexUnary(Scope& s) {  // op kMul: the square
  const Operand x = s.tensor(0);
  CheckComplex(s, {&x, 1});
  if (s.row.op == Op::kNeg) return s.Elementwise(s.b.Unary(Op::kNeg, x.value), {&x, 1});
  CheckProduct(x.meta->sizes);
  return s.Elementwise(s.b.Binary(Op::kMul, x.value, x.value), {&x, 1});
}

Outs ComplexSquare(Scope& s) {  // x ** 2
  const Arg& power = s.arg(1);
  if (!power.is(Arg::Kind::kInt) || !power.i.is_const() || power.i.value() != 2) Scope::Skip();
  return ComplexUnary(s);
}

Outs ComplexZeros(Scope& s) {
  COrder(s, 2);
  if (s.torch() || s.cupy || s.has(3) || s.has(4) || !s.has(1) || DTypeFromText(s.arg(1).s) != DType::kComplex128)
    Scope::Skip();
  const Ints sizes = s.ints(0);
  RefuseNegative(s, sizes);
  Out out;
  out.value = s.b.Broadcast(s.b.Constant(Scalar(0), DType::kComplex128), sizes);
  out.array = true;
  return out;
}

// clang-format off: a table
#define COMPLEX "(Any input, Any other)"
constexpr Row kRows[] = {
    {"N:add ORB:add", COMPLEX, &ComplexBinary, Op::kAdd, kAnyDType},
    {"N:subtract ORB:sub", COMPLEX, &ComplexBinary, Op::kSub, kAnyDType},
    {"N:multiply ORB:mul", COMPLEX, &ComplexBinary, Op::kMul, kAnyDType | kOwnResult},
    {"N:true_divide N:divide ORB:truediv", COMPLEX, &ComplexBinary, Op::kDiv, kAnyDType},
    {"N:negative O:neg", "(Tensor input)", &ComplexUnary, Op::kNeg, kAnyDType},
    {"N:square", "(Tensor input)", &ComplexUnary, Op::kMul, kAnyDType | kOwnResult},
    {"OB:pow", "(Tensor input, Operand exponent)", &ComplexSquare, Op::kMul, kAnyDType | kOwnResult},
    {"N:zeros N:empty", "(int[] shape, ScalarType? dtype=None, str? order=None, Any device=None, Any like=None)", &ComplexZeros},
    {"NM:sum", "(Tensor input, int[]? dim=None, ScalarType? dtype=None, *, bool? keepdim=None)", &Sum},
    {"NM:mean", "(Tensor input, int[]? dim=None, ScalarType? dtype=None, *, bool? keepdim=None)", &Mean},
    {"NM:prod", "(Tensor input, int[]? dim=None, ScalarType? dtype=None, *, bool? keepdim=None)", &Prod},
    {"NM:max N:amax", "(Tensor input, int[]? dim=None, *, bool? keepdim=None)", &Extreme, Op::kMax},
    {"NM:min N:amin", "(Tensor input, int[]? dim=None, *, bool? keepdim=None)", &Extreme, Op::kMin},
    {"N:add.reduce", "(Tensor input, int[]? dim=(0,), ScalarType? dtype=None, *, bool? keepdim=None)", &Sum},
    {"N:multiply.reduce", "(Tensor input, int[]? dim=(0,), ScalarType? dtype=None, *, bool? keepdim=None)", &Prod},
    {"N:maximum.reduce", "(Tensor input, int[]? dim=(0,), *, bool? keepdim=None)", &Extreme, Op::kMax},
    {"N:minimum.reduce", "(Tensor input, int[]? dim=(0,), *, bool? keepdim=None)", &Extreme, Op::kMin},
    {"N:logical_or.reduce", "(Tensor input, int[]? dim=(0,), *, bool? keepdim=None)", &AnyAll, Op::kAny},
    {"N:logical_and.reduce", "(Tensor input, int[]? dim=(0,), *, bool? keepdim=None)", &AnyAll, Op::kAll},
    {"N:ptp", "(Tensor input, int[]? dim=None, *, bool? keepdim=None)", &PeakToPeak},
    {"NM:any", "(Tensor input, int[]? dim=None, *, bool? keepdim=None)", &AnyAll, Op::kAny},
    {"NM:all", "(Tensor input, int[]? dim=None, *, bool? keepdim=None)", &AnyAll, Op::kAll},
    {"NM:argmax", "(Tensor input, int? dim=None, *, bool? keepdim=None)", &ArgExtremeOf, Op::kArgMax},
    {"NM:argmin", "(Tensor input, int? dim=None, *, bool? keepdim=None)", &ArgExtremeOf, Op::kArgMin},
    {"NM:var", "(Tensor input, int[]? dim=None, ScalarType? dtype=None, *, Scalar ddof=0, bool? keepdim=None)", &Var},
    {"NM:std", "(Tensor input, int[]? dim=None, ScalarType? dtype=None, *, Scalar ddof=0, bool? keepdim=None)", &Var, Op::kSqrt},
    {"NM:cumsum", "(Tensor input, int? dim=None, ScalarType? dtype=None)", &CumSum},
    {"NM:clip", "(Tensor input, Operand? min=None, Operand? max=None)", &Clip},
    {"N:clip", "(Tensor input, Operand? a_min, Operand? a_max)", &Clip},
    {"M:astype", "(Tensor input, ScalarType dtype, str? order=None, str? casting=None, bool subok=True, bool copy=True)", &AsType},
    {"M:copy", "(Tensor input, str? order=None)", &Copy}, {"N:copy", "(Tensor input, str? order=None)", &Copy, Op::kCast},
    {"N:zeros N:empty", "(int[] shape, ScalarType? dtype=None, str? order=None, Any device=None, Any like=None)", &Zeros},
    {"N:ones", "(int[] shape, ScalarType? dtype=None, str? order=None, Any device=None, Any like=None)", &Zeros, Op::kReciprocal},
    {"N:eye", "(int N, int? M=None, int k=0, ScalarType? dtype=None, str? order=None)", &Eye},
    {"N:float64", "(Operand input)", &ScalarOf<DType::kFloat64>}, {"N:float32", "(Operand input)", &ScalarOf<DType::kFloat32>},
    {"N:float16", "(Operand input)", &ScalarOf<DType::kFloat16>}, {"N:int64", "(Operand input)", &ScalarOf<DType::kInt64>},
    {"N:int32", "(Operand input)", &ScalarOf<DType::kInt32>}, {"N:int16", "(Operand input)", &ScalarOf<DType::kInt16>},
    {"N:int8", "(Operand input)", &ScalarOf<DType::kInt8>}, {"N:uint8", "(Operand input)", &ScalarOf<DType::kUInt8>},
    {"N:uint16", "(Operand input)", &ScalarOf<DType::kUInt16>}, {"N:uint32", "(Operand input)", &ScalarOf<DType::kUInt32>},
    {"N:uint64", "(Operand input)", &ScalarOf<DType::kUInt64>}, {"N:bool N:bool_", "(bool input)", &ScalarOf<DType::kBool>},
    {"N:full", "(int[] shape, Scalar fill_value, ScalarType? dtype=None, str? order=None)", &Full},
    {"N:zeros_like N:empty_like", "(Tensor input, ScalarType? dtype=None)", &ZerosLike},
    {"N:ones_like", "(Tensor input, ScalarType? dtype=None)", &ZerosLike, Op::kReciprocal},
    {"N:full_like", "(Tensor input, Scalar fill_value, ScalarType? dtype=None)", &FullLike},
    {"N:arange", "(Scalar stop, *, ScalarType? dtype=None)", &ARangeEnd},
    {"N:arange", "(Scalar start, Scalar stop, Scalar step=1, ScalarType? dtype=None)", &ARange},
    {"N:linspace", "(Scalar start, Scalar stop, int num=50, bool endpoint=True, bool retstep=False, ScalarType? dtype=None)", &LinSpace},
    {"NM:take", "(Tensor input, Tensor indices, int? dim=None, str? mode=None)", &TakeRow},
    {"N:flip", "(Tensor input, int[]? dim=None)", &FlipOf},
    {"H:sum H:mean H:prod H:max H:min", "(Tensor input)", &OfOne},
    {"F:leaf", "(Tensor input)", &Leaf},
    {"F:gradients", "(Tensor[] outputs, Tensor[] seeds, Tensor[] inputs)", &Gradients},
    {"F:sample", "(Tensor input, int dim)", &Sample},
    {"F:batched", "(Tensor[] outputs, Tensor[] samples, Tensor[] wholes, int[] dims, int size, int[] same)", &Batched},
    {"NM:trace", "(Tensor input, int offset=0, int axis1=0, int axis2=1, ScalarType? dtype=None)", &Trace},
    {"N:diag", "(Tensor input, int k=0)", &DiagonalMatrix},
    {"N:tril", "(Tensor input, int k=0)", &Triangle, Op::kLe}, {"N:triu", "(Tensor input, int k=0)", &Triangle, Op::kLt},
};
#undef COMPLEX
// clang-format on

}  // namespace

Ints KeepOrder(Scope& s, const TensorMeta& m) {
  const int rank = static_cast<int>(m.sizes.size());
  std::vector<int> order(rank);
  for (int d = 0; d < rank; ++d) order[d] = d;
  auto dense = [&](bool fortran) {
    Int expect = 1;
    for (int i = 0; i < rank; ++i) {
      const int d = fortran ? i : rank - 1 - i;
      if (s.env.Eq(m.sizes[d], 0)) return true;
      if (s.env.Eq(m.sizes[d], 1)) continue;
      if (!s.env.Eq(m.strides[d], expect)) return false;
      expect = expect * m.sizes[d];
    }
    return true;
  };
  if (rank > 1 && !dense(false)) {
    if (dense(true)) {
      std::reverse(order.begin(), order.end());
    } else {
      if (s.cupy) Scope::Skip();
      for (const Int& stride : m.strides) {
        if (!stride.is_const()) Scope::Skip();
      }
      auto size = [&](int d) { return std::abs(m.strides[d].value()); };
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return size(a) > size(b); });
    }
  }
  Ints strides(rank, Int(1));
  Int next = 1;
  for (int i = rank; i-- > 0;) {
    strides[order[i]] = next;
    next = next * (m.sizes[order[i]] == Int(0) ? Int(1) : m.sizes[order[i]]);
  }
  return strides;
}

void AskNumpyFusesProducts(bool (*ask)()) {
  ask_fused = ask;
}

std::span<const Row> NumpyRows() {
  return kRows;
}

}  // namespace framejit::surface
