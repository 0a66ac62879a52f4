// Graphs on a GPU, for the tests that need none.
#pragma once

#include "kernel_harness.h"

namespace framejit::test {

using shape::Int;
using shape::Ints;

inline TensorType Type(DType t, Ints shape) {
  return {t, std::move(shape), Device{DeviceKind::kCuda, 0}};
}

inline ValueId In(Builder& b, DType t, Ints shape, Ints strides = {}) {
  if (strides.empty()) strides = RowMajor(shape);
  return b.Input(Type(t, std::move(shape)), std::move(strides), "x");
}

inline ValueId Softmax(Builder& b, ValueId x, int64_t axis) {
  const Ints shape = b.type(x).shape;
  ValueId m = b.Broadcast(b.Reduce(Op::kMax, x, {axis}, true), shape);
  ValueId e = b.Unary(Op::kExp, b.Binary(Op::kSub, x, m));
  return b.Binary(Op::kDiv, e, b.Broadcast(b.Reduce(Op::kSum, e, {axis}, true), shape));
}

}  // namespace framejit::test
