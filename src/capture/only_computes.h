// Whether a call does nothing but compute what it gives.
#pragma once

#include <string>

#include "capture/ref.h"

namespace framejit::capture {

class CaptureSemantics;
class Session;

// Would this call, made now, read nothing that waits for the exit, and leave no trace but its result: no write, draw,
// output or switch? It is captured for that alone, in a session of its own, which is thrown away: what cannot be
// captured is not known. *why: what stands against it.
bool OnlyComputes(CaptureSemantics& sem, Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs,
                  PyObject* kwnames, std::string* why);

// Inside of such a capture: has a capture around it a call of this lru_cache that waits for the exit?
bool WaitsAround(PyObject* cached);

}  // namespace framejit::capture
