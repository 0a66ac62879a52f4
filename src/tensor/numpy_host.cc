// This file has the NumPy side of a run. Allocation and library calls need the GIL and take it. Kernels run on
// framejit's own threads.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "runtime/arena.h"
#include "runtime/copy.h"
#include "runtime/thread_pool.h"
#include "tensor/numpy_api.h"
#include "tensor/product_pairs.h"
#include "tensor/run_context.h"
#include "tensor/tensor.h"
#include "tensor/ufunc_loops.h"

namespace framejit::tensor {

namespace {

void BytesOf(DType dtype, std::span<const int64_t> strides, int64_t* out) {
  for (size_t i = 0; i < strides.size(); ++i) out[i] = strides[i] * DTypeSize(dtype);
}

// How the array lies: strides say nothing where there is one element, or none.
bool Describes(const Buffer& b, const NumpyArray& a) {
  if (a.data != b.data || a.nd != b.rank) return false;
  for (int i = 0; i < b.rank; ++i) {
    if (a.dims[i] != b.sizes[i]) return false;
    if (b.sizes[i] > 1 && a.strides[i] != b.strides[i] * DTypeSize(b.dtype)) return false;
  }
  return true;
}

// PyDataMem_Handler of NumPy's headers: large results are memory of the pool, others (an array that is resized)
// malloc's.
struct MemoryHandler {
  char name[127];
  uint8_t version;
  void* context;
  void* (*malloc)(void*, size_t);
  void* (*calloc)(void*, size_t, size_t);
  void* (*realloc)(void*, void*, size_t);
  void (*free)(void*, void*, size_t);
};

bool Pooled(size_t bytes) {
  return bytes >= (runtime::Poisons() ? 1 : runtime::kResultFrom) && bytes <= runtime::kResultTo;
}

void* TakeMemory(void*, size_t bytes) {
  if (!Pooled(bytes)) return std::malloc(bytes);
  try {
    return runtime::ArenaPool::Get().AcquireResult(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void GiveMemory(void*, void* data, size_t) {
  if (!data) return;
  if (runtime::ArenaPool::Get().BytesOfResult(data))
    runtime::ArenaPool::Get().ReleaseResult(data);
  else
    std::free(data);
}

void* TakeZeros(void*, size_t n, size_t size) {
  void* data = TakeMemory(nullptr, n * size);
  if (data) std::memset(data, 0, n * size);
  return data;
}

void* TakeOtherMemory(void*, void* data, size_t bytes) {
  const size_t old = data ? runtime::ArenaPool::Get().BytesOfResult(data) : 0;
  if (!old) return std::realloc(data, bytes);
  void* other = TakeMemory(nullptr, bytes);
  if (!other) return nullptr;
  std::memcpy(other, data, std::min(old, bytes));
  GiveMemory(nullptr, data, old);
  return other;
}

// While it lives, arrays that are made of so many bytes lie in the pool, unless the program says itself where arrays
// lie.
class FromPool {
 public:
  FromPool(const NumpyApi& n, size_t bytes) : n_(n) {
    if (!Pooled(bytes)) return;
    static MemoryHandler handler{"framejit", 1, nullptr, TakeMemory, TakeZeros, TakeOtherMemory, GiveMemory};
    static PyObject* const ours = PyCapsule_New(&handler, "mem_handler", nullptr);
    const Ref now(n.get_memory());
    if (ours && now.get() == n.own_memory) before_ = Ref(n.set_memory(ours));
    PyErr_Clear();
  }
  ~FromPool() {
    if (!before_) return;
    SavedError saved;
    const Ref ours(n_.set_memory(before_.get()));
  }

 private:
  const NumpyApi& n_;
  Ref before_;
};

class Host : public framejit::Host, public runtime::RowProducts {
 public:
  explicit Host(RunContext* run) : run_(run) {}  // null: outside of a run
  framejit::Host& BeyondRun() override { return NumpyHost(); }

  [[gnu::hot]] void AllocateOutput(DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides,
                                   Device, Buffer* out) override {
    HoldGil gil;
    PyObject* a = Allocate(*Numpy(), dtype, sizes, strides);
    if (!a) {
      PyErr_Clear();
      throw std::bad_alloc();
    }
    out->handle = a;
    out->data = AsArray(a)->data;
  }
  void SetSymbol(uint32_t symbol, int64_t value) override {
    if (run_) run_->symbols[symbol] = value;
  }
  void FreeOutput(Buffer* out) override { Release(out); }
  void Release(Buffer* b) override {
    HoldGil gil;
    Py_XDECREF(static_cast<PyObject*>(b->handle));
    b->handle = b->data = nullptr;
  }

  void RunExtern(const Call& call, std::span<const Buffer> operands, std::span<Buffer> results) override {
    const NumpyApi& n = *Numpy();
    HoldGil gil;
    std::vector<Ref> arrays;
    std::vector<PyObject*> slots;
    for (const Buffer& b : operands) {
      arrays.emplace_back(ArrayOf(n, b));
      if (!arrays.back()) throw ExternError();
      slots.push_back(arrays.back().get());
    }
    NumpyRaises raises;
    Ref value(InvokeExtern(run_, call, slots.data()));
    if (!value) throw ExternError();
    std::vector<PyObject*> flat;
    FlattenResults(value.get(), &flat);
    if (flat.size() != results.size()) Fail("the call returned another number of arrays than when it was captured");
    Meta m;
    const char* why = "";
    for (PyObject* o : flat) {
      if (!ReadMeta(o, &m, &why)) Fail(why);
    }
    static thread_local std::vector<std::unique_ptr<Meta>> kept;  // sizes and strides in elements of recent results
    if (kept.size() > 64) kept.erase(kept.begin(), kept.begin() + 32);
    for (size_t i = 0; i < flat.size(); ++i) {
      kept.push_back(std::make_unique<Meta>());
      Meta& k = *kept.back();
      ReadMeta(flat[i], &k);
      Buffer& r = results[i];
      r.handle = Py_NewRef(flat[i]);
      r.data = k.data;
      r.dtype = k.dtype;
      r.rank = k.rank;
      r.sizes = k.sizes;
      r.strides = k.strides;
    }
  }

  // NumPy's own BLAS, or its loop for half floats, into the result.
  bool MatMul(const Buffer& a, const Buffer& b, Buffer& out) override {
    if (!IsFloat(a.dtype)) return false;
    if (MultiplySmall(a, b, out)) return true;
    HoldGil gil;
    const NumpyApi& n = *Numpy();
    static PyObject* matmul = PyObject_GetAttrString(n.module, "matmul");
    static PyObject* names = Py_BuildValue("(s)", "out");
    Ref x(ArrayOf(n, a)), y(ArrayOf(n, b)), z(ArrayOf(n, out));
    if (!matmul || !names || !x || !y || !z) return PyErr_Clear(), false;
    PyObject* args[] = {x.get(), y.get(), z.get()};
    NumpyRaises raises;
    Ref r(PyObject_Vectorcall(matmul, args, 2, names));
    if (!r && PyErr_ExceptionMatches(PyExc_FloatingPointError)) throw ExternError();
    if (!r) PyErr_Clear();
    return static_cast<bool>(r);
  }

  bool MultiplyRows(const Buffer& a, const Buffer& b, Buffer& out, runtime::MakeRows rows, void* ctx) override {
    return tensor::MultiplyRows(*this, a, b, out, rows, ctx);
  }

  bool MultiplyBoth(const Product& first, const Product& second) override {
    return tensor::MultiplyBoth(*this, first, second);
  }

  int NumThreads() override { return runtime::ThreadPool::Get().num_threads(); }
  void ParallelFor(int64_t n, int64_t grain, void (*f)(void* ctx, int64_t begin, int64_t end), void* ctx) override {
    runtime::ThreadPool::Get().ParallelFor(n, grain, f, ctx);
  }

 private:
  // Kernels write with these strides. NumPy takes strides for memory of its own if they fit in it: where they are not
  // dense (results that lie as a view does), the array is a view of one that is as long as they reach.
  [[gnu::hot]] static PyObject* Allocate(const NumpyApi& n, DType dtype, std::span<const int64_t> sizes,
                                         std::span<const int64_t> strides) {
    int64_t bytes[32], numel = 1;
    const int rank = static_cast<int>(sizes.size()), item = static_cast<int>(DTypeSize(dtype));
    for (int i = 0; i < rank; ++i) {
      bytes[i] = strides[i] * item;
      numel *= sizes[i];
    }
    const runtime::Extent reach = runtime::ExtentOf(sizes, strides);
    const FromPool pool(n, (reach.high - reach.low) * item);
    if (reach.low == 0 && reach.high == numel) [[likely]]
      return NewArray(n, dtype, rank, sizes.data(), numel ? bytes : nullptr);
    const int64_t length = reach.high - reach.low;
    Ref memory(NewArray(n, dtype, 1, &length, nullptr));
    if (!memory) return nullptr;
    return ViewOf(n, dtype, rank, sizes.data(), bytes, AsArray(memory.get())->data - reach.low * item, memory.get());
  }

  [[noreturn]] static void Fail(const char* text) {
    PyErr_Format(PyExc_RuntimeError, "framejit: extern call: %s", text);
    throw ExternError();
  }

  RunContext* const run_;
};

}  // namespace

PyObject* ArrayOf(const NumpyApi& n, const Buffer& b) {
  if (b.handle) {  // the object itself, if the buffer still describes it
    auto* o = static_cast<PyObject*>(b.handle);
    if (Py_TYPE(o) != n.array || Describes(b, *AsArray(o))) return Py_NewRef(o);
  }
  int64_t strides[32];
  BytesOf(b.dtype, {b.strides, static_cast<size_t>(b.rank)}, strides);
  return ViewOf(n, b.dtype, b.rank, b.sizes, strides, b.data, static_cast<PyObject*>(b.handle));
}

[[gnu::hot]] void WithNumpyHost(RunContext& run, UseHost use) {
  Host host(&run);
  use(host);
}

framejit::Host& NumpyHost() {
  static Host* host = new Host(nullptr);
  return *host;
}

}  // namespace framejit::tensor
