// Calls: Python functions run as captured frames, framework functions become graph nodes, classes are instantiated step
// by step (so that __new__ and __init__ are captured), C functions run for real when a table says what they may do.

#include <algorithm>
#include <optional>

#include "capture/arg_vector.h"
#include "capture/aten_calls.h"
#include "capture/builtins.h"
#include "capture/called.h"
#include "capture/callees.h"
#include "capture/defaults.h"
#include "capture/foreach.h"
#include "capture/identity.h"
#include "capture/json.h"
#include "capture/modes.h"
#include "capture/override.h"
#include "capture/policy/compiled_function.h"
#include "capture/policy/skipped.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "capture/special_calls.h"
#include "capture/unread_text.h"
#include "capture/wrappers/collectives.h"
#include "capture/wrappers/overrides.h"
#include "capture/wrappers/tape.h"
#include "capture/wrappers/wrappers.h"
#include "guard/versions.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

// Is it an operation on tensors? A switch or a service of the framework is none: those are functions of torch._C itself
// or of pybind11.
bool IsOperator(PyObject* builtin) {
  PyObject* self = PyCFunction_GET_SELF(builtin);
  if (!self) return true;
  if (!strncmp(Py_TYPE(self)->tp_name, "pybind11", 8)) return false;
  const char* module = PyModule_Check(self) ? PyModule_GetName(self) : "";
  if (!module) PyErr_Clear();
  return !module || module != callees::kTorchC;
}

// Functions and methods of C that would change what is outside, or read what nothing guards, if other C code called
// them.
bool NotForC(Session& s, PyObject* o) {
  PyObject* self = PyCFunction_Check(o) ? PyCFunction_GET_SELF(o) : nullptr;
  if (!(PyCFunction_Check(o) || IsMethodDescriptor(o))) return false;
  if (tensor::HasCalleeName(o)) {  // What is given no tensor does not reach the session, and would draw at once.
    const Callee callee = tensor::CalleeOf(o);
    return callee.Has(kDraws) && callee.Has(kOnDefaultDevice);
  }
  if (PyCFunction_Check(o) && (!self || PyModule_Check(self) || PyType_Check(self))) {
    const std::string_view name = reinterpret_cast<PyCFunctionObject*>(o)->m_ml->ml_name;
    const Effect e = EffectOfFunction(o);
    if (e == Effect::kSpecial) return name == "setitem" || name == "delitem";
    return e != Effect::kPure && !(self && PyType_Check(self));
  }
  PyTypeObject* owner = PyCFunction_Check(o) ? Py_TYPE(self) : PyDescr_TYPE(o);
  if (Bound bound = UnbindBuiltin(o); bound.descriptor) owner = PyDescr_TYPE(bound.descriptor.get());
  const char* name =
      PyCFunction_Check(o) ? reinterpret_cast<PyCFunctionObject*>(o)->m_ml->ml_name : PyUnicode_AsUTF8(PyDescr_NAME(o));
  return EffectOfMethod(owner, name) != Effect::kPure && !(self && s.IsPrivate(self));
}

// Answers torch.Tensor.__new__(type, tensor).
bool TakesTensor(PyTypeObject* type, PyObject* const* args, Py_ssize_t nargs, Py_ssize_t total) {
  auto* base = reinterpret_cast<PyTypeObject*>(tensor::TorchLoaded() ? PlainTensorClass(false) : nullptr);
  return base && type != base && PyType_IsSubtype(type, base) && nargs == 1 && total == 1 && IsTensor(args[0]);
}

// A method that C code of its own kind (Cython) gives a generator of random numbers.
bool DrawsBy(PyObject* generator, PyObject* method) {
  if (PyFunction_Check(method) || PyType_Check(method) || PyCFunction_Check(method)) return false;
  if (!IsGenerator(generator)) return false;
  Ref name(PyObject_GetAttrString(method, "__name__"));
  const bool found = name && _PyType_Lookup(Py_TYPE(generator), name.get()) == method;
  PyErr_Clear();
  return found;
}

}  // namespace

PyObject* CaptureSemantics::CallMethod(PyObject* method, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const Py_ssize_t total = nargs + KwCount(kwnames);
  if (s_.IsOutside(method)) {  // a bound method kept somewhere: its parts are reached through it
    const Source* src = s_.SourceOf(method);
    Ref self(s_.FromOutside(PyMethod_GET_SELF(method), s_.guards().Child(SourceKind::kBoundSelf, src)));
    Ref func(s_.FromOutside(PyMethod_GET_FUNCTION(method), s_.guards().Child(SourceKind::kBoundFunc, src)));
    if (!self || !func) return nullptr;
    Vector with(self.get(), args, total);
    return Call(func.get(), with.data(), nargs + 1, kwnames);
  }
  Vector with(PyMethod_GET_SELF(method), args, total);
  return Call(PyMethod_GET_FUNCTION(method), with.data(), nargs + 1, kwnames);
}

// A framework function, by its name. Python-level ones only if there is a row for them: else their body is captured.
// Null without an error: it is not called as one.
PyObject* CaptureSemantics::CallNamed(PyObject* callable, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const Py_ssize_t total = nargs + KwCount(kwnames);
  const Callee name = tensor::CalleeOf(callable);
  if (name.empty()) return nullptr;
  const bool row = surface::HasRow(name);
  const bool made = PyType_Check(callable) && !name.Has(kTypeOfTensors);
  if ((made || OfType(callable, CType::kLruCache)) && !row) return nullptr;
  // Where tensors are made somewhere else by default, that is a mode, of which torch's own functions need not know
  // here.
  if (name.name().find("has_torch_function") != std::string::npos && !s_.modes.default_devices.back().empty() &&
      !IsCodeOf(PyEval_GetFrame(), "torch"))
    return s_.Break(BreakId::kThreadState, name);
  if (name.last() == "__get__" && total == 1 && nargs == 1 && IsTensor(args[0])) {  // torch.Tensor.shape.__get__(x)
    const Bound bound = UnbindBuiltin(callable);
    if (bound.self && !strcmp(Py_TYPE(bound.self.get())->tp_name, "getset_descriptor"))
      return TensorAttr(s_, args[0], PyDescr_NAME(bound.self.get()));
  }
  if (name.last().find("has_torch_function") != std::string_view::npos && AnyAsked(s_, args, total)) Py_RETURN_TRUE;
  if (name.last() == "_is_torch_function_enabled") return PyBool_FromLong(!s_.modes.overrides_off);
  if (auto answer = s_.ConstantAnswer(name)) return s_.FromArg(*answer);
  if (name.last() == "_make_wrapper_subclass") return MakeWrapper(s_, callable, args, nargs, kwnames);
  if (name.last() == "storage_offset" && total == 1 && !AnyAsked(s_, args, 1) && !s_.vmap.open() &&
      (IsTensor(args[0]) ? s_.meta(AsTensor(args[0])->id).framework == Framework::kTorch : IsWrapper(args[0])))
    return StorageOffset(s_, args[0]);
  if (AnyWrapper(args, total))  // a function in Python is captured
    return PyFunction_Check(callable) ? nullptr : CallWrapped(s_, callable, name.last(), args, nargs, kwnames);
  if (Answered answer = ThreadState(s_, name, args, nargs)) return *answer;
  if (name == callees::kGroupTensors) return GroupTensors(s_, callable, args, nargs, kwnames);
  if (PyFunction_Check(callable) && AnyAsked(s_, args, total)) return nullptr;  // its body asks
  Effect e = SwitchEffect(name);
  bool tensors = false;
  for (Py_ssize_t i = 0; i < total; ++i) tensors |= IsTensor(args[i]);
  if (e == Effect::kStateQuery && !tensors) return s_.Adopt(PyObject_Vectorcall(callable, args, nargs, kwnames));
  if (e == Effect::kAsks && !tensors && PyCFunction_Check(callable)) return Asked(callable, args, nargs, kwnames);
  if (PyCFunction_Check(callable) && !row && !IsOperator(callable) && !name.effects().refused())
    return s_.Break(BreakId::kThreadState, name);
  if (bool mapped; tensor::IsTorchOperator(callable))
    if (PyObject* r = CallAten(s_, callable, name, args, nargs, kwnames, &mapped);
        mapped || s_.broken() || PyErr_Occurred())
      return r;
  if (name.Has(kForeign))
    if (PyObject* r = CallOperator(callable, args, nargs, kwnames); r || s_.broken() || PyErr_Occurred()) return r;
  if (!PyFunction_Check(callable) || row || name.effects().refused()) {
    if (PyObject* self = PyCFunction_Check(callable) ? PyCFunction_GET_SELF(callable) : nullptr;
        self && IsTensor(self)) {  // a bound builtin of the tensor class
      Vector with(self, args, total);
      return s_.CallFramework(name, with.data(), nargs + 1, kwnames);
    }
    PyObject* results = s_.CallFramework(name, args, nargs, kwnames);
    return name.Has(kForeign) ? LendResults(results) : results;
  }
  return nullptr;
}

// Objects of classes that say nothing of their calls: those that have rules of their own, then by __call__.
PyObject* CaptureSemantics::CallObject(PyObject* callable, PyObject** args, Py_ssize_t nargs, PyObject* kwnames) {
  const Py_ssize_t total = nargs + KwCount(kwnames);
  if (OfType(callable, CType::kMethodWrapper)) {  // a bound slot: obj.__setitem__
    if (Bound bound = UnbindBuiltin(callable); bound.self) {
      Vector with(bound.self.get(), args, total);
      return CallC(bound.descriptor.get(), nullptr, with.data(), nargs + 1, kwnames);
    }
  }
  if (OfType(callable, CType::kLruCache)) return CallLru(callable, args, nargs, kwnames);
  if (std::string_view(Py_TYPE(callable)->tp_name).ends_with("ScriptFunction") &&
      s_.SourceOf(callable)) {  // the Python function that it was made of
    s_.guards().Is(s_.SourceOf(callable), callable);
    Ref source(PyObject_GetAttrString(callable, "_torchdynamo_inline"));
    if (!source) PyErr_Clear();
    if (source && PyFunction_Check(source.get()) && s_.SourceOf(source.get()))
      return CallPython(source.get(), args, nargs, kwnames);
  }
  if (OfType(callable, CType::kPartial)) return CallPartial(callable, args, nargs, kwnames);
  if (OfType(callable, CType::kAttrGetter) && nargs == 1 && total == 1) return CallAttrGetter(callable, args[0]);
  if (OfType(callable, CType::kMethodCaller) && nargs == 1 && total == 1)
    return CallMethodCaller(*this, s_, callable, args[0]);
  if (PyWeakref_CheckRefExact(callable) && !total && s_.IsOutside(callable)) return Referent(callable);
  if (IsJsonEncoder(callable) && nargs == total)
    return ForC(args, total) ? EncodeJson(s_, callable, args, nargs) : nullptr;
  static PyObject* call_name = PyUnicode_InternFromString("__call__");
  PyObject* d = _PyType_Lookup(Py_TYPE(callable), call_name);
  if (d && (PyFunction_Check(d) || Py_TYPE(d) == &CompiledFunctionType)) {  // or a compiled module
    s_.NoteType(Py_TYPE(callable));
    Vector with(callable, args, total);
    return CallPython(PyFunction_Check(d) ? d : WrappedOf(d), with.data(), nargs + 1, kwnames);
  }
  if (d && Py_IS_TYPE(d, &PyStaticMethod_Type)) {
    s_.NoteType(Py_TYPE(callable));
    Ref function(Py_TYPE(d)->tp_descr_get(d, callable, nullptr));
    if (function && PyFunction_Check(function.get())) {
      s_.Keep(Py_NewRef(function.get()));
      return CallPython(function.get(), args, nargs, kwnames);
    }
  }
  if (d && EffectOfMethod(Py_TYPE(callable), "__call__") == Effect::kPure && PyDescr_TYPE(d) == Py_TYPE(callable)) {
    Vector with(callable, args, total);
    return CallC(d, nullptr, with.data(), nargs + 1, kwnames);
  }
  return s_.Break(BreakId::kUnknownCall, Describe(callable));
}

PyObject* CaptureSemantics::Call(PyObject* callable, PyObject* const* args_in, size_t nargsf, PyObject* kwnames) {
  if (s_.broken()) return s_.Break(s_.reason().id);
  Py_ssize_t nargs = PyVectorcall_NARGS(nargsf), total = nargs + KwCount(kwnames);
  callable = s_.Resolve(callable);
  if (!callable) return nullptr;
  Vector v(nullptr, args_in, total);
  PyObject** args = v.data();
  if (!s_.ResolveAll(args, total)) return nullptr;
  if (PyMethod_Check(callable)) return CallMethod(callable, args, nargs, kwnames);
  if (Py_TYPE(callable) == &CompiledFunctionType) {  // as functions are
    if (s_.IsOutside(callable)) s_.guards().Is(s_.SourceOf(callable), callable);
    return Call(WrappedOf(callable), args, nargs, kwnames);
  }
  if (PyObject* r = s_.draws.MakeOrSeed(s_, callable, args, nargs, kwnames); r || s_.broken() || PyErr_Occurred())
    return r;
  if (PyObject* r = NumpyCall(callable, args, nargs, kwnames); r || s_.broken() || PyErr_Occurred()) return r;
  if (nargs && DrawsBy(args[0], callable)) return s_.draws.Draw(s_, callable, args, nargs, kwnames);
  if (PyObject* r = CallNamed(callable, args, nargs, kwnames); r || s_.broken() || PyErr_Occurred()) return r;
  if (PyFunction_Check(callable) && IsCheckpoint(callable)) return CallCheckpoint(args, nargs, kwnames);
  if (PyFunction_Check(callable))
    if (PyObject* r = CallCollective(s_, callable, args, nargs, kwnames); r || s_.broken() || PyErr_Occurred())
      return r;
  if (PyFunction_Check(callable) && IsLinearize(callable))
    if (PyObject* r = CallLinearize(args, nargs, kwnames); r || s_.broken() || PyErr_Occurred()) return r;
  if (PyFunction_Check(callable) && IsHigherOrder(callable))
    if (PyObject* r = CallHigherOrder(args, nargs, kwnames); r || s_.broken() || PyErr_Occurred()) return r;
  if (PyFunction_Check(callable) && !kwnames && IsBackwardHook(callable))
    if (PyObject* r = CallBackwardHook(callable, args, nargs); r || s_.broken() || PyErr_Occurred()) return r;
  if (PyFunction_Check(callable) && (IsPull(callable) || IsMethodOfC(callable))) {
    const bool symbolic = IsPull(callable) && nargs && HasSymbols(args[0]);
    if (Tape* tape = TapeOf(s_)) {
      tape->symbolic |= symbolic;
      return tape->Call(callable, args, nargs, kwnames);
    }
    return Tape::Ask(s_, symbolic), s_.Break(BreakId::kSubclass, "what only torch itself does with wrappers");
  }
  if (PyFunction_Check(callable))
    return IsFunctionApply(callable) ? CallCustom(args, nargs, kwnames) : CallPython(callable, args, nargs, kwnames);
  if (PyType_Check(callable)) return CallType(reinterpret_cast<PyTypeObject*>(callable), args, nargs, kwnames);
  if (PyCFunction_Check(callable)) {
    PyObject* self = PyCFunction_GET_SELF(callable);
    if (self && PyModule_Check(self)) self = nullptr;
    if (self && PyType_Check(self) && total && PyType_Check(args[0]) &&
        !strcmp(reinterpret_cast<PyCFunctionObject*>(callable)->m_ml->ml_name, "__new__") &&
        TakesTensor(reinterpret_cast<PyTypeObject*>(args[0]), args + 1, nargs - 1, total - 1))
      return AsClass(s_, args[1], reinterpret_cast<PyTypeObject*>(args[0]));
    if (self && PyType_Check(self) && IsFunctionApply(callable)) {
      std::vector<PyObject*> all{self};
      all.insert(all.end(), args, args + total);
      return CallCustom(all.data(), nargs + 1, kwnames);
    }
    return CallC(callable, self, args, nargs, kwnames);
  }
  if (IsMethodDescriptor(callable) || PyInstanceMethod_Check(callable))
    return CallC(callable, nullptr, args, nargs, kwnames);
  return CallObject(callable, args, nargs, kwnames);
}

PyObject* Spread(Session& s, PyObject* other) {
  if (PyDict_CheckExact(other) && !s.IsOutside(other)) return Py_NewRef(other);
  PyObject *key, *value;
  Py_ssize_t at = 0;
  bool names = PyDict_CheckExact(other) && !s.Find(other)->real && !s.pending().Has(other);
  while (names && PyDict_Next(other, &at, &key, &value)) names = PyUnicode_CheckExact(key);
  if (!names) return Py_XNewRef(s.ForC(other, !AnswersItself(Py_TYPE(other))));
  const guard::Source* source = s.SourceOf(other);
  Ref keys(PySequence_Tuple(other)), items(PyDict_New());
  if (!keys || !items || !s.Reads(other)) return nullptr;
  guard::Row row{guard::Kind::kKeys, source};
  row.object = keys.get();
  row.here = true;
  s.guards().Add(std::move(row));
  int number = 0;
  for (at = 0; PyDict_Next(other, &at, &key, &value);) {
    Ref item(s.FromOutside(value, s.guards().Child(guard::SourceKind::kDictItem, source, 0, key), true));
    if (!item || !s.NoteKey(key, source, number++) || PyDict_SetItem(items.get(), key, item.get()) < 0) return nullptr;
  }
  return items.release();
}

PyObject* CaptureSemantics::CallEx(PyObject* callable, PyObject* args, PyObject* kwargs) {
  callable = s_.Resolve(callable);
  args = s_.Resolve(args);
  if (kwargs) kwargs = s_.Resolve(kwargs);
  if (!callable || !args || s_.broken()) return s_.broken() ? s_.Break(s_.reason().id) : nullptr;
  Ref items;
  if (ReadsAsTuple(args)) {  // its items as they are, outside containers among them
    const Source* source = s_.IsOutside(args) ? s_.SourceOf(args) : nullptr;
    if (source && !s_.NoteLength(args)) return nullptr;
    items = Ref(PyTuple_New(PyTuple_GET_SIZE(args)));
    for (Py_ssize_t i = 0; items && i < PyTuple_GET_SIZE(args); ++i) {
      PyObject* item = PyTuple_GET_ITEM(args, i);
      item = source ? s_.FromOutside(item, s_.guards().Child(SourceKind::kItem, source, static_cast<int>(i)), true)
                    : Py_NewRef(item);
      if (!item) return nullptr;
      PyTuple_SET_ITEM(items.get(), i, item);
    }
  } else {
    PyObject* seen = s_.ForC(args, true);
    Ref it(seen && IsTensor(seen) ? TensorIter(s_, seen) : Py_XNewRef(seen));
    items = Ref(it ? PySequence_Tuple(it.get()) : nullptr);
  }
  if (!items) return nullptr;
  std::vector<PyObject*> flat;
  auto add = [&](PyObject* x) {  // itself, where C code would be given a copy
    Origin* g = s_.Find(x);
    flat.push_back(g && g->real ? g->real : x);
  };
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) add(PyTuple_GET_ITEM(items.get(), i));
  Py_ssize_t n = PyTuple_GET_SIZE(items.get());
  Ref names;
  if (kwargs) {
    if (!PyDict_Check(kwargs) || AnswersItself(Py_TYPE(kwargs)))
      return s_.Break(BreakId::kUnknownCall, "** of an object that is not a dict");
    PyObject* kw = PyDict_CheckExact(kwargs) && !s_.IsOutside(kwargs) ? kwargs : s_.ForC(kwargs, true);
    if (!kw) return nullptr;
    if (PyDict_GET_SIZE(kw)) {
      names = Ref(PyTuple_New(PyDict_GET_SIZE(kw)));
      PyObject *k, *val;
      Py_ssize_t pos = 0, i = 0;
      while (PyDict_Next(kw, &pos, &k, &val)) {
        if (!PyUnicode_Check(k)) return s_.Break(BreakId::kUnknownCall, "** of a dict with other keys than strings");
        Py_INCREF(k);
        PyTuple_SET_ITEM(names.get(), i++, k);
        add(val);
      }
    }
  }
  return Call(callable, flat.data(), n, names.get());
}

// torch tells its own compiler, which is not at work here, to stay out of some of its functions, or a program tells it
// to compile one: which one this is. Null without an error: it is no such switch, or keeps out of a function of the
// user's.
PyObject* CaptureSemantics::BehindSwitch(PyFunctionObject* f) {
  struct Switch {
    std::string_view name, file;
    bool compiles = false;
  };
  static constexpr Switch kSwitches[] = {
      {"_disable_dynamo.<locals>.inner", "/torch/_compile.py"},
      {"DisableContext.__call__.<locals>._fn", "/torch/_dynamo/eval_frame.py"},
      {"_TorchDynamoContext.__call__.<locals>.compile_wrapper", "/torch/_dynamo/eval_frame.py", true}};
  auto* code = reinterpret_cast<PyCodeObject*>(f->func_code);
  const std::string_view name = PyUnicode_AsUTF8(code->co_qualname), file = PyUnicode_AsUTF8(code->co_filename);
  const auto at = std::find_if(std::begin(kSwitches), std::end(kSwitches),
                               [&](const Switch& s) { return name == s.name && file.ends_with(s.file); });
  if (!f->func_closure || at == std::end(kSwitches)) return nullptr;
  const int cells = code->co_nlocalsplus - code->co_nfreevars;
  for (int i = 0; i < code->co_nfreevars; ++i) {
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(code->co_localsplusnames, cells + i), "fn")) continue;
    PyObject* cell = PyTuple_GET_ITEM(f->func_closure, i);
    PyObject* behind = PyCell_GET(cell);
    const bool torchs = behind && PyFunction_Check(behind) &&
                        IsCodeOf(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(behind)), "torch");
    if (!torchs && !(behind && at->compiles)) return nullptr;
    return NoteFunction(f) ? LoadCell(cell) : nullptr;
  }
  return nullptr;
}

PyObject* CaptureSemantics::CallPython(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  auto* fn = reinterpret_cast<PyFunctionObject*>(f);
  auto* code = reinterpret_cast<PyCodeObject*>(fn->func_code);
  if (code->co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE))
    return s_.Break(BreakId::kGenerator, Describe(f));
  switch (EffectOfPython(fn)) {
    case Effect::kNothing: Py_RETURN_NONE;
    case Effect::kSpecial:  // The first call of a lazy module makes it another one: all of this call is Python's.
      loops().compiled().first_calls = true;
      return s_.Break(BreakId::kSideEffect, "a lazy module gets its parameters");
    case Effect::kHeldNumber:
      // Python computes with it in float64: so does what is computed of a tensor of that type.
      if (s_.options().compiling && nargs == 1 && !kwnames && IsTensor(args[0]))
        return s_.CallFramework(callees::kTensorDouble, args, 1, nullptr);
      break;
    case Effect::kAliases:
      if (PyObject* r = CorrectAliasing(s_, args, static_cast<Py_ssize_t>(nargs), kwnames);
          r || s_.broken() || PyErr_Occurred())
        return r;
      break;
    case Effect::kItself: return nargs == 1 ? ProfilerRange(args[0]) : s_.Break(BreakId::kOutput, Describe(f));
    case Effect::kOutput: {
      PyObject* r = Log(fn, args, static_cast<Py_ssize_t>(nargs), kwnames);
      return r || s_.broken() || PyErr_Occurred() ? r : s_.Break(BreakId::kOutput, Describe(f));
    }
    case Effect::kThreadState: return s_.Break(BreakId::kThreadState, Describe(f));
    case Effect::kErrorState:
      if (nargs == 1 && s_.IsFresh(args[0]) && (!s_.modes.numpy.Noted() || IsCodeOf(PyEval_GetFrame(), "numpy"))) break;
      return s_.Break(BreakId::kThreadState, Describe(f));
    case Effect::kPure:
      if (!kwnames && std::all_of(args, args + nargs, IsPrimitive)) {
        SuspendScope off;
        return s_.Adopt(PyObject_Vectorcall(f, args, nargs, nullptr));
      }
      break;
    case Effect::kWarnings: {
      const std::string what = Describe(f);
      if (what.ends_with("__enter__")) {
        ++s_.modes.warning_scopes;
        static PyObject* const name = PyUnicode_InternFromString("_record");
        Ref record(nargs == 1 ? LoadAttr(args[0], name) : nullptr);
        if (!record) return PyErr_Occurred() || s_.broken() ? nullptr : s_.Break(BreakId::kOutput, what);
        return Truth(record.get()) ? s_.MarkFresh(PyList_New(0)) : Py_NewRef(Py_None);
      }
      if (!s_.modes.warning_scopes) return s_.Break(BreakId::kOutput, what);
      if (what.ends_with("__exit__")) --s_.modes.warning_scopes;
      Py_RETURN_NONE;
    }
    case Effect::kNoScope: {
      static PyObject* const scope = [] {
        Ref contextlib(tensor::Import("contextlib"));
        return contextlib ? PyObject_GetAttrString(contextlib.get(), "nullcontext") : nullptr;
      }();
      return scope ? Call(scope, nullptr, 0, nullptr) : nullptr;
    }
    case Effect::kMemo:
      if (std::all_of(args, args + nargs, [&](PyObject* a) { return IsPrimitive(a) || s_.IsOutside(a); })) {
        SuspendScope off;
        if (Ref(PyObject_Vectorcall(f, args, nargs, kwnames)).get() == nullptr) PyErr_Clear();
      }
      break;
    default: break;
  }
  std::vector<PyObject*> all;
  std::vector<Ref> held;
  Ref names;
  if (!s_.IsFresh(f)) {
    if (IsDisabled(f)) return s_.Break(BreakId::kUnknownCall, WhyDisabled(f));
    if (!s_.options().whole && EndsGraph(code))
      return s_.Break(BreakId::kSideEffect, Describe(f) + ", which is one kernel of the framework");
    if (Ref behind(BehindSwitch(fn)); behind || s_.broken() || PyErr_Occurred())
      return behind ? Call(behind.get(), args, nargs, kwnames) : nullptr;
    if (!NoteFunction(fn)) return nullptr;
    bool handled;
    PyObject* r = ModulePlumbing(fn, args, static_cast<Py_ssize_t>(nargs), kwnames, &handled);
    if (handled || s_.broken() || PyErr_Occurred()) return s_.broken() ? s_.Break(s_.reason().id) : r;
    if (!GiveTensorDefaults(s_, fn, args, nargs, kwnames, &all, &held, &names)) return nullptr;
    if (names) args = all.data(), kwnames = names.get();
  }
  if (s_.depth >= max_depth_) return s_.Break(BreakId::kDeepCapture, Describe(f));
  ++s_.depth;
  loops_.Called(code);
  PyObject* r = PyObject_Vectorcall(f, args, nargs, kwnames);
  --s_.depth;
  if (r && (code->co_flags & CO_GENERATOR)) return s_.MarkFresh(r);
  if (r && s_.broken()) {  // C code in between has cleared the exception by which captured code ends.
    Py_DECREF(r);
    return s_.Break(s_.reason().id);
  }
  return s_.Adopt(r);
}

// Answers super() without arguments: it takes the class from the __class__ cell, the object from the first local.
PyObject* CaptureSemantics::ImplicitSuper() {
  PyCodeObject* co = fj_code(current_);
  frame::Slot* slots = fj_localsplus(current_);
  for (int i = co->co_nlocalsplus - co->co_nfreevars; i < co->co_nlocalsplus; ++i) {
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(co->co_localsplusnames, i), "__class__") != 0) continue;
    Ref cls(LoadCell(slots[i]));
    PyObject* self = slots[0];
    Ref held;
    if (self && (PyCell_Check(self) || s_.root_cells.contains(self))) {
      held = Ref(LoadCell(self));
      self = held.get();
    }
    if (self) self = s_.Resolve(self);
    if (!cls || !self || !PyType_Check(cls.get())) break;
    PyObject* args[] = {cls.get(), self};
    return s_.MarkFresh(PyObject_Vectorcall(reinterpret_cast<PyObject*>(&PySuper_Type), args, 2, nullptr));
  }
  return s_.broken() ? s_.Break(s_.reason().id) : s_.Break(BreakId::kUnknownCall, "super()");
}

// Is *arg something that an object of C which is made of it goes over without looking into the items? It is nothing
// where *arg is of another kind, and false after a Break.
static std::optional<bool> GoneOver(Session& s, PyTypeObject* type, PyObject** arg) {
  const bool gathers = type == &PyList_Type || type == &PyTuple_Type;
  const bool over = type == &PyZip_Type || type == &PyEnum_Type;
  if (PyFunction_Check(*arg) && !strcmp(type->tp_name, "functools.partial")) return true;
  if (IsTensor(*arg) && (gathers || type == &PySet_Type || type == &PyEnum_Type)) return true;
  if ((over || gathers) && s.IsFresh(*arg) && GoesOver(*arg)) return true;
  PyObject* viewed = gathers ? DictOfView(*arg) : nullptr;
  PyObject* dict = viewed ? viewed : gathers || type == &PyDict_Type ? *arg : nullptr;
  if (dict && PyDict_CheckExact(dict) && s.IsPrivate(dict) && (!viewed || s.IsFresh(*arg))) return true;  // moved
  const bool named = gathers && ReadsAsTuple(*arg) && !PyTuple_CheckExact(*arg);
  if (!(type->tp_iternext || named) || !(PyList_CheckExact(*arg) || ReadsAsTuple(*arg)) || !s.IsOutside(*arg))
    return {};
  *arg = s.ItemsOf(*arg, !over && !named);
  if (named && *arg) {  // the tuple of its items is another object
    *arg = PySequence_List(*arg);
    if (*arg) s.Keep(*arg);
  }
  return *arg != nullptr;
}

// type(o)
static PyObject* TypeOf(Session& s, PyObject* o) {
  if (IsTensor(o)) return TensorClass(s, o);
  if (IsUnseen(o)) return AskUnseen(o);
  if (IsUnreadText(o)) return Py_NewRef(&PyUnicode_Type);
  if (IsUnreadMap(o)) return Py_NewRef(&PyDict_Type);
  if (PyType_HasFeature(Py_TYPE(o), Py_TPFLAGS_HEAPTYPE) && reinterpret_cast<PyObject*>(Py_TYPE(o)) == FlagsType())
    return s.Break(BreakId::kUnknownOrigin, "the class of an array's flags");
  auto* t = reinterpret_cast<PyObject*>(IsSymInt(o)                       ? &PyLong_Type
                                        : IsSymFloat(o) || IsItemFloat(o) ? &PyFloat_Type
                                                                          : Py_TYPE(o));
  s.SourceOf(t);
  if (PyType_Check(o)) s.NoteType(reinterpret_cast<PyTypeObject*>(o));
  if (PyModule_Check(o)) s.guards().TypeIs(s.SourceOf(o), reinterpret_cast<PyTypeObject*>(t));
  return Py_NewRef(t);
}

// torch.Size of what is made here and may hold symbols, which its constructor would make numbers of. It is null without
// an error where it is something else.
static PyObject* SizeOf(Session& s, PyTypeObject* type, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 1 || !OfType(type, CType::kTorchSize) || !s.IsFresh(args[0]) || IsTensor(args[0])) return nullptr;
  Ref items(PySequence_Tuple(args[0])), none(PyTuple_New(0));
  if (!items || !none) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i)
    if (IsSymInt(PyTuple_GET_ITEM(items.get(), i))) return SizeConcat(s, none.get(), items.get());
  return s.Adopt(PyObject_CallOneArg(reinterpret_cast<PyObject*>(type), items.get()));
}

static Ref Packed(PyObject* const* args, Py_ssize_t n) {
  Ref tuple(PyTuple_New(n));
  for (Py_ssize_t i = 0; tuple && i < n; ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(args[i]));
  return tuple;
}

// A type of C whose constructor only looks at its arguments.
PyObject* CaptureSemantics::CallPureType(PyTypeObject* type, PyObject* const* args, Py_ssize_t nargs,
                                         PyObject* kwnames) {
  auto* o = reinterpret_cast<PyObject*>(type);
  const Py_ssize_t total = nargs + KwCount(kwnames);
  if (type == &PyUnicode_Type && nargs && !NoteText(args[0])) return nullptr;
  if ((type == &PyFloat_Type || type == &PyLong_Type || type == &PyBool_Type) && total == 1 && UsesContext(args[0]))
    return PyObject_CallOneArg(o, args[0]);  // of the number alone
  Vector v(nullptr, args, total);
  if (PyObject** given = GivenToCall(&PyType_Type, type->tp_name, v.data(), nargs, kwnames))
    if (PyObject* called = ForCaller(s_, *given)) s_.Keep(*given = called);
  for (Py_ssize_t i = 0; i < total; ++i) {
    static const initproc keeps = reinterpret_cast<PyTypeObject*>(PyExc_ValueError)->tp_init;
    if (IsUnreadText(v.data()[i]) && type->tp_init == keeps) continue;  // an exception keeps what it is given
    const std::optional<bool> known = GoneOver(s_, type, &v.data()[i]);
    if (known ? !*known : !ForC(v.data() + i, 1)) return nullptr;
    if (known) continue;
    if ((type == &PySet_Type || type == &PyFrozenSet_Type || (type == &PyDict_Type && !PyDict_Check(v.data()[i]))) &&
        !s_.Pin(v.data()[i]))
      return nullptr;
  }
  PyObject* r = PyObject_Vectorcall(o, v.data(), nargs, kwnames);
  s_.NoteViewed(v.data(), total, r);
  return s_.Adopt(r);
}

PyObject* CaptureSemantics::CallType(PyTypeObject* type, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                                     bool plain) {
  auto* o = reinterpret_cast<PyObject*>(type);
  Py_ssize_t total = nargs + KwCount(kwnames);
  s_.SourceOf(o);
  if (type == &PyType_Type && nargs == 1 && !kwnames) return TypeOf(s_, args[0]);
  if (type == &PyFloat_Type && total == 1 && nargs == 1)
    if (PyObject* made = FloatOf(args[0]); made || PyErr_Occurred()) return made;
  if (type == &PyUnicode_Type && total == 1 && nargs == 1)
    if (PyObject* text = UnreadFormat(s_, args[0], 1, nullptr); text || s_.broken() || PyErr_Occurred()) return text;
  if (type == &PyLong_Type && total == 1 && nargs == 1)
    if (PyObject* made = IntOf(args[0]); made || s_.broken() || PyErr_Occurred()) return made;
  if (type == &PySuper_Type && total == 0) return ImplicitSuper();
  s_.NoteType(type);
  s_.NoteType(Py_TYPE(type));
  static PyObject *new_name = PyUnicode_InternFromString("__new__"),
                  *init_name = PyUnicode_InternFromString("__init__"),
                  *call_name = PyUnicode_InternFromString("__call__");
  PyObject* meta_call = _PyType_Lookup(Py_TYPE(type), call_name);
  if (!plain && meta_call && PyFunction_Check(meta_call)) {
    Vector with(o, args, total);
    return CallPython(meta_call, with.data(), nargs + 1, kwnames);
  }
  if ((type == &PyList_Type || type == &PyTuple_Type) && total == 1 && !kwnames && !s_.IsOutside(args[0]) &&
      (PyTuple_CheckExact(args[0]) || PyList_CheckExact(args[0])))  // outside containers in it stay what they are
    return s_.MarkFresh(type == &PyList_Type          ? PySequence_List(args[0])
                        : PyTuple_CheckExact(args[0]) ? Py_NewRef(args[0])
                                                      : PyList_AsTuple(args[0]));
  if (PyObject* size = kwnames ? nullptr : SizeOf(s_, type, args, nargs); size || s_.broken() || PyErr_Occurred())
    return size;
  if (tensor::IsWrapperClass(type)) {
    if (TapeOf(s_) && !TapeOf(s_)->inside()) return TapeOf(s_)->Call(o, args, nargs, kwnames);
    if (MadeInC(type) && Tape::Ask(s_)) return s_.Break(BreakId::kSubclass, type->tp_name);
  }
  if (type == &_PyWeakref_RefType && total == 1 && !kwnames)
    if (PyObject* made = WeakReference(s_, args[0]); made || s_.broken() || PyErr_Occurred()) return made;
  if (IsPureType(type) && type != &PyType_Type) return CallPureType(type, args, nargs, kwnames);
  if (PyObject* made = LegacyVariable(o, args, nargs, kwnames); made || s_.broken()) return made;
  if (PyObject* scope = ModeScope(s_, type, args, total); scope || PyErr_Occurred()) return scope;
  if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return s_.Break(BreakId::kUnknownCall, Describe(o));
  static PyObject* del_name = PyUnicode_InternFromString("__del__");
  if (_PyType_Lookup(type, del_name)) return s_.Break(BreakId::kSideEffect, "an object with a destructor is made");
  // Does what type.__call__ does, step by step.
  PyObject* make = _PyType_Lookup(type, new_name);
  Ref made;
  Ref make_function;
  if (make && Py_TYPE(make) == &PyStaticMethod_Type)
    make_function = Ref(PyObject_GetAttrString(make, "__func__"));
  else if (make && PyFunction_Check(make))
    make_function = Borrow(make);
  if (make_function && PyFunction_Check(make_function.get())) {
    s_.SourceOf(make_function.get());
    Vector with(o, args, total);
    made = Ref(CallPython(make_function.get(), with.data(), nargs + 1, kwnames));
  } else {
    if (TakesTensor(type, args, nargs, total)) return AsClass(s_, args[0], type);
    PyTypeObject* base = LayoutOf(type);  // whose __new__ runs
    if (!IsPureType(base) || base == &PyType_Type) return s_.Break(BreakId::kUnknownCall, Describe(o));
    Ref tuple = Packed(args, nargs), kw;
    if (!tuple) return nullptr;
    if (kwnames) {
      kw = Ref(PyDict_New());
      for (Py_ssize_t i = 0; kw && i < KwCount(kwnames); ++i)
        PyDict_SetItem(kw.get(), PyTuple_GET_ITEM(kwnames, i), args[nargs + i]);
    }
    made = Ref(type->tp_new(type, tuple.get(), kw.get()));
  }
  if (!made) return nullptr;
  if (!s_.Find(made.get())) s_.MarkFresh(made.get());
  Ref its = IsTensor(made.get()) ? Ref(TensorClass(s_, made.get()))
                                 : Borrow(reinterpret_cast<PyObject*>(Py_TYPE(made.get())));
  if (!its || !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(its.get()), type)) return made.release();
  type = reinterpret_cast<PyTypeObject*>(its.get());
  PyObject* init = _PyType_Lookup(type, init_name);
  if (init && PyFunction_Check(init)) {
    Vector with(made.get(), args, total);
    Ref r(CallPython(init, with.data(), nargs + 1, kwnames));
    if (!r) return nullptr;
  } else if (type->tp_init && type->tp_init != PyBaseObject_Type.tp_init) {
    Vector with(made.get(), args, total);
    if (!init || (!Py_IS_TYPE(init, &PyWrapperDescr_Type) && !Py_IS_TYPE(init, &PyMethodDescr_Type)))
      return s_.Break(BreakId::kUnknownCall, Describe(o));
    Ref r(CallC(init, nullptr, with.data(), nargs + 1, kwnames));
    if (!r) return nullptr;
  }
  return made.release();
}

// Answers torch.autograd.Variable(x): x.detach(), with gradients of its own if that is asked. Null without an error: no
// Variable, or an argument that means more.
PyObject* CaptureSemantics::LegacyVariable(PyObject* type, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static tensor::Named variable("torch.autograd.Variable");
  if (!type || type != variable.Get() || nargs < 1 || nargs > 3 || !IsTensor(args[0])) return nullptr;
  bool wants = false, removed = false;  // requires_grad, volatile
  for (Py_ssize_t i = 1; i < nargs + KwCount(kwnames); ++i) {
    PyObject* name = i < nargs ? nullptr : PyTuple_GET_ITEM(kwnames, i - nargs);
    const bool grad = name ? !PyUnicode_CompareWithASCIIString(name, "requires_grad") : i == 1;
    if (!PyBool_Check(args[i]) || (name && !grad && PyUnicode_CompareWithASCIIString(name, "volatile"))) return nullptr;
    (grad ? wants : removed) = args[i] == Py_True;
  }
  if (removed) return nullptr;  // it warns
  Ref detached(s_.CallFramework(callees::kTensorDetach, args, 1, nullptr));
  PyObject* one = detached.get();
  return one && wants ? s_.CallFramework(callees::kTensorRequiresGrad, &one, 1, nullptr) : detached.release();
}

// Arguments of C code, made ready for it. It is false after a Break: it would reach what no guard covers.
bool CaptureSemantics::ForC(PyObject** args, Py_ssize_t n, Py_ssize_t asked_nothing) {
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* c = s_.ForC(args[i], i < asked_nothing);
    if (!c) return false;
    if (ReadsAttributes(c) || NotForC(s_, c))
      return s_.Break(BreakId::kUnknownCall, Describe(c) + " called by C code"), false;
    if (!IsTensor(c)) s_.NoteType(Py_TYPE(c));
    args[i] = c;
  }
  return true;
}

}  // namespace framejit::capture
