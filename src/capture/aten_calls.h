// Operators of torch.ops.aten, as a __torch_dispatch__ is given them: those that are functions of torch which have rows
// are called as these.
#pragma once

#include "capture/session.h"

namespace framejit::capture {

// Where it answers null with *mapped = false, the operator is called under its own name.
PyObject* CallAten(Session& s, PyObject* op, Callee name, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                   bool* mapped);

}  // namespace framejit::capture
