#include "capture/set_order.h"

#include <algorithm>

#include "guard/source.h"

namespace framejit::capture {
namespace {

// Objects/setobject.c marks so what was taken out.
bool IsRemoved(const setentry& e) {
  return e.key && e.hash == -1;
}

}  // namespace

SetTable::SetTable(PyObject* set) {
  const auto* so = reinterpret_cast<PySetObject*>(set);
  mask_ = static_cast<size_t>(so->mask);
  finger_ = so->finger;
  hash_ = PyFrozenSet_Check(set) ? so->hash : -1;
  for (size_t place = 0; place <= mask_; ++place) {
    const setentry& e = so->table[place];
    if (IsRemoved(e)) {
      removed_.push_back(place);
      dummy_ = e.key;
    } else if (e.key) {
      items_.push_back({place, e.hash, e.key});
    }
  }
}

PyObject* SetTable::Make(PyObject* items, bool frozen) const {
  PyObject** item = PySequence_Fast_ITEMS(items);
  const auto same = [&](const Entry& e) {
    PyObject* o = item[&e - items_.data()];
    if (o == e.item && !guard::HashesInC(o)) return true;
    const Py_hash_t hash = PyObject_Hash(o);
    if (hash == -1) PyErr_Clear();
    return hash == e.hash;
  };
  if (!std::all_of(items_.begin(), items_.end(), same)) return frozen ? PyFrozenSet_New(items) : PySet_New(items);
  PyObject* set = frozen ? PyFrozenSet_New(nullptr) : PySet_New(nullptr);
  if (!set) return nullptr;
  auto* so = reinterpret_cast<PySetObject*>(set);
  if (mask_ >= PySet_MINSIZE) {
    auto* table = static_cast<setentry*>(PyMem_Calloc(mask_ + 1, sizeof(setentry)));
    if (!table) return Py_DECREF(set), PyErr_NoMemory();
    so->table = table;
    so->mask = static_cast<Py_ssize_t>(mask_);
  }
  for (size_t i = 0; i < items_.size(); ++i) so->table[items_[i].place] = {Py_NewRef(item[i]), items_[i].hash};
  for (size_t place : removed_) so->table[place] = {dummy_, -1};
  so->used = static_cast<Py_ssize_t>(items_.size());
  so->fill = so->used + static_cast<Py_ssize_t>(removed_.size());
  so->finger = finger_;
  so->hash = hash_;
  return set;
}

}  // namespace framejit::capture
