// Elementwise composites in the builder language, on values that already have the dtype they compute in.
#pragma once

#include "framejit/graph.h"

namespace framejit::surface {

inline ValueId Num(Builder& b, ValueId like, double v) {
  TensorType t = b.type(like);
  return b.Constant(IsFloat(t.dtype) ? Scalar(v) : Scalar(static_cast<int64_t>(v)), t.dtype, t.shape);
}
inline ValueId Plus(Builder& b, ValueId x, double v) { return b.Binary(Op::kAdd, x, Num(b, x, v)); }
inline ValueId Times(Builder& b, ValueId x, double v) { return b.Binary(Op::kMul, x, Num(b, x, v)); }
inline ValueId AtLeast(Builder& b, ValueId x, double v) { return b.Binary(Op::kMaximum, x, Num(b, x, v)); }
inline ValueId AtMost(Builder& b, ValueId x, double v) { return b.Binary(Op::kMinimum, x, Num(b, x, v)); }
inline ValueId Less(Builder& b, ValueId x, double v) { return b.Binary(Op::kLt, x, Num(b, x, v)); }
inline ValueId Greater(Builder& b, ValueId x, double v) { return b.Binary(Op::kLt, Num(b, x, v), x); }

ValueId Sigmoid(Builder& b, ValueId x);
ValueId Silu(Builder& b, ValueId x);
ValueId GeluErf(Builder& b, ValueId x);
ValueId GeluTanh(Builder& b, ValueId x);
ValueId Softplus(Builder& b, ValueId x, double beta, double threshold);
ValueId Mish(Builder& b, ValueId x);
ValueId HardSigmoid(Builder& b, ValueId x);
ValueId HardSwish(Builder& b, ValueId x);
ValueId LogSigmoid(Builder& b, ValueId x);
ValueId SoftSign(Builder& b, ValueId x);
ValueId Square(Builder& b, ValueId x);
ValueId Sinc(Builder& b, ValueId x);
ValueId Frac(Builder& b, ValueId x);

}  // namespace framejit::surface
