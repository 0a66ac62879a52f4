// This file has the calls of functions behind functools.lru_cache.
#include <algorithm>
#include <vector>

#include "capture/builtins.h"
#include "capture/numbers/number_slots.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/special_calls.h"
#include "guard/source.h"
#include "guard/versions.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

// An object that is nothing but itself as a key: of a Python class, without an equality of its own.
bool LooksByIdentity(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  return LayoutOf(t) == &PyBaseObject_Type && t->tp_flags & Py_TPFLAGS_HEAPTYPE &&
         t->tp_hash == PyBaseObject_Type.tp_hash && t->tp_richcompare == PyBaseObject_Type.tp_richcompare;
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

// The result in an entry of a cache with a bound, an object of C's: found in one made for the purpose.
PyObject* ResultIn(PyObject* entry) {
  static const Py_ssize_t offset = []() -> Py_ssize_t {
    Ref tools(tensor::Import("functools")), object(PyDict_New());
    Ref wrap(tools ? PyObject_CallMethod(tools.get(), "lru_cache", "i", 1) : nullptr);
    Ref maker(object ? PyObject_GetAttrString(object.get(), "copy") : nullptr);
    Ref cached(wrap && maker ? PyObject_CallOneArg(wrap.get(), maker.get()) : nullptr);
    Ref result(cached ? PyObject_CallNoArgs(cached.get()) : nullptr);
    CacheParts parts{maker.get()};
    if (result) Py_TYPE(cached.get())->tp_traverse(cached.get(), SeePart, &parts);
    PyErr_Clear();
    PyObject *key, *made = nullptr;
    Py_ssize_t at = 0;
    if (!parts.dict || !PyDict_CheckExact(parts.dict) || !PyDict_Next(parts.dict, &at, &key, &made)) return 0;
    for (Py_ssize_t i = sizeof(PyObject); i < Py_TYPE(made)->tp_basicsize; i += sizeof(PyObject*))
      if (*reinterpret_cast<PyObject**>(reinterpret_cast<char*>(made) + i) == result.get()) return i;
    return 0;
  }();
  return offset ? *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(entry) + offset) : nullptr;
}

// The cache's own dict and the name of a call in it. *name empty: it is not there.
PyObject* CacheEntry(PyObject* cached, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                     PyObject** dict, Ref* name) {
  const Py_ssize_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  CacheParts parts{function};
  Py_TYPE(cached)->tp_traverse(cached, SeePart, &parts);
  *dict = parts.dict && PyDict_CheckExact(parts.dict) && parts.mark ? parts.dict : nullptr;
  if (!*dict) return nullptr;
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
    *name = alone ? Borrow(key[0]) : std::move(all);
    PyObject* entry = PyDict_GetItemWithError(*dict, name->get());
    if (entry || PyErr_Occurred()) return entry;
  }
  return nullptr;
}

PyObject* ReadResult(PyObject*, PyObject* entry) {
  PyObject* result = ResultIn(entry);
  return Py_NewRef(result ? result : Py_None);
}
PyMethodDef read_result = {"lru_cache_result", ReadResult, METH_O, nullptr};

// Where an lru_cache keeps its function, in bytes from its beginning. 0: nowhere.
Py_ssize_t FunctionIn(PyObject* cached, PyObject* function) {
  for (Py_ssize_t i = sizeof(PyObject); i < Py_TYPE(cached)->tp_basicsize; i += sizeof(PyObject*))
    if (*reinterpret_cast<PyObject**>(reinterpret_cast<char*>(cached) + i) == function) return i;
  return 0;
}
PyObject*& At(PyObject* cached, Py_ssize_t offset) {
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(cached) + offset);
}

// Stands in an lru_cache for its function until the program makes the call that a capture has made already, and gives
// there what the function gave: [cache, offset, function, positional arguments, keywords, (result,) or exception].
PyObject* GiveOutcome(PyObject* self, PyObject* args, PyObject* keywords) {
  static Ref& last = *new Ref;  // its call is still under way when the cache lets go of it
  const auto part = [&](int i) { return Ref::Borrow(PyList_GET_ITEM(self, i)); };
  Ref cache = part(0), function = part(2), outcome = part(5);
  Ref named = keywords ? Ref::Borrow(keywords) : Ref(PyDict_New());
  if (!named) return nullptr;
  int same = PyObject_RichCompareBool(args, part(3).get(), Py_EQ);
  if (same == 1) same = PyObject_RichCompareBool(named.get(), part(4).get(), Py_EQ);
  if (same <= 0) return same ? nullptr : PyObject_Call(function.get(), args, keywords);
  const Py_ssize_t offset = PyLong_AsSsize_t(part(1).get());
  last = Ref(std::exchange(At(cache.get(), offset), function.release()));
  PyList_SetSlice(self, 0, PyList_GET_SIZE(self), nullptr);
  if (PyTuple_Check(outcome.get())) return Py_NewRef(PyTuple_GET_ITEM(outcome.get(), 0));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(outcome.get())), outcome.get());
  return nullptr;
}

// Calls the function of a cache once, for a call that the cache does not know, and has the cache learn it: now, or
// where the function raises, when the program makes the call.
PyObject* CallOnce(Session& s, PyObject* cached, PyObject* function, PyObject* const* args, Py_ssize_t nargs,
                   PyObject* kwnames) {
  static PyMethodDef method = {"outcome", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(GiveOutcome)),
                               METH_VARARGS | METH_KEYWORDS, nullptr};
  const Py_ssize_t offset = FunctionIn(cached, function);
  if (!offset) return s.Break(BreakId::kUnknownCall, "a functools.lru_cache");
  Ref all(PyTuple_New(nargs)), named(PyDict_New());
  for (Py_ssize_t i = 0; all && i < nargs; ++i) PyTuple_SET_ITEM(all.get(), i, Py_NewRef(args[i]));
  if (!all || !named) return nullptr;
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i)
    if (PyDict_SetItem(named.get(), PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) < 0) return nullptr;
  Ref result(PyObject_Call(function, all.get(), named.get())), outcome;
  if (result) {
    outcome = Ref(PyTuple_Pack(1, result.get()));
  } else {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback) PyException_SetTraceback(error, traceback);
    Py_XDECREF(traceback);
    Py_XDECREF(type);
    outcome = Ref(error);
  }
  Ref self(outcome ? Py_BuildValue("[OnOOOO]", cached, offset, function, all.get(), named.get(), outcome.get())
                   : nullptr);
  PyObject* stand_in = self ? PyCFunction_New(&method, self.get()) : nullptr;
  if (!stand_in) return nullptr;
  Py_DECREF(std::exchange(At(cached, offset), stand_in));
  if (result) return PyObject_Call(cached, all.get(), named.get());
  return s.Break(BreakId::kUnknownCall, "a functools.lru_cache of a function that raises");
}

bool Is(const Cached& cached, PyObject* cache, PyObject* name) {
  return cached.cache.get() == cache && PyObject_RichCompareBool(cached.name.get(), name, Py_EQ) == 1;
}

// A call that captures have made and that the program makes here for the first time.
bool MadeBefore(Session& s, PyObject* cache, PyObject* name) {
  const auto& made = *s.options().cached;
  return std::any_of(made.begin(), made.end(), [&](const Cached& c) { return Is(c, cache, name); }) &&
         std::none_of(s.pending().cache_calls.begin(), s.pending().cache_calls.end(),
                      [&](auto& c) { return Is(c.cached, cache, name); });
}

// A cache with a bound drops what was not asked for the longest: what waits for the exit is asked for now.
bool AskNow(Session& s, PyObject* cache) {
  for (CacheCall& c : s.pending().cache_calls) {
    if (c.made || c.cached.cache.get() != cache) continue;
    std::vector<PyObject*> args;
    for (const Ref& a : c.call.args) args.push_back(a.get());
    if (!Ref(PyObject_Vectorcall(c.call.method.get(), args.data(), args.size(), nullptr))) return false;
    c.made = true;
    s.options().cached->push_back({Borrow(cache), Borrow(c.cached.name.get())});
  }
  return true;
}

}  // namespace

// What is in the cache is what a call gives, guarded by being there. The call itself, which the cache counts, and by
// which one with a bound decides what to drop, is made at the exit. What is not there yet is computed now, once.
static PyObject* CallCached(Session& s, PyObject* cached, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  SuspendScope off;
  Ref function(PyObject_GetAttrString(cached, "__wrapped__")), info(PyObject_CallMethod(cached, "cache_info", nullptr));
  if (!function || !info) return nullptr;
  PyObject *most = PyTuple_GetItem(info.get(), 2), *dict;
  if (!most) return nullptr;
  Ref name, result;
  PyObject* entry = CacheEntry(cached, function.get(), args, nargs, kwnames, &dict, &name);
  if (!dict) return s.Break(BreakId::kUnknownCall, "a functools.lru_cache");
  bool made = !entry;
  if (!made) {
    made = MadeBefore(s, cached, name.get());
  } else {
    if (PyErr_Occurred()) return nullptr;
    if (s.pending().count())
      return s.Break(BreakId::kUnknownCall, "a functools.lru_cache that may see what was written before");
    // It must not drop what this capture has found in it.
    const auto found = std::count_if(s.pending().cache_calls.begin(), s.pending().cache_calls.end(),
                                     [&](const CacheCall& c) { return c.cached.cache.get() == cached; });
    if (most != Py_None && PyLong_AsLongLong(most) <= found)
      return s.Break(BreakId::kUnknownCall, "a functools.lru_cache that is full");
    if (most != Py_None && !AskNow(s, cached)) return nullptr;
    result = Ref(CallOnce(s, cached, function.get(), args, nargs, kwnames));
    entry = result ? CacheEntry(cached, function.get(), args, nargs, kwnames, &dict, &name) : nullptr;
    if (!result) return nullptr;
    s.options().cached->push_back({Borrow(cached), Borrow(name.get())});
  }
  if (entry && !result) result = Borrow(most == Py_None ? entry : ResultIn(entry));
  if (!entry || !result) return s.Break(BreakId::kUnknownCall, "a functools.lru_cache");
  if (guard::DictLookup(dict, name.get()) != entry)  // it is there by another name, which is equal: 1 and True
    return s.Break(BreakId::kUnknownCall, "a functools.lru_cache that knows this by an equal key");
  s.guards().Is(s.guards().Child(SourceKind::kDictItem, s.guards().Const(dict), 0, name.get()), entry);
  if (most != Py_None) {  // where such a cache drops what is oldest it takes the entry for what is new
    static PyObject* const reads = PyCFunction_New(&read_result, nullptr);
    Ref key(PyTuple_Pack(1, entry));
    if (!reads || !key) return nullptr;
    s.guards().Is(s.guards().Child(SourceKind::kAnswer, s.guards().Const(reads), 0, key.get()), result.get());
  }
  CacheCall again{{Borrow(cached), {}}, made, {Borrow(cached), Borrow(name.get())}};
  for (Py_ssize_t i = 0; i < nargs; ++i) again.call.args.push_back(Borrow(args[i]));
  if (kwnames && PyTuple_GET_SIZE(kwnames)) {
    Ref tools(tensor::Import("functools")), first(PyTuple_Pack(1, cached)), named(PyDict_New());
    Ref partial(tools ? PyObject_GetAttrString(tools.get(), "partial") : nullptr);
    for (Py_ssize_t i = 0; named && i < PyTuple_GET_SIZE(kwnames); ++i)
      if (PyDict_SetItem(named.get(), PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) < 0) return nullptr;
    again.call.method =
        Ref(partial && first && named ? PyObject_Call(partial.get(), first.get(), named.get()) : nullptr);
    if (!again.call.method) return nullptr;
  }
  s.pending().cache_calls.push_back(std::move(again));
  return s.FromOutside(result.get(), s.guards().Const(result.get()));
}

// Says what an argument is as a key of a cache: a value (also an object that stands for itself), an object that was
// made here, so that no cache has it yet, or anything else.
enum class KeyKind : uint8_t { kValue, kNew, kOther };

static KeyKind KeyOf(Session& s, PyObject* o) {
  if (IsSymInt(o) || IsSymFloat(o)) return KeyKind::kOther;  // what was cached is not what is computed now
  if (IsPrimitive(o)) return KeyKind::kValue;
  if (IsTensor(o)) return s.trace().tensors[AsTensor(o)->id].input >= 0 ? KeyKind::kOther : KeyKind::kNew;
  if (IsConstantKind(o)) return s.SourceOf(o) || !s.IsOutside(o) ? KeyKind::kValue : KeyKind::kOther;
  if (PySlice_Check(o)) return KeyKind::kOther;  // its bounds may be symbols
  const hashfunc hash = Py_TYPE(o)->tp_hash;     // Equal devices have equal hashes, and each torch.finfo has its own.
  if (IsValue(o) && hash != PyBaseObject_Type.tp_hash && hash != PyObject_HashNotImplemented) return KeyKind::kValue;
  if (LooksByIdentity(o)) return s.IsOutside(o) ? KeyKind::kValue : KeyKind::kNew;
  if (!PyTuple_Check(o)) return KeyKind::kOther;
  KeyKind kind = KeyKind::kValue;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) kind = std::max(kind, KeyOf(s, PyTuple_GET_ITEM(o, i)));
  return kind;
}

PyObject* CaptureSemantics::CallLru(PyObject* callable, PyObject** args, Py_ssize_t nargs, PyObject* kwnames) {
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  // Of values, and of objects that are keys by themselves: what is cached, as for every caller. An attribute of a
  // class is not known by itself.
  bool values = s_.SourceOf(callable) || !s_.Find(callable);
  std::vector<Ref> numbers;
  for (Py_ssize_t i = 0; i < total; ++i) {
    if (s_.options().whole && (IsSymInt(args[i]) || IsSymFloat(args[i]))) {  // one version for each number
      numbers.emplace_back(Concrete(args[i]));
      if (!numbers.back()) return nullptr;
      args[i] = numbers.back().get();
    }
    const KeyKind kind = KeyOf(s_, args[i]);
    if (kind == KeyKind::kOther)
      return s_.Break(BreakId::kUnknownCall,
                      std::string("a functools.lru_cache asked for a ") + Py_TYPE(args[i])->tp_name);
    values &= kind == KeyKind::kValue;
  }
  if (values) {
    for (Py_ssize_t i = 0; i < total; ++i)  // a value is guarded where it came in
      if (!IsValue(args[i]) && !s_.Pin(args[i])) return nullptr;
    return CallCached(s_, callable, args, nargs, kwnames);
  }
  Ref inner(PyObject_GetAttrString(callable, "__wrapped__"));
  if (!inner) return nullptr;
  s_.SourceOf(inner.get());
  const size_t written = s_.pending().count();
  Ref result(Call(inner.get(), args, nargs, kwnames));
  if (result && s_.pending().count() != written)
    return s_.Break(BreakId::kUnknownCall, "a functools.lru_cache of a function that writes");
  return result.release();
}

}  // namespace framejit::capture
