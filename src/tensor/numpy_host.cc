// The NumPy side of a run. Allocation and library calls need the GIL and take it; kernels run on framejit's own
// threads.
#include <new>

#include "runtime/thread_pool.h"
#include "tensor/numpy_api.h"
#include "tensor/run_context.h"
#include "tensor/tensor.h"

namespace framejit::tensor {

namespace {

void BytesOf(DType dtype, std::span<const int64_t> strides, int64_t* out) {
  for (size_t i = 0; i < strides.size(); ++i) out[i] = strides[i] * DTypeSize(dtype);
}

class Host : public framejit::Host {
 public:
  void AllocateOutput(DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides, Device,
                      Buffer* out) override {
    HoldGil gil;
    int64_t bytes[32];
    BytesOf(dtype, strides, bytes);
    // NumPy takes strides for memory of its own, and believes that they fit.
    int64_t last = 0, numel = 1;
    bool forward = true;
    for (size_t i = 0; i < sizes.size(); ++i) {
      numel *= sizes[i];
      last += (sizes[i] - 1) * strides[i];
      forward &= strides[i] > 0 || sizes[i] == 1;
    }
    bool fits = numel > 0 && forward && last == numel - 1;
    PyObject* a = NewArray(*Numpy(), dtype, static_cast<int>(sizes.size()), sizes.data(), fits ? bytes : nullptr);
    if (!a) {
      PyErr_Clear();
      throw std::bad_alloc();
    }
    out->handle = a;
    out->data = AsArray(a)->data;
  }
  void SetSymbol(uint32_t symbol, int64_t value) override {
    if (current_run) current_run->symbols[symbol] = value;
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
    Ref value(InvokeExtern(call, slots.data()));
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

  // NumPy's own BLAS, into the result.
  bool MatMul(const Buffer& a, const Buffer& b, Buffer& out) override {
    if (!IsFloat(a.dtype) || DTypeSize(a.dtype) < 4) return false;  // integers and half floats have no BLAS there
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

  int NumThreads() override { return runtime::ThreadPool::Get().num_threads(); }
  void ParallelFor(int64_t n, int64_t grain, void (*f)(void* ctx, int64_t begin, int64_t end), void* ctx) override {
    runtime::ThreadPool::Get().ParallelFor(n, grain, f, ctx);
  }

 private:
  [[noreturn]] static void Fail(const char* text) {
    PyErr_Format(PyExc_RuntimeError, "framejit: extern call: %s", text);
    throw ExternError();
  }
};

}  // namespace

PyObject* ArrayOf(const NumpyApi& n, const Buffer& b) {
  if (b.handle) {  // the object itself, if the buffer still describes it
    auto* o = static_cast<PyObject*>(b.handle);
    bool same = Py_TYPE(o) != n.array || (AsArray(o)->data == b.data && AsArray(o)->nd == b.rank);
    for (int i = 0; same && Py_TYPE(o) == n.array && i < b.rank; ++i) same = AsArray(o)->dims[i] == b.sizes[i];
    if (same) return Py_NewRef(o);
  }
  PyObject* descr = n.descr[static_cast<int>(b.dtype)];
  if (!descr)
    return PyErr_Format(PyExc_TypeError, "framejit: no NumPy type for %s", std::string(DTypeName(b.dtype)).c_str());
  int64_t strides[32];
  BytesOf(b.dtype, {b.strides, static_cast<size_t>(b.rank)}, strides);
  Py_INCREF(descr);
  return n.new_from_descr(n.array, descr, b.rank, reinterpret_cast<const intptr_t*>(b.sizes),
                          reinterpret_cast<intptr_t*>(strides), b.data, kNpyWriteable | kNpyAligned, nullptr);
}

framejit::Host& NumpyHost() {
  static Host* host = new Host();
  return *host;
}

}  // namespace framejit::tensor
