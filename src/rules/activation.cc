#include <cmath>
#include <numbers>

#include "rules/compose.h"

namespace framejit::rules {

ValueId Relu(Builder& b, ValueId x) {
  return b.Binary(Op::kMaximum, x, Like(b, x, 0));
}

ValueId Relu6(Builder& b, ValueId x) {
  return HardTanh(b, x, 0, 6);
}

ValueId HardTanh(Builder& b, ValueId x, double lo, double hi) {
  return Clamp(b, x, Like(b, x, lo), Like(b, x, hi));
}

ValueId LeakyRelu(Builder& b, ValueId x, double slope) {
  return InComputeType(b, x, [&](Expr v) { return Where(0 < v, v, v * slope); });
}

ValueId Elu(Builder& b, ValueId x, double alpha, double scale, double input_scale) {
  return InComputeType(b, x, [&](Expr v) {
    Expr negative = Apply(Op::kExpm1, v * input_scale) * (alpha * scale);
    return Where(0 < v, v * scale, negative);
  });
}

ValueId Selu(Builder& b, ValueId x) {
  return Elu(b, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946);
}

ValueId Celu(Builder& b, ValueId x, double alpha) {
  return Elu(b, x, alpha, 1, 1 / alpha);
}

ValueId Sigmoid(Builder& b, ValueId x) {
  return InComputeType(b, x, [](Expr v) { return Apply(Op::kReciprocal, Apply(Op::kExp, -v) + 1); });
}

ValueId LogSigmoid(Builder& b, ValueId x) {  // exp of a negative number only: no overflow on either side
  return InComputeType(b, x, [](Expr v) {
    return Apply(Op::kMinimum, v, v.Number(0)) - Apply(Op::kLog1p, Apply(Op::kExp, -Apply(Op::kAbs, v)));
  });
}

ValueId Silu(Builder& b, ValueId x) {
  return InComputeType(b, x, [](Expr v) { return v / (Apply(Op::kExp, -v) + 1); });
}

ValueId Mish(Builder& b, ValueId x) {
  return InComputeType(b, x, [](Expr v) { return v * Apply(Op::kTanh, Apply(Op::kLog1p, Apply(Op::kExp, v))); });
}

ValueId Softplus(Builder& b, ValueId x, double beta, double threshold) {
  return InComputeType(b, x, [&](Expr v) {
    Expr scaled = v * beta;
    return Where(threshold < scaled, v, Apply(Op::kLog1p, Apply(Op::kExp, scaled)) / beta);
  });
}

ValueId GeluErf(Builder& b, ValueId x) {
  return InComputeType(b, x, [](Expr v) { return v * 0.5 * (Apply(Op::kErf, v * (std::numbers::sqrt2 / 2)) + 1); });
}

ValueId GeluTanh(Builder& b, ValueId x) {
  return InComputeType(b, x, [](Expr v) {
    Expr inner = (v + v * v * v * 0.044715) * (std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
    return v * 0.5 * (Apply(Op::kTanh, inner) + 1);
  });
}

ValueId HardSigmoid(Builder& b, ValueId x) {
  return InComputeType(b, x, [&](Expr v) { return Expr{b, Relu6(b, v + 3)} / 6; });
}

ValueId HardSwish(Builder& b, ValueId x) {
  return InComputeType(b, x, [&](Expr v) { return v * Expr{b, Relu6(b, v + 3)} / 6; });
}

ValueId SoftSign(Builder& b, ValueId x) {
  return InComputeType(b, x, [](Expr v) { return v / (Apply(Op::kAbs, v) + 1); });
}

ValueId Logit(Builder& b, ValueId x, std::optional<double> eps) {
  return InComputeType(b, x, [&](Expr v) {
    if (eps) v = {b, HardTanh(b, v, *eps, 1 - *eps)};
    return Apply(Op::kLog, v / (v.Number(1) - v));
  });
}

}  // namespace framejit::rules
