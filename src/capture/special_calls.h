// Calls of C functions that capture answers by rules of its own.
#pragma once

#include "capture/semantics.h"

namespace framejit::capture {

// len, getattr, isinstance, id, ... by name. Null without an error and *handled = false: it is none of these.
PyObject* Special(CaptureSemantics& c, Session& s, const char* name, PyObject* const* args, Py_ssize_t nargs,
                  bool* handled);
// What a functools.lru_cache gives for these arguments, all of them values or known by identity: the cached object, as
// for every caller, guarded to be the one that is cached there still.
PyObject* CallCached(Session& s, PyObject* cached, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

}  // namespace framejit::capture
