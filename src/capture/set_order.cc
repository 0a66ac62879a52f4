#include "capture/set_order.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

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

// The places that CPython looks at for an item, one after the other, until `found` says so of one.
void WalkPlaces(Py_hash_t hash, size_t mask, const std::function<bool(size_t)>& found) {
  constexpr size_t kNeighbours = 9;
  size_t perturb = hash, at = perturb & mask;
  for (size_t most = 0; most <= 2 * mask + 64; ++most) {
    const size_t last = at + (at + kNeighbours <= mask ? kNeighbours : 0);
    for (size_t place = at; place <= last; ++place)
      if (found(place)) return;
    perturb >>= 5;
    at = (at * 5 + 1 + perturb) & mask;
  }
}

// The items in an order that puts each one where it is in the table of `set`, if that has its size from the beginning
// and nothing was taken out: behind those that are at places before its own. Those that may come at any time come
// first: where a table grows, it is they that are moved.
Ref InOrderOfPlaces(PyObject* set) {
  const auto* so = reinterpret_cast<PySetObject*>(set);
  const auto mask = static_cast<size_t>(so->mask);
  const auto holds = [&](size_t place) { return so->table[place].key && so->table[place].hash != -1; };
  std::vector<std::vector<size_t>> behind(mask + 1);
  std::vector<int> before(mask + 1);
  for (size_t own = 0; own <= mask; ++own) {
    if (!holds(own)) continue;
    WalkPlaces(so->table[own].hash, mask, [&](size_t place) {
      if (place == own) return true;
      if (holds(place)) behind[place].push_back(own), ++before[own];
      return false;
    });
  }
  using Turn = std::pair<bool, size_t>;
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> ready;
  for (size_t i = 0; i <= mask; ++i)
    if (holds(i) && !before[i]) ready.emplace(!behind[i].empty(), i);
  Ref order(PyList_New(0));
  while (order && !ready.empty()) {
    const size_t place = ready.top().second;
    ready.pop();
    if (PyList_Append(order.get(), so->table[place].key) < 0) return {};
    for (size_t i : behind[place])
      if (!--before[i]) ready.emplace(true, i);
  }
  return order;
}

// Null without an exception: no order was found. Where the new set has another item at a place, that item has taken the
// place of the one that should be there, and comes after it in the next attempt. Where it did already, a table that
// grew has moved it: another item comes first.
Ref Search(PyObject* wanted, PyObject* begin, bool of_keys) {
  Ref order(PySequence_List(begin));
  const Py_ssize_t size = PyList_GET_SIZE(wanted);
  constexpr int kAttempts = 64;  // enough for 98 of 100 random sets that were filled item by item
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
  Ref begin = InOrderOfPlaces(set);
  if (!begin) return begin;
  if (PyList_GET_SIZE(begin.get()) != PyList_GET_SIZE(wanted.get())) begin = Borrow(wanted.get());
  const bool first = PlacesOf(filled.get()) != PlacesOf(set);
  for (bool way : {first, !first}) {
    Ref order = Search(wanted.get(), begin.get(), way);
    if (order && way) return AsKeys(order.get());
    if (order || PyErr_Occurred()) return order;
  }
  return wanted;
}

}  // namespace framejit::capture
