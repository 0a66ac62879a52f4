// Calls that are others, of which the framework warns. Null without an exception or a Break: it is none of them.
#pragma once

#include "capture/session.h"

namespace framejit::capture {

// torch.tensor(x) of a tensor is a copy of it.
PyObject* CopyOfTensor(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
// numpy.sqrt(x) of a tensor of torch is what NumPy makes of its array, as a tensor.
PyObject* UfuncOfTensors(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs);

}  // namespace framejit::capture
