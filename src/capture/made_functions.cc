// `def` and `lambda` within a capture.
#include "capture/semantics.h"

namespace framejit::capture {

// A function takes its __module__ and its built-ins from the namespace in which it is made.
PyObject* CaptureSemantics::MakeFunction(PyObject* code, PyObject* globals) {
  static PyObject* const names[] = {Interned("__name__"), Interned("__builtins__")};
  const Source* from = s_.guards().Const(globals);
  for (PyObject* name : names) {
    PyObject* stored = nullptr;
    if (const int waits = s_.pending().Find(globals, name, &stored))
      return waits < 0 ? nullptr : s_.Break(BreakId::kSideEffect, "a function is made in a namespace that was changed");
    const Source* item = s_.guards().Child(SourceKind::kDictItem, from, 0, name);
    PyObject* v = PyDict_GetItemWithError(globals, name);
    if (!v && PyErr_Occurred()) return nullptr;
    if (!v)
      s_.guards().Absent(item);
    else if (PyUnicode_CheckExact(v))
      s_.guards().Equal(item, v);
    else
      s_.guards().Is(item, v);
  }
  return s_.MarkFresh(frame::Semantics::MakeFunction(code, globals));
}

}  // namespace framejit::capture
