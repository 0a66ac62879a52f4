#include "capture/modes.h"

#include <cstring>
#include <span>
#include <unordered_map>

#include "capture/callees.h"
#include "capture/checkpoint.h"
#include "capture/gradients.h"
#include "capture/policy/skipped.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "runtime/cuda/driver.h"
#include "tensor/autocast.h"

namespace framejit::capture {
namespace {

Answered Bool(bool b) {
  return PyBool_FromLong(b);
}
Answered Nothing() {
  return Py_NewRef(Py_None);
}

// --- gradients

Answered IsGradEnabled(Session& s, Callee, PyObject* const*, Py_ssize_t) {
  NoteAskedOfGradients(nullptr);
  return Bool(s.modes.now.grad);
}
Answered IsInferenceModeEnabled(Session& s, Callee, PyObject* const*, Py_ssize_t) {
  return Bool(s.modes.now.inference);
}
Answered SetGradEnabled(Session& s, Callee callee, PyObject* const* args, Py_ssize_t n) {
  if (n != 1) return {};
  const int on = PyObject_IsTrue(args[0]);
  if (on < 0) return nullptr;
  if (!on && s.vmap.forward()) return s.Break(BreakId::kThreadState, callee);  // tangents go on
  s.modes.now.grad = on;
  return Nothing();
}

// --- torch.autocast reads and sets these

// Gives the number that the device of the first argument has in Autocast, or -1.
int AutocastDevice(PyObject* const* args, Py_ssize_t n) {
  const char* device = n >= 1 && PyUnicode_Check(args[0]) ? PyUnicode_AsUTF8(args[0]) : nullptr;
  return !device ? -1 : !strcmp(device, "cpu") ? 0 : !strcmp(device, "cuda") ? 1 : -1;
}
template <int device>
Answered AutocastDType(Session& s, Callee, PyObject* const*, Py_ssize_t) {
  return tensor::DTypeObject(Framework::kTorch, s.modes.now.autocast.dtype[device]);
}
Answered AutocastDTypeOf(Session& s, Callee, PyObject* const* args, Py_ssize_t n) {
  const int d = AutocastDevice(args, n);
  if (d < 0 || n != 1) return {};
  return tensor::DTypeObject(Framework::kTorch, s.modes.now.autocast.dtype[d]);
}
Answered SetAutocastDType(Session& s, Callee, PyObject* const* args, Py_ssize_t n) {
  const int d = AutocastDevice(args, n);
  const auto type = d >= 0 && n == 2 ? tensor::DTypeOf(args[1]) : std::nullopt;
  if (!type) return {};
  s.modes.now.autocast.dtype[d] = *type;
  return Nothing();
}
Answered IsAutocastEnabled(Session& s, Callee, PyObject* const* args, Py_ssize_t n) {
  const int d = n == 0 ? 1 : n == 1 ? AutocastDevice(args, n) : -1;  // of no device: CUDA
  if (d < 0) return {};
  return Bool(s.modes.now.autocast.on[d]);
}
Answered IsAutocastOnCpu(Session& s, Callee, PyObject* const*, Py_ssize_t) {
  return Bool(s.modes.now.autocast.on[0]);
}
Answered IsAnyAutocast(Session& s, Callee, PyObject* const*, Py_ssize_t) {
  return Bool(s.modes.now.autocast.any());
}
Answered SetAutocastEnabled(Session& s, Callee, PyObject* const* args, Py_ssize_t n) {
  const int d = AutocastDevice(args, n);
  if (d < 0 || n != 2 || !PyBool_Check(args[1])) return {};
  s.modes.now.autocast.on[d] = args[1] == Py_True;
  return Nothing();
}
Answered IsAutocastCached(Session& s, Callee, PyObject* const*, Py_ssize_t) {
  return Bool(s.modes.now.autocast.cache);
}
Answered SetAutocastCached(Session& s, Callee, PyObject* const* args, Py_ssize_t n) {
  if (n != 1 || !PyBool_Check(args[0])) return {};
  s.modes.now.autocast.cache = args[0] == Py_True;
  return Nothing();
}
// A capture enters none: torch's count is that of the regions that were entered outside. Those are left in Python.
int RegionsOutside() {
  return tensor::InAutocastRegion();
}
Answered ClearAutocastCache(Session& s, Callee callee, PyObject* const*, Py_ssize_t) {
  if (RegionsOutside()) return s.Break(BreakId::kThreadState, callee);
  s.lowering().EndAutocast();
  return Nothing();
}
Answered EnterAutocast(Session& s, Callee, PyObject* const*, Py_ssize_t) {
  return PyLong_FromLong(++s.modes.autocast_depth);
}
Answered LeaveAutocast(Session& s, Callee callee, PyObject* const*, Py_ssize_t) {
  if (s.modes.autocast_depth == RegionsOutside()) return s.Break(BreakId::kThreadState, callee);
  return PyLong_FromLong(--s.modes.autocast_depth);
}

// A tensor of a level of functorch that has ended gives what is in it. There is none where no level was open at the
// entry.
Answered UnwrapDead(Session& s, Callee, PyObject* const* args, Py_ssize_t n) {
  if (n != 1 || !IsTensor(args[0]) || s.vmap.open()) return {};
  return Py_NewRef(args[0]);
}

constexpr StateFunction kModes[] = {
    {"is_grad_enabled", IsGradEnabled},
    {"is_inference_mode_enabled", IsInferenceModeEnabled},
    {"_set_grad_enabled", SetGradEnabled},
    {"is_autocast_enabled", IsAutocastEnabled},
    {"is_autocast_cpu_enabled", IsAutocastOnCpu},
    {"_is_any_autocast_enabled", IsAnyAutocast},
    {"set_autocast_enabled", SetAutocastEnabled},
    {"get_autocast_dtype", AutocastDTypeOf},
    {"get_autocast_cpu_dtype", AutocastDType<0>},
    {"get_autocast_gpu_dtype", AutocastDType<1>},
    {"set_autocast_dtype", SetAutocastDType},
    {"is_autocast_cache_enabled", IsAutocastCached},
    {"set_autocast_cache_enabled", SetAutocastCached},
    {"clear_autocast_cache", ClearAutocastCache},
    {"autocast_increment_nesting", EnterAutocast},
    {"autocast_decrement_nesting", LeaveAutocast},
    {"unwrap_if_dead", UnwrapDead},
};

const StateFunction* FindState(std::string_view name) {
  static const auto* table = [] {
    auto* all = new std::unordered_map<std::string_view, const StateFunction*>;
    const std::span<const StateFunction> parts[] = {kModes, VmapFunctions(), GradientFunctions()};
    for (const auto& part : parts)
      for (const StateFunction& f : part) all->emplace(f.name, &f);
    return all;
  }();
  const auto at = table->find(name);
  return at == table->end() ? nullptr : at->second;
}

}  // namespace

Modes::Modes()
    : now(tensor::ReadModeForCapture()),
      entry(now),
      autocast_depth(RegionsOutside()),
      default_devices{tensor::DefaultDevice()} {}

std::string Modes::StillOpen() const {
  if (!(now.autocast == entry.autocast) || autocast_depth != RegionsOutside()) return "autocast was entered or left";
  if (default_devices.size() != 1) return "a default device was set";
  if (now.inference != entry.inference) return "inference mode was entered or left";
  if (warning_scopes) return "warnings.catch_warnings was entered";
  if (numpy.open()) return "numpy.errstate was entered";
  if (!context_vars.empty()) return "a ContextVar was set";
  return {};
}

Answered ThreadState(Session& s, Callee callee, PyObject* const* args, Py_ssize_t n) {
  if (!callees::IsTorchs(callee)) return {};
  const std::string_view last = callee.last();
  if (const StateFunction* f = FindState(last)) {
    s.guards().Add(guard::Row{guard::Kind::kTorchState});  // also where all else is NumPy's
    if (Answered answer = f->answer(s, callee, args, n)) return answer;
  }
  if (Answered answer = s.modes.switches.Answer(s, callee, args, n)) return answer;
  const bool asks = last.ends_with("default_device") || last.find("function_stack") != last.npos;
  if ((asks && (s.modes.default_devices.size() > 1 || !s.vmap.index_modes.empty())) ||
      (!s.vmap.levels.empty() && callee.name().find("functorch") != std::string::npos))
    return s.Break(BreakId::kThreadState, callee);
  return {};
}

std::string NumberedDevice(Session& s, std::string device) {
  if (device != "cuda" || runtime::cuda::DeviceCount() < 2) return device;
  static PyObject* current = tensor::ResolveCallee(callees::kCurrentDevice);
  Ref nothing(PyTuple_New(0)), answer(current && nothing ? PyObject_CallObject(current, nothing.get()) : nullptr);
  if (!answer) return PyErr_Clear(), device;
  s.guards().Equal(s.guards().Child(SourceKind::kAnswer, s.guards().Const(current), 0, nothing.get()), answer.get());
  return device + ":" + std::to_string(PyLong_AsLong(answer.get()));
}

static Effect FindSwitchEffect(Callee name) {
  if (!callees::IsTorchs(name)) return Effect::kUnknown;
  const std::string_view last = name.last();
  for (std::string_view of_types : {"promote_types", "can_cast", "_parse_to"})  // of dtypes and devices alone
    if (last == of_types) return Effect::kStateQuery;
  // What the torch-state guard covers, and what the build decides.
  for (std::string_view covered :
       {"_has_", "_len_torch_", "_get_tracing_state", "_is_tracing", "_is_torch_function_", "_get_function_stack_at",
        "_get_dispatch_stack_at", "_get_default_dtype", "get_default_dtype", "is_autocast_", "get_autocast_",
        "_are_functorch", "_get_cpp_backtrace", "_get_backcompat_", "_is_key_in_tls"})
    if (last.starts_with(covered)) return Effect::kStateQuery;
  for (std::string_view asks : {"_get_", "_is_", "get_", "is_", "are_", "_cuda_getDevice"})
    if (last.starts_with(asks)) return Effect::kAsks;
  return Effect::kUnknown;
}

Effect SwitchEffect(Callee name) {
  static auto& known = *new std::unordered_map<const void*, Effect>;  // it must outlive the interpreter
  const auto [at, fresh] = known.try_emplace(name.id());
  if (fresh) at->second = FindSwitchEffect(name);
  return at->second;
}

namespace {

struct Scope;

// The objects of torch that set a mode for a while, each with what that is for a capture.
struct ScopeKind {
  Callee type;
  Py_ssize_t most;  // arguments
  void (*enter)(Modes& modes, Scope& scope);
  void (*leave)(Modes& modes, Scope& scope);
};

struct Scope {
  PyObject_HEAD const ScopeKind* kind;
  bool on;  // its argument
  ModeState before;
};

void EnterInference(Modes& modes, Scope& scope) {
  scope.before = modes.now;
  modes.now.inference = scope.on;
  modes.now.grad = !scope.on;
}
void LeaveInference(Modes& modes, Scope& scope) {
  modes.now = scope.before;
}
void EnterOverridesOff(Modes& modes, Scope&) {
  ++modes.overrides_off;
}
void LeaveOverridesOff(Modes& modes, Scope&) {
  --modes.overrides_off;
}

const ScopeKind kScopes[] = {
    {callees::kInferenceScope, 1, EnterInference, LeaveInference},
    {callees::kOverridesOff, 0, EnterOverridesOff, LeaveOverridesOff},
};

PyObject* Enter(PyObject* self, PyObject*) {
  auto* scope = reinterpret_cast<Scope*>(self);
  scope->kind->enter(Session::Current()->modes, *scope);
  Py_RETURN_NONE;
}

PyObject* Exit(PyObject* self, PyObject*) {
  auto* scope = reinterpret_cast<Scope*>(self);
  scope->kind->leave(Session::Current()->modes, *scope);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {{"__enter__", Enter, METH_NOARGS, nullptr}, {"__exit__", Exit, METH_VARARGS, nullptr}, {}};

PyTypeObject ScopeType = [] {
  PyTypeObject t = {PyVarObject_HEAD_INIT(nullptr, 0)};
  t.tp_name = "framejit.Scope";
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
bool IsModeScope(PyTypeObject* type) {
  return type == &ScopeType;
}

PyObject* ModeScope(Session& s, PyTypeObject* type, PyObject* const* args, Py_ssize_t n) {
  static PyObject* real[std::size(kScopes)] = {};
  size_t at = 0;
  for (; at < std::size(real); ++at) {
    // Torch may be imported later than the first class is called.
    if (!real[at] && !(real[at] = tensor::ResolveCallee(kScopes[at].type))) PyErr_Clear();
    if (real[at] == reinterpret_cast<PyObject*>(type)) break;
  }
  if (at == std::size(real) || n > kScopes[at].most) return nullptr;
  const ScopeKind& kind = kScopes[at];
  const int on = n ? PyObject_IsTrue(args[0]) : 1;
  if (on < 0) return nullptr;
  auto* scope = PyObject_New(Scope, &ScopeType);
  if (!scope) return nullptr;
  scope->kind = &kind;
  scope->on = on;
  return s.MarkFresh(reinterpret_cast<PyObject*>(scope));
}

bool IsCodeOf(PyCodeObject* code, std::string_view package) {
  return !PathIn(code, package).empty();
}

bool IsCodeOf(PyFrameObject* frame, std::string_view package) {
  if (!frame) return false;
  Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  return IsCodeOf(reinterpret_cast<PyCodeObject*>(code.get()), package);
}

// --- NumPy's error state

static std::nullptr_t Refuse(Session& s) {
  return s.Break(BreakId::kThreadState, callees::kErrState);
}

bool NumpyErrors::Note(Session& s) {
  const int now = tensor::NumpyTraps();
  if (traps_.value_or(now) != now || (now & ~(entered() ? entry_ : now))) return Refuse(s), false;
  traps_ = now;
  return true;
}

bool NumpyErrors::Noted() const {
  return traps_ == tensor::NumpyTraps();
}

int NumpyErrors::traps() const {
  return traps_.value_or(tensor::NumpyTraps());
}

void NumpyErrors::Leave() {
  for (; !before_.empty(); before_.pop_back()) {
    tensor::SavedError saved;
    if (!tensor::ResetNumpyState(before_.back().get())) PyErr_Clear();
  }
}

PyObject* NumpyErrors::Set(Session& s, PyObject* var, PyObject* state) {
  if (before_.empty()) entry_ = tensor::NumpyTraps();
  Ref back(PyContextVar_Set(var, state));
  if (!back) return nullptr;
  // NumPy's own code wants to see less for a while: that the graph sees more ends a run early, at worst.
  const int now = tensor::NumpyTraps();
  PyFrameObject* enter = PyEval_GetFrame();
  Ref scope(enter ? reinterpret_cast<PyObject*>(PyFrame_GetBack(enter)) : nullptr);
  if (traps_ && now != *traps_ && !(now & ~*traps_) &&
      IsCodeOf(reinterpret_cast<PyFrameObject*>(scope.get()), "numpy")) {
    if (!tensor::ResetNumpyState(back.get())) return nullptr;
    PyObject* as_it_is = nullptr;
    if (PyContextVar_Get(var, nullptr, &as_it_is) < 0 || !as_it_is) return Refuse(s);
    Ref held(as_it_is);
    back = Ref(PyContextVar_Set(var, as_it_is));
    if (!back) return nullptr;
  }
  before_.push_back(std::move(back));
  if (traps_ && !Noted()) return Refuse(s);  // what is in the scope is a graph of its own
  return s.MarkFresh(PyTuple_Pack(2, var, Ref(PyLong_FromSize_t(before_.size())).get()));
}

PyObject* NumpyErrors::Call(Session& s, PyObject* var, std::string_view method, PyObject* const* args, Py_ssize_t n) {
  if (method == "set" && n == 1 && PyCapsule_CheckExact(args[0])) return Set(s, var, args[0]);
  PyObject* number =
      n == 1 && PyTuple_CheckExact(args[0]) && PyTuple_GET_SIZE(args[0]) == 2 ? PyTuple_GET_ITEM(args[0], 1) : nullptr;
  if (method != "reset" || !number || !PyLong_CheckExact(number) || PyLong_AsSize_t(number) != before_.size() ||
      !open())
    return Refuse(s);
  const bool good = tensor::ResetNumpyState(before_.back().get());
  before_.pop_back();
  return good ? Py_NewRef(Py_None) : nullptr;
}

PyObject* ContextVarCall(Session& s, PyObject* var, std::string_view method, PyObject* const* args, Py_ssize_t n) {
  if (tensor::IsNumpyState(var) && method != "get") return s.modes.numpy.Call(s, var, method, args, n);
  if (s.IsOutside(var)) s.guards().Is(s.SourceOf(var), var);
  auto it = s.modes.context_vars.find(var);
  if (method == "get") {
    if (it != s.modes.context_vars.end() && it->second) {
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
    if (n) {
      Py_INCREF(args[0]);
      return args[0];
    }
    PyErr_SetObject(PyExc_LookupError, var);
    return nullptr;
  }
  if (method == "set" && n == 1) {
    auto* token = PyObject_New(Token, &TokenType);
    if (!token) return nullptr;
    token->var = Py_NewRef(var);
    token->before = it == s.modes.context_vars.end() ? nullptr : Py_NewRef(it->second.get());
    token->used = false;
    s.modes.context_vars[var] = Borrow(args[0]);
    s.Keep(Py_NewRef(var));
    s.Keep(Py_NewRef(reinterpret_cast<PyObject*>(token)));  // its address is its identity
    return s.MarkFresh(reinterpret_cast<PyObject*>(token));
  }
  if (method == "reset" && n == 1) {
    auto* token = Py_IS_TYPE(args[0], &TokenType) ? reinterpret_cast<Token*>(args[0]) : nullptr;
    if (!token || token->var != var || token->used)
      return s.Break(BreakId::kThreadState, "ContextVar.reset with a token that is used, or not its own");
    token->used = true;
    if (token->before) {
      s.modes.context_vars[var] = Borrow(token->before);
    } else {
      s.modes.context_vars.erase(var);
    }
    Py_RETURN_NONE;
  }
  return s.Break(BreakId::kThreadState, std::string("ContextVar.").append(method));
}

}  // namespace framejit::capture
