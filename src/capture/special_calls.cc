// Builtins with rules of their own.
#include "capture/special_calls.h"

#include "capture/override.h"
#include "capture/proxy.h"

namespace framejit::capture {
namespace {

// Code that compares what id() gives with what it gave before, and never lets it out: copy.deepcopy's memo.
bool AsksIdentityOnly() {
  PyFrameObject* f = PyEval_GetFrame();
  Ref globals(f ? PyFrame_GetGlobals(f) : nullptr);
  PyObject* name = globals ? PyDict_GetItemString(globals.get(), "__name__") : nullptr;
  return name && PyUnicode_Check(name) && !PyUnicode_CompareWithASCIIString(name, "copy");
}

// The parts of an lru_cache in the order in which its garbage collector's visit names them: ..., the dict of what is
// cached, the function, the mark between positional arguments and keywords, ...
struct CacheParts {
  PyObject *function, *before = nullptr, *dict = nullptr, *mark = nullptr;
  bool behind = false;
};
int SeePart(PyObject* o, void* arg) {
  auto* parts = static_cast<CacheParts*>(arg);
  if (parts->behind && !parts->mark) parts->mark = o;
  if (o == parts->function && !parts->behind) {
    parts->behind = true;
    parts->dict = parts->before;
  }
  parts->before = o;
  return 0;
}

}  // namespace

PyObject* CallCached(Session& s, PyObject* cached, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  SuspendScope off;
  const Py_ssize_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  Ref result(PyObject_Vectorcall(cached, args, nargs, kwnames)),
      function(PyObject_GetAttrString(cached, "__wrapped__"));
  if (!result || !function) return nullptr;
  CacheParts parts{function.get()};
  Py_TYPE(cached)->tp_traverse(cached, SeePart, &parts);
  if (parts.dict && PyDict_CheckExact(parts.dict) && parts.mark) {
    std::vector<PyObject*> key(args, args + nargs), types;
    for (Py_ssize_t i = 0; i < nargs; ++i) types.push_back(reinterpret_cast<PyObject*>(Py_TYPE(args[i])));
    if (keywords) key.push_back(parts.mark);
    for (Py_ssize_t i = 0; i < keywords; ++i) {
      key.insert(key.end(), {PyTuple_GET_ITEM(kwnames, i), args[nargs + i]});
      types.push_back(reinterpret_cast<PyObject*>(Py_TYPE(args[nargs + i])));
    }
    for (bool typed : {false, true}) {
      if (typed) key.insert(key.end(), types.begin(), types.end());
      Ref all(PyTuple_New(static_cast<Py_ssize_t>(key.size())));
      for (size_t i = 0; all && i < key.size(); ++i) PyTuple_SET_ITEM(all.get(), i, Py_NewRef(key[i]));
      if (!all) return nullptr;
      const bool alone = key.size() == 1 && (PyLong_CheckExact(key[0]) || PyUnicode_CheckExact(key[0]));
      PyObject* name = alone ? key[0] : all.get();
      PyObject* entry = PyDict_GetItemWithError(parts.dict, name);
      if (PyErr_Occurred()) return nullptr;
      if (!entry) continue;
      s.guards().Is(s.guards().Child(SourceKind::kDictItem, s.guards().Const(parts.dict), 0, name), entry);
      break;
    }
  }
  return s.FromOutside(result.get(), s.guards().Const(result.get()));
}

PyObject* Special(CaptureSemantics& c, Session& s, const char* n, PyObject* const* a, Py_ssize_t nargs, bool* handled) {
  *handled = true;
  if (!strcmp(n, "len") && nargs == 1) {
    if (IsTensor(a[0])) {
      Py_ssize_t len = PyObject_Size(a[0]);
      return len < 0 ? nullptr : PyLong_FromSsize_t(len);
    }
    PyObject* counted = PyDict_CheckExact(a[0]) && s.HasPending(a[0]) ? s.ForC(a[0]) : a[0];
    if (!counted || !s.NoteLength(counted)) return nullptr;
    if (!(PyList_Check(counted) || PyTuple_Check(counted) || PyDict_Check(counted) || PyAnySet_Check(counted)) &&
        !s.ForC(counted))
      return nullptr;
    s.NoteType(Py_TYPE(a[0]));
    Py_ssize_t len = PyObject_Size(counted);
    return len < 0 ? nullptr : PyLong_FromSsize_t(len);
  }
  if ((!strcmp(n, "getattr") && (nargs == 2 || nargs == 3)) || (!strcmp(n, "hasattr") && nargs == 2)) {
    PyObject* r = c.LoadAttr(a[0], a[1]);
    bool has = !strcmp(n, "hasattr");
    if (!r) {
      if (s.broken() || !PyErr_ExceptionMatches(PyExc_AttributeError)) return nullptr;
      if (!has && nargs == 2) return nullptr;
      PyErr_Clear();
      if (has) Py_RETURN_FALSE;
      Py_INCREF(a[2]);
      return a[2];
    }
    if (!has) return r;
    Py_DECREF(r);
    Py_RETURN_TRUE;
  }
  if ((!strcmp(n, "setattr") && nargs == 3) || (!strcmp(n, "delattr") && nargs == 2)) {
    if (c.StoreAttr(a[0], a[1], nargs == 3 ? a[2] : nullptr) < 0) return nullptr;
    Py_RETURN_NONE;
  }
  if (!strcmp(n, "isinstance") && nargs == 2) {
    if (!IsTensor(a[0])) s.NoteType(Py_TYPE(a[0]));
    if (PyTuple_Check(a[1]) && !s.NoteContents(a[1])) return nullptr;
    int r = PyObject_IsInstance(a[0], a[1]);
    return r < 0 ? nullptr : PyBool_FromLong(r);
  }
  if (!strcmp(n, "issubclass") && nargs == 2) {
    if (PyType_Check(a[0])) s.NoteType(reinterpret_cast<PyTypeObject*>(a[0]));
    int r = PyObject_IsSubclass(a[0], a[1]);
    return r < 0 ? nullptr : PyBool_FromLong(r);
  }
  if (!strcmp(n, "iter") && nargs == 1) return c.Iter(a[0]);
  if (!strcmp(n, "next") && (nargs == 1 || nargs == 2)) {
    PyObject* r = c.Next(a[0]);
    if (r || PyErr_Occurred()) return r;
    if (nargs == 2) {
      Py_INCREF(a[1]);
      return a[1];
    }
    PyErr_SetNone(PyExc_StopIteration);
    return nullptr;
  }
  if (!strcmp(n, "id") && nargs == 1) {
    const Source* src = s.SourceOf(a[0]);
    if (!src && AsksIdentityOnly()) return PyLong_FromVoidPtr(a[0]);
    if (!src) return s.Break(BreakId::kUnknownOrigin, "id() of an object made here");
    s.guards().Is(src, a[0]);
    return PyLong_FromVoidPtr(a[0]);
  }
  if (!strcmp(n, "exc_info") && nargs == 0) {
    if (Ref(PyErr_GetHandledException()).get()) return s.Break(BreakId::kIteratorState, "sys.exc_info()");
    Ref ask(Py_XNewRef(PySys_GetObject("exc_info"))), key(PyTuple_New(0));
    Ref nothing(PyTuple_Pack(3, Py_None, Py_None, Py_None));  // guarded: an except clause of the caller shows here
    if (!ask || !key || !nothing) return nullptr;
    return s.FromOutside(nothing.get(),
                         s.guards().Child(SourceKind::kAnswer, s.guards().Const(ask.get()), 0, key.get()));
  }
  if (!strcmp(n, "vars") && nargs == 1) {
    static PyObject* dict_name = PyUnicode_InternFromString("__dict__");
    return c.LoadAttr(a[0], dict_name);
  }
  *handled = false;
  return nullptr;
}

}  // namespace framejit::capture
