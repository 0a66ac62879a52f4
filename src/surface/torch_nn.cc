// This file has composites of neural networks: softmax, normalisation, dropout and pooling.
#include <limits>

#include "rules/decompose.h"
#include "surface/reduce.h"

namespace framejit::surface {

ValueId DropoutNoise(Scope& s, ValueId like, double p, const shape::Ints& strides) {
  // Torch's own gives row-major tensors.
  const auto call = s.CallOf(strides.empty() ? "torch.bernoulli" : "framejit._random.bernoulli",
                             {Arg::Tensor(0), Arg::Float(1 - p)}, false);
  TensorType t = s.b.type(like);
  ValueId noise = s.b.Barrier(s.b.Extern(call, {like}, {t}, {strides.empty() ? RowMajor(t.shape) : strides}));
  return s.b.Binary(Op::kDiv, noise, rules::Like(s.b, noise, 1 - p));
}

namespace {

using shape::Int;
using shape::Ints;

// Gives the optional tensor operand i of a rule.
ValueId Maybe(Scope& s, int i) {
  return s.has(i) ? s.tensor(i).value : rules::kNone;
}

Outs Softmax(Scope& s) {  // (input, dim, dtype); op kLog: log_softmax
  Operand x = s.tensor(0);
  DType t = s.dtype(2).value_or(x.meta->dtype);
  if (!IsFloat(t)) Scope::Fail("softmax needs a floating dtype");
  int axis = s.dim(1, x.rank());
  ValueId v = s.b.Cast(x.value, t);
  const Ints& sizes = x.meta->sizes;
  if (std::find(sizes.begin(), sizes.end(), Int(0)) != sizes.end()) return v;
  if (!sizes.empty() && s.env.Eq(sizes[axis], 0)) return v;
  return s.row.op == Op::kLog ? rules::LogSoftmax(s.b, v, axis) : rules::Softmax(s.b, v, axis);
}

int TrailingDims(Scope& s, const Operand& x, const Ints& sizes) {
  int first = x.rank() - static_cast<int>(sizes.size());
  if (first < 0 || sizes.empty()) Scope::Fail("normalized_shape");
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!s.env.Eq(sizes[i], x.meta->sizes[first + i])) Scope::Fail("normalized_shape does not fit");
  }
  return static_cast<int>(sizes.size());
}

// Torch raises unless the parameters of a normalisation are of one type, that of the input or single precision beside
// 16 bits, and of these sizes: it broadcasts none.
void CheckParameters(Scope& s, const Operand& x, std::initializer_list<int> parameters, const Ints& sizes) {
  std::optional<DType> seen;
  for (int i : parameters) {
    if (!s.has(i)) continue;
    const TensorMeta& m = *s.tensor(i).meta;
    const bool fits = m.dtype == x.meta->dtype || (m.dtype == DType::kFloat32 && DTypeSize(x.meta->dtype) == 2);
    if (!fits || (seen && *seen != m.dtype)) Scope::Fail("parameters of mixed types");
    seen = m.dtype;
    bool alike = m.sizes.size() == sizes.size();
    for (size_t d = 0; alike && d < sizes.size(); ++d) alike = s.env.Eq(m.sizes[d], sizes[d]);
    if (!alike) Scope::Fail("parameters of other sizes");
  }
}

Outs LayerNorm(Scope& s) {  // (input, normalized_shape, weight, bias, eps, cudnn_enable)
  Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype)) Scope::Skip();
  CheckParameters(s, x, {2, 3}, s.ints(1));
  return rules::LayerNorm(s.b, x.value, TrailingDims(s, x, s.ints(1)), Maybe(s, 2), Maybe(s, 3), s.number(4));
}

Outs RmsNorm(Scope& s) {  // (input, normalized_shape, weight, eps)
  Operand x = s.tensor(0);
  DType t = x.meta->dtype;
  if (!IsFloat(t) || LikesChannelsLast(s.env, *x.meta) || IsEmpty(s.env, x.meta->sizes)) Scope::Skip();
  if (s.has(2) && s.tensor(2).meta->dtype != t) Scope::Skip();
  CheckParameters(s, x, {2}, s.ints(1));
  double eps = s.has(3)                            ? s.number(3)
               : ComputeType(t) == DType::kFloat64 ? std::numeric_limits<double>::epsilon()
                                                   : std::numeric_limits<float>::epsilon();
  return rules::RmsNorm(s.b, x.value, TrailingDims(s, x, s.ints(1)), Maybe(s, 2), eps);
}

// Gives a vector of one number a channel as [1, C, 1, ...].
ValueId PerChannel(Scope& s, ValueId v, int rank) {
  Ints sizes(rank, Int(1));
  sizes[1] = s.b.type(v).shape.at(0);
  return s.b.Reshape(v, sizes);
}

Outs GroupNorm(Scope& s) {  // (input, num_groups, weight, bias, eps, cudnn_enabled)
  Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype) || x.rank() < 2 || LikesChannelsLast(s.env, *x.meta)) Scope::Skip();
  Int groups = s.integer(1), channels = x.meta->sizes[1];
  if (s.env.Le(groups, 0) || !s.env.Eq(shape::Mod(channels, groups), 0))
    Scope::Fail("num_groups does not divide the channels");
  CheckParameters(s, x, {2, 3}, {channels});
  return rules::GroupNorm(s.b, x.value, groups, Maybe(s, 2), Maybe(s, 3), s.number(4));
}

// (input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled). Training updates the
// running statistics in place.
Outs BatchNorm(Scope& s) {
  Operand x = s.tensor(0);
  int rank = x.rank();
  if (!IsFloat(x.meta->dtype) || rank < 2) Scope::Skip();
  bool training = s.flag(5);
  if (!training && (!s.has(3) || !s.has(4))) Scope::Fail("batch_norm needs running statistics");
  if (s.has(3) != s.has(4)) Scope::Fail("batch_norm wants both running statistics or none");
  for (int i : {3, 4})
    if (s.has(i) && s.mode.grad && s.tensor(i).meta->requires_grad) Scope::Fail("running statistics with gradients");
  CheckParameters(s, x, {1, 2, 3, 4}, {x.meta->sizes[1]});
  Outs outs;
  ValueId mean = Maybe(s, 3), variance = Maybe(s, 4);
  if (training) {
    Int count = shape::FloorDiv(shape::Product(x.meta->sizes), x.meta->sizes[1]);
    if (s.env.Le(count, 1)) Scope::Fail("batch_norm: more than one value per channel is needed");
    rules::BatchStatistics now = rules::BatchNormStatistics(s.b, x.value);
    if (s.has(3)) outs.writes.push_back({s.tensor(3).id, rules::RunningUpdate(s.b, mean, now.mean, s.number(6))});
    if (s.has(4))
      outs.writes.push_back({s.tensor(4).id, rules::RunningUpdate(s.b, variance, now.unbiased_variance, s.number(6))});
    mean = now.mean;
    variance = now.variance;
    outs.writes_differentiable = false;
  }
  Out out;
  out.value = training ? rules::BatchNormTrain(s.b, x.value, mean, variance, Maybe(s, 1), Maybe(s, 2), s.number(7))
                       : rules::BatchNormEval(s.b, x.value, mean, variance, Maybe(s, 1), Maybe(s, 2), s.number(7));
  // One picture element, in whose layout both are: a GPU's kernels keep the channels last.
  const bool either = x.meta->device.kind == DeviceKind::kCuda || !IsContiguous(s.env, *x.meta);
  if (either && LikesChannelsLast(s.env, *x.meta)) out.strides = ChannelsLast(x.meta->sizes);
  outs.items.push_back(std::move(out));
  return outs;
}

// (input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled): batch_norm over one
// picture that has the channels of all of them. The running statistics become the mean of what each of them makes of
// them.
Outs InstanceNorm(Scope& s) {
  Operand x = s.tensor(0);
  const int rank = x.rank();
  if (!IsFloat(x.meta->dtype) || rank < 3) Scope::Skip();
  const bool own = s.flag(5);
  if (!own && (!s.has(3) || !s.has(4))) Scope::Fail("instance_norm needs running statistics");
  if (s.has(3) != s.has(4)) Scope::Skip();
  const Ints sizes = x.meta->sizes;
  const Int pictures = sizes[0], channels = sizes[1];
  CheckParameters(s, x, {1, 2, 3, 4}, {channels});
  Ints joined = sizes;
  joined[0] = Int(1);
  joined[1] = pictures * channels;
  auto repeated = [&](int i) -> ValueId {
    if (!s.has(i)) return rules::kNone;
    Operand o = s.tensor(i);
    if (i > 2 && s.mode.grad && o.meta->requires_grad) Scope::Fail("running statistics with gradients");
    ValueId v = o.value;
    if (pictures == Int(1) && s.mode.grad && o.meta->requires_grad) {  // for torch a copy, also of one
      v = s.b.Barrier(o.value, "leaf");
      s.b.SetDerivative(v, {"leaf", {o.value}, {}, {}});
    }
    return s.b.Reshape(s.b.BroadcastInDim(v, {pictures, channels}, {1}), {joined[1]});
  };
  const ValueId v = s.b.Reshape(x.value, joined), weight = repeated(1), bias = repeated(2);
  ValueId mean = repeated(3), variance = repeated(4);
  Outs outs;
  if (own) {
    const rules::BatchStatistics now = rules::BatchNormStatistics(s.b, v);
    auto update = [&](int i, ValueId running, ValueId with) {
      const ValueId all = rules::RunningUpdate(s.b, running, with, s.number(6));
      outs.writes.push_back({s.tensor(i).id, rules::Mean(s.b, s.b.Reshape(all, {pictures, channels}), {0}, false)});
    };
    if (s.has(3)) update(3, mean, now.mean);
    if (s.has(4)) update(4, variance, now.unbiased_variance);
    outs.writes_differentiable = false;
    mean = now.mean;
    variance = now.variance;
  }
  Out out;
  out.value = s.b.Reshape(own ? rules::BatchNormTrain(s.b, v, mean, variance, weight, bias, s.number(7))
                              : rules::BatchNormEval(s.b, v, mean, variance, weight, bias, s.number(7)),
                          sizes);
  outs.items.push_back(std::move(out));
  return outs;
}

// torch's kernel for CUDA: (result, which elements were kept).
Outs FusedDropout(Scope& s, const Operand& x, double p) {
  const auto call = s.CallOf("torch.ops.aten.native_dropout", {Arg::Tensor(0), Arg::Float(p), Arg::Bool(true)}, false);
  call->result = Arg::Seq(Arg::Kind::kTuple, {Arg::Tensor(0), Arg::Tensor(1)});
  TensorType type = s.b.type(x.value), kept = type;
  kept.dtype = DType::kBool;
  const Ints strides = RowMajor(type.shape);
  const ValueId both = s.b.Extern(call, {x.value}, {type, kept}, {strides, strides});
  Out out;
  out.value = s.b.Barrier(both + 1);
  s.b.SetDerivative(out.value, {"dropout", {x.value, both + 2}, {1 / (1 - p)}, {}});
  return out;
}

// (input, p, train): the input itself unless it draws. op kMul: elements are dropped (kAdd: in place); kSum: whole
// features; else others.
Outs Dropout(Scope& s) {
  Operand x = s.tensor(0);
  const double p = s.number(1);
  if (!s.flag(2) || p == 0) return Same(x);
  const bool features = s.row.op == Op::kSum, rows = IsRowMajor(*x.meta), plain = s.row.op == Op::kMul;
  const bool cuda = x.meta->device.kind == DeviceKind::kCuda;
  if (cuda && plain && rows && p > 0 && p < 1 && IsFloat(x.meta->dtype) && !IsEmpty(s.env, x.meta->sizes))
    return FusedDropout(s, x, p);
  if ((!plain && s.row.op != Op::kAdd && !features) || x.meta->device.kind != DeviceKind::kCpu || !(p > 0 && p < 1) ||
      !IsFloat(x.meta->dtype) || (features && x.rank() < 2) || IsEmpty(s.env, x.meta->sizes) ||
      (!rows && Overlaps(s.env, *x.meta))) {
    if (!s.mode.grad || !x.meta->requires_grad) Scope::Skip();
    throw Unmodelled{"dropout draws random numbers"};
  }
  if (rows && !features) return s.b.Binary(Op::kMul, x.value, DropoutNoise(s, x.value, p));
  Ints sizes = x.meta->sizes;
  for (size_t d = 2; features && d < sizes.size(); ++d) sizes[d] = 1;
  ValueId like = s.b.Constant(Scalar(0), x.meta->dtype, sizes);
  // how its elements lie may decide their order
  const Ints strides = features ? RowMajor(sizes) : PreserveFormat(s.env, *x.meta);
  s.b.graph().nodes[like].strides = strides;
  ValueId noise = DropoutNoise(s, like, p, strides);
  TensorMeta meta = *x.meta;
  meta.sizes = sizes;
  meta.strides = strides;
  const Operand both[] = {x, {.value = noise, .meta = &meta}};
  return s.Elementwise(s.b.Binary(Op::kMul, x.value, noise), both);
}

Outs Glu(Scope& s) {
  Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype) || !IsRowMajor(*x.meta) || x.rank() == 0) Scope::Skip();
  int axis = s.dim(1, x.rank());
  Int size = x.meta->sizes[axis];
  if (!s.env.Eq(shape::Mod(size, 2), 0)) Scope::Fail("glu: the dimension must be even");
  Int half = shape::FloorDiv(size, 2);
  ValueId a = s.Up(s.b.Slice(x.value, axis, 0, half)), gate = s.Up(s.b.Slice(x.value, axis, half, half));
  const ValueId y = s.b.Binary(Op::kMul, a, rules::Sigmoid(s.b, gate));
  s.b.SetDerivative(y, {"glu", {a, gate}, {}, {}});
  return s.b.Cast(y, x.meta->dtype);
}

Outs GlobalAveragePool(Scope& s) {  // adaptive_avg_pool to one cell
  Operand x = s.tensor(0);
  int n = s.row.op == Op::kSum ? 1 : 2;
  if (!IsFloat(x.meta->dtype) || x.rank() != n + 2) Scope::Skip();
  for (const Int& size : s.ints(1)) {
    if (!s.env.Eq(size, 1)) Scope::Skip();
  }
  std::vector<int64_t> axes;
  for (int d = 2; d < x.rank(); ++d) axes.push_back(d);
  RefuseEmpty(s, x.value, axes);
  Out out;
  out.value = rules::Mean(s.b, x.value, axes, true);
  if (LikesChannelsLast(s.env, *x.meta)) out.strides = ChannelsLast(s.b.type(out.value).shape);
  return out;
}

// Channels become blocks of r x r pixels, or such blocks become channels (kSub).
Outs PixelShuffle(Scope& s) {
  const Operand x = s.tensor(0);
  const int rank = x.rank();
  const bool back = s.row.op == Op::kSub, cuda = x.meta->device.kind == DeviceKind::kCuda;
  const Int r = s.integer(1);
  if ((rank != 3 && rank != 4) || IsEmpty(s.env, x.meta->sizes) || !s.env.Lt(0, r)) Scope::Skip();
  const Ints batch(x.meta->sizes.begin(), x.meta->sizes.end() - 3), last(x.meta->sizes.end() - 3, x.meta->sizes.end());
  const auto part = [&](Int size, Int by) {
    if (!s.env.Eq(shape::Mod(size, by), 0)) Scope::Fail("pixel_shuffle: the size is no multiple of the factor");
    return shape::FloorDiv(size, by);
  };
  Ints apart = batch, together = batch;
  std::vector<int64_t> order;
  if (back) {
    const Int h = part(last[1], r), w = part(last[2], r);
    apart.insert(apart.end(), {last[0], h, r, w, r});
    together.insert(together.end(), {last[0] * r * r, h, w});
    order = {0, 2, 4, 1, 3};
  } else {
    const Int channels = part(last[0], r * r);
    apart.insert(apart.end(), {channels, r, r, last[1], last[2]});
    together.insert(together.end(), {channels, last[1] * r, last[2] * r});
    order = {0, 3, 1, 4, 2};
  }
  if (rank == 4) {
    for (int64_t& d : order) ++d;
    order.insert(order.begin(), 0);
  }
  Out out;
  out.value = s.b.Reshape(s.b.Permute(s.b.Reshape(x.value, apart), order), together);
  if (!cuda && LikesChannelsLast(s.env, *x.meta)) out.strides = ChannelsLast(together);
  return out;
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
  ValueId v = s.b.Where(s.b.Binary(Op::kLt, rules::Like(s.b, x.value, 0), x.value), x.value,
                        s.b.Binary(Op::kMul, x.value, weight));
  return s.Elementwise(v, {&x, 1});
}

// clang-format off: a table
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
    {"t:instance_norm", "(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool use_input_stats, "
     "float momentum, float eps, bool cudnn_enabled)", &InstanceNorm},
    {"t:dropout", "(Tensor input, float p, bool train)", &Dropout, Op::kMul},
    {"I:dropout", "(Tensor input, float p, bool train)", &Dropout, Op::kAdd},
    {"tI:feature_dropout", "(Tensor input, float p, bool train)", &Dropout, Op::kSum},
    {"tI:alpha_dropout", "(Tensor input, float p, bool train)", &Dropout},
    {"n:glu", "(Tensor input, int dim=-1)", &Glu},
    {"n:adaptive_avg_pool2d", "(Tensor input, int[] output_size)", &GlobalAveragePool},
    {"tn:pixel_shuffle", "(Tensor input, int upscale_factor)", &PixelShuffle},
    {"tn:pixel_unshuffle", "(Tensor input, int downscale_factor)", &PixelShuffle, Op::kSub},
    {"t:adaptive_avg_pool1d", "(Tensor input, int[] output_size)", &GlobalAveragePool, Op::kSum},
    {"tmf:prelu", "(Tensor input, Tensor weight)", &PRelu, Op::kInput, kEmptyLike},
};
// clang-format on

}  // namespace

std::span<const Row> NnRows() {
  return kRows;
}

}  // namespace framejit::surface
