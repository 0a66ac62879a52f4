#include "capture/persistent.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

namespace framejit::capture {
namespace {

// No class statement's, whose names may be any.
bool Among(PyTypeObject* t, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), t->tp_name) != names.end() && LayoutOf(t) == t;
}

// What is in `container` by its __reduce__: an item of its own, or part of a pair that was made to tell.
bool NoteItem(Session& s, PyObject* container, PyObject* item) {
  if (PyTuple_CheckExact(item) && Py_REFCNT(item) == 1)
    return std::all_of(&PyTuple_GET_ITEM(item, 0), &PyTuple_GET_ITEM(item, 0) + PyTuple_GET_SIZE(item),
                       [&](PyObject* part) { return NoteItem(s, container, part); });
  if (IsPrimitive(item)) return true;
  Ref seen(s.FromOutside(item, s.guards().Const(item)));
  if (seen.get() == item && s.ForC(item) == item) return true;
  s.Break(BreakId::kUnknownOrigin, std::string("what C code may not read in a ") + Py_TYPE(container)->tp_name);
  return false;
}

}  // namespace

bool IsPersistent(PyTypeObject* t) {
  return Among(t, {"pvectorc.PVector", "rpds.HashTrieMap", "rpds.HashTrieSet", "rpds.List"});
}

bool IsEvolver(PyTypeObject* t) {
  return Among(t, {"pvector_evolver"});
}

Effect EffectOfPersistent(PyObject* function) {
  PyObject* module = PyCFunction_Check(function) ? reinterpret_cast<PyCFunctionObject*>(function)->m_module : nullptr;
  const bool makes = module && PyUnicode_Check(module) && !PyUnicode_CompareWithASCIIString(module, "pvectorc") &&
                     !strcmp(reinterpret_cast<PyCFunctionObject*>(function)->m_ml->ml_name, "pvector");
  return makes ? Effect::kPure : Effect::kUnknown;
}

bool NotePersistent(Session& s, PyObject* o) {
  Origin* g = s.Find(o);
  if (g->contents_noted) return true;
  s.guards().Is(g->source, o);
  g->contents_noted = true;
  s.Keep(Py_NewRef(o));
  Ref parts(PyObject_CallMethod(o, "__reduce__", nullptr));
  PyObject* args = parts && PyTuple_Check(parts.get()) && PyTuple_GET_SIZE(parts.get()) == 2
                       ? PyTuple_GET_ITEM(parts.get(), 1)
                       : nullptr;
  PyObject* items =
      args && PyTuple_CheckExact(args) && PyTuple_GET_SIZE(args) == 1 ? PyTuple_GET_ITEM(args, 0) : nullptr;
  if (!items || !PyList_CheckExact(items)) {
    PyErr_Clear();
    s.Break(BreakId::kUnknownOrigin, Py_TYPE(o)->tp_name);
    return false;
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); ++i)
    if (!NoteItem(s, o, PyList_GET_ITEM(items, i))) return false;
  return true;
}

}  // namespace framejit::capture
