// NumPy as seen by framejit: its C API table, taken from the module the user has imported (2.0 or newer), and the few
// struct fields that are read. No NumPy header.
#pragma once

#include <optional>

#include "framejit/compile.h"
#include "tensor/ref.h"

namespace framejit::tensor {

struct NumpyArray {  // the public part of PyArrayObject
  PyObject_HEAD char* data;
  int nd;
  intptr_t* dims;
  intptr_t* strides;
  PyObject* base;
  PyObject* descr;
  int flags;
};
struct NumpyDescr {  // the common head of PyArray_Descr
  PyObject_HEAD PyTypeObject* typeobj;
  char kind, type, byteorder, old_flags;
  int type_num;
};
inline constexpr int kNpyInOrder = 0x1 /* C */, kNpyInFortranOrder = 0x2, kNpyOwnData = 0x4, kNpyAligned = 0x100,
                     kNpyWriteable = 0x400;

struct NumpyApi {
  PyObject* module = nullptr;
  PyTypeObject* array = nullptr;
  PyTypeObject* generic = nullptr;             // numpy.generic
  PyTypeObject* descr_types[kNumDTypes] = {};  // metatypes differ by dtype in newer versions; type(np.dtype(x))
  PyObject* descr[kNumDTypes] = {};            // The objects of native types.
  PyTypeObject* scalar[kNumDTypes] = {};       // The types np.float64 and the like.
  PyObject* object_descr = nullptr;            // numpy.dtype(object)
  PyObject* (*new_from_descr)(PyTypeObject*, PyObject* descr, int, const intptr_t*, const intptr_t*, void*, int,
                              PyObject*) = nullptr;
  int (*set_base)(PyObject* array, PyObject* stolen) = nullptr;
  PyObject* (*make_scalar)(void*, PyObject* descr, PyObject*) = nullptr;
  // Who gives memory to new arrays of this context: a capsule, of which both give a reference, and NumPy's own.
  PyObject* (*set_memory)(PyObject* handler) = nullptr;
  PyObject* (*get_memory)() = nullptr;
  PyObject* own_memory = nullptr;
};

extern const NumpyApi* bound_numpy;
const NumpyApi* BindNumpy();
inline const NumpyApi* Numpy() {
  return bound_numpy ? bound_numpy : BindNumpy();
}

inline const NumpyArray* AsArray(PyObject* o) {
  return reinterpret_cast<const NumpyArray*>(o);
}
// An array whose elements are objects of Python's.
inline bool IsObjectArray(PyObject* o) {
  return bound_numpy && Py_TYPE(o) == bound_numpy->array && AsArray(o)->descr == bound_numpy->object_descr;
}
inline int64_t NumElements(PyObject* array) {
  int64_t n = 1;
  for (int i = 0; i < AsArray(array)->nd; ++i) n *= AsArray(array)->dims[i];
  return n;
}
// Element `i` of one that lies in C order. Borrowed.
inline PyObject* ObjectAt(PyObject* array, int64_t i) {
  PyObject* o = reinterpret_cast<PyObject**>(AsArray(array)->data)[i];
  return o ? o : Py_None;
}
// By NumPy's type number; nullopt for object, string, date, long double, structured, the spare 64-bit types.
std::optional<DType> FromTypeNum(int type_num);
std::optional<DType> ScalarDType(const NumpyApi& n, PyTypeObject* scalar_type);
// New array, C order unless strides (bytes) are given; uninitialised.
PyObject* NewArray(const NumpyApi& n, DType t, int rank, const int64_t* sizes, const int64_t* byte_strides);
// An array over memory that `owner` keeps, or, null, somebody who outlives it. Null with an exception.
PyObject* ViewOf(const NumpyApi& n, DType dtype, int rank, const int64_t* sizes, const int64_t* byte_strides,
                 void* data, PyObject* owner);
// A buffer whose handle is an array or null as an array, for the length of a call. Null with an exception.
PyObject* ArrayOf(const NumpyApi& n, const Buffer& b);

}  // namespace framejit::tensor
