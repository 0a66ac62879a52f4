// 3.12 keeps ma_version_tag but 3.13 no longer steps it for stores into inline values, so from 3.12 on a dict watcher
// does the counting: one watcher for the process, a hash map from dict to its counter. CPython calls it before each
// change; the GIL is held from there to the change, unless another watcher runs Python code in between.
#include "guard/versions.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>

#include "guard/annotate.h"
#include "guard/int_layout.h"
#include "guard/own_values.h"
#include "tensor/import.h"
#include "tensor/no_collection.h"

extern "C" int _PySet_NextEntry(PyObject* set, Py_ssize_t* pos, PyObject** key,
                                Py_hash_t* hash);  // not in 3.13's headers

namespace framejit::guard {

#ifdef FRAMEJIT_DICT_WATCHERS
namespace {

std::unordered_map<PyObject*, DictWatch*>& Watches() {
  static auto* map = new std::unordered_map<PyObject*, DictWatch*>;  // dicts die during interpreter exit too
  return *map;
}

int watcher_id = -1;  // -1: no slot left, dicts are then looked at every time
bool inline_stores_seen = false;

void Forget(DictWatch* w) {
  Watches().erase(w->dict);
  w->dict = nullptr;
}

int OnDictEvent(PyDict_WatchEvent event, PyObject* dict, PyObject*, PyObject*) {
  auto it = Watches().find(dict);
  if (it == Watches().end()) return 0;
  DictWatch* w = it->second;
  ++w->epoch;
  // A dict that changes again before anybody looked is a busy one: stop paying for its changes.
  if (event == PyDict_EVENT_DEALLOCATED || !w->armed) {
    if (event != PyDict_EVENT_DEALLOCATED) PyDict_Unwatch(watcher_id, dict);
    Forget(w);
  }
  w->armed = false;
  return 0;
}

DictWatch* StartWatch(PyObject* d) {
  DictWatch*& w = Watches()[d];
  if (w) return w;
  if (PyDict_Watch(watcher_id, d) < 0) {
    PyErr_Clear();
    Watches().erase(d);
    return nullptr;
  }
  return w = new DictWatch{d};
}

// 3.13.0 tells watchers nothing of `o.x = 1` while o's dict shares the values that lie inside of o. Whether this
// interpreter has that fault is found by trying; if so, such dicts are not stamped.
bool SeesInlineStores() {
  tensor::NoCollection pause;
  PyObject* type = PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(){}", "probe");
  PyObject* o = type ? PyObject_CallNoArgs(type) : nullptr;
  bool seen = false;
  if (o && PyObject_SetAttrString(o, "x", Py_None) == 0) {
    PyObject* d = InstanceDict(o);
    if (DictWatch* w = d ? StartWatch(d) : nullptr) {
      uint64_t before = w->epoch;
      seen = PyObject_SetAttrString(o, "x", Py_True) == 0 && w->epoch != before;
      if (w->dict) Forget(w);
      delete w;
    }
  }
  Py_XDECREF(o);
  Py_XDECREF(type);
  PyErr_Clear();
  return seen;
}

}  // namespace

void DictTag::Stamp(PyObject* d) {
  if (d != last_) {  // first sight: most dicts that come and go (keyword arguments) are never seen twice
    Clear();
    last_ = d;
    return;
  }
  if (cooldown_ > 0) {
    --cooldown_;
    return Clear();
  }
  penalty_ = hits_ >= 16 ? 0 : std::min(255, penalty_ * 2 + 1);
  hits_ = 0;
  cooldown_ = penalty_ > 3 ? penalty_ : 0;  // a few changes are normal life
  static const bool started = [] {
    watcher_id = PyDict_AddWatcher(OnDictEvent);
    if (watcher_id < 0) return PyErr_Clear(), false;
    inline_stores_seen = SeesInlineStores();
    return true;
  }();
  if (!started || (reinterpret_cast<PyDictObject*>(d)->ma_values && !inline_stores_seen)) return Clear();
  if (!watch_ || watch_->dict != d) {
    Clear();
    watch_ = StartWatch(d);
    if (!watch_) return;
    ++watch_->refs;
  }
  watch_->armed = true;
  stamp_ = watch_->epoch;
}

void DictTag::Invalidate() {
  stamp_ = 0;
}

void DictTag::Clear() {
  if (!watch_) return;
  if (--watch_->refs == 0) {
    if (watch_->dict) {
      if (PyDict_Unwatch(watcher_id, watch_->dict) < 0) PyErr_Clear();
      Forget(watch_);
    }
    delete watch_;
  }
  watch_ = nullptr;
}
#else
void DictTag::Stamp(PyObject* d) {
  dict_ = d;
  stamp_ = reinterpret_cast<PyDictObject*>(d)->ma_version_tag;
}
void DictTag::Invalidate() {
  dict_ = nullptr;
}
void DictTag::Clear() {
  dict_ = nullptr;
}
#endif

namespace {

// Where a managed dict pointer lies before the object, measured on an object of ours instead of taken from private
// headers. 0: could not be told; then the (slower) function is asked every time.
Py_ssize_t MeasureManagedOffset() {
  tensor::NoCollection pause;
  PyObject* type = PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(){}", "probe");
  PyObject* object = type ? PyObject_CallNoArgs(type) : nullptr;
  Py_ssize_t offset = 0;
  if (object && PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_MANAGED_DICT))
    if (PyObject** slot = _PyObject_GetDictPtr(object))
      offset = reinterpret_cast<char*>(slot) - reinterpret_cast<char*>(object);
  Py_XDECREF(object);
  Py_XDECREF(type);
  PyErr_Clear();
  return offset;
}
Py_ssize_t managed_offset = 0;

}  // namespace

tensor::Ref OwnDict(PyObject* o) {
  PyObject* dict = InstanceDict(o);
  return dict ? tensor::Ref::Borrow(dict) : tensor::Ref(PyObject_GenericGetDict(o, nullptr));
}

bool SetOwn(PyObject* o, PyObject* values) {
  {
    tensor::Ref dict(PyObject_GenericGetDict(o, nullptr));
    PyObject *k, *v;
    Py_ssize_t at = 0;
    if (!dict) return false;
    while (PyDict_Next(values, &at, &k, &v))  // PyDict_Update may replace the names that a class shares
      if (PyDict_SetItem(dict.get(), k, v) < 0) return false;
  }
  fj_give_back(o);
  return true;
}

thread_local LentDicts* LentDicts::now = nullptr;

LentDicts::~LentDicts() {
  now = outer_;
  for (auto& [o, dict] : lent_) {
    dict = {};
    fj_give_back(o.get());
  }
}

PyObject* TypeDict(PyTypeObject* t) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject* d = PyType_GetDict(t);  // static types keep theirs in the interpreter
  Py_XDECREF(d);                    // the type still holds it
  return d;
#else
  return t->tp_dict;
#endif
}

bool IsThreadLocal(PyTypeObject* t) {
  static const getattrofunc lookup = [] {
    PyObject* module = tensor::Import("_thread");
    PyObject* type = module ? PyObject_GetAttrString(module, "_local") : nullptr;
    Py_XDECREF(module);
    if (!type) PyErr_Clear();
    return type && PyType_Check(type) ? reinterpret_cast<PyTypeObject*>(type)->tp_getattro : nullptr;
  }();
  return lookup && t->tp_getattro == lookup;
}

PyObject* InstanceDict(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  PyObject** slot;
  if (IsThreadLocal(t)) [[unlikely]] {
    if (t->tp_init != PyBaseObject_Type.tp_init) return nullptr;  // a thread's first look would run code
    static PyObject* const name = PyUnicode_InternFromString("__dict__");
    PyObject* dict = PyObject_GetAttr(o, name);
    if (!dict) PyErr_Clear();
    Py_XDECREF(dict);  // the thread holds it
    return dict;
  }
  if (PyType_HasFeature(t, Py_TPFLAGS_MANAGED_DICT)) {
    static const bool measured = (managed_offset = MeasureManagedOffset(), true);
    (void)measured;
    slot = managed_offset ? reinterpret_cast<PyObject**>(reinterpret_cast<char*>(o) + managed_offset) : nullptr;
    // Empty or (3.12) tagged: the attributes still lie in the object; asking makes a dict of them.
    if (!slot || !*slot || (reinterpret_cast<uintptr_t>(*slot) & 1)) {
      const bool moves = fj_own_values(o);
      slot = _PyObject_GetDictPtr(o);
      if (moves && slot) LentDicts::Note(o, *slot);
    }
  } else if (t->tp_dictoffset == 0) {
    return nullptr;
  } else if (PyType_Check(o)) {
    return TypeDict(reinterpret_cast<PyTypeObject*>(o));
  } else {
    slot = t->tp_dictoffset > 0 ? reinterpret_cast<PyObject**>(reinterpret_cast<char*>(o) + t->tp_dictoffset)
                                : _PyObject_GetDictPtr(o);
  }
  return slot ? *slot : nullptr;
}

uint32_t TypeTag(PyTypeObject* t) {
  if (t->tp_version_tag == 0) {
#if PY_VERSION_HEX >= 0x030C0000
    PyUnstable_Type_AssignVersionTag(t);
#else
    static PyObject* const name = PyUnicode_InternFromString("__class__");
    _PyType_Lookup(t, name);  // a lookup assigns
#endif
  }
  return t->tp_version_tag;
}

PyObject** AnnotateOf(PyFunctionObject* function) {
#if PY_VERSION_HEX >= 0x030E0000
  return &function->func_annotate;
#else
  return nullptr;
#endif
}

bool SetNext(PyObject* set, Py_ssize_t* position, PyObject** key, Py_hash_t* hash) {
  return _PySet_NextEntry(set, position, key, hash) != 0;
}

IntLayout LayoutOfInts() {
#if PY_VERSION_HEX >= 0x030C0000
  return {offsetof(PyLongObject, long_value.lv_tag), offsetof(PyLongObject, long_value.ob_digit), true};
#else
  return {offsetof(PyVarObject, ob_size), offsetof(PyLongObject, ob_digit), false};
#endif
}

}  // namespace framejit::guard
