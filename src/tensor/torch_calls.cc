// Extern calls whose kernels torch's C shim has, or we: they run without Python, many times a training step.
#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "runtime/max_pool.h"
#include "tensor/run_context.h"
#include "tensor/tensor.h"
#include "tensor/torch_host.h"

namespace framejit::tensor {

namespace {

using Operands = std::span<const Buffer>;

bool OnCuda(Operands operands) {
  return !operands.empty() && operands[0].device.kind == DeviceKind::kCuda;
}

bool Dropout(const TorchApi& t, const Call& c, Operands operands, Handles& out) {
  if (!OnCuda(operands) || !t.cuda_dropout) return false;
  TempTensor x(t, operands[0]);
  int32_t train = 1;
  return x.ok() && !t.cuda_dropout(x.handle(), c.args[1].f, &train, out[0], out[1]) && out.Count(2);
}

// Query, key, value and maybe a mask from `first` on, as the kernels take them.
struct AttentionOperands {
  AttentionOperands(const TorchApi& t, Operands all, size_t first, bool masked, bool spread) {
    for (size_t i = first; i < first + 3; ++i) {
      const Buffer& b = all[i];
      fits = fits && b.rank == 4 && (b.strides[3] == 1 || b.sizes[3] == 1) && b.data;
    }
    if (!fits) return;
    for (size_t i = first; i < first + 3; ++i) made[i - first].emplace(t, all[i]);
    if (masked) {
      const Buffer &q = all[first], &k = all[first + 1], &m = all[first + 3];
      const int64_t sizes[4] = {q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]};
      int64_t strides[4];
      for (int i = 0; i < 4; ++i) strides[i] = m.sizes[i] == 1 && sizes[i] != 1 ? 0 : m.strides[i];
      if (spread)
        made[3].emplace(t, m.data, 4, sizes, strides, m.dtype, m.device);
      else
        made[3].emplace(t, m);
    }
    for (auto& tensor : made) fits = fits && (!tensor || tensor->ok());
    length = all[first].sizes[2];
    keys = all[first + 1].sizes[2];
  }
  Handle operator[](int i) { return made[i]->handle(); }
  Handle mask() { return made[3] ? made[3]->handle() : nullptr; }
  std::optional<TempTensor> made[4];
  bool fits = true;
  int64_t length = 0, keys = 0;
};

// framejit._gradients.attention(kernel, q, k, v, mask, dropout, causal, scale)
bool Attention(const TorchApi& t, const Call& c, Operands operands, Handles& out) {
  if (!OnCuda(operands)) return false;
  const std::string_view kernel = c.args[0].s;
  AttentionOperands in(t, operands, 0, operands.size() > 3, kernel == "efficient");
  if (!in.fits) return false;
  const double dropout = c.args[5].f;
  const bool causal = c.args[6].b;
  double scale = c.args[7].f;
  Handle mask = in.mask();
  Handle* m = mask ? &mask : nullptr;
  int64_t lengths[2];
  Handles all(t);
  int32_t failed = 1;
  if (kernel == "flash" && t.cuda_flash_attention && !mask)
    failed = t.cuda_flash_attention(in[0], in[1], in[2], dropout, causal, 0, &scale, all[0], all[1], all[4], all[5],
                                    &lengths[0], &lengths[1], all[2], all[3], all[6]);
  else if (kernel == "cudnn" && t.cuda_cudnn_attention)
    failed = t.cuda_cudnn_attention(in[0], in[1], in[2], m, 1, dropout, causal, 0, &scale, all[0], all[1], all[4],
                                    all[5], &lengths[0], &lengths[1], all[2], all[3], all[6]);
  else if (kernel == "efficient" && t.cuda_efficient_attention)
    failed =
        t.cuda_efficient_attention(in[0], in[1], in[2], m, 1, dropout, causal, &scale, all[0], all[1], all[2], all[3]);
  if (failed) return false;
  for (int i = 0; i < 4; ++i) *out[i] = all.Take(i);
  return out.Count(4);
}

// framejit._gradients.attention_backward(kernel, g, q, k, v, mask, dropout, causal, scale, (out, sums, seed, offset));
// operands: g, these four, then q, k, v and maybe the mask.
bool AttentionBackward(const TorchApi& t, const Call& c, Operands operands, Handles& out) {
  if (!OnCuda(operands) || operands.size() < 8 || !t.undefined) return false;
  const std::string_view kernel = c.args[0].s;
  const bool masked = operands.size() > 8;
  AttentionOperands in(t, operands, 5, masked, kernel == "efficient");
  const Buffer& g = operands[0];
  if (!in.fits || (g.strides[3] != 1 && g.sizes[3] != 1)) return false;
  TempTensor grad(t, g), y(t, operands[1]), sums(t, operands[2]), seed(t, operands[3]), offset(t, operands[4]);
  if (!grad.ok() || !y.ok() || !sums.ok() || !seed.ok() || !offset.ok()) return false;
  const double dropout = c.args[6].f;
  const bool causal = c.args[7].b;
  double scale = c.args[8].f;
  Impl nothing = t.undefined;
  Handle none = &nothing, mask = masked ? in.mask() : none;
  Handles all(t);
  int32_t failed = 1;
  constexpr int32_t kWanted[] = {1, 1, 1, 0};
  if (kernel == "flash" && t.cuda_flash_attention_backward && !masked)
    failed = t.cuda_flash_attention_backward(grad.handle(), in[0], in[1], in[2], y.handle(), sums.handle(), none, none,
                                             in.length, in.keys, dropout, causal, seed.handle(), offset.handle(),
                                             &scale, all[0], all[1], all[2]);
  else if (kernel == "cudnn" && t.cuda_cudnn_attention_backward)
    failed = t.cuda_cudnn_attention_backward(grad.handle(), in[0], in[1], in[2], y.handle(), sums.handle(),
                                             seed.handle(), offset.handle(), mask, none, none, in.length, in.keys,
                                             dropout, causal, &scale, all[0], all[1], all[2]);
  else if (kernel == "efficient" && t.cuda_efficient_attention_backward)
    failed = t.cuda_efficient_attention_backward(grad.handle(), in[0], in[1], in[2], mask, y.handle(), sums.handle(),
                                                 seed.handle(), offset.handle(), dropout, kWanted, 4, causal, &scale,
                                                 all[0], all[1], all[2], all[3]);
  if (failed) return false;
  for (int i = 0; i < 3; ++i) *out[i] = all.Take(i);
  return out.Count(3);
}

// Reads the numbers of max_pool2d's arguments, all of which must be there. It is false where the call is not ours.
bool ReadPool(const std::vector<Arg>& args, runtime::PoolWindow* w) {
  auto pair = [&](size_t i, int64_t* to, int64_t missing, const int64_t* instead) {
    if (i >= args.size() || args[i].is(Arg::Kind::kNone) || (args[i].items.empty() && !args[i].is(Arg::Kind::kInt))) {
      for (int d = 0; d < 2; ++d) to[d] = instead ? instead[d] : missing;
      return i > 1;
    }
    const size_t count = args[i].is(Arg::Kind::kInt) ? 1 : args[i].items.size();
    for (size_t d = 0; d < 2; ++d) {
      const Arg& a = args[i].is(Arg::Kind::kInt) ? args[i] : args[i].items[std::min(d, count - 1)];
      if (!a.is(Arg::Kind::kInt) || !a.i.is_const()) return false;
      to[d] = a.i.value();
    }
    return count <= 2;
  };
  const bool ceil = args.size() > 5 && !(args[5].is(Arg::Kind::kBool) && !args[5].b);
  return !ceil && args.size() <= 6 && pair(1, w->kernel, 0, nullptr) && pair(2, w->stride, 0, w->kernel) &&
         pair(3, w->padding, 0, nullptr) && pair(4, w->dilation, 1, nullptr);
}

// Of x [n, c, h, w]: oh and ow. False: the framework shall say what is wrong.
bool PoolSizes(const Buffer& x, const runtime::PoolWindow& w, int64_t* sizes) {
  if (x.rank != 4 || x.device.kind != DeviceKind::kCpu || x.dtype != DType::kFloat32 || x.strides[3] != 1) return false;
  if (x.sizes[1] == 1 && x.strides[1] == 1) return false;  // one channel: torch may take it for channels-last
  if (x.sizes[2] * x.sizes[3] > std::numeric_limits<int32_t>::max()) return false;
  for (int d = 0; d < 2; ++d) {
    if (w.stride[d] < 1 || w.dilation[d] < 1 || w.padding[d] < 0 || 2 * w.padding[d] > w.kernel[d]) return false;
    const int64_t room = x.sizes[2 + d] + 2 * w.padding[d] - w.dilation[d] * (w.kernel[d] - 1) - 1;
    if (room < 0) return false;
    sizes[d] = room / w.stride[d] + 1;
  }
  return x.sizes[0] * x.sizes[1] > 0;
}

bool MakeDense(const TorchApi& t, const int64_t (&sizes)[4], Handle* h, Buffer* b) {
  const int64_t strides[4] = {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
  TorchHost().AllocateOutput(DType::kFloat32, sizes, strides, Device{}, b);
  Impl impl = b->handle;
  return !t.new_tensor_handle(&impl, h) && (ReleaseImpl(t, impl), true);
}

bool MaxPool(const TorchApi& t, const Call& c, Operands operands, Handles& out) {
  runtime::PoolWindow w;
  int64_t sizes[2];
  if (operands.size() != 1 || !c.kwargs.empty() || !ReadPool(c.args, &w) || !PoolSizes(operands[0], w, sizes))
    return false;
  const Buffer& x = operands[0];
  Buffer y;
  if (!MakeDense(t, {x.sizes[0], x.sizes[1], sizes[0], sizes[1]}, out[0], &y)) return false;
  const int64_t all[4] = {x.sizes[0], x.sizes[1], sizes[0], sizes[1]};
  y.sizes = all;
  runtime::MaxPool(TorchHost(), x, w, y);
  return out.Count(1);
}

// framejit.vjp(torch.max_pool2d)(which, operands, args, kwargs, grads); operands: x and the gradient.
bool MaxPoolGradient(const TorchApi& t, const Call& c, Operands operands, Handles& out) {
  runtime::PoolWindow w;
  int64_t sizes[2];
  if (operands.size() != 2 || c.args.size() != 5 || !c.args[3].items.empty() || !ReadPool(c.args[2].items, &w) ||
      !PoolSizes(operands[0], w, sizes))
    return false;
  const Buffer &x = operands[0], &g = operands[1];
  if (g.rank != 4 || g.dtype != DType::kFloat32 || g.sizes[2] != sizes[0] || g.sizes[3] != sizes[1]) return false;
  Buffer dx;
  if (!MakeDense(t, {x.sizes[0], x.sizes[1], x.sizes[2], x.sizes[3]}, out[0], &dx)) return false;
  runtime::MaxPoolGradient(TorchHost(), g, x, w, dx);
  return out.Count(1);
}

// While it is alive, what a kernel calls records nothing, nor asks whether it shall: as below the framework's autograd.
class BelowAutograd {
 public:
  explicit BelowAutograd(const TorchApi& t) : excluded_(Words(t).keys ? Words(t).keys + 1 : nullptr) {
    if (excluded_) before_ = std::exchange(*excluded_, *excluded_ | t.autograd_key | t.inplace_key);
  }
  ~BelowAutograd() {
    if (excluded_) *excluded_ = before_;
  }
  BelowAutograd(const BelowAutograd&) = delete;

 private:
  uint64_t* const excluded_;  // local to the thread; a set bit is an excluded key
  uint64_t before_ = 0;
};

// torch.ops.aten.convolution_backward(g, x, w, features of the bias or None, stride, padding, dilation, transposed,
// padding of the output, groups, which gradients are wanted)
bool ConvGradients(const TorchApi& t, const Call& c, Operands operands, Handles& out) {
  constexpr size_t kMost = 3;         // dimensions of a picture
  constexpr int64_t kLong = 1 << 16;  // elements; other threads may run Python meanwhile
  if (!t.convolution_backward || c.args.size() != 11 || !c.kwargs.empty()) return false;
  for (const Buffer& b : operands)
    if (b.device.kind != DeviceKind::kCpu) return false;
  const Buffer* in[3];
  for (size_t i = 0; i < std::size(in); ++i) {
    if (!c.args[i].is(Arg::Kind::kTensor) || c.args[i].t >= operands.size()) return false;
    in[i] = &operands[c.args[i].t];
  }
  const auto n = static_cast<int64_t>(c.args[4].items.size());
  int64_t numbers[4][kMost];  // stride, padding, dilation, padding of the output
  for (size_t k = 0; k < std::size(numbers); ++k) {
    const std::vector<Arg>& items = c.args[k < 3 ? 4 + k : 8].items;
    if (items.size() > kMost || static_cast<int64_t>(items.size()) != n) return false;
    for (size_t d = 0; d < items.size(); ++d) {
      if (!items[d].is(Arg::Kind::kInt) || !items[d].i.is_const()) return false;
      numbers[k][d] = items[d].i.value();
    }
  }
  const std::vector<Arg>& wanted = c.args[10].items;
  if (wanted.size() != 3 || in[0]->rank < 2 || !c.args[9].is(Arg::Kind::kInt) || !c.args[9].i.is_const()) return false;
  const int32_t mask[3] = {wanted[0].b, wanted[1].b, wanted[2].b};
  const int64_t features = in[0]->sizes[1], *const bias = &features;
  TempTensor g(t, *in[0]), x(t, *in[1]), w(t, *in[2]);
  if (!g.ok() || !x.ok() || !w.ok()) return false;
  Handles all(t);
  int64_t elements = 1;
  for (int d = 0; d < in[1]->rank; ++d) elements *= in[1]->sizes[d];
  {
    std::optional<GiveUpGil> others;
    if (elements >= kLong && !gave_up_gil) others.emplace();
    const BelowAutograd below(t);
    if (t.convolution_backward(g.handle(), x.handle(), w.handle(),
                               c.args[3].is_none() ? nullptr : const_cast<const int64_t**>(&bias),
                               c.args[3].is_none() ? 0 : 1, numbers[0], n, numbers[1], n, numbers[2], n, c.args[7].b,
                               numbers[3], n, c.args[9].i.value(), mask, 3, all[0], all[1], all[2]))
      return false;
  }
  int count = 0;
  for (int i = 0; i < 3; ++i)
    if (mask[i]) *out[count++] = all.Take(i);
  return out.Count(count);
}

using Runner = bool (*)(const TorchApi& t, const Call& c, Operands operands, Handles& out);

Runner Find(Callee callee) {
  static const std::pair<Callee, Runner> table[] = {
      {Callee("torch.ops.aten.native_dropout"), Dropout},
      {Callee("framejit._gradients.attention"), Attention},
      {Callee("framejit._gradients.attention_backward"), AttentionBackward},
      {Callee("torch.ops.aten.convolution_backward"), ConvGradients},
      {Callee("torch.max_pool2d"), MaxPool},
      {Callee("framejit.vjp(torch.max_pool2d)"), MaxPoolGradient},
  };
  for (const auto& [known, run] : table)
    if (known == callee) return run;
  return nullptr;
}

}  // namespace

bool RunWithoutPython(const TorchApi& t, const Call& call, std::span<const Buffer> operands,
                      std::span<Buffer> results) {
  const Runner run = t.at.all() ? Find(call.callee) : nullptr;
  if (!run) return false;
  Handles out(t);
  if (!run(t, call, operands, out) || out.count() != static_cast<int>(results.size())) return false;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto type =
        *out[i] ? FromScalarType(Field<uint16_t>(*static_cast<Impl*>(*out[i]), t.at.dtype)) : std::nullopt;
    if (!type) return false;
    results[i].dtype = *type;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    Buffer& r = results[i];
    r.handle = TakeFresh(t, out.Take(static_cast<int>(i)));
    const int8_t* device = &Field<int8_t>(r.handle, t.at.device);
    r.device = device[0] ? Device{DeviceKind::kCuda, device[1]} : Device{};
    r.data = DataOf(t, r.handle, DTypeSize(r.dtype));
    const TorchDims d = DimsOf(t, r.handle);
    r.rank = static_cast<int32_t>(d.rank);
    r.sizes = d.sizes;  // live as long as the tensor
    r.strides = d.strides;
  }
  return true;
}

}  // namespace framejit::tensor
