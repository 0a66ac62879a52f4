// Modules of a framework that it imports when they are first read.
#pragma once

#include "capture/override.h"
#include "tensor/named_modules.h"

namespace framejit::capture {

// Called before an attribute of a module is looked up in its dict: afterwards it is there if it is such a module, so
// that no capture ends at an import.
inline void ReadModule(PyObject* module, PyObject* name) {
  if (PyDict_GetItemWithError(PyModule_GetDict(module), name) || PyErr_Occurred()) return;
  SuspendScope off;
  tensor::ImportNamed(module, name);
}

}  // namespace framejit::capture
