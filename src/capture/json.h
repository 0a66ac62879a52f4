// The encoder of `json` that is written in C.
#pragma once

#include "capture/session.h"

namespace framejit::capture {

bool IsJsonEncoder(PyObject* o);
// Calls it, with arguments that C code may read. What it would ask code of the program for breaks.
PyObject* EncodeJson(Session& s, PyObject* encoder, PyObject* const* args, Py_ssize_t nargs);

}  // namespace framejit::capture
