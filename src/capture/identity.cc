#include "capture/identity.h"

#include <algorithm>
#include <utility>

#include "capture/proxy.h"
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

}  // namespace framejit::capture
