// Torch's own kernels on CUDA tensors, without Python where its C shim has them. They run on the framework's current
// stream, with the precision (TF32, reduced-precision sums) that the user has set.
#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensor/run_context.h"
#include "tensor/tensor.h"
#include "tensor/torch_host.h"

namespace framejit::tensor {

namespace {

bool Contiguous16(const Buffer& b) {  // what the attention kernels load in vectors
  const int64_t step = 16 / DTypeSize(b.dtype);
  if (b.strides[3] != 1 || reinterpret_cast<uintptr_t>(b.data) % 16) return false;
  for (int i = 0; i < 3; ++i) {
    if (b.sizes[i] != 1 && b.strides[i] % step) return false;
  }
  return true;
}

// These are torch's numbers of the kernels behind scaled_dot_product_attention.
enum class Backend : int8_t { kMath, kFlash, kEfficient, kCudnn, kOther };

struct AttentionCall {
  const TorchApi& t;
  const Buffer &q, &k, &v;
  const Buffer* mask;
  bool causal;
  double scale;

  // Says which of them eager would run. It is asked once for operands of the same form and the same settings of the
  // user's.
  Backend Choice() const {
    std::string key(1, static_cast<char>(causal));
    auto put = [&](const void* data, size_t bytes) { key.append(static_cast<const char*>(data), bytes); };
    for (const Buffer* b : {&q, &k, &v, mask}) {
      if (!b) continue;
      key.push_back(static_cast<char>(b->dtype));
      key.push_back(static_cast<char>(b->device.index));
      put(b->sizes, b->rank * sizeof(int64_t));
      put(b->strides, b->rank * sizeof(int64_t));
    }
    for (auto setting : {t.flash_sdp, t.efficient_sdp, t.math_sdp, t.cudnn_sdp, t.deterministic})
      key.push_back(setting && t.context ? setting(t.context) : 0);
    static std::mutex mutex;
    static auto* known = new std::unordered_map<std::string, Backend>();
    {
      std::lock_guard lock(mutex);
      if (auto at = known->find(key); at != known->end()) return at->second;
    }
    HoldGil gil;
    static PyObject* function = ResolveCallee("torch._fused_sdp_choice");
    Ref answer = Call(function);
    const long number = answer ? PyLong_AsLong(answer.get()) : -1;
    PyErr_Clear();
    const Backend backend = number >= 0 && number < 4 ? static_cast<Backend>(number) : Backend::kOther;
    std::lock_guard lock(mutex);
    return known->emplace(std::move(key), backend).first->second;
  }

  // cuDNN makes a plan for each pair of lengths, which takes longer than most models. Where lengths keep coming (a
  // cache that grows by every token), the others do, which make none.
  bool AnotherLength() const {
    constexpr size_t kFew = 4;
    if (DTypeSize(q.dtype) != 2 || !t.context || !t.cudnn_sdp || !t.cudnn_sdp(t.context)) return false;
    using Family = std::array<int64_t, 6>;
    static std::mutex mutex;
    static auto* seen = new std::map<Family, std::vector<std::pair<int64_t, int64_t>>>();
    const Family family = {q.sizes[0],
                           q.sizes[1],
                           q.sizes[3],
                           q.device.index,
                           static_cast<int64_t>(q.dtype),
                           2 * causal + (mask != nullptr)};
    const std::pair now{q.sizes[2], k.sizes[2]};
    std::lock_guard lock(mutex);
    auto& lengths = (*seen)[family];
    if (std::find(lengths.begin(), lengths.end(), now) != lengths.end()) return false;
    if (lengths.size() >= kFew) return true;
    lengths.push_back(now);
    return false;
  }

  // A function with the signature of scaled_dot_product_attention. The GIL is held.
  Ref Call(PyObject* function) const {
    SavedError saved;
    auto object = [&](const Buffer& b) -> Ref {
      TempTensor temp(t, b);
      Handle shared = nullptr;
      if (!temp.ok() || t.new_tensor_handle(temp.handle(), &shared)) return Ref();
      return Ref(WrapTorch(t, TakeHandle(t, shared)));
    };
    Ref tq = object(q), tk = object(k), tv = object(v), tm = mask ? object(*mask) : Ref::Borrow(Py_None);
    if (!function || !tq || !tk || !tv || !tm) return PyErr_Clear(), Ref();
    Ref args(PyTuple_Pack(3, tq.get(), tk.get(), tv.get()));
    Ref kwargs(Py_BuildValue("{s:O,s:O,s:d}", "attn_mask", tm.get(), "is_causal", causal ? Py_True : Py_False, "scale",
                             scale));
    ModeSwitch mode;
    mode.Set({false, false});
    Ref result(args && kwargs ? PyObject_Call(function, args.get(), kwargs.get()) : nullptr);
    if (!result) PyErr_Clear();
    return result;
  }

  // Gives the shim of one of them. It is false where that does not take these operands.
  bool Run(Backend backend, Buffer& out) const {
    std::optional<TempTensor> tm;
    Handle mask_handle = nullptr;
    if (mask) {
      const int64_t sizes[4] = {q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]};
      int64_t strides[4];
      for (int i = 0; i < 4; ++i) strides[i] = mask->sizes[i] == 1 && sizes[i] != 1 ? 0 : mask->strides[i];
      if (backend == Backend::kCudnn)  // broadcasts by itself
        tm.emplace(t, *mask);
      else
        tm.emplace(t, mask->data, 4, sizes, strides, mask->dtype, mask->device);
      if (!tm->ok()) return false;
      mask_handle = tm->handle();
    }
    TempTensor tq(t, q), tk(t, k), tv(t, v);
    if (!tq.ok() || !tk.ok() || !tv.ok()) return false;
    Handles outs(t);
    double s = scale;
    Handle* m = mask ? &mask_handle : nullptr;
    int64_t most_q = 0, most_k = 0;
    int32_t failed = 1;
    if (backend == Backend::kFlash && t.cuda_flash_attention)
      failed = t.cuda_flash_attention(tq.handle(), tk.handle(), tv.handle(), 0.0, causal, 0, &s, outs[0], outs[1],
                                      outs[2], outs[3], &most_q, &most_k, outs[4], outs[5], outs[6]);
    else if (backend == Backend::kCudnn && t.cuda_cudnn_attention)
      failed = t.cuda_cudnn_attention(tq.handle(), tk.handle(), tv.handle(), m, 0, 0.0, causal, 0, &s, outs[0], outs[1],
                                      outs[2], outs[3], &most_q, &most_k, outs[4], outs[5], outs[6]);
    else if (backend == Backend::kEfficient && t.cuda_efficient_attention)
      failed = t.cuda_efficient_attention(tq.handle(), tk.handle(), tv.handle(), m, 0, 0.0, causal, &s, outs[0],
                                          outs[1], outs[2], outs[3]);
    return !failed && Deliver(t, outs.Take(0), out);
  }
};

}  // namespace

bool CudaAttention(const TorchApi& t, const Buffer& q, const Buffer& k, const Buffer& v, const Buffer* mask,
                   bool causal, double scale, Buffer& out) {
  if (q.rank != 4 || !IsFloat(q.dtype) || k.dtype != q.dtype || v.dtype != q.dtype) return false;
  const AttentionCall call{t, q, k, v, mask, causal, scale};
  const int64_t length = q.sizes[2], keys = k.sizes[2], width = q.sizes[3], step = 16 / DTypeSize(q.dtype);
  bool plain = width == v.sizes[3] && q.sizes[1] == k.sizes[1] && !(causal && (mask || length != keys)) &&
               width % step == 0 && (!mask || (mask->dtype == q.dtype && mask->rank == 4));
  for (const Buffer* b : {&q, &k, &v}) {
    for (int i = 0; i < 4; ++i) plain = plain && b->sizes[i] > 0;
    plain = plain && Contiguous16(*b);
  }
  const bool another = !(causal && (mask || length != keys)) && call.AnotherLength();
  if (another && plain && !mask && t.flash_sdp && t.flash_sdp(t.context) && call.Run(Backend::kFlash, out)) return true;
  if (plain && !another) {
    const Backend backend = call.Choice();
    bool fits = backend == Backend::kFlash ? !mask : backend == Backend::kCudnn || backend == Backend::kEfficient;
    if (mask && backend == Backend::kEfficient) {  // what eager would copy into an aligned one
      fits = keys % 8 == 0 && mask->sizes[3] == keys && mask->strides[3] == 1 &&
             reinterpret_cast<uintptr_t>(mask->data) % 16 == 0;
      for (int i = 0; i < 3; ++i) fits = fits && (mask->sizes[i] == 1 || mask->strides[i] % 8 == 0);
    }
    if (fits && call.Run(backend, out)) return true;
  }
  HoldGil gil;
  static PyObject* function = ResolveCallee("torch.nn.functional.scaled_dot_product_attention");
  static PyObject* efficient = ResolveCallee("framejit._functions.efficient_attention");
  Ref result = another && t.efficient_sdp && t.efficient_sdp(t.context) ? call.Call(efficient) : Ref();
  if (!result) result = call.Call(function);  // any mask, any head size
  if (!result) return false;
  Handle shared = nullptr;
  if (t.new_tensor_handle(reinterpret_cast<char*>(result.get()) + sizeof(PyObject), &shared)) return false;
  return Deliver(t, shared, out);
}

void* CudaStream(const TorchApi& t, Device device) {
  void* stream = nullptr;
  if (!t.cuda_stream || t.cuda_stream(device.index < 0 ? 0 : device.index, &stream))
    throw std::runtime_error("this torch does not tell its CUDA stream");
  return stream;
}

namespace {
thread_local void* recording = nullptr;  // torch's stream guard
}

bool CudaBeginRecording(const TorchApi& t, Device device, void* stream, void** pool) {
  if (!t.cuda_stream_guard || !t.cuda_drop_stream_guard) return false;
  HoldGil gil;
  SavedError saved;
  if (!*pool) {
    static PyObject* make = ResolveCallee("torch.cuda.graph_pool_handle");
    *pool = make ? PyObject_CallNoArgs(make) : nullptr;
  }
  const int index = std::max<int>(0, device.index);
  if (!*pool) return PyErr_Clear(), false;
  Ref begun(PyObject_CallMethod(t.c_module, "_cuda_beginAllocateCurrentThreadToPool", "iO", index,
                                static_cast<PyObject*>(*pool)));
  if (!begun) return PyErr_Clear(), false;
  if (!t.cuda_stream_guard(stream, index, &recording)) return true;
  recording = nullptr;
  CudaEndRecording(t, device, *pool);
  return false;
}

void CudaEndRecording(const TorchApi& t, Device device, void* pool) {
  HoldGil gil;
  SavedError saved;
  if (void* guard = std::exchange(recording, nullptr)) t.cuda_drop_stream_guard(guard);
  Ref ended(PyObject_CallMethod(t.c_module, "_cuda_endAllocateToPool", "iO", std::max<int>(0, device.index),
                                static_cast<PyObject*>(pool)));
  if (!ended) PyErr_Clear();
}

uint64_t CudaSettings(const TorchApi& t) {
  if (!t.context) return 0;
  uint64_t all = 0;
  auto put = [&](auto function, auto... more) {
    all = all * 8 + (function ? static_cast<uint64_t>(function(t.context, more...)) & 7 : 0);
  };
  constexpr int kCuda = 1, kConv = 1, kMatMul = 3;  // Float32Backend, Float32Op
  if (t.float32_precision) {
    put(t.float32_precision, kCuda, kConv);
    put(t.float32_precision, kCuda, kMatMul);
  } else {
    put(t.tf32_cublas);
  }
  for (auto flag : {t.cudnn_enabled, t.cudnn_benchmark, t.cudnn_deterministic, t.fp16_accumulation, t.flash_sdp,
                    t.efficient_sdp, t.math_sdp, t.cudnn_sdp, t.deterministic})
    put(flag);
  put(t.fp16_reduction);
  put(t.bf16_reduction);
  return all;
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
