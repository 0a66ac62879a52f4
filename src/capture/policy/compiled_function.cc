// CompiledFunction: see the header. The hot path does no Python call and, for functions without *args, no allocation of
// its own.
#include "capture/policy/compiled_function.h"

#include <structmember.h>

#include <optional>
#include <set>

#include "capture/estimate.h"
#include "capture/meter.h"
#include "capture/named_code.h"
#include "capture/now.h"
#include "capture/operator_runs.h"
#include "capture/outcomes.h"
#include "capture/override.h"
#include "capture/policy/generators.h"
#include "capture/policy/timing.h"
#include "capture/scalar/loops.h"
#include "capture/scalar/objects.h"
#include "capture/session.h"
#include "capture/special_calls.h"
#include "diag/diag.h"
#include "frame/room.h"
#include "tensor/import.h"
#include "tensor/peer.h"

namespace framejit::capture {
namespace {

struct CompiledFunction {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* function;
  PyObject* options;
  PyObject* dict;
  PyObject* weakrefs;
  std::shared_ptr<Compiled>* compiled;
  CodeState* state;
};

CompiledFunction* Self(PyObject* o) {
  return reinterpret_cast<CompiledFunction*>(o);
}

// Lays the arguments out like the frame's localsplus right after RESUME. Borrowed, except what `owned` holds.
class Slots {
 public:
  // False: the call does not fit (the real call raises the error).
  bool Bind(PyFunctionObject* f, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
    auto* co = reinterpret_cast<PyCodeObject*>(f->func_code);
    int n = co->co_nlocalsplus, positional = co->co_argcount, total = positional + co->co_kwonlyargcount;
    if (n > kMax) return false;
    for (int i = 0; i < n; ++i) slot[i] = nullptr;
    bool varargs = co->co_flags & CO_VARARGS, varkw = co->co_flags & CO_VARKEYWORDS;
    if (nargs > positional && !varargs) return false;
    for (Py_ssize_t i = 0; i < nargs && i < positional; ++i) slot[i] = args[i];
    if (varargs) {
      Py_ssize_t extra = nargs > positional ? nargs - positional : 0;
      star_ = Ref(PyTuple_New(extra));
      if (!star_) return PyErr_Clear(), false;
      for (Py_ssize_t i = 0; i < extra; ++i) PyTuple_SET_ITEM(star_.get(), i, Py_NewRef(args[positional + i]));
      slot[total] = star_.get();
    }
    if (varkw) {
      kw_ = Ref(PyDict_New());
      if (!kw_) return PyErr_Clear(), false;
      slot[total + varargs] = kw_.get();
    }
    for (Py_ssize_t k = 0; kwnames && k < PyTuple_GET_SIZE(kwnames); ++k) {
      PyObject* name = PyTuple_GET_ITEM(kwnames, k);
      if (!PyUnicode_CheckExact(name)) return false;  // a class of the program may say what it is equal to
      int at = -1;
      for (int i = co->co_posonlyargcount; i < total && at < 0; ++i)
        if (PyTuple_GET_ITEM(co->co_localsplusnames, i) == name) at = i;
      for (int i = co->co_posonlyargcount; i < total && at < 0; ++i)
        if (PyUnicode_Compare(PyTuple_GET_ITEM(co->co_localsplusnames, i), name) == 0) at = i;
      if (at >= 0) {
        if (slot[at]) return false;
        slot[at] = args[nargs + k];
      } else if (!varkw || PyDict_SetItem(kw_.get(), name, args[nargs + k]) < 0) {
        return PyErr_Clear(), false;
      }
    }
    Py_ssize_t ndefaults = f->func_defaults ? PyTuple_GET_SIZE(f->func_defaults) : 0;
    for (int i = 0; i < positional; ++i) {
      if (slot[i]) continue;
      if (i < positional - ndefaults) return false;
      slot[i] = PyTuple_GET_ITEM(f->func_defaults, i - (positional - ndefaults));
    }
    for (int i = positional; i < total; ++i) {
      if (slot[i]) continue;
      slot[i] = f->func_kwdefaults
                    ? PyDict_GetItemWithError(f->func_kwdefaults, PyTuple_GET_ITEM(co->co_localsplusnames, i))
                    : nullptr;
      if (!slot[i]) return PyErr_Clear(), false;
    }
    if (f->func_closure) {
      Py_ssize_t free = PyTuple_GET_SIZE(f->func_closure);
      for (Py_ssize_t i = 0; i < free; ++i) slot[n - free + i] = PyTuple_GET_ITEM(f->func_closure, i);
    }
    return true;
  }
  static constexpr int kMax = 128;
  PyObject* slot[kMax];

 private:
  Ref star_, kw_;
};

PyObject* AsWritten(PyObject* fn, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  SuspendScope off;
  return PyObject_Vectorcall(fn, args, nargsf, kwnames);
}

// timed: what is measured is what calls take once the hook is gone.
PyObject* LeftToPython(Compiled& compiled, PyObject* fn, PyObject* const* args, size_t nargsf, PyObject* kwnames,
                       bool timed = false) {
  const Meter meter(compiled, nullptr);
  compiled.outcomes->Add(diag::RunBy::kPython);
  frame::HookIsForNothing(timed);
  return AsWritten(fn, args, nargsf, kwnames);
}

// The whole call, with nothing captured: after a run that ended early it raises the user's error at the user's line.
PyObject* InPython(const Segment& segment, diag::RunEnd end, PyObject* fn, PyObject* const* args, size_t nargsf,
                   PyObject* kwnames) {
  if (end == diag::RunEnd::kLeft) return AsWritten(fn, args, nargsf, kwnames);
  Retry retry;
  if (!Retry::Ended(segment, end)) return nullptr;
  PyErr_Clear();
  return retry.Finish(AsWritten(fn, args, nargsf, kwnames));
}

// Too many versions, and none of them was for the last calls: Python runs most of the next ones at once.
bool GivenUp(Place& place) {
  constexpr unsigned kLost = 8, kRetry = 64;
  if (!place.give_up || place.misses < Place::kUseless || place.lost < kLost) return false;
  ++place.lost;
  return place.lost % kRetry != 0;
}

// Nothing to compile was found in such calls.
PyObject* InVain(Compiled& compiled, PyObject* fn, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  compiled.timing->Seen(args, PyVectorcall_NARGS(nargsf) + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0));
  const double start = Now();
  PyObject* result = LeftToPython(compiled, fn, args, nargsf, kwnames);
  compiled.timing->RanInPython(Now() - start);
  return result;
}

// framejit's frame hook cannot be used: functions run as written, which is told once.
bool NoHook() {
  const char* why = frame::HookUnavailable();
  static bool told = false;
  if (why && !std::exchange(told, true)) diag::Warn(std::string("functions run as written: ") + why);
  return why;
}

// What was captured around the first import of a module, before a cache knew a call, or before a lazy module had its
// parameters, says nothing of the calls that follow. some: modules were imported. raised: the call has ended in an
// error.
[[gnu::cold]] void AfterImports(Compiled& compiled, bool some, bool raised) {
  const bool again = compiled.Awaits(), whole = compiled.fullgraph || compiled.first_calls;
  compiled.import_fails |= compiled.imports && !some;
  compiled.after_imports += compiled.imports || !(HaveLearned() || raised);
  compiled.imports = compiled.first_calls = false;
  if (!again || !(some || whole)) return;
  DropSegments(compiled);
  if (!whole) return;  // the breaks of this call are told of
  compiled.breaks.clear();
  compiled.before_calls.clear();
  compiled.in_libraries.clear();
  compiled.met.clear();
}

// No segment is for this call yet: its frame is taken up by the hook.
[[gnu::cold]] PyObject* ThroughTheHook(const std::shared_ptr<Compiled>& kept, PyObject* fn, PyObject* const* args,
                                       size_t nargsf, PyObject* kwnames, const CodeState* root) {
  std::optional<tensor::PeerAside> aside;
  if (fj_hook_state() == FJ_HOOK_FOREIGN) aside.emplace();
  if (NoHook()) return PyObject_Vectorcall(fn, args, nargsf, kwnames);
  Retry retry;
  PyObject* result;
  const Py_ssize_t modules = PyDict_GET_SIZE(PyImport_GetModuleDict());
  const double start = Now();
  {
    const Meter meter(*kept, root);
    ActiveScope on(kept);
    result = PyObject_Vectorcall(fn, args, nargsf, kwnames);
  }
  kept->timing->RanInFrames(*kept, Now() - start);
  if (kept->imports || kept->first_calls)
    AfterImports(*kept, PyDict_GET_SIZE(PyImport_GetModuleDict()) > modules, !result);
  return retry.Finish(result);
}

// A call of a function all of which is machine code. Nothing: it goes another way, and nothing was done.
[[gnu::hot]] std::optional<PyObject*> CallCode(const std::shared_ptr<Compiled>& kept, PyObject* fn,
                                               PyObject* const* args, size_t nargsf, PyObject* kwnames,
                                               CodeState& state) {
  auto* code = reinterpret_cast<PyCodeObject*>(reinterpret_cast<PyFunctionObject*>(fn)->func_code);
  PyThreadState* ts = PyThreadState_Get();
  if (!state.hot || state.instead || (code->co_flags & (CO_VARARGS | CO_VARKEYWORDS)) || diag::EventsOn() ||
      fj_profiled(ts) || Estimate::Current() || IsDisabled(fn) || !frame::HasRoom(ts))
    return {};
  diag::OptionScope options(kept->options.empty() ? nullptr : &kept->options);
  CodeLoops* loops = LoopsOf(*kept, state, code);
  Slots slots;
  if (!loops || !slots.Bind(reinterpret_cast<PyFunctionObject*>(fn), args, PyVectorcall_NARGS(nargsf), kwnames))
    return {};
  PyObject* result = nullptr;
  scalar::Left left;
  const CodeLoops::Called called = loops->Call(*kept, slots.slot, &result, &left);
  if (called == CodeLoops::Called::kNot) return {};
  if (called == CodeLoops::Called::kReturned) return result;
  const GoesOn on(left, fn, called == CodeLoops::Called::kLeftAtStep);
  result = ThroughTheHook(kept, fn, args, nargsf, kwnames, &state);
  if (!result || !GoesOn::Waits()) return result;
  Py_DECREF(result);  // it began anew, and has done twice what the code had done
  PyErr_SetString(PyExc_SystemError, "framejit: a call did not go on where its code was left");
  return nullptr;
}

[[gnu::hot]] PyObject* RunCompiled(const std::shared_ptr<Compiled>& kept, PyObject* fn, PyObject* const* args,
                                   size_t nargsf, PyObject* kwnames) {
  Compiled& compiled = *kept;
  auto* function = reinterpret_cast<PyFunctionObject*>(fn);
  auto* code = reinterpret_cast<PyCodeObject*>(function->func_code);
  CodeState* state = compiled.Known({code, function->func_globals});
  if (state && state->loops && state->loops->MayCall())
    if (const auto result = CallCode(kept, fn, args, nargsf, kwnames, *state)) return *result;
  Place* entry = state ? state->entry : nullptr;
  if (entry && GivenUp(*entry)) {
    const Meter meter(compiled, state);
    return AsWritten(fn, args, nargsf, kwnames);
  }
  if (entry && state->hot && !entry->segments.empty()) {
    Slots slots;
    if (slots.Bind(reinterpret_cast<PyFunctionObject*>(fn), args, PyVectorcall_NARGS(nargsf), kwnames)) {
      for (size_t i = 0; i < entry->segments.size(); ++i) {
        Segment& seg = *entry->segments[i];
        if (!seg.exit.returns) continue;
        PyObject* result = nullptr;
        const diag::RunEnd end = seg.Try(slots.slot, nullptr, &result);
        if (end == diag::RunEnd::kCondition && OperatorRun::Waits()) break;
        if (end == diag::RunEnd::kMiss || end == diag::RunEnd::kCondition) continue;
        entry->lost = 0;
        if (end == diag::RunEnd::kOk) [[likely]]
          return result;
        return end == diag::RunEnd::kRaised ? nullptr : InPython(seg, end, fn, args, nargsf, kwnames);
      }
    }
  }
  const Py_ssize_t given = PyVectorcall_NARGS(nargsf) + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  if (compiled.timing->InVain(args, given)) return InVain(compiled, fn, args, nargsf, kwnames);
  return ThroughTheHook(kept, fn, args, nargsf, kwnames, state);
}

PyObject* RunAs(const Timing::Turn& turn, const std::shared_ptr<Compiled>& compiled, PyObject* fn,
                PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  const bool before = std::exchange(*compiled->as_calls, turn.calls);
  PyObject* result = RunCompiled(compiled, fn, args, nargsf, kwnames);
  *compiled->as_calls = before;
  return result;
}

bool Unasked(Compiled& compiled, PyObject* const* args, Py_ssize_t given) {
  return GetStance() == Stance::kDefault && compiled.timing->Unasked(args, given);
}

[[gnu::hot, gnu::noinline]] PyObject* CallAsked(PyObject* o, PyObject* const* args, size_t nargsf, PyObject* kwnames,
                                                Py_ssize_t given) {
  CompiledFunction* self = Self(o);
  PyObject* fn = self->function;
  // While capturing, a compiled function is just its function: the frame is captured with the rest.
  if (Capturing()) return PyObject_Vectorcall(fn, args, nargsf, kwnames);
  if (GetStance() == Stance::kForceEager || DisabledEverywhere()) return AsWritten(fn, args, nargsf, kwnames);
  auto* code = reinterpret_cast<PyCodeObject*>(reinterpret_cast<PyFunctionObject*>(fn)->func_code);
  // A debugger, coverage: it sees the function as it is written.
  if (fj_watched(PyThreadState_Get(), code)) return AsWritten(fn, args, nargsf, kwnames);
  const std::shared_ptr<Compiled>& compiled = *self->compiled;  // who calls `o` holds it
  if (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) {
    const bool left = Unasked(*compiled, args, given);
    if (left) frame::HookIsForNothing();
    PyObject* made = AsWritten(fn, args, nargsf, kwnames);
    return made && !left && !NoHook() ? Followed(made, compiled) : made;
  }
  if (Unasked(*compiled, args, given)) return LeftToPython(*compiled, fn, args, nargsf, kwnames);
  InUse use;
  const Timing::Turn turn = compiled->timing->Begin(*compiled, args, given);
  PyObject* result = turn.python ? LeftToPython(*compiled, fn, args, nargsf, kwnames, turn.timed)
                                 : RunAs(turn, compiled, fn, args, nargsf, kwnames);
  if (turn.timed) compiled->timing->Ended(*compiled, turn, args, given, result);
  return result;
}

[[gnu::hot]] PyObject* CallCompiled(PyObject* o, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  const Py_ssize_t given = PyVectorcall_NARGS(nargsf) + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  Compiled& compiled = **Self(o)->compiled;
  // Nothing is captured, and the call is Python's: it costs as little as it can.
  if (!frame::HookIsGone() || diag::EventsOn() || !Unasked(compiled, args, given))
    return CallAsked(o, args, nargsf, kwnames, given);
  compiled.outcomes->Add(diag::RunBy::kPython);
  auto* function = reinterpret_cast<PyFunctionObject*>(Self(o)->function);
  return function->vectorcall(Self(o)->function, args, nargsf, kwnames);
}

void Dealloc(PyObject* o) {
  CompiledFunction* self = Self(o);
  PyObject_GC_UnTrack(o);
  if (self->weakrefs) PyObject_ClearWeakRefs(o);
  Py_CLEAR(self->function);
  Py_CLEAR(self->options);
  Py_CLEAR(self->dict);
  delete self->compiled;
  PyObject_GC_Del(o);
}

int Traverse(PyObject* o, visitproc visit, void* arg) {
  CompiledFunction* self = Self(o);
  Py_VISIT(self->function);
  Py_VISIT(self->options);
  Py_VISIT(self->dict);
  return 0;
}

int Clear(PyObject* o) {
  Py_CLEAR(Self(o)->dict);
  return 0;
}

PyObject* Bind(PyObject* o, PyObject* instance, PyObject*) {
  if (!instance || instance == Py_None) return Py_NewRef(o);
  return PyMethod_New(o, instance);
}

setter set_class;
PyObject* told_of_classes;

// `o.__class__ = ...` as Python does it. Whoever wants to know of an object has a weak reference to it. The program has
// its class by then: what fails in following is told, and not raised.
int SetClass(PyObject* o, PyObject* value, void* closure) {
  const Ref before = Borrow(reinterpret_cast<PyObject*>(Py_TYPE(o)));
  if (set_class(o, value, closure) < 0) return -1;
  if (Py_IS_TYPE(o, reinterpret_cast<PyTypeObject*>(before.get())) || !PyType_SUPPORTS_WEAKREFS(Py_TYPE(o)) ||
      !*PyObject_GET_WEAKREFS_LISTPTR(o))
    return 0;
  SuspendScope off;
  if (!Ref(PyObject_CallFunctionObjArgs(told_of_classes, o, before.get(), nullptr))) PyErr_WriteUnraisable(o);
  return 0;
}

PyObject* GetAttr(PyObject* o, PyObject* name) {
  PyObject* r = PyObject_GenericGetAttr(o, name);
  if (r || !PyErr_ExceptionMatches(PyExc_AttributeError)) return r;
  PyErr_Clear();
  return PyObject_GetAttr(Self(o)->function, name);
}

PyObject* Forward(PyObject* o, void* name) {
  return PyObject_GetAttrString(Self(o)->function, static_cast<const char*>(name));
}

PyObject* Strings(const std::vector<std::string>& v) {
  PyObject* list = PyList_New(v.size());
  for (size_t i = 0; list && i < v.size(); ++i)
    PyList_SET_ITEM(list, i, PyUnicode_FromStringAndSize(v[i].data(), v[i].size()));
  return list;
}

PyObject* GetGraphs(PyObject* o, void*) {
  std::vector<std::string> texts;
  for (const auto& graph : (*Self(o)->compiled)->graphs) texts.push_back(graph->text.str());
  return Strings(texts);
}

PyObject* GetGuards(PyObject* o, void*) {
  std::vector<std::string> all;
  for (auto& [code, state] : (*Self(o)->compiled)->codes)
    for (auto& [key, place] : state->places)
      for (auto& seg : place.segments)
        for (auto& g : seg->guards->Describe(code.code->co_localsplusnames)) all.push_back(g);
  return Strings(all);
}

template <size_t N>
bool AddCounts(PyObject* into, const std::array<int64_t, N>& counts, const char* const* names) {
  for (size_t i = 0; i < N; ++i) {
    if (!counts[i]) continue;
    Ref n(PyLong_FromLongLong(counts[i]));
    if (!n || PyDict_SetItemString(into, names[i], n.get()) < 0) return false;
  }
  return true;
}

// {"capture": {...}, "compile": {...}, "run": {...}}: how often each came, those that did.
PyObject* OutcomeDict(const diag::Outcomes& o) {
  Ref capture(PyDict_New()), compile(PyDict_New()), run(PyDict_New());
  if (!capture || !compile || !run || !AddCounts(capture.get(), o.capture, diag::kCaptureEndNames) ||
      !AddCounts(compile.get(), o.compile, diag::kCompileEndNames) || !AddCounts(run.get(), o.by, diag::kRunByNames) ||
      !AddCounts(run.get(), o.run, diag::kRunEndNames))
    return nullptr;
  return Py_BuildValue("{s:O,s:O,s:O}", "capture", capture.get(), "compile", compile.get(), "run", run.get());
}

PyObject* CacheInfo(PyObject* o, PyObject*) {
  Compiled& c = **Self(o)->compiled;
  long segments = 0;
  for (auto& [code, state] : c.codes)
    for (auto& [key, place] : state->places) segments += place.segments.size();
  std::set<std::pair<std::string, int>> lines;
  for (const diag::Break& b : c.Shown(nullptr)) lines.emplace(b.file, b.line);
  return Py_BuildValue(
      "{s:l,s:L,s:L,s:i,s:i,s:i,s:i,s:i,s:d,s:N,s:n,s:L,s:L,s:N,s:N}", "segments", segments, "captures",
      (long long)c.captures, "recompiles", (long long)c.recompiles, "kernels", c.kernels.kernels, "kernels_compiled",
      c.kernels.kernels_compiled, "kernels_reused", c.kernels.kernels_reused, "library_calls", c.kernels.library_calls,
      "externs", c.kernels.externs, "compile_seconds", c.seconds, "notes", Strings(c.notes), "breaks",
      static_cast<Py_ssize_t>(lines.size()), "scalar_loops", (long long)c.scalar_loops, "scalar_runs",
      (long long)c.scalar_runs, "outcomes", OutcomeDict(*c.outcomes), "early_ends", EarlyEndsDict(*c.outcomes, false));
}

PyObject* ClearCache(PyObject* o, PyObject*) {
  ResetCompiled(**Self(o)->compiled);
  Py_RETURN_NONE;
}

PyObject* Reduce(PyObject* o, PyObject*) {
  SuspendScope off;
  Ref module(tensor::Import("framejit._pickling"));
  return module ? PyObject_CallMethod(module.get(), "reduce", "O", o) : nullptr;
}

PyObject* Same(PyObject* o, PyObject*) {
  return Py_NewRef(o);
}

PyObject* Repr(PyObject* o) {
  return PyUnicode_FromFormat("<framejit.compile of %R>", Self(o)->function);
}

PyMethodDef methods[] = {
    {"cache_info", CacheInfo, METH_NOARGS,
     "Counters of this function: segments, captures, recompiles, kernels, seconds, notes."},
    {"clear", ClearCache, METH_NOARGS, "Forget what was compiled for this function."},
    {"__reduce_ex__", Reduce, METH_O, nullptr},
    {"__copy__", Same, METH_NOARGS, nullptr},  // as of functions
    {"__deepcopy__", Same, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef members[] = {
    {"__wrapped__", T_OBJECT, offsetof(CompiledFunction, function), READONLY, nullptr},
    {"options", T_OBJECT, offsetof(CompiledFunction, options), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(CompiledFunction, dict), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef getset[] = {
    {"graphs", GetGraphs, nullptr, "Text of every captured graph.", nullptr},
    {"guards", GetGuards, nullptr, "Text of every guard.", nullptr},
    {"__doc__", Forward, nullptr, nullptr, const_cast<char*>("__doc__")},
    {"__name__", Forward, nullptr, nullptr, const_cast<char*>("__name__")},
    {"__qualname__", Forward, nullptr, nullptr, const_cast<char*>("__qualname__")},
    {"__module__", Forward, nullptr, nullptr, const_cast<char*>("__module__")},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

}  // namespace

PyTypeObject CompiledFunctionType = {
    .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
    .tp_name = "framejit._framejit.CompiledFunction",
    .tp_basicsize = sizeof(CompiledFunction),
    .tp_dealloc = Dealloc,
    .tp_vectorcall_offset = offsetof(CompiledFunction, vectorcall),
    .tp_repr = Repr,
    .tp_call = PyVectorcall_Call,
    .tp_getattro = GetAttr,
    .tp_setattro = PyObject_GenericSetAttr,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_traverse = Traverse,
    .tp_clear = Clear,
    .tp_weaklistoffset = offsetof(CompiledFunction, weakrefs),
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = getset,
    .tp_descr_get = Bind,
    .tp_dictoffset = offsetof(CompiledFunction, dict),
};

bool ReadyCompiledFunction() {
  return PyType_Ready(&CompiledFunctionType) == 0;
}

PyObject* NewCompiledFunction(PyObject* function, PyObject* options, PyObject* identity) {
  if (!PyFunction_Check(function))
    return PyErr_Format(PyExc_TypeError, "expected a function, not %s", Py_TYPE(function)->tp_name);
  Ref text(PyObject_Repr(options));
  if (!text) return nullptr;
  // A module's segments live and die with what compile_module keeps for it.
  std::string key;
  if (!identity) {
    const auto* f = reinterpret_cast<PyFunctionObject*>(function);
    char where[64];
    snprintf(where, sizeof where, "|%p|%p", static_cast<void*>(f->func_code), static_cast<void*>(f->func_globals));
    key = PyUnicode_AsUTF8(text.get()) + std::string(where);
  }
  auto* self = PyObject_GC_New(CompiledFunction, &CompiledFunctionType);
  if (!self) return nullptr;
  self->vectorcall = CallCompiled;
  self->function = Py_NewRef(function);
  self->options = Py_NewRef(options);
  self->dict = self->weakrefs = nullptr;
  self->compiled = new std::shared_ptr<Compiled>(MakeCompiled(key));
  Compiled& c = **self->compiled;
  if (PyObject* b = PyDict_GetItemString(options, "backend"); b && PyUnicode_Check(b)) c.backend = PyUnicode_AsUTF8(b);
  if (PyObject* d = PyDict_GetItemString(options, "dynamic")) c.dynamic = d == Py_None ? -1 : d == Py_True;
  if (PyObject* f = PyDict_GetItemString(options, "fullgraph")) c.fullgraph = f == Py_True;
  if (PyObject* fields = PyDict_GetItemString(options, "options");
      fields && PyDict_Check(fields) && c.options.empty()) {
    PyObject *field, *value;
    for (Py_ssize_t at = 0; PyDict_Next(fields, &at, &field, &value);)
      c.options.emplace_back(PyUnicode_AsUTF8(field), PyUnicode_AsUTF8(value));
  }
  c.root_code = Borrow(reinterpret_cast<PyFunctionObject*>(function)->func_code);  // its address is in the key
  c.place = PlaceName(NamedCode(reinterpret_cast<PyCodeObject*>(c.root_code.get()), identity));
  PyObject_GC_Track(reinterpret_cast<PyObject*>(self));
  return reinterpret_cast<PyObject*>(self);
}

PyObject* TellOfClasses(PyObject*, PyObject* function) {
  static PyObject* const name = PyUnicode_InternFromString("__class__");
  PyObject* descriptor = PyDict_GetItemWithError(guard::TypeDict(&PyBaseObject_Type), name);
  if (!descriptor || Py_TYPE(descriptor) != &PyGetSetDescr_Type)
    return PyErr_Format(PyExc_RuntimeError, "object.__class__ is not Python's own");
  PyGetSetDef* def = reinterpret_cast<PyGetSetDescrObject*>(descriptor)->d_getset;
  if (!set_class) set_class = std::exchange(def->set, SetClass);
  Py_XSETREF(told_of_classes, Py_NewRef(function));
  Py_RETURN_NONE;
}

PyObject* WrappedOf(PyObject* o) {
  return Self(o)->function;
}
PyObject* BehindCompiled(PyObject* o) {
  return Py_TYPE(o) == &CompiledFunctionType ? WrappedOf(o) : o;
}
Compiled& CompiledOf(PyObject* o) {
  return **Self(o)->compiled;
}

}  // namespace framejit::capture
