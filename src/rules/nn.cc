#include <limits>
#include <numeric>

#include "rules/compose.h"

namespace framejit::rules {
namespace {

Axes Trailing(Builder& b, ValueId x, int dims) {
  Axes axes(dims);
  std::iota(axes.begin(), axes.end(), b.type(x).rank() - dims);
  return axes;
}

Expr Scaled(Expr x, ValueId weight, ValueId bias) {  // trailing dims
  DType dtype = x.b.type(x).dtype;
  if (weight != kNone) x = x * Expr{x.b, x.b.Cast(weight, dtype)};
  if (bias != kNone) x = x + Expr{x.b, x.b.Cast(bias, dtype)};
  return x;
}

// Gives a vector of one number a channel as [1, C, 1, ...], in x's dtype. kNone stays.
ValueId PerChannel(Expr x, ValueId v) {
  if (v == kNone) return kNone;
  shape::Ints sizes(x.b.type(x).rank(), 1);
  sizes[1] = x.b.type(v).shape.at(0);
  return x.b.Cast(x.b.Reshape(v, sizes), x.b.type(x).dtype);
}

Expr MatMul(Expr x, Expr y) {
  return {x.b, x.b.Add(Op::kMatMul, {x, y})};
}

// mean and variance are those of x over the axes, which stay as ones: the rule differentiates them, too.
Expr Standardized(Expr x, ValueId mean, ValueId variance, double eps, Axes axes) {
  Expr scale = Apply(Op::kRsqrt, Expr{x.b, variance} + eps);
  return Ruled((x - Expr{x.b, mean}) * scale, "standardize", {x, scale, mean}, {}, std::move(axes));
}

}  // namespace

ValueId LayerNorm(Builder& b, ValueId x, int trailing_dims, ValueId weight, ValueId bias, double eps) {
  return InComputeType(b, x, [&](Expr v) {
    Moments m = VarMean(b, v, Trailing(b, v, trailing_dims), 0, true);
    return Scaled(Standardized(v, m.mean, m.variance, eps, Trailing(b, v, trailing_dims)), weight, bias);
  });
}

ValueId RmsNorm(Builder& b, ValueId x, int trailing_dims, ValueId weight, double eps) {
  return InComputeType(b, x, [&](Expr v) {
    Expr power{b, Mean(b, v * v, Trailing(b, v, trailing_dims), true)};
    return Scaled(v * Apply(Op::kRsqrt, power + eps), weight, kNone);
  });
}

ValueId GroupNorm(Builder& b, ValueId x, shape::Int groups, ValueId weight, ValueId bias, double eps) {
  return InComputeType(b, x, [&](Expr v) {
    shape::Ints shape = b.type(v).shape, grouped = shape;
    grouped[1] = FloorDiv(shape[1], groups);
    grouped.insert(grouped.begin() + 1, groups);
    Expr g{b, b.Reshape(v, grouped)};
    Moments m = VarMean(b, g, Trailing(b, g, b.type(g).rank() - 2), 0, true);
    Expr y{b, b.Reshape(Standardized(g, m.mean, m.variance, eps, Trailing(b, g, b.type(g).rank() - 2)), shape)};
    return Scaled(y, PerChannel(y, weight), PerChannel(y, bias));
  });
}

ValueId BatchNormTrain(Builder& b, ValueId x, ValueId mean, ValueId variance, ValueId weight, ValueId bias,
                       double eps) {
  return InComputeType(b, x, [&](Expr v) {
    Axes axes;
    for (int d = 0; d < b.type(v).rank(); ++d)
      if (d != 1) axes.push_back(d);
    Expr scale = Apply(Op::kRsqrt, Expr{b, variance} + eps), factor = scale;
    Expr w{b, weight == kNone ? kNone : b.Cast(weight, b.type(v).dtype)};
    if (weight != kNone) factor = factor * w;
    Expr offset = bias == kNone ? v : Expr{b, b.Cast(bias, b.type(v).dtype)};
    std::vector<ValueId> operands = {v, PerChannel(v, mean), PerChannel(v, scale), weight == kNone ? v.id : w.id,
                                     offset};         // numbers say which of the last two there are
    Expr centred = v - Expr{b, PerChannel(v, mean)};  // not v * factor - mean * factor, which may cancel
    return Ruled(Scaled(centred, PerChannel(v, factor), bias == kNone ? kNone : PerChannel(v, offset)), "batch_norm",
                 operands, {weight == kNone ? 0. : 1., bias == kNone ? 0. : 1.}, axes);
  });
}

ValueId BatchNormEval(Builder& b, ValueId x, ValueId mean, ValueId variance, ValueId weight, ValueId bias, double eps) {
  return InComputeType(b, x, [&](Expr v) {
    // scale and shift are per channel: one multiply-add an element is left
    Expr scale = Apply(Op::kRsqrt, Expr{b, b.Cast(variance, b.type(v).dtype)} + eps);
    if (weight != kNone) scale = scale * Expr{b, b.Cast(weight, b.type(v).dtype)};
    Expr shift = -(Expr{b, b.Cast(mean, b.type(v).dtype)} * scale);
    if (bias != kNone) shift = shift + Expr{b, b.Cast(bias, b.type(v).dtype)};
    return Scaled(v, PerChannel(v, scale), PerChannel(v, shift));
  });
}

BatchStatistics BatchNormStatistics(Builder& b, ValueId x) {
  Axes axes;
  for (int d = 0; d < b.type(x).rank(); ++d)
    if (d != 1) axes.push_back(d);
  // The framework adds up in double. A sum of floats may be off by some units in the last place, which is much beside a
  // spread that is small: the sum of the gaps, made together with that of their squares, says how far.
  Expr v{b, Widen(b, x)}, count{b, b.SymConstant(CountOver(b, x, axes), b.type(v).dtype)};
  const auto mean_of = [&](Expr of) { return Expr{b, b.Reduce(Op::kSum, of, axes, true)} / count; };
  const auto row = [&](Expr e) { return Expr{b, b.Reshape(e, {b.type(x).shape[1]})}; };
  Expr first = mean_of(v), gap = v - first, rest = mean_of(gap), squares = mean_of(gap * gap);
  Expr off = rest * rest, none = count.Number(0);
  // Not where something is infinite, or a square too large.
  Expr known = Apply(Op::kLt, off, off.Number(std::numeric_limits<double>::infinity()));
  Expr variance = Apply(Op::kMaximum, row(squares - Where(known, off, none)), none);
  variance = Ruled(variance, "variance", {v}, {0}, axes);
  Expr ratio = count / (count - count.Number(1));
  return {row(first + Where(known, rest, none)), variance, variance * ratio};
}

ValueId RunningUpdate(Builder& b, ValueId running, ValueId now, double momentum) {
  return InComputeType(
      b, running, [&](Expr old) { return old * (1 - momentum) + Expr{b, b.Cast(now, b.type(old).dtype)} * momentum; });
}

ValueId Attention(Builder& b, ValueId q, ValueId k, ValueId v, ValueId mask, bool causal, double scale,
                  const std::function<ValueId(ValueId)>& drop) {
  return InComputeType(b, q, [&](Expr query) {
    int rank = b.type(q).rank();
    Axes swap(rank);
    std::iota(swap.begin(), swap.end(), 0);
    std::swap(swap[rank - 1], swap[rank - 2]);
    Expr scores = MatMul(query, {b, b.Permute(Widen(b, k), swap)}) * scale;
    if (mask != kNone) scores = scores + Expr{b, Widen(b, mask)};
    Expr nothing = scores.Number(-std::numeric_limits<double>::infinity());
    if (causal) scores = Where({b, TriangleMask(b, b.type(scores).shape, 0)}, scores, nothing);
    ValueId blind = kNone;  // rows of -inf alone: their softmax is nan, and so are its gradients
    if (mask != kNone) {
      blind = b.Reduce(Op::kAll, Apply(Op::kEq, scores, nothing), {-1}, true);
      scores = Where({b, blind}, scores.Number(0), scores);
    }
    Expr weights{b, Softmax(b, scores, -1)};
    if (mask != kNone) weights = Where({b, blind}, weights.Number(0), weights);
    if (drop) weights = {b, drop(weights)};
    return MatMul(weights, {b, Widen(b, v)});
  });
}

}  // namespace framejit::rules
