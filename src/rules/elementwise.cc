#include "rules/compose.h"

namespace framejit::rules {

ValueId Like(Builder& b, ValueId x, Scalar value) {
  return b.Constant(value, b.type(x).dtype, b.type(x).shape);
}

ValueId Widen(Builder& b, ValueId x) {
  return b.Cast(x, ComputeType(b.type(x).dtype));
}

ValueId Square(Builder& b, ValueId x) {
  return b.Binary(Op::kMul, x, x);
}

ValueId Frac(Builder& b, ValueId x) {
  return b.Binary(Op::kSub, x, b.Unary(Op::kTrunc, x));
}

ValueId SignOrZero(Builder& b, ValueId x) {
  ValueId sign = b.Unary(Op::kSign, x);
  return IsFloat(b.type(x).dtype) ? b.Where(b.Unary(Op::kIsNan, x), Like(b, x, 0), sign) : sign;
}

ValueId Clamp(Builder& b, ValueId x, ValueId lo, ValueId hi) {
  if (lo != kNone) x = b.Binary(Op::kMaximum, x, lo);
  return hi != kNone ? b.Binary(Op::kMinimum, x, hi) : x;
}

ValueId NanToNum(Builder& b, ValueId x, double nan, double posinf, double neginf) {
  ValueId infinite = b.Unary(Op::kIsInf, x);
  ValueId bound = b.Where(b.Unary(Op::kSignbit, x), Like(b, x, neginf), Like(b, x, posinf));
  return b.Where(b.Unary(Op::kIsNan, x), Like(b, x, nan), b.Where(infinite, bound, x));
}

ValueId LogAddExp(Builder& b, ValueId x, ValueId y) {
  DType dtype = b.type(x).dtype;
  Expr v{b, Widen(b, x)}, w{b, Widen(b, y)};
  Expr tail = Apply(Op::kLog1p, Apply(Op::kExp, -Apply(Op::kAbs, v - w)));
  Expr same_infinity = Apply(Op::kAnd, Apply(Op::kIsInf, v), Apply(Op::kEq, v, w));  // inf - inf would be nan
  Expr sum = Where(same_infinity, v, Apply(Op::kMaximum, v, w) + tail);
  const shape::Ints sizes = b.type(sum).shape;  // the rule's gradients have them
  return b.Cast(Ruled(sum, "logaddexp", {b.Broadcast(v, sizes), b.Broadcast(w, sizes)}), dtype);
}

ValueId Lerp(Builder& b, ValueId start, ValueId end, ValueId weight) {  // exact at both ends
  DType dtype = b.type(start).dtype;
  Expr s{b, Widen(b, start)}, e{b, Widen(b, end)}, w{b, Widen(b, weight)};
  Expr near_start = Apply(Op::kLt, Apply(Op::kAbs, w), w.Number(0.5));
  return b.Cast(Where(near_start, s + w * (e - s), e - (e - s) * (w.Number(1) - w)), dtype);
}

ValueId DivTrunc(Builder& b, ValueId x, ValueId y) {
  if (!IsFloat(b.type(x).dtype)) return b.Binary(Op::kTruncDiv, x, y);
  DType dtype = b.type(x).dtype;
  return b.Cast(Apply(Op::kTrunc, Expr{b, Widen(b, x)} / Expr{b, Widen(b, y)}), dtype);
}

ValueId OneHot(Builder& b, ValueId index, shape::Int classes, DType dtype) {
  shape::Ints shape = b.type(index).shape, column = shape;
  shape.push_back(classes);
  column.push_back(1);
  ValueId iota = b.Iota(b.type(index).dtype, shape, -1);
  return b.Cast(b.Binary(Op::kEq, iota, b.Reshape(index, column)), dtype);
}

ValueId TriangleMask(Builder& b, shape::Ints shape, shape::Int diagonal) {
  ValueId row = b.Iota(DType::kInt64, shape, -2), column = b.Iota(DType::kInt64, shape, -1);
  ValueId last = b.Binary(Op::kAdd, row, b.SymConstant(diagonal, DType::kInt64, std::move(shape)));
  return b.Binary(Op::kLe, column, last);
}

ValueId Tril(Builder& b, ValueId x, shape::Int diagonal) {
  return b.Where(TriangleMask(b, b.type(x).shape, diagonal), x, Like(b, x, 0));
}

ValueId Triu(Builder& b, ValueId x, shape::Int diagonal) {
  return b.Where(TriangleMask(b, b.type(x).shape, diagonal - shape::Int(1)), Like(b, x, 0), x);
}

}  // namespace framejit::rules
