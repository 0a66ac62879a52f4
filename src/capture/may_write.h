// What a function of Python's may write.
#pragma once

#include "capture/ref.h"

namespace framejit::capture {

class Session;

// May a call of this function write what this capture has read? A capture that begins anew would read what is there
// then. So it may where code that it reaches binds variables that are not its own, or where it reaches an object that
// the capture has looked at: from a variable, or, if code stores into objects, from an argument.
bool MayWriteWhatWasRead(Session& s, PyObject* function, PyObject* args, PyObject* keywords);

}  // namespace framejit::capture
