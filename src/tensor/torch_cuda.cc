// Torch's own kernels on CUDA tensors, without Python where its C shim has them. They run on the framework's current
// stream, with the precision (TF32, reduced-precision sums) that the user has set.
#include <optional>

#include "tensor/run_context.h"
#include "tensor/tensor.h"
#include "tensor/torch_host.h"

namespace framejit::tensor {

namespace {

class Outs {  // handles that a shim has returned, dropped at the end
 public:
  explicit Outs(const TorchApi& t) : t_(t) {}
  ~Outs() {
    for (Handle h : handles_) {
      if (h) t_.delete_tensor(h);
    }
  }
  Handle* operator[](int i) { return &handles_[i]; }
  Handle Take(int i) { return std::exchange(handles_[i], nullptr); }

 private:
  const TorchApi& t_;
  Handle handles_[9] = {};
};

bool Contiguous16(const Buffer& b) {  // what the attention kernels load in vectors
  const int64_t step = 16 / DTypeSize(b.dtype);
  if (b.strides[3] != 1 || reinterpret_cast<uintptr_t>(b.data) % 16) return false;
  for (int i = 0; i < 3; ++i) {
    if (b.sizes[i] != 1 && b.strides[i] % step) return false;
  }
  return true;
}

// As eager would call it: any mask, any head size.
bool AttentionByName(const TorchApi& t, const Buffer& q, const Buffer& k, const Buffer& v, const Buffer* mask,
                     bool causal, double scale, Buffer& out) {
  HoldGil gil;
  SavedError saved;
  auto object = [&](const Buffer& b) -> Ref {
    TempTensor temp(t, b);
    Handle shared = nullptr;
    if (!temp.ok() || t.new_tensor_handle(temp.handle(), &shared)) return Ref();
    return Ref(WrapTorch(t, TakeHandle(t, shared)));
  };
  static PyObject* function = ResolveCallee("torch.nn.functional.scaled_dot_product_attention");
  Ref tq = object(q), tk = object(k), tv = object(v), tm = mask ? object(*mask) : Ref::Borrow(Py_None);
  if (!function || !tq || !tk || !tv || !tm) return PyErr_Clear(), false;
  Ref args(PyTuple_Pack(3, tq.get(), tk.get(), tv.get()));
  Ref kwargs(
      Py_BuildValue("{s:O,s:O,s:d}", "attn_mask", tm.get(), "is_causal", causal ? Py_True : Py_False, "scale", scale));
  ModeSwitch mode;
  mode.Set({false, false});
  Ref result(args && kwargs ? PyObject_Call(function, args.get(), kwargs.get()) : nullptr);
  if (!result) return PyErr_Clear(), false;
  Handle shared = nullptr;
  if (t.new_tensor_handle(reinterpret_cast<char*>(result.get()) + sizeof(PyObject), &shared)) return false;
  return Deliver(t, shared, out);
}

}  // namespace

bool CudaAttention(const TorchApi& t, const Buffer& q, const Buffer& k, const Buffer& v, const Buffer* mask,
                   bool causal, double scale, Buffer& out) {
  if (q.rank != 4 || !IsFloat(q.dtype) || k.dtype != q.dtype || v.dtype != q.dtype) return false;
  const int64_t length = q.sizes[2], keys = k.sizes[2], width = q.sizes[3];
  bool plain = width == v.sizes[3] && q.sizes[1] == k.sizes[1] && !(causal && (mask || length != keys));
  for (const Buffer* b : {&q, &k, &v}) {
    for (int i = 0; i < 4; ++i) plain = plain && b->sizes[i] > 0;
    plain = plain && Contiguous16(*b);
  }
  const bool half = DTypeSize(q.dtype) == 2;
  if (plain && !mask && half && width % 8 == 0 && width <= 256 && t.cuda_flash_attention) {
    TempTensor tq(t, q), tk(t, k), tv(t, v);
    if (!tq.ok() || !tk.ok() || !tv.ok()) return false;
    Outs outs(t);
    int64_t most_q = 0, most_k = 0;
    if (!t.cuda_flash_attention(tq.handle(), tk.handle(), tv.handle(), 0.0, causal, 0, &scale, outs[0], outs[1],
                                outs[2], outs[3], &most_q, &most_k, outs[4], outs[5], outs[6]))
      return Deliver(t, outs.Take(0), out);
  }
  const int64_t step = 16 / DTypeSize(q.dtype);
  bool masked = !mask || (mask->dtype == q.dtype && mask->rank == 4 && keys % 8 == 0 && mask->sizes[3] == keys &&
                          mask->strides[3] == 1 && reinterpret_cast<uintptr_t>(mask->data) % 16 == 0);
  for (int i = 0; masked && mask && i < 3; ++i) masked = mask->sizes[i] == 1 || mask->strides[i] % 8 == 0;
  if (plain && masked && DTypeSize(q.dtype) <= 4 && width % step == 0 && t.cuda_efficient_attention) {
    TempTensor tq(t, q), tk(t, k), tv(t, v);
    std::optional<TempTensor> tm;
    if (mask) {
      const int64_t sizes[4] = {q.sizes[0], q.sizes[1], length, keys};
      int64_t strides[4];
      for (int i = 0; i < 4; ++i) strides[i] = mask->sizes[i] == 1 && sizes[i] != 1 ? 0 : mask->strides[i];
      tm.emplace(t, mask->data, 4, sizes, strides, mask->dtype, mask->device);
    }
    if (!tq.ok() || !tk.ok() || !tv.ok() || (tm && !tm->ok())) return false;
    Handle mask_handle = tm ? tm->handle() : nullptr;
    Outs outs(t);
    if (!t.cuda_efficient_attention(tq.handle(), tk.handle(), tv.handle(), mask ? &mask_handle : nullptr, 0, 0.0,
                                    causal, &scale, outs[0], outs[1], outs[2], outs[3]))
      return Deliver(t, outs.Take(0), out);
  }
  return AttentionByName(t, q, k, v, mask, causal, scale, out);
}

void* CudaStream(const TorchApi& t, Device device) {
  void* stream = nullptr;
  if (!t.cuda_stream || t.cuda_stream(device.index < 0 ? 0 : device.index, &stream))
    throw std::runtime_error("this torch does not tell its CUDA stream");
  return stream;
}

void TorchCopy(const TorchApi& t, const Buffer& from, const Buffer& to) {
  for (int i = 0; i < to.rank; ++i) {
    if (to.sizes[i] == 0) return;
  }
  TempTensor target(t, to), source(t, from.data, to.rank, to.sizes, from.strides, from.dtype, from.device);
  if (!t.copy || !target.ok() || !source.ok() || t.copy(target.handle(), source.handle(), 0))
    throw std::runtime_error("torch failed to copy a tensor");
}

}  // namespace framejit::tensor
