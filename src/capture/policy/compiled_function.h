// The callable that framejit.compile returns for a function. Its vectorcall checks the guards of known segments
// directly on the arguments (no frame, no hook); on a miss the wrapped function is called with the hook active.
#pragma once

#include "capture/policy/policy.h"

namespace framejit::capture {

extern PyTypeObject CompiledFunctionType;
bool ReadyCompiledFunction();
// options: the dictionary of framejit._compile; identity: null, or an object that tells apart users of one function (a
// module).
PyObject* NewCompiledFunction(PyObject* function, PyObject* options, PyObject* identity);
// Calls it from now on with each object whose `__class__` was set, if there is a weak reference to that.
PyObject* TellOfClasses(PyObject*, PyObject* function);
PyObject* WrappedOf(PyObject* function);  // The function that it was made of, borrowed.
PyObject* BehindCompiled(PyObject* o);    // Likewise of any object: itself, if framejit.compile has not returned it.
Compiled& CompiledOf(PyObject* function);

}  // namespace framejit::capture
