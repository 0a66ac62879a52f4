// What C code is given in place of a function that it calls: the capture makes the call, as if the program had. C code
// that called the function itself would read attributes that nothing guards, or hand it stand-ins.
#pragma once

#include <string_view>

#include "capture/session.h"

namespace framejit::capture {

extern PyTypeObject CalledType;

// Does C code that calls it read or write attributes of arguments, where no guard is taken?
bool ReadsAttributes(PyObject* o);
// `function` for C code, if it must not be called there as it is. A new reference; null: it may be, or an error.
PyObject* ForCaller(Session& s, PyObject* function);
// Which argument a function or class of C calls and does nothing else with, null if there is none. owner: of a method.
PyObject** GivenToCall(PyTypeObject* owner, std::string_view name, PyObject** args, Py_ssize_t nargs,
                       PyObject* kwnames);
// iter(function, sentinel)
PyObject* IterUntil(Session& s, PyObject* function, PyObject* sentinel);
// What o.__reduce__() gives, with the program's functions in it. Null: it has none, or is an iterator over calls that
// has come to its end.
Ref ReducedAsGiven(PyObject* o);

}  // namespace framejit::capture
