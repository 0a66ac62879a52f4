// Random graphs of pointwise operations, views, reductions, products and reads by index.
#pragma once

#include "compile_fixture.h"

namespace framejit::test {

struct RandomGraph : CompileFixture {
  std::mt19937 rng;
  std::vector<ValueId> values;
  std::vector<HostTensor> inputs;

  int Pick(int n) { return static_cast<int>(rng() % n); }
  ValueId Any() { return values[Pick(static_cast<int>(values.size()))]; }
  DType TypeOf(ValueId v) { return b.type(v).dtype; }

  explicit RandomGraph(uint32_t seed, bool symbolic = false) : rng(seed) {
    const int64_t sizes[] = {1, 2, 3, 5, 16, 33};
    for (int i = 0; i < 1 + Pick(3); ++i) {
      std::vector<int64_t> shape(Pick(4));
      for (auto& s : shape) s = sizes[Pick(6)];
      Ints dims(shape.begin(), shape.end());
      if (symbolic) {
        for (size_t d = 0; d < shape.size(); ++d) {
          if (Pick(2) && shape[d] != 1) dims[d] = Symbol(i, static_cast<int>(d), shape[d]);
        }
      }
      const DType t = Pick(4) == 0 ? DType::kInt64 : DType::kFloat32;
      values.push_back(In(dims, t));
      if (t == DType::kFloat32) {
        inputs.push_back(RandomF32(shape, seed * 7 + i));
      } else {
        std::vector<int64_t> v(Numel(shape));
        for (auto& x : v) x = Pick(20) - 10;
        inputs.push_back(I64(shape, v));
      }
    }
    const int steps = 3 + Pick(15);
    for (int i = 0; i < steps; ++i) Step();
    for (int i = 0; i < 1 + Pick(3); ++i)
      g.outputs.push_back(values[values.size() - 1 - Pick(std::min<int>(3, values.size()))]);
    if (Pick(4) == 0) {
      for (ValueId v : values) {
        if (b.type(v) == b.type(g.inputs[0]) && v != g.inputs[0]) {
          g.writes = {{0, v}};
          break;
        }
      }
    }
  }

  // Values stay small, so that absolute errors do not grow: products and exponentials go through tanh.
  void Step() {
    const ValueId x = Any();
    const int kind = Pick(17);
    kind < 8 ? SimpleStep(kind, x) : LargerStep(kind, x);
  }

  // Element by element, a view or a reduction.
  void SimpleStep(int kind, ValueId x) {
    const TensorType t = b.type(x);
    const bool is_float = IsFloat(t.dtype);
    const int rank = t.rank();
    switch (kind) {
      case 0: {
        static const Op kFloat[] = {Op::kTanh, Op::kSin, Op::kErf, Op::kAbs, Op::kNeg, Op::kSign};
        if (IsBool(t.dtype)) return values.push_back(b.Unary(Op::kNot, x));
        values.push_back(b.Unary(is_float ? kFloat[Pick(6)] : kFloat[3 + Pick(3)], x));
        return;
      }
      case 1:
      case 2: {
        ValueId y = Beside(x);
        if (IsBool(t.dtype)) return Push2(Op::kXor, x, y);
        static const Op kOps[] = {Op::kAdd, Op::kSub, Op::kMaximum, Op::kMinimum, Op::kMul};
        const Op op = kOps[Pick(5)];
        if (op == Op::kMul && is_float) x = b.Unary(Op::kTanh, x);
        if (op == Op::kMul && !is_float) x = b.Unary(Op::kSign, x);
        return Push2(op, x, y);
      }
      case 3: {
        if (rank == 0) return;
        std::vector<int64_t> perm(rank);
        for (int i = 0; i < rank; ++i) perm[i] = i;
        std::shuffle(perm.begin(), perm.end(), rng);
        return values.push_back(b.Permute(x, perm));
      }
      case 4: {
        if (rank == 0 || IsBool(t.dtype)) return;
        const int axis = Pick(rank);
        static const Op kOps[] = {Op::kMax, Op::kMin, Op::kSum};
        const Op op = kOps[Pick(3)];
        if (op == Op::kSum && is_float) x = b.Unary(Op::kTanh, x);
        std::vector<int64_t> axes = {axis};
        if (rank > 1 && Pick(3) == 0) axes = {0, rank - 1};
        ValueId r = b.Reduce(op, x, axes, Pick(2) == 0);
        return values.push_back(is_float && op == Op::kSum ? b.Unary(Op::kTanh, r) : r);
      }
      case 5: {
        if (rank == 0) return;
        const int axis = Pick(rank);
        const int64_t size = env.Hint(t.shape[axis]), start = Pick(static_cast<int>(size));
        const int64_t step = 1 + Pick(2);
        if (size == 0) return;
        return values.push_back(b.Slice(x, axis, start, shape::CeilDiv(t.shape[axis] - Int(start), step), step));
      }
      case 6: return values.push_back(b.Reshape(x, {t.numel()}));
      case 7: {
        if (rank >= 3) return;
        Ints shape = t.shape;
        shape.insert(shape.begin(), Int(1 + Pick(3)));
        return values.push_back(b.Broadcast(x, shape));
      }
    }
  }

  // Is the value the same, bit by bit, however it is computed? An index of the largest of others may be another one.
  bool Exact(ValueId v) {
    const Node& n = b.graph().node(v);
    const bool moved = Info(n.op).kind == 'V' || n.op == Op::kMaximum || n.op == Op::kMinimum || n.op == Op::kMax ||
                       n.op == Op::kMin || n.op == Op::kNeg || n.op == Op::kAbs;
    if (IsFloat(n.type.dtype) && !moved && n.op != Op::kInput) return false;
    return std::all_of(n.operands.begin(), n.operands.end(), [&](ValueId o) { return Exact(o); });
  }

  void LargerStep(int kind, ValueId x) {
    const TensorType t = b.type(x);
    const bool is_float = IsFloat(t.dtype);
    const int rank = t.rank();
    switch (kind) {
      case 8: {
        if (rank == 0 || !is_float) return;
        return values.push_back(Softmax(x, Pick(rank)));
      }
      case 9: {
        if (rank < 2 || t.dtype != DType::kFloat32) return;
        std::vector<int64_t> swap(rank);
        for (int i = 0; i < rank; ++i) swap[i] = i;
        std::swap(swap[rank - 1], swap[rank - 2]);
        ValueId n = b.Unary(Op::kTanh, x);
        return values.push_back(b.Unary(Op::kTanh, b.Add(Op::kMatMul, {n, b.Permute(n, swap)})));
      }
      case 11: {
        if (rank == 0) return;
        Attrs a;
        a.axes = {Pick(rank)};
        return values.push_back(b.Add(Op::kFlip, {x}, a));
      }
      case 12: {
        if (rank == 0 || IsBool(t.dtype)) return;
        Attrs a;
        a.scalar = is_float ? Scalar(0.5) : Scalar(3);
        shape::Ints padding;
        for (int d = 0; d < rank; ++d) {
          padding.push_back(Pick(3));
          padding.push_back(Pick(2));
        }
        a.syms = padding;
        if (env.Hint(t.numel()) > 2000) return;
        return values.push_back(b.Add(Op::kPad, {x}, a));
      }
      case 13: {
        if (rank == 0) return;
        Attrs a;
        a.axes = {Pick(rank)};
        ValueId y = Pick(2) ? x : b.Slice(x, static_cast<int>(a.axes[0]), 0, 1, 1);
        if (is_float) y = b.Unary(Op::kSin, y);
        return values.push_back(
            b.Add(Op::kCat, Pick(2) ? std::vector<ValueId>{x, y} : std::vector<ValueId>{y, x, x}, a));
      }
      case 14: {
        if (rank == 0 || IsBool(t.dtype) || !Exact(x)) return;
        return values.push_back(b.Reduce(Pick(2) ? Op::kArgMax : Op::kArgMin, x, {Pick(rank)}, Pick(2) == 0));
      }
      case 15: {  // rows picked by index: positions of the first axis in a strange order
        if (rank == 0) return;
        Attrs a;
        a.axes = {Pick(rank)};
        const Int size = t.shape[a.axes[0]];
        if (env.Hint(size) == 0) return;
        ValueId last = b.Broadcast(b.SymConstant(size - Int(1), DType::kInt64), Ints{3});
        ValueId index = b.Binary(Op::kMinimum, b.Iota(DType::kInt64, {3}, 0), last);
        return values.push_back(b.Add(Op::kTake, {x, Pick(2) ? index : b.Binary(Op::kSub, last, index)}, a));
      }
      case 16: {
        if (!is_float || rank == 0) return;
        ValueId iota = b.Cast(b.Iota(DType::kInt64, t.shape, Pick(rank)), t.dtype);
        return values.push_back(b.Unary(Op::kTanh, b.Binary(Op::kMul, x, iota)));
      }
      case 10: {
        ValueId y = Beside(x);
        if (!Fits(x, y)) return;
        ValueId c = b.Binary(Op::kLt, IsBool(t.dtype) ? b.Cast(x, DType::kInt64) : x,
                             IsBool(t.dtype) ? b.Cast(y, DType::kInt64) : y);
        return values.push_back(b.Where(c, x, y));
      }
    }
  }

  // A value as the type of `x`. No float becomes an integer: where two ways to compute it round to both sides of a
  // whole number, the integers differ by one, and both ways are right.
  ValueId Beside(ValueId x) {
    const ValueId y = Any();
    if (IsFloat(TypeOf(y)) && !IsFloat(TypeOf(x))) return x;
    return TypeOf(y) == TypeOf(x) ? y : b.Cast(y, TypeOf(x));
  }
  bool Fits(ValueId x, ValueId y) {
    const auto &a = b.type(x).shape, &c = b.type(y).shape;
    int64_t size = 1;
    for (size_t i = 1; i <= std::max(a.size(), c.size()); ++i) {
      const int64_t p = i <= a.size() ? env.Hint(a[a.size() - i]) : 1;
      const int64_t q = i <= c.size() ? env.Hint(c[c.size() - i]) : 1;
      if (p != q && p != 1 && q != 1) return false;
      size *= std::max(p, q);
    }
    return size < 20000;
  }
  void Push2(Op op, ValueId x, ValueId y) {
    if (Fits(x, y)) values.push_back(b.Binary(op, x, y));
  }
};

}  // namespace framejit::test
