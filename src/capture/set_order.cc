#include "capture/set_order.h"

#include <algorithm>

namespace framejit::capture {

// Where the new set has another item at a place, that item has taken the place of the one that should be there, and
// comes after it in the next attempt. Where it did already, a table that grew has moved it: another item comes first.
Ref ItemsToMakeSetOf(PyObject* set) {
  const Ref wanted(PySequence_List(set));
  Ref order(wanted ? PySequence_List(wanted.get()) : nullptr);
  if (!order) return order;
  const Py_ssize_t size = PyList_GET_SIZE(wanted.get());
  constexpr int kAttempts = 64;  // enough for 98 of 100 random sets of up to 20 items
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Ref made(PySet_New(order.get())), found(made ? PySequence_List(made.get()) : nullptr);
    if (!found) return found;
    if (PyList_GET_SIZE(found.get()) != size) break;
    PyObject **w = PySequence_Fast_ITEMS(wanted.get()), **f = PySequence_Fast_ITEMS(found.get()),
             **o = PySequence_Fast_ITEMS(order.get());
    const Py_ssize_t at = std::mismatch(w, w + size, f).first - w;
    if (at == size) return order;
    PyObject **taken = std::find(o, o + size, f[at]), **due = std::find(o, o + size, w[at]);
    if (due < taken) taken = o, due = o + attempt * 7 % size;
    std::rotate(taken, due, due + 1);
  }
  return Ref(PySequence_List(wanted.get()));
}

}  // namespace framejit::capture
