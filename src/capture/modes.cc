#include "capture/modes.h"

#include <string_view>

#include "capture/callees.h"
#include "capture/gradients.h"

namespace framejit::capture {
namespace {

// torch.autocast reads and sets these.
bool AutocastState(Session& s, Callee name, PyObject* const* args, Py_ssize_t n, PyObject** out) {
  const std::string_view last = name.last();
  if (last.find("autocast") == std::string_view::npos || !name.name().starts_with("torch.")) return false;
  Autocast& a = s.mode.autocast;
  auto none = [&] {
    Py_INCREF(Py_None);
    return *out = Py_None, true;
  };
  auto answer = [&](bool b) { return *out = PyBool_FromLong(b), true; };
  auto type = [&](int d) { return *out = tensor::DTypeObject(Framework::kTorch, a.dtype[d]), true; };
  if (last == "clear_autocast_cache") return s.lowering().EndAutocast(), none();
  if (last == "autocast_increment_nesting") return *out = PyLong_FromLong(++s.autocast_depth), true;
  if (last == "autocast_decrement_nesting") {  // of a region that torch itself counts: left in Python
    if (s.autocast_depth == s.entry_mode.autocast.any()) return *out = s.Break(BreakId::kThreadState, name), true;
    return *out = PyLong_FromLong(--s.autocast_depth), true;
  }
  if (last == "is_autocast_cache_enabled") return answer(a.cache);
  if (last == "is_autocast_cpu_enabled") return answer(a.on[0]);
  if (last == "get_autocast_cpu_dtype") return type(0);
  if (last == "get_autocast_gpu_dtype") return type(1);
  if (last == "_is_any_autocast_enabled") return answer(a.any());
  if (last == "is_autocast_enabled" && n == 0) return answer(a.on[1]);
  if (last == "set_autocast_cache_enabled" && n == 1 && PyBool_Check(args[0])) {
    a.cache = args[0] == Py_True;
    return none();
  }
  const char* device = n >= 1 && PyUnicode_Check(args[0]) ? PyUnicode_AsUTF8(args[0]) : nullptr;
  const int d = !device ? -1 : !strcmp(device, "cpu") ? 0 : !strcmp(device, "cuda") ? 1 : -1;
  if (d < 0) return false;
  if (last == "is_autocast_enabled" && n == 1) return answer(a.on[d]);
  if (last == "get_autocast_dtype" && n == 1) return type(d);
  if (last == "set_autocast_enabled" && n == 2 && PyBool_Check(args[1])) {
    a.on[d] = args[1] == Py_True;
    return none();
  }
  if (last == "set_autocast_dtype" && n == 2)
    if (auto t = tensor::DTypeOf(args[1])) {
      a.dtype[d] = *t;
      return none();
    }
  return false;
}

}  // namespace

bool ThreadState(Session& s, Callee name, PyObject* const* args, Py_ssize_t n, PyObject** out) {
  auto answer = [&](bool b) { return *out = PyBool_FromLong(b), true; };
  if (name == callees::kIsGradEnabled) return answer(s.mode.grad);
  if (name == callees::kIsInferenceMode) return answer(s.mode.inference);
  if (name == callees::kSetGradEnabled && n == 1) {
    int on = PyObject_IsTrue(args[0]);
    if (on < 0) return *out = nullptr, true;
    s.mode.grad = on;
    Py_INCREF(Py_None);
    return *out = Py_None, true;
  }
  if (GradientState(s, name, args, n, out) || VmapState(s, name, args, n, out) || SwitchState(s, name, args, n, out))
    return true;
  const std::string_view last = name.last();
  const bool asks = last.ends_with("default_device") || last.find("function_stack") != last.npos;
  if ((asks && (s.default_devices.size() > 1 || !s.vmap.index_modes.empty())) ||
      (!s.vmap.levels.empty() && name.name().find("functorch") != std::string::npos))
    return *out = s.Break(BreakId::kThreadState, name), true;
  return AutocastState(s, name, args, n, out);
}

Effect SwitchEffect(Callee name) {
  if (!name.name().starts_with("torch.")) return Effect::kUnknown;
  const std::string_view last = name.last();
  if (last == "promote_types" || last == "can_cast") return Effect::kStateQuery;  // of dtypes alone
  // What the torch-state guard covers, and what the build decides.
  for (std::string_view covered :
       {"_has_", "_len_torch_", "_get_tracing_state", "_is_tracing", "_is_torch_function_", "_get_function_stack_at",
        "_get_dispatch_stack_at", "_get_default_dtype", "get_default_dtype", "is_autocast_", "get_autocast_",
        "_are_functorch", "_get_cpp_backtrace", "_get_backcompat_", "_is_key_in_tls"})
    if (last.starts_with(covered)) return Effect::kStateQuery;
  for (std::string_view asks : {"_get_", "_is_", "get_", "is_", "are_"})
    if (last.starts_with(asks)) return Effect::kAsks;
  return Effect::kUnknown;
}

namespace {

struct Scope {
  PyObject_HEAD bool on;
  ModeState before;
};

PyObject* Enter(PyObject* self, PyObject*) {
  auto* scope = reinterpret_cast<Scope*>(self);
  Session* s = Session::Current();
  scope->before = s->mode;
  s->mode.inference = scope->on;
  s->mode.grad = !scope->on;
  Py_RETURN_NONE;
}

PyObject* Exit(PyObject* self, PyObject*) {
  Session::Current()->mode = reinterpret_cast<Scope*>(self)->before;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {{"__enter__", Enter, METH_NOARGS, nullptr}, {"__exit__", Exit, METH_VARARGS, nullptr}, {}};

PyTypeObject ScopeType = [] {
  PyTypeObject t = {PyVarObject_HEAD_INIT(nullptr, 0)};
  t.tp_name = "framejit.InferenceScope";
  t.tp_basicsize = sizeof(Scope);
  t.tp_flags = Py_TPFLAGS_DEFAULT;
  t.tp_methods = methods;
  return t;
}();

// What ContextVar.set returned: only reset() may look at it.
struct Token {
  PyObject_HEAD PyObject *var, *before;  // before null: what it is outside
  bool used;
};

void DropToken(PyObject* self) {
  Py_XDECREF(reinterpret_cast<Token*>(self)->var);
  Py_XDECREF(reinterpret_cast<Token*>(self)->before);
  PyObject_Free(self);
}

PyTypeObject TokenType = [] {
  PyTypeObject t = {PyVarObject_HEAD_INIT(nullptr, 0)};
  t.tp_name = "framejit.Token";
  t.tp_basicsize = sizeof(Token);
  t.tp_flags = Py_TPFLAGS_DEFAULT;
  t.tp_dealloc = DropToken;
  return t;
}();

}  // namespace

bool ReadyModes() {
  return PyType_Ready(&ScopeType) == 0 && PyType_Ready(&TokenType) == 0;
}
bool IsInferenceScope(PyTypeObject* type) {
  return type == &ScopeType;
}

PyObject* InferenceScope(Session& s, PyTypeObject* type, PyObject* const* args, Py_ssize_t n) {
  static PyObject* real = tensor::ResolveCallee("torch._C._InferenceMode");
  if (!real) PyErr_Clear();
  if (!real || reinterpret_cast<PyObject*>(type) != real || n > 1) return nullptr;
  int on = n ? PyObject_IsTrue(args[0]) : 1;
  if (on < 0) return nullptr;
  auto* scope = PyObject_New(Scope, &ScopeType);
  if (scope) scope->on = on;
  return s.MarkFresh(reinterpret_cast<PyObject*>(scope));
}

bool IsCodeOf(PyCodeObject* code, std::string_view package) {
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (!file) PyErr_Clear();
  return file && strstr(file, ("-packages/" + std::string(package) + "/").c_str());
}

bool IsCodeOf(PyFrameObject* frame, std::string_view package) {
  if (!frame) return false;
  Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  return IsCodeOf(reinterpret_cast<PyCodeObject*>(code.get()), package);
}

PyObject* ContextVarCall(Session& s, PyObject* var, const char* n, PyObject* const* a, Py_ssize_t nargs) {
  if (tensor::IsNumpyState(var) && strcmp(n, "get")) {
    if (!strcmp(n, "set") && nargs == 1 && PyCapsule_CheckExact(a[0])) {
      if (s.numpy_states.empty()) s.numpy_entry_watch = tensor::NumpyWatch();
      Ref back(PyContextVar_Set(var, a[0]));
      if (!back) return nullptr;
      // NumPy's own code wants to see less for a while: that the graph sees more ends a run early, at worst.
      const int now = tensor::NumpyWatch();
      PyFrameObject* enter = PyEval_GetFrame();
      Ref scope(enter ? reinterpret_cast<PyObject*>(PyFrame_GetBack(enter)) : nullptr);
      if (s.numpy_watch && now != *s.numpy_watch && !(now & ~*s.numpy_watch) &&
          IsCodeOf(reinterpret_cast<PyFrameObject*>(scope.get()), "numpy")) {
        if (PyContextVar_Reset(var, back.get())) return nullptr;
        PyObject* as_it_is = nullptr;
        if (PyContextVar_Get(var, nullptr, &as_it_is) < 0 || !as_it_is)
          return s.Break(BreakId::kThreadState, "numpy.errstate");
        Ref held(as_it_is);
        back = Ref(PyContextVar_Set(var, as_it_is));
        if (!back) return nullptr;
      }
      s.numpy_states.push_back(std::move(back));
      if (s.numpy_watch && *s.numpy_watch != tensor::NumpyWatch())  // what is in the scope is a graph of its own
        return s.Break(BreakId::kThreadState, "numpy.errstate");
      return s.MarkFresh(PyTuple_Pack(2, var, Ref(PyLong_FromSize_t(s.numpy_states.size())).get()));
    }
    PyObject* number =
        nargs == 1 && PyTuple_CheckExact(a[0]) && PyTuple_GET_SIZE(a[0]) == 2 ? PyTuple_GET_ITEM(a[0], 1) : nullptr;
    if (strcmp(n, "reset") || !number || !PyLong_CheckExact(number) ||
        PyLong_AsSize_t(number) != s.numpy_states.size() || s.numpy_states.empty())
      return s.Break(BreakId::kThreadState, "numpy.errstate");
    const bool good = PyContextVar_Reset(var, s.numpy_states.back().get()) == 0;
    s.numpy_states.pop_back();
    return good ? Py_NewRef(Py_None) : nullptr;
  }
  if (s.IsOutside(var)) s.guards().Is(s.SourceOf(var), var);
  auto it = s.context_vars.find(var);
  if (!strcmp(n, "get")) {
    if (it != s.context_vars.end() && it->second) {
      Py_INCREF(it->second.get());
      return it->second.get();
    }
    const Source* src = s.guards().Child(SourceKind::kContextVar, s.guards().Const(var));
    PyObject* v = nullptr;
    if (PyContextVar_Get(var, nullptr, &v) < 0) return nullptr;
    if (v) {
      Ref held(v);
      return s.FromOutside(v, src);
    }
    s.guards().Absent(src);
    if (nargs) {
      Py_INCREF(a[0]);
      return a[0];
    }
    PyErr_SetObject(PyExc_LookupError, var);
    return nullptr;
  }
  if (!strcmp(n, "set") && nargs == 1) {
    auto* token = PyObject_New(Token, &TokenType);
    if (!token) return nullptr;
    token->var = Py_NewRef(var);
    token->before = it == s.context_vars.end() ? nullptr : Py_NewRef(it->second.get());
    token->used = false;
    s.context_vars[var] = Borrow(a[0]);
    s.Keep(Py_NewRef(var));
    s.Keep(Py_NewRef(reinterpret_cast<PyObject*>(token)));  // its address is its identity
    return s.MarkFresh(reinterpret_cast<PyObject*>(token));
  }
  if (!strcmp(n, "reset") && nargs == 1) {
    auto* token = Py_IS_TYPE(a[0], &TokenType) ? reinterpret_cast<Token*>(a[0]) : nullptr;
    if (!token || token->var != var || token->used)
      return s.Break(BreakId::kThreadState, "ContextVar.reset with a token that is used, or not its own");
    token->used = true;
    if (token->before) {
      s.context_vars[var] = Borrow(token->before);
    } else {
      s.context_vars.erase(var);
    }
    Py_RETURN_NONE;
  }
  return s.Break(BreakId::kThreadState, std::string("ContextVar.") + n);
}

}  // namespace framejit::capture
