// CuPy as seen by framejit: the class and the C entry points that the user's `import cupy` has loaded, and the fields
// of its arrays, found by a self-test. An array is NumPy's kind of tensor (Framework::kNumpy) on a GPU.
#pragma once

#include <vector>

#include "framejit/dtype.h"
#include "tensor/ref.h"

namespace framejit::tensor {

struct CupyApi {
  PyObject* module = nullptr;
  PyTypeObject* array = nullptr;  // cupy.ndarray
  // Byte offsets in an array (two vectors, two objects) and in the object that points to its memory.
  int shape = -1, strides = -1, dtype = -1, data = -1;
  int address = -1, device = -1;
  intptr_t (*current_stream)() = nullptr;
  PyObject* (*empty)(PyObject* type, const std::vector<intptr_t>& shape, const std::vector<intptr_t>& strides,
                     PyObject* dtype, PyObject* none) = nullptr;
};

extern const CupyApi* bound_cupy;
const CupyApi* BindCupy();
inline const CupyApi* Cupy() {
  return bound_cupy ? bound_cupy : BindCupy();
}
const char* CupyVerdict();  // What `doctor` says.

struct CupyFields {
  const std::vector<intptr_t>*shape, *strides;  // The strides are in bytes.
  PyObject* dtype;
  char* address;
  int device;
};
inline CupyFields FieldsOf(const CupyApi& c, PyObject* array) {
  auto at = [](PyObject* o, int offset) { return reinterpret_cast<char*>(o) + offset; };
  PyObject* data = *reinterpret_cast<PyObject**>(at(array, c.data));
  return {reinterpret_cast<const std::vector<intptr_t>*>(at(array, c.shape)),
          reinterpret_cast<const std::vector<intptr_t>*>(at(array, c.strides)),
          *reinterpret_cast<PyObject**>(at(array, c.dtype)), *reinterpret_cast<char**>(at(data, c.address)),
          *reinterpret_cast<int*>(at(data, c.device))};
}
// Is it the device that CuPy works on, on this thread?
bool OnCurrentDevice(int device);

}  // namespace framejit::tensor
