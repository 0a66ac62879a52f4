// What CPython can tell about "nothing changed here": dict tags (3.11: ma_version_tag; 3.12+: a counter that our dict
// watcher steps) and type version tags. The one file pair of this stage that depends on the CPython version.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <utility>

namespace framejit::guard {

#if PY_VERSION_HEX >= 0x030C0000
#define FRAMEJIT_DICT_WATCHERS 1

struct DictWatch {     // one watched dict, shared by all tags on it
  PyObject* dict;      // borrowed; null once the dict died or the watch was dropped
  uint64_t epoch = 1;  // stepped before every change
  int refs = 0;
  bool armed = false;  // somebody stamped since the last change
};
#endif

// Remembers the state of one dict. Fresh(d): `d` is that dict, alive, and nothing was stored, deleted or replaced since
// Stamp(d): every key maps to the same object as then. Ordered storage outside of the dict proper (OrderedDict) is not
// seen.
class DictTag {
 public:
  DictTag() = default;
  ~DictTag() { Clear(); }
#ifdef FRAMEJIT_DICT_WATCHERS
  DictTag(DictTag&& o) noexcept
      : watch_(std::exchange(o.watch_, nullptr)),
        stamp_(o.stamp_),
        last_(o.last_),
        hits_(o.hits_),
        penalty_(o.penalty_),
        cooldown_(o.cooldown_) {}
#else
  DictTag(DictTag&& o) noexcept : dict_(std::exchange(o.dict_, nullptr)), stamp_(o.stamp_) {}
#endif

  bool Fresh(PyObject* d) {
#ifdef FRAMEJIT_DICT_WATCHERS
    return watch_ && watch_->dict == d && watch_->epoch == stamp_ && ++hits_;
#else
    // The remembered dict may be dead and its place taken: look only into a dict, then trust only the unique number.
    return dict_ == d && d && PyDict_Check(d) && reinterpret_cast<PyDictObject*>(d)->ma_version_tag == stamp_;
#endif
  }
  // d: a dict. To be called before the lookups that it vouches for, so that a change during them is seen. May decline
  // (then Fresh stays false): a dict that changes between any two checks is not worth watching.
  void Stamp(PyObject* d);
  void Invalidate();  // Called where the lookups did not hold.
  void Clear();

 private:
#ifdef FRAMEJIT_DICT_WATCHERS
  DictWatch* watch_ = nullptr;
  uint64_t stamp_ = 0;
  PyObject* last_ = nullptr;            // the dict of the last Stamp, compared only
  uint64_t hits_ = 1;                   // checks saved by the last stamp
  uint8_t penalty_ = 0, cooldown_ = 0;  // stamps to skip after fruitless ones
#else
  PyObject* dict_ = nullptr;  // only compared: it may be dead
  uint64_t stamp_ = 0;        // never used again by any other dict
#endif
};

// torch.compiler.disable and framejit.disable mark the functions that they are given.
inline bool SaysDisabled(PyFunctionObject* f) {
  static PyObject* const name = PyUnicode_InternFromString("_torchdynamo_disable");
  return f->func_dict && PyDict_GetItem(f->func_dict, name) == Py_True;
}

// A threading.local: its attributes are this thread's.
bool IsThreadLocal(PyTypeObject* t);
// The dict that holds o's own attributes, as `o.__dict__` would use it: borrowed, null if o's type has none.
PyObject* InstanceDict(PyObject* o);

// A number that no other state of any type has, assigned if need be; 0: none to be had (then compare slowly).
uint32_t TypeTag(PyTypeObject* t);
// Borrowed: the type's own dict.
PyObject* TypeDict(PyTypeObject* t);

// Steps through a set in iteration order. Runs no Python code.
bool SetNext(PyObject* set, Py_ssize_t* position, PyObject** key, Py_hash_t* hash);

}  // namespace framejit::guard
