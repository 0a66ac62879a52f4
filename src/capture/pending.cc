#include "capture/pending.h"

#include <algorithm>

#include "capture/drops.h"
#include "capture/session.h"
#include "guard/versions.h"

namespace framejit::capture {

void PendingEffects::Clear() {
  stores_.clear();
  calls_.clear();
  cells_.clear();
  lists_.clear();
  as_read.clear();
  wrappers.clear();
}

bool PendingEffects::MayDrop() const {
  return !calls_.empty() || !cells_.empty() || !lists_.empty() ||
         std::any_of(stores_.begin(), stores_.end(), [](const PendingStore& st) {
           PyObject* dict = st.dict.get();
           if (PyType_Check(dict) && !PyUnicode_Check(st.key.get())) return false;  // what it is called
           if (PyType_Check(dict)) dict = guard::TypeDict(reinterpret_cast<PyTypeObject*>(dict));
           if (!dict || !PyDict_Check(dict) || IsSlotOf(dict, st.key.get())) return true;
           PyObject* old = PyDict_GetItemWithError(dict, st.key.get());
           if (!old) PyErr_Clear();
           return old && !IsPrimitive(old);
         });
}

bool PendingEffects::Has(PyObject* dict) const {
  return std::any_of(stores_.begin(), stores_.end(), [&](const PendingStore& st) { return st.dict.get() == dict; });
}

int PendingEffects::Find(PyObject* dict, PyObject* key, PyObject** value) const {
  for (auto st = stores_.rbegin(); st != stores_.rend(); ++st) {
    if (st->dict.get() != dict) continue;
    const bool known = st->key.get() == key || tensor::Classify(key) != tensor::Class::kNone;  // found by identity
    const int same = known ? st->key.get() == key : PyObject_RichCompareBool(st->key.get(), key, Py_EQ);
    if (same < 0) return -1;
    if (!same) continue;
    *value = st->value.get();
    Answered();
    return 1;
  }
  return 0;
}

void PendingEffects::Store(PyObject* dict, PyObject* key, PyObject* value) {
  classes_ |= PyType_Check(dict) != 0;
  stores_.push_back({Borrow(dict), Borrow(key), Borrow(value)});
}

PyObject* PendingEffects::InClass(PyTypeObject* type, PyObject* name, bool* waits) const {
  *waits = false;
  if (!classes_) return _PyType_Lookup(type, name);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    PyObject *base = PyTuple_GET_ITEM(type->tp_mro, i), *stored;
    if (Find(base, name, &stored) > 0) return *waits = true, stored;
    PyObject* dict = guard::TypeDict(reinterpret_cast<PyTypeObject*>(base));
    if (PyObject* own = dict ? PyDict_GetItemWithError(dict, name) : nullptr) return own;
  }
  return nullptr;
}

bool PendingEffects::WritesClass(PyTypeObject* type) const {
  if (!classes_) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i)
    if (Has(PyTuple_GET_ITEM(type->tp_mro, i))) return true;
  return false;
}

// Is it a store to this item, whose key is a string?
static bool IsStoreTo(const PendingStore& st, PyObject* dict, PyObject* key) {
  return st.dict.get() == dict && PyUnicode_CheckExact(st.key.get()) && PyUnicode_CheckExact(key) &&
         PyUnicode_Compare(st.key.get(), key) == 0;
}

void PendingEffects::Forget(PyObject* dict, PyObject* key) {
  std::erase_if(stores_, [&](const PendingStore& st) { return IsStoreTo(st, dict, key); });
}

bool PendingEffects::Deletes(PyObject* dict, PyObject* key) const {
  return std::any_of(stores_.begin(), stores_.end(),
                     [&](const PendingStore& st) { return !st.value && IsStoreTo(st, dict, key); });
}

bool PendingEffects::Writes(PyObject* owner) const {
  return Has(owner) || (PyCell_Check(owner) && Cell(owner)) ||
         std::find(lists_.begin(), lists_.end(), owner) != lists_.end() ||
         std::any_of(calls_.begin(), calls_.end(),
                     [&](const PendingCall& c) { return !c.args.empty() && c.args[0].get() == owner; });
}

std::vector<PendingCall> PendingEffects::TakeCalls(PyObject* container) {
  std::vector<PendingCall> mine;
  for (PendingCall& c : calls_)
    if (!c.args.empty() && c.args[0].get() == container) mine.push_back(std::move(c));
  std::erase_if(calls_, [](const PendingCall& c) { return !c.method; });
  return mine;
}

PyObject* PendingEffects::PutIn(PyObject* container, long back) const {
  for (auto c = calls_.rbegin(); c != calls_.rend(); ++c) {
    if (c->args.empty() || c->args[0].get() != container) continue;
    if (c->args.size() != 2) return nullptr;
    if (--back == 0) return c->args[1].get();
  }
  return nullptr;
}

const PendingCell* PendingEffects::Cell(PyObject* cell) const {
  auto at = std::find_if(cells_.begin(), cells_.end(), [&](const PendingCell& c) { return c.cell.get() == cell; });
  if (at == cells_.end()) return nullptr;
  Answered();
  return &*at;
}

void PendingEffects::WriteCell(PyObject* cell, PyObject* value) {
  auto at = std::find_if(cells_.begin(), cells_.end(), [&](const PendingCell& c) { return c.cell.get() == cell; });
  if (at == cells_.end()) {
    cells_.push_back({Borrow(cell), Borrow(value)});
    return;
  }
  at->value = Borrow(value);
  ++touched_;
}

}  // namespace framejit::capture
