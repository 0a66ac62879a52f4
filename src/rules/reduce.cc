#include "rules/compose.h"

namespace framejit::rules {
namespace {

// Sums in the compute type, which the caller rounds from.
Expr WideSum(Builder& b, ValueId x, const Axes& axes, bool keep) {
  x = Widen(b, x);
  return {b, b.Reduce(Op::kSum, x, axes, keep)};
}

// The maximum over the axes as something safe to subtract: 0 where it is infinite (inf - inf would be nan).
Expr FiniteMax(Builder& b, ValueId x, const Axes& axes) {
  Expr top{b, b.Reduce(Op::kMax, x, axes, true)};
  return Where(Apply(Op::kIsInf, top), top.Number(0), top);
}

}  // namespace

shape::Int CountOver(Builder& b, ValueId x, const Axes& axes) {
  shape::Int n = 1;
  for (int64_t a : NonNegative(axes, b.type(x).rank())) n = n * b.type(x).shape[a];
  return n;
}

ValueId Sum(Builder& b, ValueId x, const Axes& axes, bool keep, DType result) {
  return b.Cast(b.Reduce(Op::kSum, x, axes, keep, ComputeType(result)), result);
}

ValueId Mean(Builder& b, ValueId x, const Axes& axes, bool keep) {
  DType dtype = b.type(x).dtype;
  Expr sum = WideSum(b, x, axes, keep);
  Expr count{b, b.SymConstant(CountOver(b, x, axes), b.type(sum).dtype)};
  return b.Cast(sum / count, dtype);
}

Moments VarMean(Builder& b, ValueId x, const Axes& axes, double correction, bool keep) {
  Expr v{b, Widen(b, x)};
  shape::Int n = CountOver(b, x, axes);
  DType dtype = b.type(v).dtype;
  Expr mean = WideSum(b, v, axes, true) / Expr{b, b.SymConstant(n, dtype)};
  Expr gap = v - mean;
  Expr squares = WideSum(b, gap * gap, axes, keep);
  Expr freedom{b, kNone};  // max(n - correction, 0): too few elements give nan or infinity, as in the frameworks
  if (correction == static_cast<int64_t>(correction)) {
    freedom = {b, b.SymConstant(Max(n - shape::Int(static_cast<int64_t>(correction)), 0), dtype)};
  } else {
    Expr count{b, b.SymConstant(n, dtype)};
    freedom = Apply(Op::kMaximum, count - count.Number(correction), count.Number(0));
  }
  Expr variance = Ruled(squares / freedom, "variance", {v}, {correction}, NonNegative(axes, b.type(v).rank()));
  return {variance, keep ? ValueId{mean} : b.Reshape(mean, b.type(squares).shape)};
}

ValueId Root(Builder& b, ValueId variance) {
  return Ruled({b, b.Unary(Op::kSqrt, variance)}, "root", {variance});
}

ValueId Std(Builder& b, ValueId x, const Axes& axes, double correction, bool keep) {
  DType dtype = b.type(x).dtype;
  return b.Cast(Root(b, VarMean(b, x, axes, correction, keep).variance), dtype);
}

ValueId LogSumExp(Builder& b, ValueId x, const Axes& axes, bool keep) {
  return InComputeType(b, x, [&](Expr v) {
    Expr top = FiniteMax(b, v, axes);
    Expr sum = WideSum(b, Apply(Op::kExp, v - top), axes, keep);
    if (!keep) top = {b, b.Reshape(top, b.type(sum).shape)};
    return Ruled(Apply(Op::kLog, sum) + top, "logsumexp", {v}, {}, NonNegative(axes, b.type(v).rank()));
  });
}

static bool HoldsNothing(const Builder& b, ValueId x, int64_t axis) {  // which has no largest element
  const TensorType& t = b.type(x);
  return t.rank() && t.shape[axis < 0 ? axis + t.rank() : axis] == shape::Int(0);
}

ValueId Softmax(Builder& b, ValueId x, int64_t axis) {
  return InComputeType(b, x, [&](Expr v) {
    if (b.type(v).rank() == 0) return Apply(Op::kExp, v - v);
    if (HoldsNothing(b, v, axis)) return v;
    Expr e = Apply(Op::kExp, v - Expr{b, b.Reduce(Op::kMax, v, {axis}, true)});
    Expr scale =
        Apply(Op::kReciprocal, WideSum(b, e, {axis}, true));  // in [1, n]; a division an element costs more than exp
    return Ruled(e * scale, "softmax", {v}, {}, NonNegative({axis}, b.type(v).rank()));
  });
}

ValueId LogSoftmax(Builder& b, ValueId x, int64_t axis) {
  return InComputeType(b, x, [&](Expr v) {
    if (b.type(v).rank() == 0) return v - v;
    if (HoldsNothing(b, v, axis)) return v;
    Expr shifted = v - Expr{b, b.Reduce(Op::kMax, v, {axis}, true)};
    Expr y = shifted - Apply(Op::kLog, WideSum(b, Apply(Op::kExp, shifted), {axis}, true));
    return Ruled(y, "log_softmax", {v}, {}, NonNegative({axis}, b.type(v).rank()));
  });
}

ValueId NormL2(Builder& b, ValueId x, const Axes& axes, bool keep) {
  return InComputeType(b, x, [&](Expr v) {
    Expr y = Apply(Op::kSqrt, WideSum(b, v * v, axes, keep));
    return Ruled(y, "norm", {v}, {}, NonNegative(axes, b.type(v).rank()));
  });
}

ValueId NormalizeL2(Builder& b, ValueId x, const Axes& axes, double eps) {
  return InComputeType(b, x, [&](Expr v) {
    Expr norm{b, NormL2(b, v, axes, true)};
    return v / Apply(Op::kMaximum, norm, norm.Number(eps));
  });
}

ValueId CosineSimilarity(Builder& b, ValueId x, ValueId y, int64_t axis, double eps) {
  DType dtype = b.type(x).dtype;
  shape::Ints shape = BroadcastShapes(b.type(x).shape, b.type(y).shape, b.env());
  Expr v{b, Widen(b, b.Broadcast(x, shape))}, w{b, Widen(b, b.Broadcast(y, shape))};
  Expr v2 = WideSum(b, v * v, {axis}, true), w2 = WideSum(b, w * w, {axis}, true);
  auto bounded = [&](Expr squares) { return Apply(Op::kMaximum, Expr{b, Root(b, squares)}, squares.Number(eps)); };
  return b.Cast(WideSum(b, v / bounded(v2) * (w / bounded(w2)), {axis}, false), dtype);
}

ValueId CumSumByMask(Builder& b, ValueId x, int64_t axis) {
  const TensorType t = b.type(x);
  axis = NonNegative({axis}, t.rank())[0];
  // x as [..., 1, n (summed), ...] against a mask over [..., n (result), n (summed), ...]
  shape::Ints shape = t.shape, row = t.shape;
  shape.insert(shape.begin() + axis, t.shape[axis]);
  row.insert(row.begin() + axis, 1);
  ValueId to = b.Iota(DType::kInt64, shape, static_cast<int>(axis));
  ValueId from = b.Iota(DType::kInt64, shape, static_cast<int>(axis) + 1);
  ValueId wide = Widen(b, b.Broadcast(b.Reshape(x, row), shape));
  ValueId seen = b.Where(b.Binary(Op::kLe, from, to), wide, Like(b, wide, 0));
  return b.Cast(b.Reduce(Op::kSum, seen, {axis + 1}, false), t.dtype);
}

}  // namespace framejit::rules
