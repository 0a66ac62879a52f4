// torch's functions of lists of tensors.
#pragma once

#include "capture/semantics.h"

namespace framejit::capture {

// torch._foreach_*: the same call for one tensor after the other. Null without an error and *handled = false: it is
// none of these, or one that torch does in fewer steps than tensors.
PyObject* ForEach(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, bool* handled);
// torch._C._group_tensors_by_device_and_dtype: tensors sorted into such lists.
PyObject* GroupTensors(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

}  // namespace framejit::capture
