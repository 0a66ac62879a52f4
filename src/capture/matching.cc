// What the patterns of a `match` statement ask of their subject.
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "capture/special_calls.h"
#include "capture/wrappers/wrappers.h"

namespace framejit::capture {
namespace {

// Is *o the object that the program goes on with? It is not after a Break or an exception.
bool Resolved(Session& s, PyObject** o) {
  if (s.broken()) return s.Break(s.reason().id), false;
  *o = s.Resolve(*o);
  return *o != nullptr;
}

}  // namespace

int CaptureSemantics::IsInstance(PyObject* object, PyObject* type) {
  if (!Resolved(s_, &object) || !Resolved(s_, &type)) return -1;
  PyObject* args[] = {object, type};
  bool handled;
  Ref r(Special(*this, s_, "isinstance", args, 2, &handled));
  return r ? r.get() == Py_True : -1;
}

PyObject* CaptureSemantics::Length(PyObject* object) {
  bool handled;
  return Resolved(s_, &object) ? Special(*this, s_, "len", &object, 1, &handled) : nullptr;
}

int CaptureSemantics::HasTypeFlag(PyObject* object, unsigned long flag) {
  if (!Resolved(s_, &object)) return -1;
  if (IsTensor(object) || IsWrapper(object)) return 0;
  s_.NoteType(Py_TYPE(object));
  if (PyType_HasFeature(Py_TYPE(object), flag)) return 1;
  // A class that is registered with collections.abc.Mapping or Sequence gets the flag.
  return Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE && !s_.NoteAbstract() ? -1 : 0;
}

}  // namespace framejit::capture
