// This file is the session's view of outside containers: what is read of them is guarded, what is stored in them waits
// for the exit (what C code gets of them: containers_for_c.cc).
#include "capture/containers.h"

#include <algorithm>
#include <utility>

#include "capture/builtins.h"
#include "capture/checkpoint.h"
#include "capture/drops.h"
#include "capture/identity.h"
#include "capture/looked_at.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "capture/wrappers/wrappers.h"
#include "guard/program.h"
#include "guard/source.h"
#include "guard/versions.h"

namespace framejit::capture {

Ref KeysOf(PyObject* dict) {
  Ref it(PyODict_Check(dict) ? PyODict_Type.tp_iter(dict) : nullptr);
  return Ref(it ? PySequence_List(it.get()) : PyErr_Occurred() ? nullptr : PyDict_Keys(dict));
}

int SetIn(PyObject* dict, PyObject* key, PyObject* value) {
  if (!PyODict_Check(dict)) return value ? PyDict_SetItem(dict, key, value) : PyDict_DelItem(dict, key);
  return value ? PyODict_SetItem(dict, key, value) : PyODict_DelItem(dict, key);
}

bool IsPlainDict(PyObject* o) {
  return PyDict_CheckExact(o) || PyODict_CheckExact(o) || OfType(Py_TYPE(o), CType::kDefaultDict);
}

PyObject* Counted(Session& s, PyObject* o) {
  return IsPlainDict(o) && s.pending().Has(o) ? s.ForC(o) : s.Settled(o);
}

bool WasThere(Session& s, PyObject* list, PyObject* index) {
  const Origin* g = PyList_CheckExact(list) && index && PyLong_CheckExact(index) ? s.Find(list) : nullptr;
  if (!g || !g->changes || g->written) return false;
  int overflow;
  const long at = PyLong_AsLongAndOverflow(index, &overflow);
  if (overflow || at < 0 || at >= PyList_GET_SIZE(list)) return false;
  const auto& calls = s.pending().calls();
  return std::all_of(calls.begin(), calls.end(), [&](const PendingCall& c) {  // What takes one argument appends it.
    return c.args.empty() || c.args[0].get() != list || c.args.size() == 2;
  });
}

bool Session::Reads(PyObject* container, PyObject* key, const Source* source) {
  Origin* g = Find(container);
  if (!Unchanged(container, key) || (g && g->real && !Unchanged(g->real, key))) return false;
  if ((g && g->changes && !WasThere(*this, container, key)) || (recorded && container == recorded))
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
    int args;            // besides the container
    bool hashes;         // its argument must be hashable
    bool drops = false;  // The container may let go of what is in it.
  };
  static constexpr Row kRows[] = {{"list", "append", 1, false},
                                  {"list", "clear", 0, false, true},
                                  {"list", "reverse", 0, false},
                                  {"set", "add", 1, true},
                                  {"set", "discard", 1, true, true},
                                  {"set", "clear", 0, false, true},
                                  {"collections.deque", "append", 1, false, true},
                                  {"collections.deque", "appendleft", 1, false, true},
                                  {"collections.deque", "clear", 0, false, true}};
  Origin* g = Find(args[0]);
  if (!g || g->kind != Origin::kOutside || g->real || g->IsGoneThrough() || InLookup()) return false;
  for (const Row& r : kRows) {
    if (strcmp(Py_TYPE(args[0])->tp_name, r.type) || strcmp(name, r.name) || n != r.args + 1) continue;
    if (r.hashes && !IsPrimitive(args[1])) return false;
    if (PySet_CheckExact(args[0]) && HasIterators(keep_, args[0])) return false;
    if (r.drops && !DropsQuietly(args[0], nullptr)) return false;
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

// Guards that nothing is seen to die where the writes that wait for the exit are made.
template <typename Reads>
void GuardDrops(Session& s, const Reads& reads) {
  const auto known = [&](PyObject* container, PyObject* key, PyObject* old) {  // Its type is guarded.
    return old && IsPrimitive(old) && std::any_of(reads.begin(), reads.end(), [&](const auto& r) {
             return r.container == container && (!r.key || r.key == key);
           });
  };
  const auto guard = [&](PyObject* container, PyObject* key) {
    if (const Source* source = s.SourceOf(container)) GuardDrop(s.guards(), source, key);
  };
  for (auto& st : s.pending().stores()) {
    const bool item = PyDict_Check(st.dict.get()) && !IsSlotOf(st.dict.get(), st.key.get());
    PyObject* old = item ? PyDict_GetItemWithError(st.dict.get(), st.key.get()) : nullptr;
    if (!known(st.dict.get(), st.key.get(), old)) guard(st.dict.get(), st.key.get());
  }
  for (auto& c : s.pending().cells())
    if (!known(c.cell.get(), nullptr, PyCell_GET(c.cell.get()))) guard(c.cell.get(), nullptr);
  for (PyObject* list : s.pending().lists()) guard(list, nullptr);
  for (auto& c : s.pending().calls())
    if (Origin* g = s.Find(c.args[0].get()); g && g->changes && !g->written)
      if (c.args.size() == 1 || guard::IsDeque(c.args[0].get()) || PySet_CheckExact(c.args[0].get()))
        guard(c.args[0].get(), nullptr);
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
    const bool dict = PyDict_Check(st.dict.get()) && !IsSlotOf(st.dict.get(), st.key.get());
    for (auto& r : reads_)
      if (dict ? PyDict_Check(r.container) && (!r.key || same(r.key, st.key.get())) : r.key == st.key.get())
        apart(st.dict.get(), r.container, SourceOf(r), r.typed);
    for (auto& other : pending_.stores())
      if (same(other.key.get(), st.key.get())) apart(st.dict.get(), other.dict.get(), SourceOf(other.dict.get()));
  }
  std::vector<PyObject*> changed = pending_.lists();
  for (auto& c : pending_.calls())
    if (Origin* g = Find(c.args[0].get()); g && g->changes) changed.push_back(c.args[0].get());
  for (auto& c : pending_.cells()) changed.push_back(c.cell.get());
  for (PyObject* one : changed) {
    for (auto& r : reads_)
      if (Py_TYPE(r.container) == Py_TYPE(one)) apart(one, r.container, SourceOf(r));
    for (PyObject* other : changed)
      if (Py_TYPE(other) == Py_TYPE(one)) apart(one, other, SourceOf(other));
  }
  const auto outside = [&](const auto& own) { return trace_.tensors[own.first].input >= 0; };
  if (std::any_of(pending_.attributes.begin(), pending_.attributes.end(),
                  outside))  // whose attributes any other may show
    for (size_t i = 0; i < input_sources_.size(); ++i)
      guards_->Add(guard::Row{guard::Kind::kDistinct, input_sources_[i]});
  for (auto& st : pending_.stores())
    kernels.Separate(*this, st.dict.get(), st.key.get(), SourceOf(st.dict.get()), true);
  for (PyObject* one : changed) kernels.Separate(*this, one, nullptr, SourceOf(one), true);
  for (auto& r : reads_)
    if (!r.item || kernels.changes()) kernels.Separate(*this, r.container, r.key, SourceOf(r), false);
  kernels.AddGuards(*this);
  GuardDrops(*this, reads_);
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
  if (g->real) o = g->real;  // a copy that C code got, which later writes may have changed
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
  if (PyDict_Check(o) && pending_.Has(o) && !g->real)
    return Break(BreakId::kSideEffect, "a dict with pending stores is read as a whole"), false;
  row.here = true;
  guards_->Add(std::move(row));
  return true;
}

bool Session::NoteContents(PyObject* o, bool deep) {
  Descent descent(*this);
  if (broken_) return false;
  if (PyTuple_Check(o) || PyList_Check(o)) {
    Origin* g = Find(o);
    bool outside = g && g->kind == Origin::kOutside;
    if (outside && g->real && (g->shallow || deep)) return NoteContents(g->real, deep);
    if (outside && !Reads(o)) return false;
    if (outside && g->contents_noted && !deep && !InCheckpoint()) return true;
    const Source* s = outside ? g->source : nullptr;
    if (outside && !NoteLength(o)) return false;
    looked_at += PySequence_Fast_GET_SIZE(o);
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
    if (outside && g->real && deep) return NoteContents(g->real, deep);
    if (outside && !Reads(o)) return false;
    if (outside && g->contents_noted && !deep && !InCheckpoint()) return true;
    if (outside && pending_.Has(o) && !IsPlainDict(o))
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
    for (int i = 0; PyDict_Next(o, &pos, &k, &v); ++i) {
      if (outside) {
        Ref seen(FromOutside(v, guards_->Child(SourceKind::kDictItem, s, 0, k)));
        if (!seen || !NoteKey(k, s, i)) return false;
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
    if (std::exchange(g->contents_noted, true) && !InCheckpoint()) return true;
    if (PySet_GET_SIZE(o) > 1) {  // One that has changed may go through the same items in another order.
      guards_->Is(g->source, o);
      if (PyFrozenSet_CheckExact(o)) return true;
    }
    guard::Row row{guard::Kind::kKeys, g->source};
    row.object = PySequence_List(o);
    row.number = guard::PlacesOfCopy(o);
    if (!row.object) return false;
    Ref held(row.object);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(held.get()); ++i)
      if (!NoteKey(PyList_GET_ITEM(held.get(), i), g->source, static_cast<int>(i))) return false;
    guards_->Add(std::move(row));
    return true;
  }
  return true;
}

// A key is guarded to be this very object. What its __eq__ reads of it is guarded, too.
bool Session::NoteKey(PyObject* key, const Source* container, int number) {
  const bool several = PyTuple_CheckExact(key) ? IsTupleOfPrimitives(key) : IsPrimitive(key) && IsOneOfEquals(key);
  if (several && !guard::IsNan(key) && !later) NoteFound(key, guards_->Child(SourceKind::kKey, container, number));
  if (IsPrimitive(key) || Find(key) || guard::ComparesByIdentity(key)) return true;
  Ref seen(FromOutside(key, guards_->Const(key)));
  return !!seen;
}

bool Session::Pin(PyObject* o) {
  ++looked_at;
  if (IsPrimitive(o)) return PinNan(*this, o), true;
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
  if (PySet_CheckExact(o) || PyFrozenSet_CheckExact(o)) {  // of numbers and texts: what is in it decides all
    const Ref items(PySequence_Tuple(o));
    if (!items) return false;
    PyObject** all = &PyTuple_GET_ITEM(items.get(), 0);
    if (std::all_of(all, all + PyTuple_GET_SIZE(items.get()), IsPrimitive)) return NoteContents(o) && Pin(items.get());
  }
  if (PySlice_Check(o)) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    return Pin(s->start) && Pin(s->stop) && Pin(s->step);
  }
  // What was drawn is another object in each run, and equal to none but itself.
  if (Origin* g = Find(o); g && g->kind == Origin::kOutside && !g->proxy && !draws.IsDrawn(g->source))
    guards_->Is(g->source, o);
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
  if (IsUnseen(key)) return AskUnseen(key), Ref();
  if (PyTuple_CheckExact(key) && ComparesAsItIs(key)) return TupleAsKey(*this, key);
  PinNan(*this, key);
  if (const int input = IsTensor(key) ? trace_.tensors[pending_.Original(AsTensor(key)->id)].input : -1; input >= 0) {
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
  const bool tensor = IsTensor(key) && !IsWrapper(key) &&
                      trace_.tensors[pending_.Original(AsTensor(key)->id)].input >= 0 &&
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

bool Session::ReadEntries(PyObject* dict, const Source* s, PyObject* entries) {
  if (pending_.count()) return false;
  for (PyObject* name : guard::EntryNames(entries, false))
    if (PyDict_GetItemWithError(dict, name) || PyErr_Occurred()) return false;
  for (PyObject* name : guard::EntryNames(entries, true)) {
    PyObject* v = PyDict_GetItemWithError(dict, name);
    if (!v || !(PyDict_CheckExact(v) || PyODict_CheckExact(v)) || PyDict_GET_SIZE(v) || Find(v)) return false;
  }
  for (bool empty : {false, true}) {
    for (PyObject* name : guard::EntryNames(entries, empty)) {
      if (!Reads(dict, name, s)) return false;
      if (empty) reads_.push_back({PyDict_GetItemWithError(dict, name), nullptr, s, false, name});
    }
  }
  guard::Row row{guard::Kind::kEntries, s};
  row.object = entries;
  row.here = true;
  guards_->Add(std::move(row));
  return true;
}

const Source* Session::SourceOf(const Read& r) {
  return r.item ? guards_->Child(SourceKind::kDictItem, r.source, 0, r.item) : r.source;
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
  if (IsSlotOf(dict, key)) return Break(BreakId::kSideEffect, "a slot of a dict's class as its key"), -1;
  Origin* g = Find(dict);
  PyObject* real = PyDict_GetItemWithError(dict, key);
  if (!real && PyErr_Occurred()) return -1;
  if (real && real != value && !DropsQuietly(real)) return Break(BreakId::kSideEffect, kSeenToDie), -1;
  // It was read as a whole: what looks at it since then looks at a copy of ours, which changes with it, if there is
  // one.
  const bool copied = g && g->shadow && g->shadow != dict;
  if (g && g->contents_noted && !copied) {
    if (g->viewed || (PyODict_Check(dict) && !IsPlainDict(dict)))
      return Break(BreakId::kSideEffect, "an item of a dict that was read as a whole"), -1;
    g->shadow = nullptr;  // whoever reads it from now on gets a copy
  }
  if (copied && SetIn(g->shadow, key, value) < 0) return -1;
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
