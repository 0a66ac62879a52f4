#include "tensor/torch_host.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "graph/effects.h"
#include "graph/opaque.h"
#include "runtime/arena.h"
#include "runtime/copy.h"
#include "tensor/import.h"
#include "tensor/numpy_api.h"
#include "tensor/run_context.h"
#include "tensor/tensor.h"

namespace framejit::tensor {

namespace {

// Memory of a large result comes from our pool (runtime/arena.h): the storage that torch has made, its pages untouched,
// gets another data pointer with another deleter. It stays an ordinary storage of torch's allocator, which can be
// resized. The three words of a c10::DataPtr: data, deleter, context; torch's CPU allocator has data as the context.
using Deleter = void (*)(void*);
struct DataPointer {
  void* data;
  Deleter deleter;
  void* context;
};

void GiveBack(void* data) {
  runtime::ArenaPool::Get().ReleaseResult(data);
}

// Gives the functions of torch's CPU allocator, and null if data pointers do not look as described above.
Deleter TorchDeleter(const TorchApi& t) {
  static const Deleter deleter = [&]() -> Deleter {
    if (!t.at.all() || !t.empty_strided_cpu) return nullptr;
    const int64_t size = 1000, stride = 1;
    TensorValue v =
        t.empty_strided_cpu({&size, 1}, {&stride, 1}, t.dtypes[static_cast<int>(DType::kFloat32)].number, false);
    const auto p = Field<DataPointer>(Field<void*>(v.impl, t.at.storage), t.at.storage_data);
    ReleaseImpl(t, v.impl);
    Dl_info where;
    const bool code = p.deleter && dladdr(reinterpret_cast<void*>(p.deleter), &where) && where.dli_fname;
    return code && p.context == p.data && std::strstr(where.dli_fname, "libc10") ? p.deleter : nullptr;
  }();
  return deleter;
}

void UsePool(const TorchApi& t, Impl impl, size_t bytes) {
  const size_t from = runtime::Poisons() ? 1 : runtime::kResultFrom;
  if (bytes < from || bytes > runtime::kResultTo || !TorchDeleter(t)) return;
  auto& p = Field<DataPointer>(Field<void*>(impl, t.at.storage), t.at.storage_data);
  if (p.deleter != TorchDeleter(t) || p.context != p.data) return;
  void* data = runtime::ArenaPool::Get().AcquireResult(bytes);
  p.deleter(p.context);
  p = {data, GiveBack, data};
}

int32_t TorchDevice(Device d) {
  return d.kind == DeviceKind::kCpu ? 0 : d.kind == DeviceKind::kCuda ? 1 : 14;
}

class Host : public framejit::Host {
 public:
  explicit Host(RunContext* run) : run_(run) {}  // null: outside of a run
  framejit::Host& BeyondRun() override { return TorchHost(); }

  [[gnu::hot]] void AllocateOutput(DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides,
                                   Device device, Buffer* out) override {
    if (!AllocateArray(dtype, sizes, strides, device, out)) Allocate(dtype, sizes, strides, device, out);
  }
  [[gnu::hot]] void Allocate(DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides,
                             Device device, Buffer* out) {
    const TorchApi& t = *Torch();
    int8_t number = t.dtypes[static_cast<int>(dtype)].number;
    Impl impl;
    if (device.kind == DeviceKind::kCpu && t.empty_strided_cpu) {
      try {
        TensorValue v =
            t.empty_strided_cpu({sizes.data(), sizes.size()}, {strides.data(), strides.size()}, number, false);
        impl = v.impl;
      } catch (const std::exception&) {
        throw std::bad_alloc();
      }
    } else if (device.kind == DeviceKind::kCuda && t.empty_strided_cuda) {
      const OptionalDevice at{1, static_cast<int8_t>(std::max<int>(0, device.index)), true};
      try {
        TensorValue v =
            t.empty_strided_cuda({sizes.data(), sizes.size()}, {strides.data(), strides.size()}, number, at);
        impl = v.impl;
      } catch (const std::exception& e) {
        throw DeviceMemoryError(e.what());
      }
    } else {
      Handle h = nullptr;
      if (t.empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), number, TorchDevice(device),
                          device.index < 0 ? 0 : device.index, &h))
        throw std::bad_alloc();
      impl = TakeHandle(t, h);
    }
    if (device.kind == DeviceKind::kCpu) UsePool(t, impl, runtime::ExtentOf(sizes, strides).high * DTypeSize(dtype));
    out->handle = impl;
    out->data = DataOf(t, impl, DTypeSize(dtype));
  }

  bool TakesInputs() override { return run_ && run_->taken; }
  void InputDone(size_t input) override {
    HoldGil gil;
    (*run_->taken)[input] = Ref();
  }
  void SetSymbol(uint32_t symbol, int64_t value) override {
    if (run_) run_->symbols[symbol] = value;
  }
  void FreeOutput(Buffer* out) override { Release(out); }
  void Release(Buffer* b) override {
    if (b->handle) ReleaseImpl(*Torch(), b->handle);
    b->handle = b->data = nullptr;
  }

  void RunExtern(const Call& call, std::span<const Buffer> operands, std::span<Buffer> results) override {
    const TorchApi& t = *Torch();
    const auto opaque = [](std::span<const Buffer> all) {
      return std::any_of(all.begin(), all.end(), [](const Buffer& b) { return IsOpaque(b.device); });
    };
    const bool makes_opaque = opaque(results);
    if (!makes_opaque && !opaque(operands) && RunWithoutPython(t, call, operands, results)) return;
    HoldGil gil;
    const bool numpy = FrameworkOf(call.callee) == Framework::kNumpy, keeps = makes_opaque || call.callee.Has(kForeign);
    std::vector<Ref> tensors;
    std::vector<PyObject*> slots;
    for (const Buffer& b : operands) {
      Impl impl = b.handle;
      tensors.emplace_back(numpy                ? AsMemory(b)
                           : IsOpaque(b.device) ? Plain(t, &impl)
                           : keeps              ? AsOwned(t, b)
                                                : AsTensor(t, b));
      if (!tensors.back()) throw ExternError();
      slots.push_back(tensors.back().get());
    }
    Ref value;
    {
      ModeSwitch mode;
      mode.Set(call.mode);
      std::optional<NumpyRaises> raises;
      if (numpy) raises.emplace();
      value = Ref(InvokeExtern(run_, call, slots.data()));
    }
    if (!value) throw ExternError();
    std::vector<PyObject*> flat;
    FlattenResults(value.get(), &flat);
    if (numpy) {
      static PyObject* functions = Import("framejit._functions");
      for (PyObject*& o : flat) {
        Keep(o);
        tensors.emplace_back(functions ? PyObject_CallMethod(functions, "tensor_of", "O", o) : nullptr);
        o = tensors.back().get();
        if (!o) throw ExternError();
      }
    }
    if (flat.size() != results.size()) Fail("the call returned another number of tensors than when it was captured");
    std::vector<Meta> metas(flat.size());
    const char* why = "";
    for (size_t i = 0; i < flat.size(); ++i) {
      if (IsOpaque(results[i].device)) {
        metas[i].dtype = results[i].dtype;
        metas[i].device = results[i].device;
        metas[i].rank = results[i].rank;
        continue;
      }
      if (!ReadAny(flat[i], &metas[i], &why)) Fail(why);
      if (!metas[i].conj && !metas[i].neg) continue;
      tensors.emplace_back(Resolved(flat[i]));  // values of the graph are what is read
      flat[i] = tensors.back().get();
      if (!flat[i] || !ReadMeta(flat[i], &metas[i], &why)) Fail(why);
    }
    for (size_t i = 0; i < flat.size(); ++i) {  // nothing fails from here on: what is handed out is owned by the caller
      Handle shared = nullptr;
      t.new_tensor_handle(reinterpret_cast<char*>(flat[i]) + sizeof(PyObject), &shared);
      Buffer& r = results[i];
      r.handle = TakeHandle(t, shared);
      r.data = metas[i].data;
      r.dtype = metas[i].dtype;
      r.device = metas[i].device;
      r.rank = metas[i].rank;
      TorchDims d;
      if (t.at.all()) {
        d = DimsOf(t, r.handle);
      } else {
        Remembered(metas[i], &d);
      }
      r.sizes = d.sizes;  // live as long as the tensor
      if (!IsOpaque(r.device)) r.strides = d.strides;
    }
  }

  bool MatMul(const Buffer& a, const Buffer& b, Buffer& out) override { return TorchMatMul(*Torch(), a, b, out); }
  bool Linear(const Buffer& x, const Buffer& w, const Buffer* bias, const Buffer* packed, Buffer& out) override {
    return TorchLinear(*Torch(), x, w, bias, packed, out);
  }
  bool LinearThen(const std::string& function, const Buffer& x, const Buffer& w, const Buffer& bias,
                  Buffer& out) override {
    return TorchLinearThen(*Torch(), function, x, w, bias, out);
  }
  bool Conv(const Buffer& x, const Buffer& w, const Buffer* bias, const Attrs& attrs, Buffer& out) override {
    return TorchConv(*Torch(), x, w, bias, attrs, out);
  }
  bool Attention(const Buffer& q, const Buffer& k, const Buffer& v, const Buffer* mask, bool causal, double scale,
                 Buffer& out) override {
    return TorchAttention(*Torch(), q, k, v, mask, causal, scale, out);
  }

  bool Pack(const Buffer& w, const Attrs& attrs, Buffer& out) override { return TorchPack(*Torch(), w, attrs, out); }
  std::unique_ptr<MemoryWatch> WatchMemory(const Buffer& b) override { return WatchTorch(*Torch(), b); }

  void* CurrentStream(Device device) override { return CudaStream(*Torch(), device); }
  void Copy(const Buffer& from, const Buffer& to) override { TorchCopy(*Torch(), from, to); }
  bool BeginRecording(Device device, void* stream, void** pool) override {
    return CudaBeginRecording(*Torch(), device, stream, pool);
  }
  void EndRecording(Device device, void* pool) override { CudaEndRecording(*Torch(), device, pool); }
  uint64_t LibrarySettings() override { return CudaSettings(*Torch()); }

  int NumThreads() override {
    const TorchApi& t = *Torch();
    uint32_t n = 1;
    if (t.num_threads && t.parallel_for) t.num_threads(&n);
    return static_cast<int>(n);
  }
  void ParallelFor(int64_t n, int64_t grain, void (*f)(void* ctx, int64_t begin, int64_t end), void* ctx) override {
    struct Body {
      void (*f)(void*, int64_t, int64_t);
      void* ctx;
    } body{f, ctx};
    const TorchApi& t = *Torch();
    auto run = [](int64_t begin, int64_t end, void* p) {
      auto* b = static_cast<Body*>(p);
      b->f(b->ctx, begin, end);
    };
    if (!t.parallel_for || t.parallel_for(0, n, grain, run, &body)) f(ctx, 0, n);
  }

 private:
  void Keep(PyObject* made) {
    PyObject* o = made;
    const auto is_array = [&] { return o && Classify(o) == Class::kNumpyArray; };
    while (is_array() && !(AsArray(o)->flags & kNpyOwnData)) o = AsArray(o)->base;
    if (run_ && run_->arrays && is_array()) run_->arrays->called.push_back(Ref::Borrow(made));
  }
  // The array is kept by the run. To torch it is memory.
  bool AllocateArray(DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides, Device device,
                     Buffer* out) {
    ArrayOutputs* arrays = run_ ? run_->arrays : nullptr;
    const size_t number = arrays ? out - arrays->first : 0;
    if (!arrays || number >= arrays->wanted->size() || !(*arrays->wanted)[number]) return false;
    NumpyHost().AllocateOutput(dtype, sizes, strides, device, out);
    HoldGil gil;
    arrays->made[number] = Ref(static_cast<PyObject*>(std::exchange(out->handle, nullptr)));
    return true;
  }

  static PyObject* AsTensor(const TorchApi& t, const Buffer& b) {
    TempTensor temp(t, b);
    if (!temp.ok()) Fail("an operand cannot be made a tensor");
    return Plain(t, temp.handle());
  }
  // A tensor that may be kept: that which the buffer tells of, a view of it, or a copy where nobody owns the memory.
  PyObject* AsOwned(const TorchApi& t, Buffer b) {
    TempTensor temp(t, b);
    if (temp.ok() && !temp.made()) return Plain(t, temp.handle());
    const int64_t item = DTypeSize(b.dtype);
    const void* begin = b.handle && t.at.all() ? DataOf(t, b.handle, item) : nullptr;
    if (begin && FromScalarType(Field<uint16_t>(b.handle, t.at.dtype)) == b.dtype) {
      Handle view = nullptr;
      const int64_t offset = (static_cast<const char*>(b.data) - static_cast<const char*>(begin)) / item;
      if (t.reinterpret && !t.reinterpret(&b.handle, b.rank, b.sizes, b.strides, offset, &view))
        return WrapTorch(t, TakeHandle(t, view));
    }
    const size_t rank = b.rank;
    Buffer copy = b;
    Allocate(b.dtype, {b.sizes, rank}, {b.strides, rank}, b.device, &copy);
    runtime::StridedCopy(*this, b, copy);
    return WrapTorch(t, copy.handle);
  }
  // Gradients are the segment's business: a call gets values, of which torch records nothing.
  static PyObject* Plain(const TorchApi& t, Handle handle) {
    Handle shared = nullptr;
    t.new_tensor_handle(handle, &shared);
    Ref tensor(WrapTorch(t, TakeHandle(t, shared)));
    const bool recorded = tensor && RequiresGrad(tensor.get());
    return recorded ? PyObject_CallMethod(tensor.get(), "detach", nullptr) : tensor.release();
  }
  static PyObject* AsMemory(Buffer b) {  // an array
    b.handle = nullptr;
    return ArrayOf(*Numpy(), b);
  }

  [[noreturn]] static void Fail(const char* text) {
    PyErr_Format(PyExc_RuntimeError, "framejit: extern call: %s", text);
    throw ExternError();
  }
  // Sizes of the last results, where fields cannot be read. One run's results of one extern at a time.
  static void Remembered(const Meta& m, TorchDims* d) {
    static thread_local std::vector<std::unique_ptr<Meta>> kept;
    if (kept.size() > 64) kept.erase(kept.begin(), kept.begin() + 32);
    kept.push_back(std::make_unique<Meta>(m));
    *d = {m.rank, kept.back()->sizes, kept.back()->strides};
  }

  RunContext* const run_;
};

}  // namespace

void* DataOf(const TorchApi& t, Impl impl, int64_t item) {
  if (t.at.all()) {
    if (Field<int64_t>(impl, t.at.numel) == 0) return nullptr;
    return Field<char*>(Field<void*>(impl, t.at.storage), t.at.storage_data) + Field<int64_t>(impl, t.at.offset) * item;
  }
  void* data = nullptr;
  t.get_data_ptr(&impl, &data);
  return data;
}

TempTensor::TempTensor(const TorchApi& t, const Buffer& b) : t_(t) {
  if (b.handle && t.at.all()) {  // the tensor itself, if it still is what the buffer says
    TorchDims d = DimsOf(t, b.handle);
    bool same = d.rank == b.rank && DataOf(t, b.handle, DTypeSize(b.dtype)) == b.data &&
                FromScalarType(Field<uint16_t>(b.handle, t.at.dtype)) == b.dtype;
    for (int i = 0; same && i < b.rank; ++i) same = d.sizes[i] == b.sizes[i] && d.strides[i] == b.strides[i];
    if (same) {
      impl_ = b.handle;
      return;
    }
  }
  Make(b.data, b.rank, b.sizes, b.strides, b.dtype, b.device);
}

TempTensor::TempTensor(const TorchApi& t, void* data, int rank, const int64_t* sizes, const int64_t* strides,
                       DType dtype, Device device)
    : t_(t) {
  Make(data, rank, sizes, strides, dtype, device);
}

void TempTensor::Make(void* data, int rank, const int64_t* sizes, const int64_t* strides, DType dtype, Device device) {
  Handle h = nullptr;
  if (!t_.from_blob || t_.from_blob(data, rank, sizes, strides, 0, t_.dtypes[static_cast<int>(dtype)].number,
                                    TorchDevice(device), device.index < 0 ? 0 : device.index, &h))
    return;
  impl_ = TakeHandle(t_, h);
  owned_ = true;
}

bool HasOrdinaryMemory(const TorchApi& t, Impl impl) {
  if (!TorchDeleter(t)) return false;
  const auto& p = Field<DataPointer>(Field<void*>(impl, t.at.storage), t.at.storage_data);
  return p.data && p.context == p.data && (p.deleter == TorchDeleter(t) || p.deleter == GiveBack);
}

[[gnu::hot]] void WithTorchHost(RunContext& run, UseHost use) {
  Host host(&run);
  use(host);
}

framejit::Host& TorchHost() {
  static Host* host = new Host(nullptr);  // used until the last thread is gone: never destroyed
  return *host;
}

}  // namespace framejit::tensor
