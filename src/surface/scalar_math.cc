#include "surface/scalar_math.h"

#include <cmath>
#include <numbers>

namespace framejit::surface {

ValueId Sigmoid(Builder& b, ValueId x) {
  return b.Unary(Op::kReciprocal, Plus(b, b.Unary(Op::kExp, b.Unary(Op::kNeg, x)), 1));
}

ValueId Silu(Builder& b, ValueId x) { return b.Binary(Op::kDiv, x, Plus(b, b.Unary(Op::kExp, b.Unary(Op::kNeg, x)), 1)); }

ValueId GeluErf(Builder& b, ValueId x) {
  ValueId cdf = Plus(b, b.Unary(Op::kErf, Times(b, x, std::numbers::sqrt2 / 2)), 1);
  return b.Binary(Op::kMul, Times(b, x, 0.5), cdf);
}

ValueId GeluTanh(Builder& b, ValueId x) {
  double beta = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  ValueId cube = b.Binary(Op::kMul, b.Binary(Op::kMul, x, x), x);
  ValueId inner = Times(b, b.Binary(Op::kAdd, x, Times(b, cube, 0.044715)), beta);
  return b.Binary(Op::kMul, Times(b, x, 0.5), Plus(b, b.Unary(Op::kTanh, inner), 1));
}

ValueId Softplus(Builder& b, ValueId x, double beta, double threshold) {
  ValueId scaled = Times(b, x, beta);
  ValueId soft = b.Unary(Op::kLog1p, b.Unary(Op::kExp, scaled));
  return b.Where(Greater(b, scaled, threshold), x, b.Binary(Op::kDiv, soft, Num(b, x, beta)));
}

ValueId Mish(Builder& b, ValueId x) {
  return b.Binary(Op::kMul, x, b.Unary(Op::kTanh, b.Unary(Op::kLog1p, b.Unary(Op::kExp, x))));
}

ValueId HardSigmoid(Builder& b, ValueId x) {
  return b.Binary(Op::kDiv, AtMost(b, AtLeast(b, Plus(b, x, 3), 0), 6), Num(b, x, 6));
}

ValueId HardSwish(Builder& b, ValueId x) {
  ValueId gate = AtMost(b, AtLeast(b, Plus(b, x, 3), 0), 6);
  return b.Binary(Op::kDiv, b.Binary(Op::kMul, x, gate), Num(b, x, 6));
}

ValueId LogSigmoid(Builder& b, ValueId x) {  // min(x, 0) - log1p(exp(-|x|)): no overflow on either side
  ValueId tail = b.Unary(Op::kLog1p, b.Unary(Op::kExp, b.Unary(Op::kNeg, b.Unary(Op::kAbs, x))));
  return b.Binary(Op::kSub, AtMost(b, x, 0), tail);
}

ValueId SoftSign(Builder& b, ValueId x) { return b.Binary(Op::kDiv, x, Plus(b, b.Unary(Op::kAbs, x), 1)); }

ValueId Square(Builder& b, ValueId x) { return b.Binary(Op::kMul, x, x); }

ValueId Sinc(Builder& b, ValueId x) {
  ValueId p = Times(b, x, std::numbers::pi);
  ValueId zero = b.Binary(Op::kEq, x, Num(b, x, 0));
  return b.Where(zero, Num(b, x, 1), b.Binary(Op::kDiv, b.Unary(Op::kSin, p), p));
}

ValueId Frac(Builder& b, ValueId x) { return b.Binary(Op::kSub, x, b.Unary(Op::kTrunc, x)); }

}  // namespace framejit::surface
