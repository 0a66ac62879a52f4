#include <cmath>
#include <numbers>

#include "rules/compose.h"

namespace framejit::rules {

ValueId Relu(Builder& b, ValueId x) {
  return Ruled({b, b.Binary(Op::kMaximum, x, Like(b, x, 0))}, "relu", {x});
}

ValueId Relu6(Builder& b, ValueId x) {
  return HardTanh(b, x, 0, 6);
}

ValueId HardTanh(Builder& b, ValueId x, double lo, double hi) {
  return Ruled({b, Clamp(b, x, Like(b, x, lo), Like(b, x, hi))}, "hardtanh", {x}, {lo, hi});
}

ValueId LeakyRelu(Builder& b, ValueId x, double slope) {
  return InComputeType(b, x, [&](Expr v) { return Where(0 < v, v, v * slope); });
}

ValueId Elu(Builder& b, ValueId x, double alpha, double scale, double input_scale) {
  return InComputeType(b, x, [&](Expr v) {
    Expr negative = Apply(Op::kExpm1, v * input_scale) * (alpha * scale);
    return Ruled(Where(Apply(Op::kLt, v, v.Number(0)), negative, v * scale), "elu", {v}, {alpha, scale, input_scale});
  });
}

ValueId Selu(Builder& b, ValueId x) {
  return Elu(b, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946);
}

ValueId Celu(Builder& b, ValueId x, double alpha) {
  return Elu(b, x, alpha, 1, 1 / alpha);
}

ValueId Sigmoid(Builder& b, ValueId x) {
  return InComputeType(b, x,
                       [](Expr v) { return Ruled(Apply(Op::kReciprocal, Apply(Op::kExp, -v) + 1), "sigmoid", {v}); });
}

ValueId LogSigmoid(Builder& b, ValueId x) {  // exp of a negative number only: no overflow on either side
  return InComputeType(b, x, [](Expr v) {
    Expr y = Apply(Op::kMinimum, v, v.Number(0)) - Apply(Op::kLog1p, Apply(Op::kExp, -Apply(Op::kAbs, v)));
    return Ruled(y, "log_sigmoid", {v});
  });
}

ValueId Silu(Builder& b, ValueId x) {
  return InComputeType(b, x, [](Expr v) { return Ruled(v / (Apply(Op::kExp, -v) + 1), "silu", {v}); });
}

ValueId Mish(Builder& b, ValueId x) {
  return InComputeType(
      b, x, [](Expr v) { return Ruled(v * Apply(Op::kTanh, Apply(Op::kLog1p, Apply(Op::kExp, v))), "mish", {v}); });
}

ValueId Softplus(Builder& b, ValueId x, double beta, double threshold) {
  return InComputeType(b, x, [&](Expr v) {
    Expr scaled = v * beta;
    Expr y = Where(threshold < scaled, v, Apply(Op::kLog1p, Apply(Op::kExp, scaled)) / beta);
    return Ruled(y, "softplus", {v}, {beta, threshold});
  });
}

ValueId GeluErf(Builder& b, ValueId x) {
  return InComputeType(
      b, x, [](Expr v) { return Ruled(v * 0.5 * (Apply(Op::kErf, v * (std::numbers::sqrt2 / 2)) + 1), "gelu", {v}); });
}

ValueId GeluTanh(Builder& b, ValueId x) {
  return InComputeType(b, x, [](Expr v) {
    Expr inner = (v + v * v * v * 0.044715) * (std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
    return Ruled(v * 0.5 * (Apply(Op::kTanh, inner) + 1), "gelu_tanh", {v});
  });
}

ValueId HardSigmoid(Builder& b, ValueId x) {
  return InComputeType(b, x, [&](Expr v) { return Ruled(Expr{b, Relu6(b, v + 3)} / 6, "hardsigmoid", {v}); });
}

ValueId HardSwish(Builder& b, ValueId x) {
  return InComputeType(b, x, [&](Expr v) { return Ruled(v * Expr{b, Relu6(b, v + 3)} / 6, "hardswish", {v}); });
}

ValueId SoftSign(Builder& b, ValueId x) {
  return InComputeType(b, x, [](Expr v) { return v / (Apply(Op::kAbs, v) + 1); });
}

ValueId Logit(Builder& b, ValueId x, std::optional<double> eps) {
  return InComputeType(b, x, [&](Expr v) {
    Expr inner = eps ? Expr{b, Clamp(b, v, Like(b, v, *eps), Like(b, v, 1 - *eps))} : v;
    const double lo = eps.value_or(0), hi = 1 - lo;
    return Ruled(Apply(Op::kLog, inner / (v.Number(1) - inner)), "logit", {v}, {lo, hi, eps ? 1.0 : 0.0});
  });
}

}  // namespace framejit::rules
