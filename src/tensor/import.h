// A module of ours or of the standard library.
#pragma once

#include "tensor/ref.h"

namespace framejit::tensor {

// New reference. PyImport_ImportModule asks the builtins of the program that runs, which may have no __import__ or one
// of their own.
inline PyObject* Import(const char* name) {
  Ref text(PyUnicode_FromString(name));
  if (!text) return nullptr;
  if (PyObject* known = PyImport_GetModule(text.get()); known || PyErr_Occurred()) return known;
  Ref whole(Py_BuildValue("(s)", "__name__"));  // Looks for no module in our own package.
  return whole ? PyImport_ImportModuleLevelObject(text.get(), nullptr, nullptr, whole.get(), 0) : nullptr;
}

}  // namespace framejit::tensor
