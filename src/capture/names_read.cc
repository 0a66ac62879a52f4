// Names that Python takes by itself: what a function takes from the namespace in which it is made, and what the texts
// of its exceptions say of classes, functions and modules.
#include "capture/semantics.h"

namespace framejit::capture {
namespace {

// The item is there and the same, or is not there.
void GuardItem(guard::GuardBuilder& guards, const Source* dict, PyObject* name, PyObject* value) {
  const Source* item = guards.Child(SourceKind::kDictItem, dict, 0, name);
  if (!value)
    guards.Absent(item);
  else if (PyUnicode_CheckExact(value))
    guards.Equal(item, value);
  else
    guards.Is(item, value);
}

// What says what a class is called, if that is nobody's own code.
bool HasPlainName(PyTypeObject* type, PyObject* name) {
  PyObject* d = _PyType_Lookup(Py_TYPE(type), name);
  return type->tp_flags & Py_TPFLAGS_HEAPTYPE && d && Py_IS_TYPE(d, &PyGetSetDescr_Type);
}

}  // namespace

PyObject* CaptureSemantics::MakeFunction(PyObject* code, PyObject* globals) {
  static PyObject* const names[] = {Interned("__name__"), Interned("__builtins__")};
  for (PyObject* name : names) {
    PyObject* stored = nullptr;
    if (const int waits = s_.pending().Find(globals, name, &stored))
      return waits < 0 ? nullptr : s_.Break(BreakId::kSideEffect, "a function is made in a namespace that was changed");
    PyObject* v = PyDict_GetItemWithError(globals, name);
    if (!v && PyErr_Occurred()) return nullptr;
    GuardItem(s_.guards(), s_.guards().Const(globals), name, v);
  }
  return s_.MarkFresh(frame::Semantics::MakeFunction(code, globals));
}

// Which of them the text names is not known: all that the captured code has met so far.
void CaptureSemantics::NoteNames() {
  static PyObject *const name = Interned("__name__"), *const qualname = Interned("__qualname__"),
                         *const spec = Interned("__spec__");
  guard::GuardBuilder& guards = s_.guards();
  for (PyObject* o : guards.Constants()) {
    const Source* source = guards.Const(o);
    if (PyType_Check(o) && HasPlainName(reinterpret_cast<PyTypeObject*>(o), name)) {
      Ref text(PyType_GetName(reinterpret_cast<PyTypeObject*>(o)));
      if (text) guards.Equal(guards.Child(SourceKind::kMember, source, 0, name), text.get());
    } else if (PyFunction_Check(o)) {
      guards.Equal(guards.Child(SourceKind::kMember, source, 0, qualname),
                   reinterpret_cast<PyFunctionObject*>(o)->func_qualname);
    } else if (PyDict_CheckExact(o) && PyDict_GetItem(o, name) && PyDict_GetItem(o, spec)) {  // of a module
      GuardItem(guards, source, name, PyDict_GetItem(o, name));
      GuardItem(guards, source, spec, PyDict_GetItem(o, spec));
    }
  }
  PyErr_Clear();
}

}  // namespace framejit::capture
