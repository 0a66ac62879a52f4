// Composites of neural networks: softmax, normalisation, dropout, pooling.
#include <limits>

#include "surface/reduce.h"
#include "surface/scalar_math.h"

namespace framejit::surface {
namespace {

using shape::Int;
using shape::Ints;

ValueId SoftmaxOf(Scope& s, ValueId x, int axis, bool log) {
  ValueId shifted = s.b.Binary(Op::kSub, x, s.b.Reduce(Op::kMax, x, {axis}, true));
  ValueId e = s.b.Unary(Op::kExp, shifted);
  ValueId sum = s.b.Reduce(Op::kSum, e, {axis}, true);
  if (log) return s.b.Binary(Op::kSub, shifted, s.b.Unary(Op::kLog, sum));
  return s.b.Binary(Op::kDiv, e, sum);
}

Outs Softmax(Scope& s) {  // (input, dim, dtype); op kLog: log_softmax
  Operand x = s.tensor(0);
  DType t = s.dtype(2).value_or(x.meta->dtype);
  if (!IsFloat(t)) Scope::Fail("softmax needs a floating dtype");
  int axis = s.dim(1, x.rank());
  ValueId v = s.Up(s.b.Cast(x.value, t));
  bool log = s.row.op == Op::kLog;
  if (IsEmpty(s.env, x.meta->sizes)) return s.b.Cast(v, t);
  if (x.rank() == 0) return Num(s.b, s.b.Cast(v, t), log ? 0 : 1);
  return s.b.Cast(SoftmaxOf(s, v, axis, log), t);
}

// weight and bias over the trailing dimensions; all in x's dtype.
ValueId Scaled(Scope& s, ValueId x, int weight, int bias) {
  if (s.has(weight)) x = s.b.Binary(Op::kMul, x, s.b.Cast(s.tensor(weight).value, s.b.type(x).dtype));
  if (bias >= 0 && s.has(bias)) x = s.b.Binary(Op::kAdd, x, s.b.Cast(s.tensor(bias).value, s.b.type(x).dtype));
  return x;
}

std::vector<int64_t> TrailingAxes(Scope& s, const Operand& x, const Ints& sizes) {
  int first = x.rank() - static_cast<int>(sizes.size());
  if (first < 0 || sizes.empty()) Scope::Fail("normalized_shape");
  std::vector<int64_t> axes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!s.env.Eq(sizes[i], x.meta->sizes[first + i])) Scope::Fail("normalized_shape does not fit");
    axes.push_back(first + static_cast<int>(i));
  }
  return axes;
}

Outs LayerNorm(Scope& s) {  // (input, normalized_shape, weight, bias, eps, cudnn_enable)
  Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype)) Scope::Skip();
  std::vector<int64_t> axes = TrailingAxes(s, x, s.ints(1));
  auto [variance, mean] = VarianceOver(s, x.value, axes, true, 0);
  ValueId scale = s.b.Unary(Op::kRsqrt, Plus(s.b, variance, s.number(4)));
  ValueId v = s.b.Binary(Op::kMul, s.b.Binary(Op::kSub, s.Up(x.value), mean), scale);
  return s.b.Cast(Scaled(s, v, 2, 3), x.meta->dtype);
}

Outs RmsNorm(Scope& s) {  // (input, normalized_shape, weight, eps)
  Operand x = s.tensor(0);
  DType t = x.meta->dtype;
  if (!IsFloat(t) || LikesChannelsLast(s.env, *x.meta)) Scope::Skip();
  if (s.has(2) && s.tensor(2).meta->dtype != t) Scope::Skip();
  std::vector<int64_t> axes = TrailingAxes(s, x, s.ints(1));
  double eps = s.has(3) ? s.number(3)
               : ComputeType(t) == DType::kFloat64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  ValueId v = s.Up(x.value);
  ValueId mean = MeanOver(s, Square(s.b, v), axes, true, s.b.type(v).dtype);
  v = s.b.Binary(Op::kMul, v, s.b.Unary(Op::kRsqrt, Plus(s.b, mean, eps)));
  return s.b.Cast(Scaled(s, v, 2, -1), t);
}

// A per-channel vector as [1, C, 1, ...].
ValueId PerChannel(Scope& s, ValueId v, int rank) {
  Ints sizes(rank, Int(1));
  sizes[1] = s.b.type(v).shape.at(0);
  return s.b.Reshape(v, sizes);
}

Outs GroupNorm(Scope& s) {  // (input, num_groups, weight, bias, eps, cudnn_enabled)
  Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype) || x.rank() < 2 || LikesChannelsLast(s.env, *x.meta)) Scope::Skip();
  Int groups = s.integer(1), channels = x.meta->sizes[1];
  if (s.env.Le(groups, 0) || !s.env.Eq(shape::Mod(channels, groups), 0)) Scope::Fail("num_groups does not divide the channels");
  Ints grouped = {x.meta->sizes[0], groups, shape::FloorDiv(channels, groups)};
  grouped.insert(grouped.end(), x.meta->sizes.begin() + 2, x.meta->sizes.end());
  std::vector<int64_t> axes;
  for (int d = 2; d < static_cast<int>(grouped.size()); ++d) axes.push_back(d);
  ValueId v = s.b.Reshape(s.Up(x.value), grouped);
  auto [variance, mean] = VarianceOver(s, v, axes, true, 0);
  v = s.b.Binary(Op::kMul, s.b.Binary(Op::kSub, v, mean), s.b.Unary(Op::kRsqrt, Plus(s.b, variance, s.number(4))));
  v = s.b.Reshape(v, x.meta->sizes);
  DType wide = s.b.type(v).dtype;
  if (s.has(2)) v = s.b.Binary(Op::kMul, v, PerChannel(s, s.b.Cast(s.tensor(2).value, wide), x.rank()));
  if (s.has(3)) v = s.b.Binary(Op::kAdd, v, PerChannel(s, s.b.Cast(s.tensor(3).value, wide), x.rank()));
  return s.b.Cast(v, x.meta->dtype);
}

// (input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled). Training updates the running
// statistics in place.
Outs BatchNorm(Scope& s) {
  Operand x = s.tensor(0);
  int rank = x.rank();
  if (!IsFloat(x.meta->dtype) || rank < 2) Scope::Skip();
  bool training = s.flag(5);
  if (!training && (!s.has(3) || !s.has(4))) Scope::Fail("batch_norm needs running statistics");
  ValueId v = s.Up(x.value), mean, variance;
  DType wide = s.b.type(v).dtype;
  auto operand = [&](int i) {
    Operand o = s.tensor(i);
    if (o.rank() != 1 || !s.env.Eq(o.meta->sizes[0], x.meta->sizes[1])) Scope::Fail("batch_norm parameters do not fit");
    return s.b.Cast(o.value, wide);
  };
  Outs outs;
  if (training) {
    std::vector<int64_t> axes = {0};
    for (int d = 2; d < rank; ++d) axes.push_back(d);
    Int count = CountOver(s, v, axes);
    if (s.env.Le(count, 1)) Scope::Fail("batch_norm: more than one value per channel is needed");
    std::tie(variance, mean) = VarianceOver(s, v, axes, false, 0);
    double momentum = s.number(6);
    auto update = [&](int i, ValueId statistic) {
      if (!s.has(i)) return;
      ValueId old = operand(i);
      ValueId mixed = s.b.Binary(Op::kAdd, Times(s.b, statistic, momentum), Times(s.b, old, 1 - momentum));
      outs.writes.push_back({s.tensor(i).id, s.b.Cast(mixed, s.tensor(i).meta->dtype)});
    };
    update(3, mean);
    ValueId n = s.b.SymConstant(count, wide), n1 = s.b.SymConstant(count - Int(1), wide);
    update(4, s.b.Binary(Op::kMul, variance, s.b.Binary(Op::kDiv, n, n1)));
  } else {
    mean = operand(3);
    variance = operand(4);
  }
  ValueId scale = s.b.Unary(Op::kRsqrt, Plus(s.b, variance, s.number(7)));
  if (s.has(1)) scale = s.b.Binary(Op::kMul, scale, operand(1));
  ValueId shift = s.b.Unary(Op::kNeg, s.b.Binary(Op::kMul, mean, scale));
  if (s.has(2)) shift = s.b.Binary(Op::kAdd, shift, operand(2));
  v = s.b.Binary(Op::kAdd, s.b.Binary(Op::kMul, v, PerChannel(s, scale, rank)), PerChannel(s, shift, rank));
  Out out;
  out.value = s.b.Cast(v, x.meta->dtype);
  if (LikesChannelsLast(s.env, *x.meta)) out.strides = ChannelsLast(x.meta->sizes);
  outs.items.push_back(std::move(out));
  return outs;
}

Outs Dropout(Scope& s) {  // (input, p, train): the input itself unless it draws
  Operand x = s.tensor(0);
  if (s.flag(2) && s.number(1) != 0) throw Unmodelled{"dropout draws random numbers"};
  Out out;
  out.kind = Out::kSame;
  out.of = x.id;
  return out;
}

Outs Glu(Scope& s) {
  Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype) || !IsRowMajor(*x.meta) || x.rank() == 0) Scope::Skip();
  int axis = s.dim(1, x.rank());
  Int size = x.meta->sizes[axis];
  if (!s.env.Eq(shape::Mod(size, 2), 0)) Scope::Fail("glu: the dimension must be even");
  Int half = shape::FloorDiv(size, 2);
  ValueId a = s.Up(s.b.Slice(x.value, axis, 0, half)), gate = s.Up(s.b.Slice(x.value, axis, half, half));
  return s.b.Cast(s.b.Binary(Op::kMul, a, Sigmoid(s.b, gate)), x.meta->dtype);
}

Outs GlobalAveragePool(Scope& s) {  // adaptive_avg_pool to one cell
  Operand x = s.tensor(0);
  int n = s.row.op == Op::kSum ? 1 : 2;
  if (!IsFloat(x.meta->dtype) || x.rank() != n + 2 || LikesChannelsLast(s.env, *x.meta)) Scope::Skip();
  for (const Int& size : s.ints(1)) {
    if (s.env.Specialize(size) != 1) Scope::Skip();
  }
  std::vector<int64_t> axes;
  for (int d = 2; d < x.rank(); ++d) axes.push_back(d);
  RefuseEmpty(s, x.value, axes);
  return MeanOver(s, x.value, axes, true, x.meta->dtype);
}

Outs PRelu(Scope& s) {
  Operand x = s.tensor(0), w = s.tensor(1);
  if (!IsFloat(x.meta->dtype) || w.meta->dtype != x.meta->dtype || w.rank() > 1) Scope::Skip();
  ValueId weight = w.value;
  bool one = w.rank() == 0 || s.env.Eq(w.meta->sizes[0], 1);
  if (one) {
    weight = s.b.Reshape(weight, {});
  } else {
    if (x.rank() < 2 || !s.env.Eq(w.meta->sizes[0], x.meta->sizes[1])) Scope::Fail("prelu weight");
    weight = PerChannel(s, weight, x.rank());
  }
  ValueId v = s.b.Where(Greater(s.b, x.value, 0), x.value, s.b.Binary(Op::kMul, x.value, weight));
  return s.Elementwise(v, {&x, 1});
}

constexpr Row kRows[] = {
    {"tms:softmax", "(Tensor input, int dim, ScalarType? dtype=None)", &Softmax},
    {"tms:log_softmax", "(Tensor input, int dim, ScalarType? dtype=None)", &Softmax, Op::kLog},
    {"t:layer_norm", "(Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool cudnn_enable=True)",
     &LayerNorm},
    {"t:rms_norm", "(Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None)", &RmsNorm},
    {"t:group_norm", "(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool cudnn_enabled=True)",
     &GroupNorm},
    {"t:batch_norm", "(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, "
     "float momentum, float eps, bool cudnn_enabled)", &BatchNorm},
    {"tI:dropout t:feature_dropout I:feature_dropout tI:alpha_dropout", "(Tensor input, float p, bool train)", &Dropout},
    {"n:glu", "(Tensor input, int dim=-1)", &Glu},
    {"n:adaptive_avg_pool2d", "(Tensor input, int[] output_size)", &GlobalAveragePool},
    {"t:adaptive_avg_pool1d", "(Tensor input, int[] output_size)", &GlobalAveragePool, Op::kSum},
    {"tmf:prelu", "(Tensor input, Tensor weight)", &PRelu},
};

}  // namespace

std::span<const Row> NnRows() { return kRows; }

}  // namespace framejit::surface
