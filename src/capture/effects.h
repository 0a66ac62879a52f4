// What the program shows or tells, which waits for the segment's exit.
#pragma once

#include "capture/session.h"

namespace framejit::capture {

// warnings.warn(text, category, stacklevel=level), as the innermost frame would say it. False: it cannot wait.
bool WarnLater(Session& s, PyObject* text, PyObject* category, long level);
// The same, as from that line.
bool WarnLater(Session& s, PyObject* text, PyObject* category, PyObject* globals, PyObject* file, int line);
// What torch's own code warns of, as this function of framejit._warns finds out once: (text, globals, file, line), or
// None. Borrowed; null: it cannot be found out now.
PyObject* ToldByTorch(const char* function);

}  // namespace framejit::capture
