#include "tensor/cupy_api.h"

#include <cstring>

#include "runtime/cuda/driver.h"
#include "tensor/import.h"
#include "tensor/numpy_api.h"

namespace framejit::tensor {

const CupyApi* bound_cupy = nullptr;

namespace {

const char* verdict = "not imported";

// A C function that a Cython module exports, if its signature is the one we know.
void* Exported(const char* module, const char* name, std::initializer_list<const char*> parts) {
  Ref m(Import(module)), table(m ? PyObject_GetAttrString(m.get(), "__pyx_capi__") : nullptr);
  PyObject* capsule = table && PyDict_Check(table.get()) ? PyDict_GetItemString(table.get(), name) : nullptr;
  PyErr_Clear();
  if (!capsule || !PyCapsule_CheckExact(capsule)) return nullptr;
  const char* signature = PyCapsule_GetName(capsule);
  for (const char* at = signature; const char* part : parts) {
    at = at ? std::strstr(at, part) : nullptr;
    if (!at) return nullptr;
    at += std::strlen(part);
  }
  return PyCapsule_GetPointer(capsule, signature);
}

// The words of an object, without the head that all have.
template <class F>
int Find(PyObject* o, F&& is) {
  const auto size = static_cast<int>(Py_TYPE(o)->tp_basicsize);
  for (int at = sizeof(PyObject); at + 4 <= size; at += 4) {
    if (is(reinterpret_cast<char*>(o) + at, size - at)) return at;
  }
  return -1;
}

// Of an array that lies where nothing is, on a device that nobody has.
bool FindFields(CupyApi& c) {
  constexpr intptr_t kAddress = 0x5eed1234000;
  constexpr int kDevice = 77;
  Ref cuda(PyObject_GetAttrString(c.module, "cuda"));
  Ref memory(cuda ? PyObject_CallMethod(cuda.get(), "UnownedMemory", "LLOi", static_cast<long long>(kAddress), 4096LL,
                                        Py_None, kDevice)
                  : nullptr);
  Ref pointer(memory ? PyObject_CallMethod(cuda.get(), "MemoryPointer", "Oi", memory.get(), 0) : nullptr);
  const std::vector<intptr_t> shape{2, 3, 5}, strides{64, 4, 12};
  Ref kwargs(pointer ? Py_BuildValue("{s:O,s:(LLL)}", "memptr", pointer.get(), "strides", 64LL, 4LL, 12LL) : nullptr);
  Ref args(Py_BuildValue("((iii)s)", 2, 3, 5, "float32"));
  Ref a(kwargs && args ? PyObject_Call(reinterpret_cast<PyObject*>(c.array), args.get(), kwargs.get()) : nullptr);
  Ref dtype(a ? PyObject_GetAttrString(a.get(), "dtype") : nullptr);
  Ref data(a ? PyObject_GetAttrString(a.get(), "data") : nullptr);
  if (!dtype || !data) return false;
  auto vector = [](const std::vector<intptr_t>& v) {
    return [&v](const char* p, int room) {
      intptr_t words[3];
      if (room < static_cast<int>(sizeof words) || reinterpret_cast<uintptr_t>(p) % 8) return false;
      std::memcpy(words, p, sizeof words);
      return words[0] && words[1] - words[0] == static_cast<intptr_t>(v.size() * sizeof(intptr_t)) &&
             words[2] >= words[1] &&
             !std::memcmp(reinterpret_cast<const void*>(words[0]), v.data(), v.size() * sizeof(intptr_t));
    };
  };
  auto word = [](auto value) {
    return [value](const char* p, int room) {
      constexpr size_t kBytes = sizeof(decltype(value));
      return room >= static_cast<int>(kBytes) && !(reinterpret_cast<uintptr_t>(p) % kBytes) &&
             !std::memcmp(p, &value, kBytes);
    };
  };
  c.shape = Find(a.get(), vector(shape));
  c.strides = Find(a.get(), vector(strides));
  c.dtype = Find(a.get(), word(dtype.get()));
  c.data = Find(a.get(), word(data.get()));
  c.address = Find(data.get(), word(kAddress));
  c.device = Find(data.get(), word(kDevice));
  return (c.shape | c.strides | c.dtype | c.data | c.address | c.device) >= 0;
}

bool Bind(CupyApi& c) {
  Ref type(PyObject_GetAttrString(c.module, "ndarray"));
  if (!type || !PyType_Check(type.get()) || !Numpy()) return false;
  c.array = reinterpret_cast<PyTypeObject*>(type.release());
  verdict = "its arrays' fields were not found";
  if (!FindFields(c)) return false;
  verdict = "its functions have other signatures";
  c.current_stream = reinterpret_cast<decltype(c.current_stream)>(
      Exported("cupy_backends.cuda.stream", "get_current_stream_ptr", {"intptr_t (void)"}));
  c.empty = reinterpret_cast<decltype(c.empty)>(
      Exported("cupy._core.core", "_create_ndarray_from_shape_strides",
               {"(PyObject *, ", "shape_t const &, ", "strides_t const &, PyObject *, PyObject *)"}));
  if (!c.current_stream || !c.empty) return false;
  verdict = "ok";
  return true;
}

}  // namespace

const CupyApi* BindCupy() {
  static Imported module("cupy");
  static CupyApi api;
  static bool refused = false, binding = false;
  PyObject* cupy = refused || binding ? nullptr : module.Get();
  if (!cupy) return nullptr;
  SavedError saved;
  Ref done(PyObject_GetAttrString(cupy, "fuse"));  // made late in its import
  if (!done) return PyErr_Clear(), nullptr;
  binding = true;
  api = CupyApi();
  api.module = Py_NewRef(cupy);
  if (Bind(api))
    bound_cupy = &api;
  else
    refused = true;
  binding = false;
  PyErr_Clear();
  return bound_cupy;
}

const char* CupyVerdict() {
  Cupy();
  return verdict;
}

bool OnCurrentDevice(int device) {
  const runtime::cuda::Driver* d = runtime::cuda::GetDriver();
  runtime::cuda::Context now = nullptr;
  if (!d || d->ctx_current(&now) || !now) return device == 0;  // a thread that has not chosen works on the first
  static thread_local int known = -1;
  static thread_local runtime::cuda::Context context = nullptr;
  if (known != device) {
    try {
      context = runtime::cuda::GetDevice(device).context;
    } catch (const std::exception&) {
      return false;
    }
    known = device;
  }
  return now == context;
}

}  // namespace framejit::tensor
