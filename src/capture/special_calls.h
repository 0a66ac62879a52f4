// Calls of C functions that capture answers by rules of its own.
#pragma once

#include "capture/semantics.h"

namespace framejit::capture {

// len, getattr, isinstance, id, ... by name. Null without an error and *handled = false: it is none of these.
PyObject* Special(CaptureSemantics& c, Session& s, const char* name, PyObject* const* args, Py_ssize_t nargs,
                  bool* handled);
// What operator.methodcaller("a", 1, b=2) does with an object: the call that it stands for.
PyObject* CallMethodCaller(CaptureSemantics& c, Session& s, PyObject* caller, PyObject* object);
std::string Describe(PyObject* o);  // Its module and name, for reports.
// The program wants this function to run as written (torch.compiler.disable, framejit.disable). Not where torch says so
// of functions of its own: that is meant for its compiler.
bool IsDisabled(PyObject* function);
std::string WhyDisabled(PyObject* function);   // The reason, for reports.
PyObject* BehindDisabled(PyObject* function);  // What the program disabled, borrowed.
bool RunsDisabled(PyCodeObject* code);         // Is it the code of a generator that was noted?
void NoteGenerator(PyCodeObject* code);        // Notes the code of a disabled function, if it is a generator's.

}  // namespace framejit::capture
