// The CuPy side of a run: memory from CuPy's current allocator, work on its current stream.
#include <algorithm>
#include <stdexcept>

#include "tensor/cupy_api.h"
#include "tensor/numpy_api.h"
#include "tensor/run_context.h"
#include "tensor/tensor.h"

namespace framejit::tensor {

namespace {

Ref Tuple(const int64_t* numbers, int n, int64_t factor) {
  Ref t(PyTuple_New(n));
  for (int i = 0; t && i < n; ++i) PyTuple_SET_ITEM(t.get(), i, PyLong_FromLongLong(numbers[i] * factor));
  return t;
}

// A buffer as an array for the length of a call. Null with an exception.
Ref ArrayOf(const CupyApi& c, const Buffer& b) {
  if (b.handle) {  // the object itself, if the buffer still describes it
    auto* o = static_cast<PyObject*>(b.handle);
    const CupyFields f = FieldsOf(c, o);
    bool same = f.address == b.data && static_cast<int>(f.shape->size()) == b.rank;
    for (int i = 0; same && i < b.rank; ++i)
      same = (*f.shape)[i] == b.sizes[i] && (*f.strides)[i] == b.strides[i] * DTypeSize(b.dtype);
    if (same) return Ref::Borrow(o);
  }
  const int64_t item = DTypeSize(b.dtype);
  int64_t last = 0;
  for (int i = 0; i < b.rank; ++i) last += std::max<int64_t>(0, b.sizes[i] - 1) * b.strides[i];
  Ref cuda(PyObject_GetAttrString(c.module, "cuda"));
  Ref memory(cuda ? PyObject_CallMethod(cuda.get(), "UnownedMemory", "LLOi",
                                        static_cast<long long>(reinterpret_cast<intptr_t>(b.data)),
                                        (static_cast<long long>(last) + 1) * item, Py_None, int{b.device.index})
                  : nullptr);
  Ref pointer(memory ? PyObject_CallMethod(cuda.get(), "MemoryPointer", "Oi", memory.get(), 0) : nullptr);
  Ref shape = Tuple(b.sizes, b.rank, 1), strides = Tuple(b.strides, b.rank, item);
  if (!pointer || !shape || !strides) return Ref();
  return Ref(PyObject_CallFunction(reinterpret_cast<PyObject*>(c.array), "OOOO", shape.get(),
                                   Numpy()->descr[static_cast<int>(b.dtype)], pointer.get(), strides.get()));
}

class Host : public framejit::Host {
 public:
  void AllocateOutput(DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides, Device,
                      Buffer* out) override {
    HoldGil gil;
    const CupyApi& c = *Cupy();
    auto* type = reinterpret_cast<PyObject*>(c.array);
    PyObject *descr = Numpy()->descr[static_cast<int>(dtype)], *a;
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) {
      a = PyObject_CallFunction(type, "OO", Tuple(sizes.data(), static_cast<int>(sizes.size()), 1).get(), descr);
    } else {
      std::vector<intptr_t> shape(sizes.begin(), sizes.end()), steps;
      for (int64_t s : strides) steps.push_back(s * DTypeSize(dtype));
      a = c.empty(type, shape, steps, descr, Py_None);
    }
    if (!a) throw ExternError();
    out->handle = a;
    out->data = FieldsOf(c, a).address;
  }
  void FreeOutput(Buffer* out) override { Release(out); }
  void Release(Buffer* b) override {
    HoldGil gil;
    Py_XDECREF(static_cast<PyObject*>(b->handle));
    b->handle = b->data = nullptr;
  }
  void RunExtern(const Call& call, std::span<const Buffer>, std::span<Buffer>) override {
    HoldGil gil;  // capture declines what has no row
    PyErr_Format(PyExc_RuntimeError, "framejit: %s on CuPy's arrays", call.callee.name().c_str());
    throw ExternError();
  }
  void* CurrentStream(Device) override { return reinterpret_cast<void*>(Cupy()->current_stream()); }  // NOLINT

  void Copy(const Buffer& from, const Buffer& to) override {
    HoldGil gil;
    const CupyApi& c = *Cupy();
    if (from.device.kind != to.device.kind) throw std::runtime_error("a copy between CuPy's memory and the CPU's");
    Buffer source = from;
    source.rank = to.rank;
    source.sizes = to.sizes;
    Ref x = ArrayOf(c, source), y = ArrayOf(c, to);
    if (!x || !y || PyObject_SetItem(y.get(), Py_Ellipsis, x.get()) < 0) throw ExternError();
  }

  // cuBLAS as CuPy calls it, into the result.
  bool MatMul(const Buffer& a, const Buffer& b, Buffer& out) override {
    HoldGil gil;
    const CupyApi& c = *Cupy();
    static PyObject* matmul = PyObject_GetAttrString(c.module, "matmul");
    static PyObject* names = Py_BuildValue("(s)", "out");
    Ref x = ArrayOf(c, a), y = ArrayOf(c, b), z = ArrayOf(c, out);
    if (!matmul || !names || !x || !y || !z) throw ExternError();
    PyObject* args[] = {x.get(), y.get(), z.get()};
    Ref r(PyObject_Vectorcall(matmul, args, 2, names));
    if (!r) throw ExternError();
    return true;
  }
};

}  // namespace

void WithCupyHost(RunContext&, UseHost use) {
  static Host* host = new Host();  // knows nothing of a run; used until the last thread is gone: never destroyed
  use(*host);
}

}  // namespace framejit::tensor
