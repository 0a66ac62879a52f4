// The torch side of a run: allocation, externs, threads, and tensors made of buffers for library calls. A Buffer's
// handle is the TensorImpl itself; the address of a variable holding it is what torch calls a tensor handle.
#pragma once

#include <span>
#include <stdexcept>
#include <utility>

#include "framejit/compile.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

// The framework's allocator has none, in its words.
struct DeviceMemoryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A buffer, or a reshaped view of one, as a torch tensor for the length of a library call.
class TempTensor {
 public:
  TempTensor(const TorchApi& t, const Buffer& b);
  TempTensor(const TorchApi& t, void* data, int rank, const int64_t* sizes, const int64_t* strides, DType dtype,
             Device device);
  ~TempTensor() {
    if (owned_) ReleaseImpl(t_, impl_);
  }
  TempTensor(const TempTensor&) = delete;  // It is elided on return.
  Handle handle() { return &impl_; }
  bool ok() const { return impl_ != nullptr; }
  bool made() const { return owned_; }  // for the call: it is not the buffer's own tensor

 private:
  void Make(void* data, int rank, const int64_t* sizes, const int64_t* strides, DType dtype, Device device);
  const TorchApi& t_;
  Impl impl_ = nullptr;
  bool owned_ = false;
};

class Handles {  // that a shim has returned, dropped at the end
 public:
  explicit Handles(const TorchApi& t) : t_(t) {}
  ~Handles() {
    for (Handle h : handles_) {
      if (h) t_.delete_tensor(h);
    }
  }
  Handles(const Handles&) = delete;
  Handle* operator[](size_t i) { return &handles_[i]; }
  Handle Take(int i) { return std::exchange(handles_[i], nullptr); }
  bool Count(int n) { return count_ = n, true; }  // Says how many of them are results.
  int count() const { return count_; }

 private:
  const TorchApi& t_;
  Handle handles_[9] = {};
  int count_ = 0;
};

// Of an extern; false, and nothing has happened: Python runs it (torch_calls.cc).
bool RunWithoutPython(const TorchApi& t, const Call& call, std::span<const Buffer> operands, std::span<Buffer> results);

// Contractions (contractions.cc). Each returns false where it does not apply.
bool TorchMatMul(const TorchApi& t, const Buffer& a, const Buffer& b, Buffer& out);
bool TorchLinear(const TorchApi& t, const Buffer& x, const Buffer& w, const Buffer* bias, const Buffer* packed,
                 Buffer& out);
bool TorchLinearThen(const TorchApi& t, const std::string& function, const Buffer& x, const Buffer& w,
                     const Buffer& bias, Buffer& out);
bool TorchConv(const TorchApi& t, const Buffer& x, const Buffer& w, const Buffer* bias, const Attrs& attrs,
               Buffer& out);
bool TorchAttention(const TorchApi& t, const Buffer& q, const Buffer& k, const Buffer& v, const Buffer* mask,
                    bool causal, double scale, Buffer& out);

// A weight in oneDNN's own form (pack.cc).
bool TorchPack(const TorchApi& t, const Buffer& w, const Attrs& attrs, Buffer& out);
// A weight [N, K] as MKL packs it, for products of about so many rows; no handle where that is not faster.
void TorchPackLinear(const TorchApi& t, const Buffer& w, int64_t rows, Buffer& out);
// Null where writes could go unseen (watch.cc).
std::unique_ptr<MemoryWatch> WatchTorch(const TorchApi& t, const Buffer& b);
// Is the storage's memory torch's allocator's or our pool's, so that nobody else has it?
bool HasOrdinaryMemory(const TorchApi& t, Impl impl);

void* DataOf(const TorchApi& t, Impl impl, int64_t item);
Impl TakeFresh(const TorchApi& t, Handle result);
bool Deliver(const TorchApi& t, Handle result, Buffer& out);

// On CUDA tensors (torch_cuda.cc).
bool CudaAttention(const TorchApi& t, const Buffer& q, const Buffer& k, const Buffer& v, const Buffer* mask,
                   bool causal, double scale, Buffer& out);
void* CudaStream(const TorchApi& t, Device device);
bool CudaBeginRecording(const TorchApi& t, Device device, void* stream, void** pool);
void CudaEndRecording(const TorchApi& t, Device device, void* pool);
uint64_t CudaSettings(const TorchApi& t);
void TorchCopy(const TorchApi& t, const Buffer& from, const Buffer& to);  // Any devices, `to` has the sizes.

}  // namespace framejit::tensor
