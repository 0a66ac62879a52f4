// This file is the session's view of outside containers: what is read of them is guarded, what is stored in them waits
// for the exit, and C code gets copies where they hold tensors.
#include <algorithm>
#include <cmath>
#include <utility>

#include "capture/builtins.h"
#include "capture/identity.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "capture/wrappers/wrappers.h"
#include "guard/source.h"
#include "guard/versions.h"

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

// In the order in which the program goes through them, which an OrderedDict keeps apart from its dict.
Ref KeysOf(PyObject* dict) {
  Ref it(PyODict_Check(dict) ? PyODict_Type.tp_iter(dict) : nullptr);
  return Ref(it ? PySequence_List(it.get()) : PyErr_Occurred() ? nullptr : PyDict_Keys(dict));
}

// A value of an enumeration that pybind11 made.
bool IsBoundEnum(PyObject* o) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(o));
  if (strcmp(Py_TYPE(type)->tp_name, "pybind11_type")) return false;
  PyObject* dict = guard::TypeDict(Py_TYPE(o));
  return dict && PyDict_GetItemString(dict, "__members__");
}

}  // namespace

bool Session::Reads(PyObject* container, PyObject* key, const Source* source) {
  Origin* g = Find(container);
  if (!Unchanged(container, key) || (g && g->real && !Unchanged(g->real, key))) return false;
  if ((g && g->changes) || (recorded && container == recorded))
    return Break(BreakId::kSideEffect, std::string("a changed ") + Py_TYPE(container)->tp_name + " is read"), false;
  if (!source && g) source = g->source;
  if (source) reads_.push_back({container, key, source});
  return true;
}

// Does an iterator that the program made here go through this set, and has not come to its end? It raises if the set
// has changed when it is advanced.
static bool HasIterators(const std::vector<Ref>& kept, PyObject* set) {
  return std::any_of(kept.begin(), kept.end(), [&](const Ref& o) {
    if (Py_TYPE(o.get()) != &PySetIter_Type) return false;
    auto same = [](PyObject* x, void* wanted) { return static_cast<int>(x == wanted); };
    return PySetIter_Type.tp_traverse(o.get(), same, set) != 0;
  });
}

bool Session::Defer(PyTypeObject* owner, const char* name, PyObject* const* args, Py_ssize_t n) {
  struct Row {
    const char *type, *name;
    int args;     // besides the container
    bool hashes;  // its argument must be hashable
  };
  static constexpr Row kRows[] = {{"list", "append", 1, false},
                                  {"list", "clear", 0, false},
                                  {"list", "reverse", 0, false},
                                  {"set", "add", 1, true},
                                  {"set", "discard", 1, true},
                                  {"set", "clear", 0, false},
                                  {"collections.deque", "append", 1, false},
                                  {"collections.deque", "appendleft", 1, false},
                                  {"collections.deque", "clear", 0, false}};
  Origin* g = Find(args[0]);
  if (!g || g->kind != Origin::kOutside || g->real || g->IsGoneThrough() || InLookup()) return false;
  for (const Row& r : kRows) {
    if (strcmp(Py_TYPE(args[0])->tp_name, r.type) || strcmp(name, r.name) || n != r.args + 1) continue;
    if (r.hashes && !IsPrimitive(args[1])) return false;
    if (PySet_CheckExact(args[0]) && HasIterators(keep_, args[0])) return false;
    Ref method(PyObject_GetAttrString(reinterpret_cast<PyObject*>(owner), name));
    if (!method) return PyErr_Clear(), false;
    PendingCall call{std::move(method), {}};
    for (Py_ssize_t i = 0; i < n; ++i) call.args.push_back(Borrow(args[i]));
    pending_.Call(std::move(call));
    g->changes = true;
    return true;
  }
  return false;
}

void Session::SeparateWrites() {
  auto interned = [](PyObject* o) { return PyUnicode_CheckExact(o) && PyUnicode_CHECK_INTERNED(o); };
  auto typed = [&](PyObject* o, const Source* s) {  // by FromOutside
    const Origin* g = Find(o);
    return g && g->kind == Origin::kOutside && g->source == s;
  };
  // A container and its copy with proxies have one source.
  auto apart = [&](PyObject* a, PyObject* b, const Source* t, bool known = false) {
    if (a == b) return;
    const Source* s = SourceOf(a);
    if (!s || !t || s == t || (s->kind == SourceKind::kConst && t->kind == SourceKind::kConst)) return;
    if (Py_TYPE(a) != Py_TYPE(b) && typed(a, s) && (known || typed(b, t))) return;  // their types are guarded
    guards_->Add(guard::Row{guard::Kind::kDifferentObject, s, t});
  };
  auto same = [&](PyObject* a, PyObject* b) {
    if (a == b) return true;
    if ((interned(a) && interned(b)) || tensor::Classify(a) != tensor::Class::kNone) return false;
    if (tensor::Classify(b) != tensor::Class::kNone) return false;  // Tensors are keys by identity.
    int eq = PyObject_RichCompareBool(a, b, Py_EQ);
    if (eq < 0) PyErr_Clear();
    return eq != 0;
  };
  for (auto& st : pending_.stores()) {
    if (PyType_Check(st.dict.get())) continue;  // What is read of a class is guarded by its version.
    const bool dict = PyDict_Check(st.dict.get());
    for (auto& r : reads_)
      if (dict ? PyDict_Check(r.container) && (!r.key || same(r.key, st.key.get())) : r.key == st.key.get())
        apart(st.dict.get(), r.container, r.source, r.typed);
    for (auto& other : pending_.stores())
      if (same(other.key.get(), st.key.get())) apart(st.dict.get(), other.dict.get(), SourceOf(other.dict.get()));
  }
  std::vector<PyObject*> changed = pending_.lists();
  for (auto& c : pending_.calls())
    if (Origin* g = Find(c.args[0].get()); g && g->changes) changed.push_back(c.args[0].get());
  for (auto& c : pending_.cells()) changed.push_back(c.cell.get());
  for (PyObject* one : changed) {
    for (auto& r : reads_)
      if (Py_TYPE(r.container) == Py_TYPE(one)) apart(one, r.container, r.source);
    for (PyObject* other : changed)
      if (Py_TYPE(other) == Py_TYPE(one)) apart(one, other, SourceOf(other));
  }
  const auto outside = [&](const auto& own) { return trace_.tensors[own.first].input >= 0; };
  if (std::any_of(pending_.attributes.begin(), pending_.attributes.end(),
                  outside))  // whose attributes any other may show
    for (size_t i = 0; i < input_sources_.size(); ++i)
      guards_->Add(guard::Row{guard::Kind::kDistinct, input_sources_[i]});
  for (auto& [cell, root] : root_cells)  // the frame's own, and those that functions brought along
    if (PyCell_GET(cell) != root.before)
      for (auto& r : reads_)
        if (PyCell_Check(r.container))
          guards_->Add(guard::Row{guard::Kind::kDifferentObject, guards_->Slot(root.slot), r.source});
}

bool Session::NoteLength(PyObject* o) {
  Origin* g = Find(o);
  if (!g || g->kind != Origin::kOutside) return true;
  if (!Reads(o)) return false;
  guard::Row row{guard::Kind::kLength, g->source};
  if (PyList_Check(o) || PyTuple_Check(o))
    row.number = PySequence_Fast_GET_SIZE(o);
  else if (PyDict_Check(o))
    row.number = PyDict_GET_SIZE(o);
  else if (PyAnySet_Check(o))
    row.number = PySet_GET_SIZE(o);
  else if (guard::IsDeque(o))
    row.number = PySequence_Size(o);
  else
    return true;
  if (PyDict_Check(o) && pending_.Has(o))
    return Break(BreakId::kSideEffect, "a dict with pending stores is read as a whole"), false;
  row.here = true;
  guards_->Add(std::move(row));
  return true;
}

// Goes one level deeper into nested containers, whose depth is limited because a container may hold itself.
struct Session::Descent {
  explicit Descent(Session& s) : s(s) {
    if (++s.descent_ > 100) s.Break(BreakId::kUnknownOrigin, "containers nested more than 100 deep");
  }
  ~Descent() { --s.descent_; }
  Session& s;
};

bool Session::NoteContents(PyObject* o, bool deep) {
  Descent descent(*this);
  if (broken_) return false;
  if (PyTuple_Check(o) || PyList_Check(o)) {
    Origin* g = Find(o);
    bool outside = g && g->kind == Origin::kOutside;
    if (outside && g->shallow) return NoteContents(g->real, deep);
    if (outside && !Reads(o)) return false;
    if (outside && g->contents_noted && !deep) return true;
    const Source* s = outside ? g->source : nullptr;
    if (outside && !NoteLength(o)) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) {
      PyObject* x = PySequence_Fast_GET_ITEM(o, i);
      if (outside) {
        Ref seen(FromOutside(x, guards_->Child(SourceKind::kItem, s, static_cast<int>(i))));
        if (!seen) return false;
      }
      if (deep && !IsPrimitive(x) && !NoteContents(x, true)) return false;
    }
    if (outside) Find(o)->contents_noted = true;
    return true;
  }
  if (PyDict_Check(o)) {
    Origin* g = Find(o);
    bool outside = g && g->kind == Origin::kOutside;
    if (outside && !Reads(o)) return false;
    if (outside && g->contents_noted && !deep) return true;
    if (outside && pending_.Has(o) && !PyDict_CheckExact(o))
      return Break(BreakId::kSideEffect, "a dict with pending stores is read as a whole"), false;
    const Source* s = outside ? g->source : nullptr;
    if (outside && !g->contents_noted) {
      guard::Row row{guard::Kind::kKeys, s};
      Ref keys = KeysOf(o);
      if (!keys) return false;
      row.object = keys.get();
      row.here = true;
      guards_->Add(std::move(row));
    }
    PyObject *k, *v;
    Py_ssize_t pos = 0;
    while (PyDict_Next(o, &pos, &k, &v)) {
      if (outside) {
        Ref seen(FromOutside(v, guards_->Child(SourceKind::kDictItem, s, 0, k)));
        if (!seen || !NoteKey(k)) return false;
      }
      if (deep && !IsPrimitive(v) && !NoteContents(v, true)) return false;
    }
    if (outside) Find(o)->contents_noted = true;
    return true;
  }
  if (PyAnySet_Check(o)) {
    Origin* g = Find(o);
    if (!g || g->kind != Origin::kOutside) return true;
    if (!Reads(o)) return false;
    if (std::exchange(g->contents_noted, true)) return true;
    // A set that has changed may go through the same items in another order.
    guards_->Is(g->source, o);
    if (PyFrozenSet_CheckExact(o)) return true;
    guard::Row row{guard::Kind::kKeys, g->source};
    row.object = PySequence_List(o);
    if (!row.object) return false;
    Ref held(row.object);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(held.get()); ++i)
      if (!NoteKey(PyList_GET_ITEM(held.get(), i))) return false;
    guards_->Add(std::move(row));
    return true;
  }
  return true;
}

// A key is guarded to be this very object. What its __eq__ reads of it is guarded, too.
bool Session::NoteKey(PyObject* key) {
  if (IsPrimitive(key) || Find(key) || guard::ComparesByIdentity(key)) return true;
  Ref seen(FromOutside(key, guards_->Const(key)));
  return !!seen;
}

bool Session::Pin(PyObject* o) {
  if (PyFloat_CheckExact(o) && std::isnan(PyFloat_AS_DOUBLE(o)))
    if (const Origin* g = Find(o); g && g->source) guards_->Is(g->source, o);
  if (IsPrimitive(o)) return true;
  if (!IsTensor(o)) NoteType(Py_TYPE(o));                                 // of its own methods C code may call any
  if (PyWeakref_CheckRef(o)) NoteType(Py_TYPE(PyWeakref_GET_OBJECT(o)));  // which it compares and hashes
  if (IsTensor(o)) {                                                      // arguments that are compared must stay apart
    const int input = trace_.tensors[AsTensor(o)->id].input;
    if (input >= 0) guards_->Add(guard::Row{guard::Kind::kDistinct, input_sources_[input]});
    return true;
  }
  if (PyTuple_Check(o) || PyList_Check(o) || PyDict_Check(o)) {
    Descent descent(*this);
    if (broken_ || !NoteContents(o)) return false;
    if (PyDict_Check(o)) {  // its keys were pinned when they came in
      PyObject *k, *v;
      for (Py_ssize_t at = 0; PyDict_Next(o, &at, &k, &v);)
        if (!Pin(v)) return false;
      return true;
    }
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      if (!Pin(PySequence_Fast_GET_ITEM(o, i))) return false;
    return true;
  }
  if (OfType(LayoutOf(Py_TYPE(o)), CType::kDeque)) {
    Ref items(PySequence_List(o));
    return items && Pin(items.get());
  }
  if (PySlice_Check(o)) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    return Pin(s->start) && Pin(s->stop) && Pin(s->step);
  }
  if (Origin* g = Find(o); g && g->kind == Origin::kOutside && !g->proxy) guards_->Is(g->source, o);
  return true;
}

bool UsesContext(PyObject* o) {
  return OfType(o, CType::kDecimal);
}

PyObject* PythonFunctionIn(PyTypeObject* type, PyObject* name) {
  PyObject* found = _PyType_Lookup(type, name);
  return found && PyFunction_Check(found) ? found : nullptr;
}

bool AnswersItself(PyTypeObject* type) {
  if (type == &PyDict_Type || type == &PyODict_Type) return false;
  static PyObject* const names[] = {Interned("__getitem__"),  Interned("__iter__"), Interned("__len__"),
                                    Interned("__contains__"), Interned("__eq__"),   Interned("__bool__"),
                                    Interned("__or__"),       Interned("__ror__"),  Interned("keys")};
  return std::any_of(std::begin(names), std::end(names), [&](PyObject* n) { return PythonFunctionIn(type, n); });
}

bool ReadsAsTuple(PyObject* o) {
  if (PyTuple_CheckExact(o)) return true;
  const PyTypeObject *t = Py_TYPE(o), &plain = PyTuple_Type;
  return PyTuple_Check(o) && !AnswersItself(Py_TYPE(o)) && t->tp_iter == plain.tp_iter &&
         t->tp_as_mapping->mp_subscript == plain.tp_as_mapping->mp_subscript;
}

struct DictView {  // This is CPython's own type (Objects/dictobject.c), which not all versions have in their headers.
  PyObject_HEAD PyObject* dict;
};

// The dict of which `o` is a view, or null.
PyObject* DictOfView(PyObject* o) {
  const bool view =
      Py_IS_TYPE(o, &PyDictItems_Type) || Py_IS_TYPE(o, &PyDictValues_Type) || Py_IS_TYPE(o, &PyDictKeys_Type);
  return view ? reinterpret_cast<PyObject*>(reinterpret_cast<DictView*>(o)->dict) : nullptr;
}

namespace {

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
  if (PyAnySet_Check(o)) return NoteContents(o) ? o : nullptr;
  if (UsesContext(o)) return Break(BreakId::kThreadState, "decimal.getcontext()");
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
  if (PyFunction_Check(o) && asked_nothing) return o;  // a list of them is gone through: none is called
  if (PyIter_Check(o)) return Break(BreakId::kSideEffect, "an outside iterator is advanced");
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
  Ref copy(PyDict_New());
  PyObject *k, *v;
  Py_ssize_t pos = 0;
  while (copy && PyDict_Next(o, &pos, &k, &v)) {
    Origin* c = Find(v);
    PyObject* x = c && c->proxy ? c->proxy : ForC(v, asked_nothing);
    if (!x || PyDict_SetItem(copy.get(), k, x) < 0) return nullptr;
  }
  for (auto& st : pending_.stores()) {
    if (st.dict.get() != o) continue;
    if ((st.value ? PyDict_SetItem(copy.get(), st.key.get(), st.value.get())
                  : PyDict_DelItem(copy.get(), st.key.get())) < 0)
      return nullptr;
  }
  PyObject* r = MarkFresh(copy.get());
  keep_.push_back(std::move(copy));
  return r;
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

// A container of that kind, of that many items where it is none that grows. It is null without an error where it is of
// no such kind.
PyObject* NewLike(PyObject* o) {
  if (PyTuple_CheckExact(o)) return PyTuple_New(PyTuple_GET_SIZE(o));
  if (PyList_CheckExact(o)) return PyList_New(PyList_GET_SIZE(o));
  if (PyODict_Check(o) && !PyDict_CheckExact(o)) return PyODict_New();  // Its items are in the same order.
  return PyDict_Check(o) ? PyDict_New() : nullptr;
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
      if ((PyODict_Check(copy) ? PyODict_SetItem(copy, k, c) : PyDict_SetItem(copy, k, c)) < 0) return false;
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
  if (PyDict_CheckExact(o) && pending_.Has(o) && (!g->shadow || g->shadow == o)) return PendingForC(o, asked_nothing);
  if (g->shadow && (asked_nothing || !Find(g->shadow)->hides)) return g->shadow;
  bool differs = false, hides = PyDict_Check(o) && AnswersItself(Py_TYPE(o));
  const bool plain = PyTuple_CheckExact(o) || PyList_CheckExact(o) || PyDict_CheckExact(o);
  if (!plain) {  // The methods of a subclass may look anywhere, so it is safe only if it holds no tensors.
    if (!HoldsTensors(o)) return NoteContents(o, true) ? o : nullptr;
    if (!asked_nothing && AnswersItself(Py_TYPE(o))) return refuse();
    if (!PyDict_Check(o))
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

PyObject* Session::ItemsOf(PyObject* o, bool by_c) {
  if (!(o = Settled(o))) return nullptr;
  Origin* g = Find(o);
  if (!(PyList_CheckExact(o) || (by_c ? PyTuple_CheckExact(o) : ReadsAsTuple(o))) || !g ||
      g->kind != Origin::kOutside || g->real)
    return ForC(o, !by_c);
  PyObject* seen = by_c ? ForC(o) : o;
  if (!seen || !NoteLength(o)) return nullptr;
  g = Find(o);
  if (PyObject* known = g->items[by_c]) return known;
  const Source* source = g->source;
  Ref copy(PyTuple_Check(o) ? PyTuple_New(PyTuple_GET_SIZE(o)) : PyList_New(PyList_GET_SIZE(o)));
  for (Py_ssize_t i = 0; copy && i < PySequence_Fast_GET_SIZE(o); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(seen, i);
    item = by_c ? Py_NewRef(item)  // what is in it is read when the program asks
                : FromOutside(item, guards_->Child(SourceKind::kItem, source, static_cast<int>(i)), true);
    if (!item) return nullptr;
    if (PyTuple_Check(o))
      PyTuple_SET_ITEM(copy.get(), i, item);
    else
      PyList_SET_ITEM(copy.get(), i, item);
  }
  if (!copy) return nullptr;
  Origin copied;
  copied.kind = Origin::kOutside;
  copied.source = source;
  copied.real = o;
  copied.shallow = !by_c;
  copied.contents_noted = by_c;
  copied.hides = by_c && seen != o && Find(seen)->hides;
  origins_.Enter(copy.get(), copied);
  Find(o)->items[by_c] = copy.get();
  keep_.push_back(std::move(copy));
  return Find(o)->items[by_c];
}

Ref Session::AsKey(PyObject* key) {
  if (PyTuple_CheckExact(key) && ComparesAsItIs(key)) return TupleAsKey(*this, key);
  if (const int input = IsTensor(key) ? trace_.tensors[AsTensor(key)->id].input : -1; input >= 0) {
    // That very object, by which dicts find it.
    guards_->Is(input_sources_[input], input_tensors_[input]);
    return Borrow(input_tensors_[input]);
  }
  if (!PyUnicode_CheckExact(key) && guard::IsText(key)) {  // It is found as the string that it is.
    if (const Source* s = SourceOf(key); s && IsOutside(key)) guards_->Is(s, key);
    PyObject* text = PyUnicode_FromObject(key);
    if (text) PyUnicode_InternInPlace(&text);
    return Ref(text);
  }
  if (IsSymInt(key)) return Ref(PyLong_FromLongLong(env_.Specialize(reinterpret_cast<SymInt*>(key)->expr)));
  if (IsSymFloat(key)) return Ref(PyFloat_FromDouble(numbers_->Specialize(reinterpret_cast<SymFloat*>(key)->symbol)));
  return Borrow(key);
}

// What a lookup asks of a key, of its class.
static void NoteComparison(Session& s, PyObject* key) {
  static PyObject* const names[] = {Interned("__eq__"), Interned("__hash__")};
  if (!(Py_TYPE(key)->tp_flags & Py_TPFLAGS_HEAPTYPE) || IsTensor(key)) return;
  for (PyObject* name : names) s.NoteLookup(Py_TYPE(key), name);
}

PyObject* Session::ReadDictItem(PyObject* dict, const Source* s, PyObject* asked, bool* found) {
  *found = false;
  const Ref number = AsKey(asked);
  PyObject* key = number.get();
  if (!key) return nullptr;
  PyObject* stored = nullptr;
  const int waits = pending_.Find(dict, key, &stored);
  if (waits < 0 || (!waits && !Reads(dict, key, s))) return nullptr;
  if (waits && later) return Break(BreakId::kAutogradCall, "a Function's backward reads what was written here");
  if (waits) return *found = stored != nullptr, Py_XNewRef(stored);
  NoteComparison(*this, asked);
  PyObject* v = PyDict_GetItemWithError(dict, key);
  if (!v && !PyErr_Occurred()) NoteAbsent(guards_->Child(SourceKind::kDictItem, s, 0, key));
  if (!v) return nullptr;
  return *found = true, FromOutside(v, guards_->Child(SourceKind::kDictItem, s, 0, key), true);
}

bool Session::GuardsKey(PyObject* dict, PyObject* key) {
  const bool tensor = IsTensor(key) && !IsWrapper(key) && trace_.tensors[AsTensor(key)->id].input >= 0 &&
                      meta(AsTensor(key)->id).framework == Framework::kTorch && !vmap.open();
  if (!tensor && !IsPrimitive(key) && !guard::IsText(key) && !(PyTuple_CheckExact(key) && ComparesAsItIs(key)) &&
      (!guard::ComparesByIdentity(key) || !SourceOf(key) || Find(key)->kind != Origin::kConst))
    return false;
  const Ref number = AsKey(key);
  PyObject* v = number ? PyDict_GetItemWithError(dict, number.get()) : nullptr;
  if (!v && PyErr_Occurred()) return PyErr_Clear(), false;
  return guard::DictLookup(dict, number.get()) == v;  // The lookup did not call an __eq__ of the program's.
}

const Source* Session::InnerDict(PyObject* dict, const Source* s, PyObject* key, bool empty, PyObject** inner,
                                 bool* found) {
  PyObject* v = PyDict_GetItemWithError(dict, key);
  *found = v != nullptr;
  if (v &&
      (!(PyDict_CheckExact(v) || PyODict_CheckExact(v)) || Find(v) || pending_.Has(v) || (empty && PyDict_GET_SIZE(v))))
    return nullptr;
  if (PyErr_Occurred() || !Reads(dict, key, s)) return nullptr;
  const Source* item = guards_->Child(SourceKind::kDictItem, s, 0, key);
  if (!v) return guards_->Absent(item), nullptr;
  const bool writes = pending_.count() > 0;  // then each read is compared with each of them
  if (!empty || writes) guards_->TypeIs(item, Py_TYPE(v));
  if (empty) {
    reads_.push_back({v, nullptr, item, writes});
    guard::Row row{guard::Kind::kNoItems, item};
    row.here = true;
    guards_->Add(std::move(row));
  }
  *inner = v;
  return item;
}

void Session::NoteViewed(PyObject* const* given, Py_ssize_t n, PyObject* made) {
  if (!made || IsPrimitive(made) || IsTensor(made) || PyTuple_CheckExact(made) || PyList_CheckExact(made) ||
      PyDict_CheckExact(made) || PySet_CheckExact(made))
    return;
  for (Py_ssize_t i = 0; i < n; ++i)
    if (Origin* g = PyDict_Check(given[i]) || PyList_Check(given[i]) ? Find(given[i]) : nullptr) {
      if (g->real) g = Find(g->real);
      if (g) g->viewed = true;
    }
}

int Session::WriteDictItem(PyObject* dict, PyObject* key, PyObject* value) {
  if (InLookup()) return Break(BreakId::kSideEffect, "a dict is written to while objects are looked up"), -1;
  Origin* g = Find(dict);
  PyObject* real = PyDict_GetItemWithError(dict, key);
  if (!real && PyErr_Occurred()) return -1;
  // It was read as a whole: what looks at it since then looks at a copy of ours, if that has tensors.
  const bool replaces = value && real && g && g->shadow && g->shadow != dict;
  if (g && g->contents_noted && !replaces) {
    if (g->viewed || PyODict_Check(dict))
      return Break(BreakId::kSideEffect, "an item of a dict that was read as a whole"), -1;
    g->shadow = nullptr;  // whoever reads it from now on gets another copy
  }
  if (replaces && PyDict_SetItem(g->shadow, key, value) < 0) return -1;
  Origin* was = real ? Find(real) : nullptr;
  if (was && was->proxy && was->proxy == value && pending_.Has(dict) && !pending_.Deletes(dict, key)) {  // put back
    const bool read = std::any_of(reads_.begin(), reads_.end(), [&](const Read& r) {
      return r.container == dict && r.key && PyUnicode_CheckExact(r.key) && PyUnicode_CheckExact(key) &&
             PyUnicode_Compare(r.key, key) == 0;
    });
    if (read || g->contents_noted) {
      pending_.Forget(dict, key);
      return 0;
    }
  }
  pending_.Store(dict, key, value);
  return 0;
}

}  // namespace framejit::capture
