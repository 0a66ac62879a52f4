#include "capture/reach.h"

#include <algorithm>
#include <unordered_set>

#include "capture/proxy.h"
#include "tensor/numpy_api.h"

namespace framejit::capture {
namespace {

// Has it a state that is known to C alone, or elements that are not looked at here? A class of the program's whose
// objects are iterators has attributes.
bool Hides(PyObject* o) {
  if (tensor::IsObjectArray(o) || PyODict_Check(o)) return true;
  if (!PyIter_Check(o)) return false;
  static PyObject* const name = PyUnicode_InternFromString("__next__");
  PyObject* next = _PyType_Lookup(Py_TYPE(o), name);
  return !next || !PyFunction_Check(next);
}

}  // namespace

Reach ReachFrom(Session& s, const std::vector<PyObject*>& roots) {
  Reach all;
  std::unordered_set<PyObject*> seen;
  std::vector<PyObject*> todo(roots.rbegin(), roots.rend());
  auto add = [&](PyObject* o) {
    if (o) todo.push_back(o);
  };
  while (!todo.empty()) {
    PyObject* o = todo.back();
    todo.pop_back();
    all.held.push_back(Borrow(o));
    if (IsPrimitive(o) || IsTensor(o) || IsLazy(o) || PyType_Check(o) || PyModule_Check(o) || !seen.insert(o).second)
      continue;
    all.hidden |= Hides(o);
    const Origin* origin = s.Find(o);
    const bool container = PyList_Check(o) || PyDict_Check(o) || PyAnySet_Check(o);
    if (origin && (origin->kind == Origin::kOutside || origin->real)) {  // or what stands for one that was changed
      all.outside |= container && !PyFrozenSet_CheckExact(o);
      continue;
    }
    if (PyFunction_Check(o)) {  // also one from outside: its cells are then, too
      add(PyFunction_GET_CLOSURE(o));
      add(reinterpret_cast<PyFunctionObject*>(o)->func_dict);
    } else if (origin && origin->kind == Origin::kConst) {
      continue;
    } else if (PyMethod_Check(o)) {
      add(PyMethod_GET_SELF(o));
      add(PyMethod_GET_FUNCTION(o));
    } else if (PyCell_Check(o)) {
      all.changeable.push_back(o);
      add(PyCell_GET(o));
    } else if (PyTuple_Check(o)) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) add(PyTuple_GET_ITEM(o, i));
    } else if (PyList_Check(o)) {
      all.changeable.push_back(o);
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(o); ++i) add(PyList_GET_ITEM(o, i));
    } else if (PyDict_Check(o)) {
      all.changeable.push_back(o);
      PyObject *key, *value;
      for (Py_ssize_t at = 0; PyDict_Next(o, &at, &key, &value);) add(key), add(value);
    } else if (PyAnySet_Check(o) || OfType(o, CType::kDeque)) {
      all.changeable.push_back(o);
      Ref items(PySequence_List(o));
      if (!items) PyErr_Clear();
      for (Py_ssize_t i = 0; items && i < PyList_GET_SIZE(items.get()); ++i) add(PyList_GET_ITEM(items.get(), i));
      if (items) all.held.push_back(Borrow(Py_None)), s.Keep(items.release());
    } else if (OfType(o, CType::kPartial)) {
      for (const char* part : {"func", "args", "keywords"}) {
        Ref value(PyObject_GetAttrString(o, part));
        if (!value) PyErr_Clear();
        add(value.get());
        if (value) s.Keep(value.release());
      }
    }
    const bool attributes = Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE || Py_TYPE(o)->tp_dictoffset;
    if (attributes && !PyFunction_Check(o) && origin) {
      Ref dict(PyObject_GenericGetDict(o, nullptr));
      if (!dict) PyErr_Clear();
      all.changeable.push_back(o);
      PyObject *key, *value;
      for (Py_ssize_t at = 0; dict && PyDict_Next(dict.get(), &at, &key, &value);) add(key), add(value);
    }
  }
  return all;
}

bool operator==(const Reach& a, const Reach& b) {
  return a.held.size() == b.held.size() &&
         std::equal(a.held.begin(), a.held.end(), b.held.begin(), [](auto& x, auto& y) { return x.get() == y.get(); });
}

}  // namespace framejit::capture
