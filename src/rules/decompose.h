// What users know by name, written out in primitives: each function appends a few nodes to the builder's graph and
// returns the result. Results have the operand's dtype; 16-bit floats are computed in f32 and rounded once, so operands
// are never rounded in between. Callers promote dtypes first; shapes of two operands broadcast. Axes may be negative.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "framejit/graph.h"

namespace framejit::rules {

using Axes = std::vector<int64_t>;
inline constexpr ValueId kNone = kNoValue;  // an optional operand that is not there

ValueId Like(Builder& b, ValueId x, Scalar value);  // a constant of x's dtype and shape
ValueId Widen(Builder& b, ValueId x);               // cast to the type arithmetic happens in

// --- activations (activation.cc), one floating operand
ValueId Relu(Builder& b, ValueId x);
ValueId Relu6(Builder& b, ValueId x);
ValueId LeakyRelu(Builder& b, ValueId x, double slope);
ValueId Elu(Builder& b, ValueId x, double alpha, double scale = 1, double input_scale = 1);
ValueId Selu(Builder& b, ValueId x);
ValueId Celu(Builder& b, ValueId x, double alpha);
ValueId Sigmoid(Builder& b, ValueId x);
ValueId LogSigmoid(Builder& b, ValueId x);
ValueId Silu(Builder& b, ValueId x);
ValueId Mish(Builder& b, ValueId x);
ValueId Softplus(Builder& b, ValueId x, double beta, double threshold);  // x itself where beta*x > threshold
ValueId GeluErf(Builder& b, ValueId x);
ValueId GeluTanh(Builder& b, ValueId x);
ValueId HardSigmoid(Builder& b, ValueId x);
ValueId HardSwish(Builder& b, ValueId x);
ValueId HardTanh(Builder& b, ValueId x, double lo, double hi);
ValueId SoftSign(Builder& b, ValueId x);
ValueId Logit(Builder& b, ValueId x, std::optional<double> eps);

// --- elementwise (elementwise.cc)
ValueId Square(Builder& b, ValueId x);
ValueId Frac(Builder& b, ValueId x);
ValueId SignOrZero(Builder& b, ValueId x);                     // torch.sign: of nan 0 (the primitive and NumPy: nan)
ValueId Clamp(Builder& b, ValueId x, ValueId lo, ValueId hi);  // kNone: no bound; hi wins over lo, nan over both
ValueId NanToNum(Builder& b, ValueId x, double nan, double posinf, double neginf);
ValueId LogAddExp(Builder& b, ValueId x, ValueId y);
ValueId Lerp(Builder& b, ValueId start, ValueId end, ValueId weight);
ValueId DivTrunc(Builder& b, ValueId x, ValueId y);  // rounded towards zero, floats and integers
ValueId OneHot(Builder& b, ValueId index, shape::Int classes, DType dtype);  // The classes are a new last dimension.
ValueId TriangleMask(Builder& b, shape::Ints shape, shape::Int diagonal);    // bool: column <= row + diagonal
ValueId Tril(Builder& b, ValueId x, shape::Int diagonal);
ValueId Triu(Builder& b, ValueId x, shape::Int diagonal);

// --- reductions (reduce.cc)
shape::Int CountOver(Builder& b, ValueId x, const Axes& axes);
ValueId Sum(Builder& b, ValueId x, const Axes& axes, bool keep, DType result);  // accumulates in f32 for 16-bit results
ValueId Mean(Builder& b, ValueId x, const Axes& axes, bool keep);
struct Moments {
  ValueId variance, mean;
};  // All of them have the type that is computed in.
// equals: equal numbers have the variance 0, though their mean may be rounded.
Moments VarMean(Builder& b, ValueId x, const Axes& axes, double correction, bool keep, bool equals = false);
ValueId Root(Builder& b, ValueId variance);  // sqrt whose derivative at 0 is 0: standard deviations
ValueId LogSumExp(Builder& b, ValueId x, const Axes& axes, bool keep);
ValueId Softmax(Builder& b, ValueId x, int64_t axis);
ValueId LogSoftmax(Builder& b, ValueId x, int64_t axis);
ValueId NormL2(Builder& b, ValueId x, const Axes& axes, bool keep);

// --- neural networks (nn.cc). weight, bias: kNone if absent.
ValueId LayerNorm(Builder& b, ValueId x, int trailing_dims, ValueId weight, ValueId bias, double eps);
ValueId RmsNorm(Builder& b, ValueId x, int trailing_dims, ValueId weight, double eps);
ValueId GroupNorm(Builder& b, ValueId x, shape::Int groups, ValueId weight, ValueId bias,
                  double eps);  // The shape of x is [N, C, ...].
ValueId BatchNormEval(Builder& b, ValueId x, ValueId mean, ValueId variance, ValueId weight, ValueId bias, double eps);
// The same with the statistics of x itself, which are differentiated, too.
ValueId BatchNormTrain(Builder& b, ValueId x, ValueId mean, ValueId variance, ValueId weight, ValueId bias, double eps);
struct BatchStatistics {
  ValueId mean, variance, unbiased_variance;
};  // per channel, in the compute type
BatchStatistics BatchNormStatistics(Builder& b, ValueId x);
// running*(1 - momentum) + now*momentum, in running's dtype
ValueId RunningUpdate(Builder& b, ValueId running, ValueId now, double momentum);
// [..., L, E], [..., S, E], [..., S, V] with equal leading dims; an additive mask that broadcasts to [..., L, S]. A
// query that sees nothing gives zeros.
// drop: what becomes of the weights before they meet v.
ValueId Attention(Builder& b, ValueId q, ValueId k, ValueId v, ValueId mask, bool causal, double scale,
                  const std::function<ValueId(ValueId)>& drop = {});

}  // namespace framejit::rules
