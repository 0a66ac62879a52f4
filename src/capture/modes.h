// Modes of the thread as the captured code sees them: gradients on or off, inference mode. They are kept in
// Session::mode and become real when the segment runs.
#pragma once

#include <string>

#include "capture/builtins.h"
#include "capture/session.h"

namespace framejit::capture {

// The functions that read or set a mode, by callee name. True: *out is the result, null with an exception.
bool ThreadState(Session& s, Callee name, PyObject* const* args, Py_ssize_t n, PyObject** out);
// Likewise the switches of torch._C that Python code sets for a while (switches.cc).
bool SwitchState(Session& s, Callee name, PyObject* const* args, Py_ssize_t n, PyObject** out);
// torch._C switches that are read (get/is/has) or only count API usage.
Effect SwitchEffect(Callee name);
// Stand-in for torch._C._InferenceMode(on), whose __enter__ and __exit__ set the session's mode. Null without error:
// `type` is another class.
PyObject* InferenceScope(Session& s, PyTypeObject* type, PyObject* const* args, Py_ssize_t n);
// var.get(...), set or reset. What is set stays in the session, but for NumPy's error state, which is this thread's.
bool IsCodeOf(PyCodeObject* code, std::string_view package);  // of a function of its own
bool IsCodeOf(PyFrameObject* frame, std::string_view package);
PyObject* ContextVarCall(Session& s, PyObject* var, const char* n, PyObject* const* a, Py_ssize_t nargs);
bool IsInferenceScope(PyTypeObject* type);
bool ReadyModes();  // once, at module initialisation

}  // namespace framejit::capture
