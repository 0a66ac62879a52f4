// Argument vectors of calls, as vectorcall has them.
#pragma once

#include <absl/container/fixed_array.h>

#include <algorithm>

#include "capture/ref.h"

namespace framejit::capture {

struct Vector {  // The arguments of one call, with the free place in front that vectorcall may use.
  absl::FixedArray<PyObject*, 14> all;
  Vector(PyObject* first, PyObject* const* args, Py_ssize_t total) : all(total + 2) {
    PyObject** to = all.data();
    *to++ = nullptr;
    if (first) *to++ = first;
    std::copy(args, args + total, to);
  }
  PyObject** data() { return all.data() + 1; }
};

inline Py_ssize_t KwCount(PyObject* kwnames) {
  return kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
}

inline bool IsMethodDescriptor(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  return t == &PyMethodDescr_Type || t == &PyWrapperDescr_Type || t == &PyClassMethodDescr_Type;
}

}  // namespace framejit::capture
