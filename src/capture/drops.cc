#include "capture/drops.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "capture/proxy.h"
#include "capture/session.h"
#include "guard/own_values.h"
#include "guard/versions.h"
#include "tensor/own_reference.h"

namespace framejit::capture {
namespace {

constexpr int kMost = 256;  // objects that are looked at; more of them are a structure that nobody watches

using Counts = std::unordered_map<PyObject*, Py_ssize_t>;

struct Walk {
  int left = kMost;
  bool quiet = true;
  bool of_c = true;                  // Do destructors of C's types count, those of files?
  bool all = false;                  // Does the walk go on behind what is seen to die?
  Counts met{};                      // references that were met, of objects that have several
  const Counts* of_frame = nullptr;  // those that a walk through the whole frame met
};

// A generator that waits between its first and its last instruction may have something to do yet, where its code
// handles exceptions: `finally`, `with`.
bool Waits(PyObject* generator) {
  Ref code(PyObject_GetAttrString(generator, "gi_code")), waits(PyObject_GetAttrString(generator, "gi_suspended"));
  if (!code || !waits) return PyErr_Clear(), true;
  return waits.get() == Py_True && PyBytes_GET_SIZE(reinterpret_cast<PyCodeObject*>(code.get())->co_exceptiontable) > 0;
}

bool EndsInC(PyObject* o, const Walk& walk) {
  if (PyGen_CheckExact(o)) return Waits(o);
  return walk.of_c && Py_TYPE(o)->tp_finalize;
}

int Visit(PyObject* o, void* walk);

void Look(PyObject* o, Walk* walk) {
  if (IsPrimitive(o) || PyType_Check(o) || PyModule_Check(o) || PyCFunction_Check(o)) return;
  if (--walk->left < 0) return;
  walk->quiet &= !HasDestructor(o) && !tensor::HasWatchers(o) && !EndsInC(o, *walk);
  if (!walk->quiet && !walk->all) return;
  if (tensor::Classify(o) != tensor::Class::kNone) {  // It has attributes, and the memory that C++ knows of.
    PyObject** dict = _PyObject_GetDictPtr(o);
    if (dict) Visit(*dict, walk);
  } else if (Py_TYPE(o)->tp_traverse) {
    Py_TYPE(o)->tp_traverse(o, Visit, walk);
  }
}

int GoesOn(const Walk& walk) {
  return (walk.quiet || walk.all) && walk.left > 0 ? 0 : 1;
}

bool AllMet(const Counts& met, PyObject* o) {
  const auto found = met.find(o);
  return found != met.end() && found->second == Py_REFCNT(o);
}

// What others hold, too, stays alive: it is looked at where the last of its references is met.
int Visit(PyObject* o, void* walk) {
  auto* w = static_cast<Walk*>(walk);
  if (!o || IsPrimitive(o)) return GoesOn(*w);
  const Py_ssize_t count = Py_REFCNT(o);
  if (count == 1)
    Look(o, w);
  else if (w->of_frame ? AllMet(*w->of_frame, o) && ++w->met[o] == 1 : count < kMost && ++w->met[o] == count)
    Look(o, w);
  return GoesOn(*w);
}

int VisitItem(PyObject* o, void* walk) {
  auto* w = static_cast<Walk*>(walk);
  Look(o, w);
  return GoesOn(*w);
}

bool last_was_seen = false;  // The GIL protects it.

PyObject* Checked(PyObject* container, PyObject* key) {
  last_was_seen = !DropsQuietly(container, key);
  return PyBool_FromLong(!last_was_seen);
}

PyObject* Quietly(PyObject* key, PyObject* container) {
  return Checked(container, key);
}
PyMethodDef quietly = {"drops_quietly", Quietly, METH_O, nullptr};

// Of an attribute that lies in the object or in its dict.
PyObject* OwnQuietly(PyObject* name, PyObject* o) {
  FjOwn own;
  const bool within = fj_own_view(o, &own) && !guard::IsThreadLocal(Py_TYPE(o));
  PyObject* dict = within ? nullptr : guard::InstanceDict(o);
  PyObject* old = within ? fj_own_value(&own, name) : dict ? PyDict_GetItemWithError(dict, name) : nullptr;
  if (!old) PyErr_Clear();
  last_was_seen = !DropsQuietly(old);
  return PyBool_FromLong(!last_was_seen);
}
PyMethodDef own_quietly = {"drops_quietly", OwnQuietly, METH_O, nullptr};

PyObject* ClassQuietly(PyObject* type, PyObject* name) {
  return Checked(type, name);
}
PyMethodDef class_quietly = {"class_drops_quietly", ClassQuietly, METH_O, nullptr};

}  // namespace

bool HasDestructor(PyObject* o) {
  if (!o) return false;
  static PyObject* const del = PyUnicode_InternFromString("__del__");
  return Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE && _PyType_Lookup(Py_TYPE(o), del);
}

bool IsSlotOf(PyObject* o, PyObject* key) {
  return key && Py_IS_TYPE(key, &PyMemberDescr_Type) && PyType_IsSubtype(Py_TYPE(o), PyDescr_TYPE(key));
}

bool DropsQuietly(PyObject* o) {
  Walk walk;
  if (o) Look(o, &walk);
  return walk.quiet;
}

std::vector<bool> SeenToDie(PyObject* const* slots, int n) {
  Walk whole{.left = kMost * n, .of_c = false, .all = true};
  for (int i = 0; i < n; ++i) Visit(slots[i], &whole);
  std::vector<bool> seen(n);
  for (int i = 0; i < n; ++i) {
    PyObject* o = slots[i];
    seen[i] = HasDestructor(o);
    if (seen[i] || !o || IsPrimitive(o) || (Py_REFCNT(o) > 1 && !AllMet(whole.met, o))) continue;
    Walk walk{.of_c = false, .of_frame = &whole.met};
    if (!whole.quiet) Look(o, &walk);
    seen[i] = !walk.quiet || tensor::HasWeakReferences(o);
  }
  return seen;
}

bool DropsQuietly(PyObject* container, PyObject* key) {
  PyObject* dict = PyType_Check(container) ? guard::TypeDict(reinterpret_cast<PyTypeObject*>(container)) : container;
  if (PyDict_Check(dict) && !IsSlotOf(dict, key)) {
    if (PyObject* old = PyDict_GetItemWithError(dict, key)) return DropsQuietly(old);
    return PyErr_Clear(), true;
  }
  if (PyCell_Check(container)) return DropsQuietly(PyCell_GET(container));
  if (key) {  // A guard may be asked of a container of another class: it fails.
    if (!Py_TYPE(key)->tp_descr_get) return false;
    Ref old(Py_TYPE(key)->tp_descr_get(key, container, reinterpret_cast<PyObject*>(Py_TYPE(container))));
    if (!old) PyErr_Clear();
    return DropsQuietly(old.get());
  }
  Walk walk;
  if (Py_TYPE(container)->tp_traverse) Py_TYPE(container)->tp_traverse(container, VisitItem, &walk);
  return walk.quiet;
}

bool TakeSeenDrop() {
  return std::exchange(last_was_seen, false);
}

void GuardDrop(guard::GuardBuilder& guards, const guard::Source* container, PyObject* key) {
  PyObject* type =
      container->kind == SourceKind::kConst && PyType_Check(container->object) ? container->object : nullptr;
  Ref asks(type ? PyCFunction_New(&class_quietly, type) : PyCFunction_New(&quietly, key));
  if (type) container = guards.Const(key);
  if (container->kind == SourceKind::kInstanceDict && key && PyUnicode_CheckExact(key)) {
    asks = Ref(PyCFunction_New(&own_quietly, key));
    container = container->base;
  }
  if (asks) guards.Is(guards.Child(SourceKind::kMember, container, 0, asks.get()), Py_True);
}

}  // namespace framejit::capture
