#include "capture/drops.h"

#include <algorithm>

#include "capture/proxy.h"
#include "capture/session.h"
#include "tensor/own_reference.h"

namespace framejit::capture {
namespace {

constexpr int kMost = 256;  // objects that are looked at; more of them are a structure that nobody watches

struct Walk {
  int left = kMost;
  bool quiet = true;
};

int Visit(PyObject* o, void* walk);

void Look(PyObject* o, Walk* walk) {
  if (IsPrimitive(o) || PyType_Check(o) || PyModule_Check(o) || PyFunction_Check(o) || PyCFunction_Check(o)) return;
  if (--walk->left < 0) return;
  walk->quiet = !HasDestructor(o) && !tensor::HasWatchers(o);
  if (!walk->quiet || tensor::Classify(o) != tensor::Class::kNone || !Py_TYPE(o)->tp_traverse) return;
  Py_TYPE(o)->tp_traverse(o, Visit, walk);
}

// What others hold, too, stays alive.
int Visit(PyObject* o, void* walk) {
  auto* w = static_cast<Walk*>(walk);
  if (o && Py_REFCNT(o) == 1) Look(o, w);
  return w->quiet && w->left > 0 ? 0 : 1;
}

int VisitItem(PyObject* o, void* walk) {
  auto* w = static_cast<Walk*>(walk);
  Look(o, w);
  return w->quiet && w->left > 0 ? 0 : 1;
}

PyObject* Quietly(PyObject* key, PyObject* container) {
  return PyBool_FromLong(DropsQuietly(container, key == Py_None ? nullptr : key));
}
PyMethodDef quietly = {"drops_quietly", Quietly, METH_O, nullptr};

}  // namespace

bool HasDestructor(PyObject* o) {
  if (!o) return false;
  static PyObject* const del = PyUnicode_InternFromString("__del__");
  return Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE && _PyType_Lookup(Py_TYPE(o), del);
}

bool DropsQuietly(PyObject* o) {
  Walk walk;
  if (o) Look(o, &walk);
  return walk.quiet;
}

bool DropsQuietly(PyObject* container, PyObject* key) {
  if (PyDict_Check(container)) {
    if (PyObject* old = PyDict_GetItemWithError(container, key)) return DropsQuietly(old);
    return PyErr_Clear(), true;
  }
  if (PyCell_Check(container)) return DropsQuietly(PyCell_GET(container));
  if (key) {
    Ref old(Py_TYPE(key)->tp_descr_get(key, container, reinterpret_cast<PyObject*>(Py_TYPE(container))));
    if (!old) PyErr_Clear();
    return DropsQuietly(old.get());
  }
  Walk walk;
  if (Py_TYPE(container)->tp_traverse) Py_TYPE(container)->tp_traverse(container, VisitItem, &walk);
  return walk.quiet;
}

void GuardDrop(guard::GuardBuilder& guards, const guard::Source* container, PyObject* key) {
  Ref asks(PyCFunction_New(&quietly, key ? key : Py_None));
  if (asks) guards.Is(guards.Child(SourceKind::kMember, container, 0, asks.get()), Py_True);
}

}  // namespace framejit::capture
