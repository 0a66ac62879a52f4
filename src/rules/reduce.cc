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

Moments VarMean(Builder& b, ValueId x, const Axes& axes, double correction, bool keep, bool equals) {
  Expr v{b, Widen(b, x)};
  shape::Int n = CountOver(b, x, axes);
  DType dtype = b.type(v).dtype;
  const auto mean_of = [&](Expr of) { return WideSum(b, of, axes, true) / Expr{b, b.SymConstant(n, dtype)}; };
  Expr mean = mean_of(v);
  Expr gap = v - (equals ? mean + mean_of(v - mean) : mean);
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

}  // namespace framejit::rules
