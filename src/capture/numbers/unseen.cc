// This file has the object of the framework that is there and of which a capture knows nothing else: the node behind a
// tensor's grad_fn. A program may ask whether it is None. Whatever else it asks, or does with it, ends the capture.
#include "capture/proxy.h"
#include "capture/session.h"

namespace framejit::capture {
namespace {

struct Unseen {
  PyObject_HEAD Session* session;
  const char* what;
};

std::nullptr_t Ask(PyObject* o) {
  auto* u = reinterpret_cast<Unseen*>(o);
  if (u->session && u->session == Session::Current()) return u->session->Break(BreakId::kAutogradCall, u->what);
  PyErr_Format(PyExc_RuntimeError, "framejit: a %s of a finished capture was used", u->what);
  return nullptr;
}
PyObject* GetAttr(PyObject* o, PyObject*) {
  return Ask(o);
}
PyObject* Repr(PyObject* o) {
  return Ask(o);
}
Py_hash_t Hash(PyObject* o) {
  return Ask(o), -1;
}
PyObject* Compare(PyObject* a, PyObject* b, int op) {
  if (b == Py_None && (op == Py_EQ || op == Py_NE)) return PyBool_FromLong(op == Py_NE);
  return Ask(IsUnseen(a) ? a : b);
}
void Dealloc(PyObject* o) {
  PyObject_Free(o);
}

}  // namespace

PyTypeObject UnseenType = {
    .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
    .tp_name = "framejit.Unseen",
    .tp_basicsize = sizeof(Unseen),
    .tp_dealloc = Dealloc,
    .tp_repr = Repr,
    .tp_hash = Hash,
    .tp_str = Repr,
    .tp_getattro = GetAttr,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_richcompare = Compare,
};

PyObject* NewUnseen(Session& s, const char* what) {
  auto* u = PyObject_New(Unseen, &UnseenType);
  if (!u) return nullptr;
  u->session = &s;
  u->what = what;
  return s.MarkFresh(reinterpret_cast<PyObject*>(u));
}

std::nullptr_t AskUnseen(PyObject* unseen) {
  return Ask(unseen);
}

}  // namespace framejit::capture
