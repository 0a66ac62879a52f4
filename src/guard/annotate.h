// The function that makes a function's annotations when they are first read (from 3.14 on).
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace framejit::guard {

// Where it lies; null: this version has none.
PyObject** AnnotateOf(PyFunctionObject* function);

}  // namespace framejit::guard
