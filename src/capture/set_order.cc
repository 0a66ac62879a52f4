#include "capture/set_order.h"

#include <algorithm>

namespace framejit::capture {
namespace {

Ref AsKeys(PyObject* items) {
  Ref dict(PyDict_New());
  for (Py_ssize_t i = 0; dict && i < PyList_GET_SIZE(items); ++i)
    if (PyDict_SetItem(dict.get(), PyList_GET_ITEM(items, i), Py_None) < 0) return {};
  return dict;
}

Ref MakeSet(PyObject* items, bool of_keys) {
  Ref keys = of_keys ? AsKeys(items) : Borrow(items);
  return Ref(keys ? PySet_New(keys.get()) : nullptr);
}

Py_ssize_t PlacesOf(PyObject* set) {
  return reinterpret_cast<PySetObject*>(set)->mask;
}

// Null without an exception: no order was found. Where the new set has another item at a place, that item has taken the
// place of the one that should be there, and comes after it in the next attempt. Where it did already, a table that
// grew has moved it: another item comes first.
Ref Search(PyObject* wanted, bool of_keys) {
  Ref order(PySequence_List(wanted));
  const Py_ssize_t size = PyList_GET_SIZE(wanted);
  constexpr int kAttempts = 64;  // enough for 98 of 100 random sets of up to 20 items
  for (int attempt = 0; order && attempt < kAttempts; ++attempt) {
    Ref made = MakeSet(order.get(), of_keys), found(made ? PySequence_List(made.get()) : nullptr);
    if (!found) return found;
    if (PyList_GET_SIZE(found.get()) != size) break;
    PyObject **w = PySequence_Fast_ITEMS(wanted), **f = PySequence_Fast_ITEMS(found.get()),
             **o = PySequence_Fast_ITEMS(order.get());
    const Py_ssize_t at = std::mismatch(w, w + size, f).first - w;
    if (at == size) return order;
    PyObject **taken = std::find(o, o + size, f[at]), **due = std::find(o, o + size, w[at]);
    if (due < taken) taken = o, due = o + attempt * 7 % size;
    std::rotate(taken, due, due + 1);
  }
  return {};
}

}  // namespace

Ref WhatMakesSet(PyObject* set) {
  Ref wanted(PySequence_List(set)), filled = wanted ? MakeSet(wanted.get(), false) : Ref();
  if (!filled) return filled;
  const bool first = PlacesOf(filled.get()) != PlacesOf(set);
  for (bool way : {first, !first}) {
    Ref order = Search(wanted.get(), way);
    if (order && way) return AsKeys(order.get());
    if (order || PyErr_Occurred()) return order;
  }
  return wanted;
}

}  // namespace framejit::capture
