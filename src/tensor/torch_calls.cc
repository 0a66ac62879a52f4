// Extern calls whose kernels torch's C shim has: they run without Python, many times a training step.
#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>

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

using Runner = bool (*)(const TorchApi& t, const Call& c, Operands operands, Handles& out);

Runner Find(const std::string& callee) {
  static const auto* table = new std::unordered_map<std::string_view, Runner>{
      {"torch.ops.aten.native_dropout", Dropout},
      {"framejit._gradients.attention", Attention},
      {"framejit._gradients.attention_backward", AttentionBackward},
  };
  auto at = table->find(callee);
  return at == table->end() ? nullptr : at->second;
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
    r.handle = TakeHandle(t, out.Take(static_cast<int>(i)));
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
