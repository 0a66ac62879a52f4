// What C code gets that reads a container: itself where what is in it is guarded, and a copy where it holds tensors.
#include <algorithm>
#include <cstring>
#include <utility>

#include "capture/checkpoint.h"
#include "capture/class_attributes.h"
#include "capture/containers.h"
#include "capture/drops.h"
#include "capture/identity.h"
#include "capture/object_arrays.h"
#include "capture/own_attributes.h"
#include "capture/persistent.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "capture/unread_text.h"
#include "capture/wrappers/wrappers.h"
#include "guard/source.h"
#include "guard/versions.h"
#include "tensor/numpy_api.h"

namespace framejit::capture {
namespace {

// May C code look at an outside object that is no list, tuple, dict or set? It reads nothing of an instance but through
// its Python-level methods, which are captured.
bool ReadableByC(PyObject* o) {
  PyTypeObject* layout = LayoutOf(Py_TYPE(o));
  return layout == &PyBaseObject_Type || layout == &PyDict_Type || layout == &PySet_Type ||
         layout == &PyFrozenSet_Type || layout == &PyList_Type || layout == &PyTuple_Type || PyODict_Check(o) ||
         OfType(layout, CType::kDefaultDict);
}

// An immutable value with a class of its own: identity says it all.
bool IsScalarSubclass(PyObject* o) {
  PyTypeObject* layout = LayoutOf(Py_TYPE(o));
  return layout == &PyLong_Type || layout == &PyFloat_Type || layout == &PyUnicode_Type || layout == &PyBytes_Type ||
         layout == &PyComplex_Type;
}

// A value of an enumeration that pybind11 made.
bool IsBoundEnum(PyObject* o) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(o));
  if (strcmp(Py_TYPE(type)->tp_name, "pybind11_type")) return false;
  PyObject* dict = guard::TypeDict(Py_TYPE(o));
  return dict && PyDict_GetItemString(dict, "__members__");
}

// A container of that kind, of that many items where it is none that grows. It is null without an error where it is of
// no such kind.
PyObject* NewLike(PyObject* o) {
  if (PyTuple_CheckExact(o)) return PyTuple_New(PyTuple_GET_SIZE(o));
  if (PyTuple_Check(o)) return Py_TYPE(o)->tp_alloc(Py_TYPE(o), PyTuple_GET_SIZE(o));
  if (PyList_CheckExact(o)) return PyList_New(PyList_GET_SIZE(o));
  if (PyODict_Check(o) && !PyDict_CheckExact(o)) return PyODict_New();  // Its items are in the same order.
  if (!OfType(Py_TYPE(o), CType::kDefaultDict)) return PyDict_Check(o) ? PyDict_New() : nullptr;
  Ref make(PyObject_GetAttrString(o, "default_factory"));
  return make ? PyObject_CallOneArg(reinterpret_cast<PyObject*>(Py_TYPE(o)), make.get()) : nullptr;
}

// The lists and tuples that an iterator made here has still to go through.
void ListsOf(PyObject* o, std::vector<PyObject*>& lists) {
  for (PyTypeObject* t : {&PyListIter_Type, &PyTupleIter_Type, &PyZip_Type, &PyEnum_Type}) {
    if (!Py_IS_TYPE(o, t)) continue;
    std::vector<PyObject*> held;
    const auto see = [](PyObject* x, void* all) {
      static_cast<std::vector<PyObject*>*>(all)->push_back(x);
      return 0;
    };
    t->tp_traverse(o, see, &held);
    for (PyObject* x : held) {
      if (t == &PyListIter_Type || t == &PyTupleIter_Type) lists.push_back(x);
      if (!PyTuple_CheckExact(x)) ListsOf(x, lists);
      for (Py_ssize_t i = 0; t == &PyZip_Type && PyTuple_CheckExact(x) && i < PyTuple_GET_SIZE(x); ++i)
        if (PyTuple_GET_ITEM(x, i)) ListsOf(PyTuple_GET_ITEM(x, i), lists);
    }
  }
}

}  // namespace

// C code goes on with an iterator: it may look into what the program has only gone over. It is false after a Break.
bool Session::IteratedByC(PyObject* iterator) {
  std::vector<PyObject*> lists;
  ListsOf(iterator, lists);
  for (PyObject* list : lists) {
    PyObject* seen = Find(list) ? ForC(list) : list;
    if (!seen) return false;
    const Origin* g = Find(list);
    if (!g || !g->shallow) continue;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); ++i) {
      PyObject *item = PySequence_Fast_GET_ITEM(list, i), *whole = PySequence_Fast_GET_ITEM(seen, i);
      if (item != whole && !IsSymInt(item) && !IsSymFloat(item) && !IsTensor(item))
        return Break(BreakId::kUnknownOrigin, "C code goes on through containers of tensors"), false;
    }
  }
  return true;
}

// What is no list, tuple or dict.
PyObject* Session::LeafForC(PyObject* o, bool asked_nothing) {
  Origin* g = Find(o);
  if (IsWrapper(o)) return asked_nothing ? o : Break(BreakId::kSubclass, "C code reads a wrapper");
  if (IsUnreadText(o) || IsUnreadMap(o)) return asked_nothing ? o : AskUnreadText(o);
  if (PyAnySet_Check(o)) return NoteContents(o) ? o : nullptr;
  if (UsesContext(o)) return Break(BreakId::kThreadState, "decimal.getcontext()");
  if (tensor::IsObjectArray(o)) return ObjectsForC(*this, o) ? o : nullptr;
  if (!IteratedByC(o)) return nullptr;
  if (PyObject* dict = DictOfView(o); dict && IsFresh(o) && IsFresh(dict)) {  // C code reads what is in it
    if (Py_IS_TYPE(o, &PyDictKeys_Type) ? !NoteContents(dict) : !ForC(dict, asked_nothing)) return nullptr;
  } else if (IsFresh(o) && (Py_IS_TYPE(o, &PyDictIterItem_Type) || Py_IS_TYPE(o, &PyDictIterValue_Type))) {
    Ref parts(PyObject_CallMethod(o, "__reduce__", nullptr));
    PyObject* of = parts && PyTuple_GET_SIZE(parts.get()) > 1 ? PyTuple_GET_ITEM(parts.get(), 1) : nullptr;
    if (!of || !ForC(PyTuple_GET_ITEM(of, 0), asked_nothing)) return nullptr;
  }
  if (!g || g->kind != Origin::kOutside || g->proxy || IsValue(o) || IsNumpyNumber(o) || ReadableByC(o))
    return g && g->changes && !Reads(o) ? nullptr : o;
  // A list of functions is gone through: none is called. Of a generator of random numbers no state is read.
  if (asked_nothing && (PyFunction_Check(o) || IsGenerator(o))) return o;
  if (PyIter_Check(o)) return Break(BreakId::kSideEffect, "an outside iterator is advanced");
  if (IsPersistent(Py_TYPE(o))) return NotePersistent(*this, o) ? o : nullptr;
  if (PyMethod_Check(o)) {
    guards_->Is(guards_->Child(SourceKind::kBoundSelf, g->source), PyMethod_GET_SELF(o));
    guards_->Is(guards_->Child(SourceKind::kBoundFunc, g->source), PyMethod_GET_FUNCTION(o));
    return o;
  }
  if (IsScalarSubclass(o) || PyWeakref_CheckRefExact(o) || IsBoundEnum(o)) {  // an enum's member, say
    guards_->Is(g->source, o);
    return o;
  }
  return Break(BreakId::kUnknownOrigin, std::string("C code reads a ") + Py_TYPE(o)->tp_name);
}

// A container made here: C code would reach tensors through outside containers in it.
PyObject* Session::PrivateForC(PyObject* o, bool asked_nothing) {
  auto hides = [&](PyObject* x) {
    if (!IsTensor(x)) NoteType(Py_TYPE(x));
    if (!(PyList_Check(x) || PyTuple_Check(x) || PyDict_Check(x))) return false;
    PyObject* seen = ForC(x, asked_nothing);
    if (seen && seen != x) Break(BreakId::kUnknownOrigin, "a container of tensors from outside in one made here");
    return seen != x;
  };
  if (PyDict_Check(o)) {
    PyObject *k, *v;
    Py_ssize_t pos = 0;
    while (PyDict_Next(o, &pos, &k, &v))
      if (hides(v)) return nullptr;
  } else {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      if (hides(PySequence_Fast_GET_ITEM(o, i))) return nullptr;
  }
  return o;
}

// An outside dict with stores that wait: as the program sees it.
PyObject* Session::PendingForC(PyObject* o, bool asked_nothing) {
  Ref copy(NewLike(o)), keys = KeysOf(o);
  if (!copy || !keys) return nullptr;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(keys.get()); ++i) {
    PyObject *k = PyList_GET_ITEM(keys.get(), i), *v = PyDict_GetItemWithError(o, k);
    Origin* c = v ? Find(v) : nullptr;
    PyObject* x = !v ? nullptr : c && c->proxy ? c->proxy : ForC(v, asked_nothing);
    if (!x || SetIn(copy.get(), k, x) < 0) return nullptr;
  }
  for (auto& st : pending_.stores())
    if (st.dict.get() == o && !IsSlotOf(o, st.key.get()) && SetIn(copy.get(), st.key.get(), st.value.get()) < 0)
      return nullptr;
  PyObject* r = MarkFresh(copy.get());
  keep_.push_back(std::move(copy));
  return Find(o)->shadow = r;
}

namespace {

bool HoldsTensors(PyObject* o) {
  PyObject *k, *v;
  Py_ssize_t pos = 0;
  if (PyDict_Check(o))
    while (PyDict_Next(o, &pos, &k, &v))
      if (tensor::Classify(v) != tensor::Class::kNone) return true;
  if (PyList_Check(o) || PyTuple_Check(o))
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      if (tensor::Classify(PySequence_Fast_GET_ITEM(o, i)) != tensor::Class::kNone) return true;
  return false;
}

}  // namespace

// Puts into `copy` what C code may see of the items of `o`. It is false after a Break: it can read what no guard
// covers.
bool Session::CopyForC(PyObject* o, PyObject* copy, bool asked_nothing, bool* differs, bool* hides) {
  auto child = [&](PyObject* x) -> PyObject* {  // It is borrowed, and the origins keep it.
    Origin* c = Find(x);
    if (c && c->proxy) return c->proxy;
    PyObject* seen = ForC(x, asked_nothing);
    c = seen ? Find(seen) : nullptr;
    *hides = *hides || (c && c->hides);
    return seen;
  };
  if (PyDict_Check(o)) {
    Ref keys = KeysOf(o);
    for (Py_ssize_t i = 0; keys && i < PyList_GET_SIZE(keys.get()); ++i) {
      PyObject *k = PyList_GET_ITEM(keys.get(), i), *v = PyDict_GetItemWithError(o, k);
      PyObject* c = v ? child(v) : nullptr;
      if (!c) return false;
      *differs |= c != v;
      if (SetIn(copy, k, c) < 0) return false;
    }
  } else {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) {
      PyObject* v = PySequence_Fast_GET_ITEM(o, i);
      PyObject* c = child(v);
      if (!c) return false;
      *differs |= c != v;
      Py_INCREF(c);
      if (PyTuple_Check(o))
        PyTuple_SET_ITEM(copy, i, c);
      else
        PyList_SET_ITEM(copy, i, c);
    }
  }
  return true;
}

PyObject* Session::ForC(PyObject* o, bool asked_nothing) {
  o = Settled(o);
  if (!o) return nullptr;
  if (!IsTensor(o)) NoteType(Py_TYPE(o));
  if (!asked_nothing && ShowsToC(pending_, o))
    return Break(BreakId::kSideEffect, "C code reads a class whose attributes were written");
  if (!asked_nothing && HasOutsideDict(*this, o))
    return Break(BreakId::kUnknownOrigin, std::string("C code reads a ") + Py_TYPE(o)->tp_name);
  if (!(PyList_Check(o) || PyTuple_Check(o) || PyDict_Check(o))) return LeafForC(o, asked_nothing);
  Descent descent(*this);
  if (broken_ || !NoteContents(o)) return nullptr;
  Origin* g = Find(o);
  if (!g || g->kind != Origin::kOutside) return PrivateForC(o, asked_nothing);
  auto refuse = [&] {
    return Break(BreakId::kUnknownOrigin, std::string("a ") + Py_TYPE(o)->tp_name + " of tensors read by C code");
  };
  if (g->shallow) return ForC(g->real, asked_nothing);
  if (g->real) return asked_nothing || !g->hides ? o : refuse();
  if (IsPlainDict(o) && pending_.Has(o) && (!g->shadow || g->shadow == o)) {
    pending_.Answered();
    return PendingForC(o, asked_nothing);
  }
  if (g->shadow && InCheckpoint()) {  // what was read before is read here, too
    if (!pending_.Empty())
      pending_.Answered();
    else if (!NoteContents(o, true))
      return nullptr;
  }
  if (g->shadow && (asked_nothing || !Find(g->shadow)->hides)) return g->shadow;
  bool differs = false, hides = PyDict_Check(o) && AnswersItself(Py_TYPE(o));
  const bool plain = PyTuple_CheckExact(o) || PyList_CheckExact(o) || PyDict_CheckExact(o);
  if (!plain) {  // The methods of a subclass may look anywhere, so it is safe only if it holds no tensors.
    if (!HoldsTensors(o)) return NoteContents(o, true) ? o : nullptr;
    if (!asked_nothing && AnswersItself(Py_TYPE(o))) return refuse();
    const bool named = ReadsAsTuple(o) && !Py_TYPE(o)->tp_dictoffset;  // nothing else is in it
    if (!PyDict_Check(o) && !named)
      return Break(BreakId::kUnknownOrigin, std::string("a ") + Py_TYPE(o)->tp_name + " of tensors");
  }
  Ref copy(NewLike(o));
  if (!copy || !CopyForC(o, copy.get(), asked_nothing, &differs, &hides)) return nullptr;
  PyObject* result = differs ? copy.get() : o;
  if (differs) {
    Origin copied;
    copied.kind = Origin::kOutside;
    copied.source = Find(o)->source;
    copied.contents_noted = true;
    copied.real = o;
    copied.hides = hides;
    origins_.Enter(result, copied);
    keep_.push_back(std::move(copy));
  }
  Find(o)->shadow = result;
  return result;
}
}  // namespace framejit::capture
