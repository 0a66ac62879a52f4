// This file has the instructions of the match statement. What CPython would answer with an error is left to CPython.
#include <vector>

#include "frame/activation.h"

namespace framejit::frame::ops {
namespace {

// Classes of one value, which the only positional pattern stands for: int(x), str(x).
constexpr unsigned long kMatchesSelf = 1UL << 22;  // _Py_TPFLAGS_MATCH_SELF

PyObject* NoMatch() {
  return Py_NewRef(Py_None);
}

// The attributes that positional patterns stand for; *self: the only one stands for the subject itself. *held has these
// names. False: an error, or none is set and CPython shall say which.
bool PositionalNames(Activation& m, PyObject* type, int count, std::vector<PyObject*>* names, PyObject** held,
                     bool* self) {
  static PyObject* const kMatchArgs = PyUnicode_InternFromString("__match_args__");
  if (!count) return true;
  PyObject* declared = *held = m.sem.LoadAttr(type, kMatchArgs);
  if (!declared) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError) || !m.sem.MayHandle()) return false;
    PyErr_Clear();
    *self = reinterpret_cast<PyTypeObject*>(type)->tp_flags & kMatchesSelf;
    return *self && count == 1;
  }
  if (!PyTuple_CheckExact(declared) || PyTuple_GET_SIZE(declared) < count) return false;
  for (int k = 0; k < count; ++k) {
    names->push_back(PyTuple_GET_ITEM(declared, k));
    if (!PyUnicode_CheckExact(names->back())) return false;
  }
  return true;
}

// The values of these attributes, behind the subject itself if that is asked, or None: one is not there.
PyObject* Values(Activation& m, PyObject* subject, const std::vector<PyObject*>& names, bool self) {
  std::vector<PyObject*> values;
  if (self) values.push_back(Py_NewRef(subject));
  PyObject* r = nullptr;
  for (PyObject* name : names) {
    PyObject* value = m.sem.LoadAttr(subject, name);
    if (!value) {
      if (PyErr_ExceptionMatches(PyExc_AttributeError) && m.sem.MayHandle()) PyErr_Clear(), r = NoMatch();
      break;
    }
    values.push_back(value);
  }
  if (values.size() == names.size() + self) r = m.sem.BuildTuple(values.data(), static_cast<Py_ssize_t>(values.size()));
  for (PyObject* value : values) Py_DECREF(value);
  return r;
}

PyObject* ClassValues(Activation& m, PyObject* subject, PyObject* type, int count, PyObject* keywords) {
  if (!PyType_Check(type)) return nullptr;
  const int matches = m.sem.IsInstance(subject, type);
  if (matches <= 0) return matches < 0 ? nullptr : NoMatch();
  std::vector<PyObject*> names;
  PyObject* held = nullptr;
  bool self = false, ok = PositionalNames(m, type, count, &names, &held, &self);
  for (Py_ssize_t k = 0; ok && k < PyTuple_GET_SIZE(keywords); ++k) names.push_back(PyTuple_GET_ITEM(keywords, k));
  for (size_t k = 0; ok && k < names.size(); ++k)
    for (size_t other = 0; other < k; ++other) ok = ok && PyUnicode_Compare(names[k], names[other]) != 0;
  PyObject* r = ok ? Values(m, subject, names, self) : nullptr;
  Py_XDECREF(held);
  return r;
}

PyObject* KeyValues(Activation& m, PyObject* subject, PyObject* keys) {
  // Others, and what has a class of the program's, are asked by their method `get`.
  if (!PyTuple_CheckExact(keys) || m.sem.HasTypeFlag(subject, Py_TPFLAGS_DICT_SUBCLASS) <= 0 ||
      m.sem.HasTypeFlag(subject, Py_TPFLAGS_HEAPTYPE))
    return nullptr;
  const Py_ssize_t n = PyTuple_GET_SIZE(keys);
  for (Py_ssize_t k = 0; k < n; ++k)
    for (Py_ssize_t other = 0; other < k; ++other) {
      const int same = PyObject_RichCompareBool(PyTuple_GET_ITEM(keys, k), PyTuple_GET_ITEM(keys, other), Py_EQ);
      if (same) return nullptr;
    }
  std::vector<PyObject*> values;
  PyObject* r = nullptr;
  for (Py_ssize_t k = 0; k < n; ++k) {
    const int there = m.sem.Contains(subject, PyTuple_GET_ITEM(keys, k));
    if (there == 0) r = NoMatch();
    PyObject* value = there > 0 ? m.sem.GetItem(subject, PyTuple_GET_ITEM(keys, k)) : nullptr;
    if (!value) break;
    values.push_back(value);
  }
  if (values.size() == static_cast<size_t>(n)) r = m.sem.BuildTuple(values.data(), n);
  for (PyObject* value : values) Py_DECREF(value);
  return r;
}

Flow PushFlag(Activation& m, unsigned long flag) {
  const int has = m.sem.HasTypeFlag(m.Top(), flag);
  if (has < 0) return Flow::kError;
  m.PushNew(has ? Py_True : Py_False);
  return Flow::kNext;
}

Flow PushNonNull(Activation& m, PyObject* value) {
  if (!value) return Flow::kError;
  m.Push(value);
  return Flow::kNext;
}

}  // namespace

Flow MatchMapping(Activation& m, const Instr&) {
  return PushFlag(m, Py_TPFLAGS_MAPPING);
}
Flow MatchSequence(Activation& m, const Instr&) {
  return PushFlag(m, Py_TPFLAGS_SEQUENCE);
}
Flow MatchKeys(Activation& m, const Instr&) {
  return PushNonNull(m, KeyValues(m, m.Top(2), m.Top()));
}
Flow MatchClass(Activation& m, const Instr& i) {
  return m.Replace(3, ClassValues(m, m.Top(3), m.Top(2), i.arg, m.Top()));
}
Flow GetLen(Activation& m, const Instr&) {
  return PushNonNull(m, m.sem.Length(m.Top()));
}

}  // namespace framejit::frame::ops
