// Building graphs for the tests of Compile().
#pragma once

#include "test_host.h"

namespace framejit::test {

using shape::Int;
using shape::Ints;

struct CompileFixture {
  Graph g;
  shape::Env env;
  Builder b{g, env};
  ValueId In(Ints shape, DType t = DType::kFloat32) { return In(shape, shape::RowMajor(shape), t); }
  ValueId In(Ints shape, Ints strides, DType t) {
    return b.Input({t, shape, {}}, strides, "x" + std::to_string(g.inputs.size()));
  }
  Int Symbol(int input, int dim, int64_t hint) {
    Int s = env.NewSymbol({"s", hint});
    g.symbols.push_back(env.symbol(g.symbols.size()));
    g.symbol_sources.push_back({input, dim});
    return s;
  }
  ValueId Const(double v, ValueId like) {
    ValueId c = b.Constant(Scalar(v), b.type(like).dtype);
    return b.Broadcast(c, Ints(b.type(like).shape));
  }
  ValueId Softmax(ValueId x, int axis) {
    const Ints shape = b.type(x).shape;
    ValueId m = b.Broadcast(b.Reduce(Op::kMax, x, {axis}, true), shape);
    ValueId e = b.Unary(Op::kExp, b.Binary(Op::kSub, x, m));
    return b.Binary(Op::kDiv, e, b.Broadcast(b.Reduce(Op::kSum, e, {axis}, true), shape));
  }
  ValueId Gelu(ValueId x) {
    ValueId erf = b.Unary(Op::kErf, b.Binary(Op::kMul, x, Const(0.70710678118654752, x)));
    return b.Binary(Op::kMul, b.Binary(Op::kMul, x, Const(0.5, x)), b.Binary(Op::kAdd, erf, Const(1, x)));
  }
  ValueId LayerNorm(ValueId x, ValueId w, ValueId bias) {
    const Ints shape = b.type(x).shape;
    const int axis = static_cast<int>(shape.size()) - 1;
    auto mean = [&](ValueId v) {
      ValueId s = b.Reduce(Op::kSum, v, {axis}, true);
      ValueId n = b.SymConstant(shape.back(), DType::kFloat32);
      return b.Binary(Op::kDiv, s, b.Broadcast(n, Ints(b.type(s).shape)));
    };
    ValueId centred = b.Binary(Op::kSub, x, b.Broadcast(mean(x), shape));
    ValueId var = mean(b.Binary(Op::kMul, centred, centred));
    ValueId r = b.Unary(Op::kRsqrt, b.Binary(Op::kAdd, var, Const(1e-5, var)));
    ValueId y = b.Binary(Op::kMul, centred, b.Broadcast(r, shape));
    return b.Binary(Op::kAdd, b.Binary(Op::kMul, y, b.Broadcast(w, shape)), b.Broadcast(bias, shape));
  }
};

}  // namespace framejit::test
