// Functions of torch.distributed: collectives are operators of ours (framejit._distributed), questions are answered.
#pragma once

#include "capture/session.h"

namespace framejit::capture {

// Null without an error: it is none of them, or not to be taken for one.
PyObject* CallCollective(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

}  // namespace framejit::capture
