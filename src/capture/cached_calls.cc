// This file has the calls of functions behind functools.lru_cache.
#include <algorithm>
#include <vector>

#include "capture/builtins.h"
#include "capture/cached_inputs.h"
#include "capture/leaf_casts.h"
#include "capture/made_ahead.h"
#include "capture/numbers/number_slots.h"
#include "capture/only_computes.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/segment.h"
#include "capture/special_calls.h"
#include "capture/wrappers/tape.h"
#include "graph/effects.h"
#include "guard/source.h"
#include "guard/versions.h"
#include "tensor/autocast.h"
#include "tensor/import.h"
#include "tensor/overrides.h"

namespace framejit::capture {
namespace {

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

PyObject* GiveOutcome(PyObject* self, PyObject* args, PyObject* keywords);
PyMethodDef give_outcome = {"outcome", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(GiveOutcome)),
                            METH_VARARGS | METH_KEYWORDS, nullptr};

// The stand-in in a cache. Borrowed; null: there is none.
PyObject* StandIn(PyObject* cached) {
  PyObject* found = nullptr;
  const visitproc see = [](PyObject* o, void* arg) {
    const bool is = PyCFunction_Check(o) && reinterpret_cast<PyCFunctionObject*>(o)->m_ml == &give_outcome;
    if (is) *static_cast<PyObject**>(arg) = o;
    return static_cast<int>(is);
  };
  Py_TYPE(cached)->tp_traverse(cached, see, &found);
  return found;
}

// The cache's own dict and the name of a call in it. Null: it is not there; *name is what a cache would call it, *typed
// what one does that tells types apart.
PyObject* CacheEntry(PyObject* cached, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                     PyObject** dict, Ref* name, Ref* typed) {
  const Py_ssize_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  PyObject* const stand_in = StandIn(cached);
  CacheParts parts{stand_in ? stand_in : function};
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
  for (Ref* out : {name, typed}) {
    if (out == typed) key.insert(key.end(), types.begin(), types.end());
    Ref all(PyTuple_New(static_cast<Py_ssize_t>(key.size())));
    for (size_t i = 0; all && i < key.size(); ++i) PyTuple_SET_ITEM(all.get(), i, Py_NewRef(key[i]));
    if (!all) return nullptr;
    const bool alone = key.size() == 1 && (PyLong_CheckExact(key[0]) || PyUnicode_CheckExact(key[0]));
    *out = alone ? Borrow(key[0]) : std::move(all);
    PyObject* entry = PyDict_GetItemWithError(*dict, out->get());
    if (entry && out == typed) *name = Borrow(typed->get());
    if (entry || PyErr_Occurred()) return entry;
  }
  return nullptr;
}

// Where an lru_cache keeps its function, in bytes from its beginning. 0: nowhere.
Py_ssize_t FunctionIn(PyObject* cached, PyObject* function) {
  for (Py_ssize_t i = sizeof(PyObject); i < Py_TYPE(cached)->tp_basicsize; i += sizeof(PyObject*))
    if (*reinterpret_cast<PyObject**>(reinterpret_cast<char*>(cached) + i) == function) return i;
  return 0;
}
PyObject*& At(PyObject* cached, Py_ssize_t offset) {
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(cached) + offset);
}

// Stands in an lru_cache for its function until the program makes the calls that captures have made already, and gives
// there what the function gave: [cache, offset, function], and of each call positional arguments, keywords, result, and
// whether that is an exception which came from elsewhere, as from a signal handler: it is raised there.
constexpr Py_ssize_t kHead = 3, kOfCall = 4;

// What a call that begins there gives; borrowed. Null: it raises.
PyObject* Given(PyObject* waiting, Py_ssize_t at) {
  return PyList_GET_ITEM(waiting, at + 3) == Py_True ? nullptr : PyList_GET_ITEM(waiting, at + 2);
}

// The calls of this thread that wait: the list, and the arguments as they lie in it.
std::vector<std::pair<Ref, Ref>>& Ahead() {
  static thread_local auto& ahead = *new std::vector<std::pair<Ref, Ref>>;
  return ahead;
}

// Takes a call off the list. With the last one the cache has its function again.
void TakeOff(PyObject* waiting, Py_ssize_t at) {
  static Ref& last = *new Ref;  // its call is still under way when the cache lets go of it
  PyObject* const args = PyList_GET_ITEM(waiting, at);
  std::vector<std::pair<Ref, Ref>> done;
  std::erase_if(Ahead(), [&](auto& a) {
    const bool is = a.second.get() == args;
    if (is) done.push_back(std::move(a));
    return is;
  });
  PyList_SetSlice(waiting, at, at + kOfCall, nullptr);
  if (PyList_GET_SIZE(waiting) != kHead) return;
  const Ref cache = Borrow(PyList_GET_ITEM(waiting, 0)), function = Borrow(PyList_GET_ITEM(waiting, 2));
  PyObject*& own = At(cache.get(), PyLong_AsSsize_t(PyList_GET_ITEM(waiting, 1)));
  last = Ref(std::exchange(own, Py_NewRef(function.get())));
  PyList_SetSlice(waiting, 0, kHead, nullptr);
}

// Are two calls one to every cache? -1: an error. kOther: they are equal, but a cache may tell types or the order of
// keywords apart.
enum Alike : int8_t { kError = -1, kNot, kOther, kSame };
Alike Compare(PyObject* args, PyObject* keywords, PyObject* others, PyObject* other_keywords) {
  int same = PyObject_RichCompareBool(args, others, Py_EQ);
  if (same == 1) same = PyObject_RichCompareBool(keywords, other_keywords, Py_EQ);
  if (same != 1) return same ? kError : kNot;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i)
    if (Py_TYPE(PyTuple_GET_ITEM(args, i)) != Py_TYPE(PyTuple_GET_ITEM(others, i))) return kOther;
  PyObject *k, *v, *k2, *v2;
  for (Py_ssize_t at = 0, at2 = 0; PyDict_Next(keywords, &at, &k, &v) && PyDict_Next(other_keywords, &at2, &k2, &v2);)
    if (Py_TYPE(v) != Py_TYPE(v2) || PyUnicode_Compare(k, k2)) return kOther;
  return kSame;
}

// Where in that list a call begins; 0: it is not there, -1: an error. *other: one that is equal is.
Py_ssize_t FindCall(PyObject* waiting, PyObject* args, PyObject* keywords, bool* other = nullptr) {
  for (Py_ssize_t i = kHead; i + kOfCall <= PyList_GET_SIZE(waiting); i += kOfCall) {
    const Ref others = Borrow(PyList_GET_ITEM(waiting, i)), named = Borrow(PyList_GET_ITEM(waiting, i + 1));
    const Alike alike = Compare(args, keywords, others.get(), named.get());
    if (alike == kError) return -1;
    if (alike == kSame) return i;
    if (alike == kOther && other) *other = true;
  }
  return 0;
}

PyObject* GiveOutcome(PyObject* self, PyObject* args, PyObject* keywords) {
  const Ref function = Borrow(PyList_GET_ITEM(self, 2));
  Ref named = keywords ? Ref::Borrow(keywords) : Ref(PyDict_New());
  if (!named) return nullptr;
  const Py_ssize_t at = FindCall(self, args, named.get());
  if (at <= 0) return at ? nullptr : PyObject_Call(function.get(), args, keywords);
  const bool raises = !Given(self, at);
  Ref result = Borrow(PyList_GET_ITEM(self, at + 2));
  TakeOff(self, at);
  if (!raises) return result.release();
  PyErr_Restore(Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(result.get()))), result.get(),
                PyException_GetTraceback(result.get()));
  result.release();
  return nullptr;
}
bool Pack(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, Ref* all, Ref* named) {
  *all = Ref(PyTuple_New(nargs));
  *named = Ref(PyDict_New());
  if (!*all || !*named) return false;
  for (Py_ssize_t i = 0; i < nargs; ++i) PyTuple_SET_ITEM(all->get(), i, Py_NewRef(args[i]));
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i)
    if (PyDict_SetItem(named->get(), PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) < 0) return false;
  return true;
}

// Is there a stand-in in the cache that waits for this very call, and has a result for it?
bool Waits(PyObject* cached, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* stand_in = StandIn(cached);
  PyObject* waiting = stand_in ? PyCFunction_GET_SELF(stand_in) : nullptr;
  Ref all, named;
  if (!waiting || !Pack(args, nargs, kwnames, &all, &named)) return false;
  const Py_ssize_t at = FindCall(waiting, all.get(), named.get());
  return at > 0 && Given(waiting, at);
}

// Has the cache's stand-in, `there` or a new one, wait for a call.
bool Wait(PyObject* cached, PyObject* there, PyObject* function, PyObject* args, PyObject* named, PyObject* result,
          bool raises) {
  const Py_ssize_t offset = there ? 0 : FunctionIn(cached, function);
  const Ref made(there ? nullptr : Py_BuildValue("[OnO]", cached, offset, function));
  PyObject* const waiting = there ? PyCFunction_GET_SELF(there) : made.get();
  const Ref call(Py_BuildValue("OOOO", args, named, result, raises ? Py_True : Py_False));
  const Py_ssize_t size = waiting ? PyList_GET_SIZE(waiting) : 0;
  if (!waiting || !call || PyList_SetSlice(waiting, size, size, call.get()) < 0) return false;
  if (!there) {
    PyObject* stand_in = PyCFunction_New(&give_outcome, waiting);
    if (!stand_in) return false;
    Py_DECREF(std::exchange(At(cached, offset), stand_in));
  }
  Ahead().emplace_back(Borrow(waiting), Borrow(args));
  return true;
}

// How many calls of a cache wait for the program to make them.
Py_ssize_t HowMany(PyObject* cached) {
  PyObject* const there = StandIn(cached);
  return there ? (PyList_GET_SIZE(PyCFunction_GET_SELF(there)) - kHead) / kOfCall : 0;
}

// The pending exception, with its traceback, which is cleared.
Ref TakeRaised() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type), Py_XDECREF(traceback);
  return Ref(value);
}

// Calls the function of a cache once, for a call that the cache does not know, if that does nothing but compute. The
// cache learns it, and counts it, when the program makes the call: at the exit, before a run, or where no segment comes
// of the capture.
PyObject* CallOnce(CaptureSemantics& sem, Session& s, PyObject* cached, PyObject* function, PyObject* const* args,
                   Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* const there = StandIn(cached);
  if (!there && !FunctionIn(cached, function)) return s.Break(BreakId::kUnknownCall, "a functools.lru_cache");
  Ref all, named;
  if (!Pack(args, nargs, kwnames, &all, &named)) return nullptr;
  bool other = false;
  const Py_ssize_t at = there ? FindCall(PyCFunction_GET_SELF(there), all.get(), named.get(), &other) : 0;
  if (at < 0) return nullptr;
  // Is what comes of it the program's to see before anything else? With fullgraph=True the whole call is Python's then.
  const auto leave = [&](const std::string& why) {
    sem.loops().compiled().first_calls |= sem.loops().compiled().fullgraph;
    return s.Break(BreakId::kUnknownCall, why);
  };
  constexpr const char* kInterrupted = "a functools.lru_cache whose function was interrupted";
  if (PyObject* given = at ? Given(PyCFunction_GET_SELF(there), at) : nullptr) return Py_NewRef(given);
  if (at) return leave(kInterrupted);  // a capture has called it
  if (other) return s.Break(BreakId::kUnknownCall, "a functools.lru_cache that knows this by an equal key");
  if (s.cached.looks())
    return s.Break(BreakId::kUnknownCall,
                   "a functools.lru_cache that does not know what another's function asks it for");
  if (std::string why; !OnlyComputes(sem, s, function, args, nargs, kwnames, &why))
    return leave("the first one of a functools.lru_cache with these arguments: " + why);
  SuspendScope off;
  const SignalsServed served;
  const tensor::OverridesOff as_there(s.modes.overrides_off);
  Ref result(PyObject_Call(function, all.get(), named.get()));
  const bool raises = !result;
  if (raises) {
    if (PyErr_ExceptionMatches(PyExc_RecursionError) || PyErr_ExceptionMatches(PyExc_MemoryError))
      return PyErr_Clear(), leave("a functools.lru_cache of a function that raises");  // the program has more room
    result = TakeRaised();
  }
  if (!Wait(cached, StandIn(cached), function, all.get(), named.get(), result.get(), raises)) return nullptr;
  return raises ? leave(kInterrupted) : result.release();
}

// What a call of a cache gives: what the cache has, or what waits for the call. Else the dict, which no call gives.
PyObject* WhatIsGiven(PyObject*, PyObject* given) {
  PyObject *bounded, *dict, *name, *reference, *args, *named;
  if (!PyArg_UnpackTuple(given, "lru_cache", 6, 6, &bounded, &dict, &name, &reference, &args, &named)) return nullptr;
  PyObject* entry = PyDict_GetItemWithError(dict, name);
  if (!entry && PyErr_Occurred()) return nullptr;
  if (entry) return Py_NewRef(bounded == Py_True ? ResultIn(entry) : entry);
  PyObject* const cached = PyWeakref_GET_OBJECT(reference);
  PyObject* const stand_in = cached == Py_None ? nullptr : StandIn(cached);
  PyObject* const waiting = stand_in ? PyCFunction_GET_SELF(stand_in) : nullptr;
  const Py_ssize_t at = waiting ? FindCall(waiting, args, named) : 0;
  if (at < 0) return nullptr;
  PyObject* const result = at ? Given(waiting, at) : nullptr;
  return Py_NewRef(result ? result : dict);
}
PyMethodDef what_is_given = {"lru_cache", WhatIsGiven, METH_VARARGS, nullptr};

// The calls that fullgraph=True left to Python, as WhatIsGiven is asked for them.
std::vector<Ref>& Left() {
  static thread_local auto& left = *new std::vector<Ref>;
  return left;
}

}  // namespace

MadeAhead::MadeAhead() : before_(Ahead().size()) {}

MadeAhead::~MadeAhead() {
  if (Ahead().size() <= before_) return;
  const tensor::SavedError error;
  while (Ahead().size() > before_) {
    const auto [waiting, args] = std::move(Ahead().back());
    Ahead().pop_back();
    for (Py_ssize_t i = kHead; i + kOfCall <= PyList_GET_SIZE(waiting.get()); i += kOfCall)
      if (PyList_GET_ITEM(waiting.get(), i) == args.get()) {
        TakeOff(waiting.get(), i);
        break;
      }
  }
}

bool HaveLearned() {
  const tensor::SavedError error;
  const std::vector<Ref> left = std::exchange(Left(), {});
  return std::all_of(left.begin(), left.end(), [](const Ref& key) {
    const Ref given(WhatIsGiven(nullptr, key.get()));
    PyErr_Clear();
    return given && given.get() != PyTuple_GET_ITEM(key.get(), 1);
  });
}

// What is in the cache is what a call gives, guarded by being there. The call itself, which the cache counts, and by
// which one with a bound decides what to drop, is made at the exit. What is not there yet is computed now, once, or is
// Python's to compute: once it is there the program is captured again.
static PyObject* CallCached(CaptureSemantics& sem, Session& s, PyObject* cached, PyObject* const* args,
                            Py_ssize_t nargs, PyObject* kwnames) {
  SuspendScope off;
  Ref function(PyObject_GetAttrString(cached, "__wrapped__")), info(PyObject_CallMethod(cached, "cache_info", nullptr));
  if (!function || !info) return nullptr;
  PyObject *most = PyTuple_GetItem(info.get(), 2), *dict;
  if (!most) return nullptr;
  const bool bounded = most != Py_None;
  Ref name, typed, result;
  PyObject* entry = CacheEntry(cached, function.get(), args, nargs, kwnames, &dict, &name, &typed);
  if (!dict) return s.Break(BreakId::kUnknownCall, "a functools.lru_cache");
  if (bounded && WaitsAround(cached))
    return s.Break(BreakId::kUnknownCall, "a functools.lru_cache that has a bound, and of which a call waits");
  // It must not drop what this capture finds in it.
  const Py_ssize_t waiting = bounded ? HowMany(cached) : 0, room = bounded ? PyLong_AsSsize_t(most) : 0;
  const auto found = std::count_if(s.pending().cache_calls.begin(), s.pending().cache_calls.end(),
                                   [&](const CacheCall& c) { return c.cache.get() == cached; });
  if (bounded && (entry ? waiting && PyDict_GET_SIZE(dict) + waiting > room : room <= std::max(found, waiting)))
    return s.Break(BreakId::kUnknownCall, "a functools.lru_cache that is full");
  if (entry) {
    result = Borrow(bounded ? ResultIn(entry) : entry);
  } else {
    if (PyErr_Occurred()) return nullptr;
    Ref facts(PyObject_CallMethod(cached, "cache_parameters", nullptr));
    PyObject* const types = facts ? PyDict_GetItemString(facts.get(), "typed") : nullptr;
    if (!types) return PyErr_Clear(), s.Break(BreakId::kUnknownCall, "a functools.lru_cache");
    if (types == Py_True) name = std::move(typed);
    result = Ref(CallOnce(sem, s, cached, function.get(), args, nargs, kwnames));
    if (PyErr_Occurred() && !s.broken()) return nullptr;
  }
  if (entry && !bounded) {
    if (guard::DictLookup(dict, name.get()) != entry)  // it is there by another name, which is equal: 1 and True
      return s.Break(BreakId::kUnknownCall, "a functools.lru_cache that knows this by an equal key");
    s.guards().Is(s.guards().Child(SourceKind::kDictItem, s.guards().Const(dict), 0, name.get()), entry);
  } else {
    static PyObject* const gives = PyCFunction_New(&what_is_given, nullptr);
    Ref all, named, reference(PyWeakref_NewRef(cached, nullptr));
    if (!gives || !reference || !Pack(args, nargs, kwnames, &all, &named)) return nullptr;
    Ref key(PyTuple_Pack(6, bounded ? Py_True : Py_False, dict, name.get(), reference.get(), all.get(), named.get()));
    if (!key) return nullptr;
    s.guards().Is(s.guards().Child(SourceKind::kAnswer, s.guards().Const(gives), 0, key.get()),
                  result ? result.get() : dict);
    if (!result && sem.loops().compiled().first_calls) Left().push_back(std::move(key));
  }
  if (!result) return nullptr;
  CacheCall again{{Borrow(cached), {}}, Borrow(cached), Borrow(result.get())};
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

const guard::Source* CachedInputs::Place(Session& s) {
  if (!places_) places_ = Ref(PyList_New(0));
  if (!places_ || PyList_Append(places_.get(), Py_None) < 0) return nullptr;
  const auto at = static_cast<int>(PyList_GET_SIZE(places_.get()) - 1);
  return s.guards().Child(SourceKind::kItem, s.guards().Const(places_.get()), at);
}

// Are these calls of the framework without effects, of which no run decides anything?
static bool WithoutEffects(std::span<const Call> calls) {
  constexpr uint32_t kEffects =
      kOutside | kSizedByData | kWritesFirst | kWritesInSilence | kDraws | kForeign | kInPlace;
  return std::none_of(calls.begin(), calls.end(), [](const Call& c) {
    const bool out = std::any_of(c.kwargs.begin(), c.kwargs.end(), [](auto& k) { return k.first == "out"; });
    return out || c.callee.Has(kEffects) || c.callee.last() == "__setitem__" || c.callee.last() == "__set__";
  });
}

bool CachedInputs::Ask(CaptureSemantics& sem, Session& s, Call* call, bool quiet, PyObject* const* args,
                       Py_ssize_t nargs, Ref* real) const {
  SuspendScope off;
  PyObject* dict;
  Ref name, typed;
  PyObject *const cached = call->cache.get(), *const kwnames = call->kwnames.get();
  PyObject* entry = CacheEntry(cached, call->function.get(), args, nargs, kwnames, &dict, &name, &typed);
  if (!dict) return s.Break(BreakId::kUnknownCall, "a functools.lru_cache"), false;
  if (entry) {
    *real = Borrow(call->bounded ? ResultIn(entry) : entry);
  } else if (!PyErr_Occurred() && quiet) {
    *real = Ref(CallOnce(sem, s, cached, call->function.get(), args, nargs, kwnames));
    s.symbols_refused |= s.broken() && s.options().whole;
  }
  return static_cast<bool>(*real);
}

PyObject* CachedInputs::TakeTensor(Session& s, Call call, PyObject* real, PyObject* shown) {
  tensor::Meta m;
  if (!tensor::ReadMeta(real, &m)) return nullptr;
  call.meta = s.meta(AsTensor(shown)->id);
  call.key_set = m.key_set;
  call.meta.is_inference = m.is_inference;
  call.meta.is_parameter = call.meta.is_scalar = false;
  const guard::Source* place = Place(s);
  if (!place) return nullptr;
  call.input = static_cast<int>(s.input_sources().size());
  Ref proxy(s.AskedInput(real, place, call.meta, "lru_cache " + std::to_string(calls_.size())));
  if (!proxy) return nullptr;
  calls_.push_back(std::move(call));
  proxies_.push_back(Borrow(proxy.get()));
  return proxy.release();
}

// A cache with a bound drops what was not asked for the longest, so that its calls keep their order: what would wait
// for the exit is asked for with the others.
bool CachedInputs::TakeWaiting(Session& s, const Call& next) {
  if (!next.bounded) return true;
  for (CacheCall& c : s.pending().cache_calls) {
    if (c.cache.get() != next.cache.get() || !c.call.method) continue;
    Call call{Borrow(next.cache.get()), Borrow(next.function.get()), {}, {}, true};
    for (const Ref& a : c.call.args) call.args.push_back({Form::kObject, Borrow(a.get())});
    if (c.call.method.get() != next.cache.get()) {  // a partial
      Ref named(PyObject_GetAttrString(c.call.method.get(), "keywords")), names(named ? PyList_New(0) : nullptr);
      PyObject *k, *v;
      for (Py_ssize_t at = 0; names && PyDict_Next(named.get(), &at, &k, &v);) {
        if (PyList_Append(names.get(), k) < 0) return false;
        call.args.push_back({Form::kObject, Borrow(v)});
      }
      call.kwnames = Ref(names ? PyList_AsTuple(names.get()) : nullptr);
      if (!call.kwnames) return false;
    }
    call.given.object = Borrow(c.result.get());
    calls_.push_back(std::move(call));
    proxies_.emplace_back();
    c.call.method = Ref();  // and it stays known that the program makes this call
  }
  return true;
}

// What the function gives now is a tensor whose size follows from the numbers, or made of numbers that do: its code is
// captured, once, for nothing but that.
PyObject* CachedInputs::Capture(CaptureSemantics& sem, Session& s, PyObject* cached, PyObject* const* args,
                                Py_ssize_t nargs, PyObject* kwnames) {
  if (!cached) {  // autocast's: of a leaf, in a type
    const std::optional<LeafCast> cast = looks_ ? std::nullopt : LeafCast::Of(s, args[0], args[1]);
    if (!cast) return nullptr;
    Call call{{}, {}, {}, {{.kind = Form::kNumber, .number = shape::Int(cast->input)}}, false};
    const auto known = std::find_if(calls_.begin(), calls_.end(), [&](const Call& c) { return c.Same(call); });
    if (known != calls_.end()) {
      if (!cast->Fits(s, known->meta)) return nullptr;
      return Py_NewRef(proxies_[known - calls_.begin()].get());
    }
    const Ref real(cast->Now(s, &call.meta, &call.key_set));
    const guard::Source* place = real ? Place(s) : nullptr;
    if (!place) return nullptr;
    call.input = static_cast<int>(s.input_sources().size());
    Ref proxy(s.AskedInput(real.get(), place, call.meta, "cast " + std::to_string(calls_.size())));
    if (!proxy) return nullptr;
    calls_.push_back(std::move(call));
    proxies_.push_back(Borrow(proxy.get()));
    return proxy.release();
  }
  const bool known = s.SourceOf(cached) || !s.Find(cached);
  if (!known || s.later || s.in_custom || s.InLookup() || s.vmap.open() || TapeOf(s)) return nullptr;
  const bool quiet = !s.pending().count() && WithoutEffects(s.trace().calls);
  Ref function(PyObject_GetAttrString(cached, "__wrapped__")), info(PyObject_CallMethod(cached, "cache_info", nullptr));
  PyObject* most = info ? PyTuple_GetItem(info.get(), 2) : nullptr;
  if (!function || !most) return nullptr;
  if (!PyFunction_Check(function.get())) return nullptr;
  Call call{Borrow(cached), Borrow(function.get()), Borrow(kwnames), {}, most != Py_None};
  call.args.resize(nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0));
  for (size_t i = 0; i < call.args.size(); ++i)
    if (!Form::Read(s, args[i], true, &call.args[i])) return nullptr;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (!calls_[i].Same(call)) continue;  // the cache counts it
    if (!quiet && calls_[i].input >= 0) return nullptr;
    if (!TakeWaiting(s, call)) return nullptr;
    call.input = calls_[i].input;
    call.meta = calls_[i].meta;
    call.key_set = calls_[i].key_set;
    call.given = calls_[i].given;
    calls_.push_back(std::move(call));
    proxies_.push_back(Borrow(proxies_[i].get()));
    return Py_NewRef(proxies_[i].get());
  }

  const std::vector<Ref> now = call.Arguments(s.env().hints());
  std::vector<PyObject*> raw;
  for (const Ref& a : now) raw.push_back(a.get());
  Ref real;
  if (std::count(raw.begin(), raw.end(), nullptr) || !Ask(sem, s, &call, quiet, raw.data(), nargs, &real))
    return nullptr;
  const bool plain = tensor::Classify(real.get()) == tensor::Class::kTorch;
  tensor::Meta m;
  PyObject** const own = plain ? _PyObject_GetDictPtr(real.get()) : nullptr;
  if (plain && (!quiet || !tensor::ReadMeta(real.get(), &m) || m.requires_grad || (own && *own))) return nullptr;
  if (!plain && !PyTuple_CheckExact(real.get()) && !PyList_CheckExact(real.get()) && !PyDict_CheckExact(real.get()) &&
      !IsPrimitive(real.get()))
    return nullptr;
  const auto& all = s.trace().tensors;
  const size_t calls = s.trace().calls.size(), tensors = all.size(), others = s.pending().cache_calls.size(),
               asked = calls_.size(), written = s.pending().count();
  s.SourceOf(function.get());
  const bool looked = std::exchange(looks_, true);
  Ref shown(sem.Call(function.get(), args, nargs, kwnames));
  looks_ = looked;
  s.symbols_refused |= s.broken() && s.options().whole;
  if (s.broken()) return nullptr;
  if (!shown && !PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
  PyErr_Clear();
  const auto is_new = [&](const auto& t) { return t.meta.requires_grad; };
  bool fits = shown && s.pending().count() == written && s.pending().cache_calls.size() == others &&
              calls_.size() == asked && WithoutEffects(std::span(s.trace().calls).subspan(calls)) &&
              std::none_of(all.begin() + static_cast<std::ptrdiff_t>(tensors), all.end(), is_new);
  if (fits && plain) {
    fits = IsTensor(shown.get());
    const TensorMeta meta = fits ? s.meta(AsTensor(shown.get())->id) : TensorMeta{};
    for (const shape::Int& size : meta.sizes) fits = fits && !s.env().AtRun(size);
    fits = fits && meta.framework == Framework::kTorch && !meta.requires_grad;
  } else if (fits) {
    const std::span<const int64_t> hints = s.env().hints();
    fits = s.trace().calls.size() == calls && Form::Read(s, shown.get(), false, &call.given) &&
           call.given.Is(real.get(), &hints);
  }
  if (!fits) {
    s.symbols_refused |= s.options().whole;  // one version for each number
    return s.broken() ? nullptr : s.Break(BreakId::kUnknownCall, "a functools.lru_cache asked for numbers that change");
  }
  s.trace().calls.resize(calls);
  if (!TakeWaiting(s, call)) return nullptr;
  if (plain) return TakeTensor(s, std::move(call), real.get(), shown.get());
  call.given.Mark(s, shown.get(), s.guards().Const(cached));
  calls_.push_back(std::move(call));
  proxies_.push_back(Borrow(shown.get()));
  return shown.release();
}

// Is it what the graph was made for? Attributes of its own would be looked for where they are not.
static bool Fits(PyObject* result, const TensorMeta& meta, uint64_t key_set, std::span<const int64_t> symbols) {
  tensor::Meta m;
  PyObject** const own = result ? _PyObject_GetDictPtr(result) : nullptr;
  if (own && *own && PyDict_GET_SIZE(*own)) return false;
  bool fits = result && tensor::Classify(result) == tensor::Class::kTorch && tensor::ReadForGuard(result, &m) &&
              m.dtype == meta.dtype && m.device == meta.device && m.key_set == key_set &&
              m.requires_grad == meta.requires_grad && m.rank == static_cast<int>(meta.sizes.size());
  for (int d = 0; fits && d < m.rank; ++d)
    fits =
        m.sizes[d] == meta.sizes[d].Eval(symbols) && (m.sizes[d] == 1 || m.strides[d] == meta.strides[d].Eval(symbols));
  return fits;
}

bool CachedInputs::Call::Fits(PyObject* result, std::span<const int64_t> symbols) const {
  if (input < 0) return result && given.Is(result, &symbols);
  return framejit::capture::Fits(result, meta, key_set, symbols);
}

bool CachedInputs::Ask(PyObject** inputs, std::span<const int64_t> symbols, std::vector<Ref>* held) const {
  struct Question {
    std::vector<Ref> args;
    std::vector<PyObject*> raw;
    Py_ssize_t nargs = 0;
  };
  std::vector<Question> all;
  for (const Call& c : calls_) {  // All are looked at before one is asked for: caches count.
    if (!c.cache) {
      all.emplace_back();
      continue;
    }
    Question q{c.Arguments(symbols), {}};
    for (const Ref& a : q.args) {
      if (!a) return PyErr_Clear(), false;
      q.raw.push_back(a.get());
    }
    q.nargs = static_cast<Py_ssize_t>(q.raw.size()) - (c.kwnames ? PyTuple_GET_SIZE(c.kwnames.get()) : 0);
    PyObject* dict;
    Ref name, typed;
    PyObject* entry =
        CacheEntry(c.cache.get(), c.function.get(), q.raw.data(), q.nargs, c.kwnames.get(), &dict, &name, &typed);
    const bool waits = !entry && Waits(c.cache.get(), q.raw.data(), q.nargs, c.kwnames.get());
    if (!dict || (!waits && (!entry || guard::DictLookup(dict, name.get()) != entry))) return PyErr_Clear(), false;
    if (entry && !c.Fits(c.bounded ? ResultIn(entry) : entry, symbols)) return PyErr_Clear(), false;
    all.push_back(std::move(q));
  }
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Call& c = calls_[i];
    Ref result(c.cache ? PyObject_Vectorcall(c.cache.get(), all[i].raw.data(), all[i].nargs, c.kwnames.get())
                       : tensor::CastOfRegion(inputs[*c.args[0].number.as_const()], c.meta.dtype));
    if (!c.Fits(result.get(), symbols)) return PyErr_Clear(), false;
    if (c.input >= 0) inputs[c.input] = result.get();
    held->push_back(std::move(result));
  }
  return true;
}

PyObject* CaptureSemantics::CallLru(PyObject* callable, PyObject** args, Py_ssize_t nargs, PyObject* kwnames) {
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  if (!s_.Pin(callable)) return nullptr;
  // Of values, and of objects that are keys by themselves: what is cached, as for every caller. An attribute of a
  // class is not known by itself.
  if (!s_.SourceOf(callable) && s_.Find(callable))
    return s_.Break(BreakId::kUnknownCall, "a functools.lru_cache that is made in the graph");
  std::vector<Ref> numbers;
  if (std::any_of(args, args + total, HoldsNumber)) {
    PyObject* asked = s_.cached.Capture(*this, s_, callable, args, nargs, kwnames);
    if (asked || s_.broken() || PyErr_Occurred()) return asked;
  }
  for (Py_ssize_t i = 0; i < total; ++i) {
    if (s_.options().whole && (IsSymInt(args[i]) || IsSymFloat(args[i]))) {  // one version for each number
      numbers.emplace_back(Concrete(args[i]));
      if (!numbers.back()) return nullptr;
      args[i] = numbers.back().get();
    }
    const KeyKind kind = KeyOf(s_, args[i]);
    if (kind != KeyKind::kValue)
      return s_.Break(BreakId::kUnknownCall, std::string("a functools.lru_cache asked for a ") +
                                                 Py_TYPE(args[i])->tp_name +
                                                 (kind == KeyKind::kNew ? " that is made in the graph" : ""));
  }
  for (Py_ssize_t i = 0; i < total; ++i)  // a value is guarded where it came in
    if (!IsValue(args[i]) && !s_.Pin(args[i])) return nullptr;
  return CallCached(*this, s_, callable, args, nargs, kwnames);
}

}  // namespace framejit::capture
