#include "capture/identity.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "capture/proxy.h"
#include "capture/wrappers/wrappers.h"
#include "guard/source.h"

namespace framejit::capture {

std::optional<bool> IsOfValues(Session& s, PyObject* a, PyObject* b) {
  const auto lazy = [](PyObject* o) { return IsLazy(o) ? reinterpret_cast<Lazy*>(o) : nullptr; };
  const Lazy *p = lazy(a), *q = lazy(b);
  if ((!p && !q) || s.later) return {};
  PyObject *x = p ? p->value : a, *y = q ? q->value : b;
  const bool value = PyLong_CheckExact(x) || PyFloat_CheckExact(x) || PyUnicode_CheckExact(x) ||
                     PyBytes_CheckExact(x) || PyComplex_CheckExact(x) || PyTuple_CheckExact(x);
  if (!value || Py_TYPE(x) != Py_TYPE(y)) return {};
  guard::Row row{x == y ? guard::Kind::kSameObject : guard::Kind::kDifferentObject, p ? p->source : s.guards().Const(x),
                 q ? q->source : s.guards().Const(y)};
  row.here = true;
  if (row.source != row.other) s.guards().Add(std::move(row));
  return x == y;
}

bool ComparesAsItIs(PyObject* key) {
  if (!PyTuple_CheckExact(key))
    return IsPrimitive(key) || guard::IsText(key) || (PyType_Check(key) && guard::ComparesByIdentity(key));
  PyObject* const* items = reinterpret_cast<PyTupleObject*>(key)->ob_item;
  return std::all_of(items, items + PyTuple_GET_SIZE(key), ComparesAsItIs);
}

bool IsListOrDeque(PyObject* o) {
  return PyList_CheckExact(o) || guard::IsDeque(o);
}

void PinNan(Session& s, PyObject* o) {
  if (!PyFloat_CheckExact(o) || !std::isnan(PyFloat_AS_DOUBLE(o))) return;
  if (const Origin* g = s.Find(o); g && g->source) s.guards().Is(g->source, o);
}

void NoteComparison(Session& s, PyObject* key) {
  for (Py_ssize_t i = 0; PyTuple_CheckExact(key) && i < PyTuple_GET_SIZE(key); ++i)
    NoteComparison(s, PyTuple_GET_ITEM(key, i));
  static PyObject* const names[] = {Interned("__eq__"), Interned("__hash__")};
  if (!(Py_TYPE(key)->tp_flags & Py_TPFLAGS_HEAPTYPE) || IsTensor(key)) return;
  for (PyObject* name : names) s.NoteLookup(Py_TYPE(key), name);
}

Ref TupleAsKey(Session& s, PyObject* key) {
  Ref all(PyTuple_New(PyTuple_GET_SIZE(key)));
  bool same = true;
  for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(key); ++i) {
    Ref item = s.AsKey(PyTuple_GET_ITEM(key, i));
    if (!item) return Ref();
    same = same && item.get() == PyTuple_GET_ITEM(key, i);
    PyTuple_SET_ITEM(all.get(), i, item.release());
  }
  return same ? Borrow(key) : std::move(all);
}

namespace {

PyObject* ReferenceTo(PyObject*, PyObject* o) {  // self is not used
  return PyWeakref_NewRef(o, nullptr);
}
PyMethodDef reference_to = {"weak_reference", ReferenceTo, METH_O, nullptr};

}  // namespace

PyObject* WeakReference(Session& s, PyObject* o) {
  static PyObject* const make = PyCFunction_New(&reference_to, nullptr);
  const Source* source = nullptr;
  if (IsTensor(o) && !IsWrapper(o)) {
    const int input = s.trace().tensors[s.pending().Original(AsTensor(o)->id)].input;
    o = input < 0 ? nullptr : s.input_tensors()[input];
    if (o) source = s.input_sources()[input];
  } else if (s.IsOutside(o) && !s.Find(o)->real) {
    source = s.SourceOf(o);
  }
  if (!source) return nullptr;
  Ref reference(PyWeakref_NewRef(o, nullptr));
  return reference ? s.FromOutside(reference.get(), s.guards().Child(SourceKind::kMember, source, 0, make)) : nullptr;
}

}  // namespace framejit::capture
