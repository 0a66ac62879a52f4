#include "capture/modes.h"

#include <string_view>

namespace framejit::capture {

bool ThreadState(Session& s, const std::string& name, PyObject* const* args, Py_ssize_t n, PyObject** out) {
  auto answer = [&](bool b) { return *out = PyBool_FromLong(b), true; };
  if (name == "torch.is_grad_enabled") return answer(s.mode.grad);
  if (name == "torch.is_inference_mode_enabled") return answer(s.mode.inference);
  if (name == "torch._C._set_grad_enabled" && n == 1) {
    int on = PyObject_IsTrue(args[0]);
    if (on < 0) return *out = nullptr, true;
    s.mode.grad = on;
    Py_INCREF(Py_None);
    return *out = Py_None, true;
  }
  return false;
}

Effect SwitchEffect(const std::string& name) {
  if (name.compare(0, 9, "torch._C.") && name.compare(0, 6, "torch.")) return Effect::kUnknown;
  std::string_view last = std::string_view(name).substr(name.rfind('.') + 1);
  if (last == "_log_api_usage_once") return Effect::kNothing;
  for (std::string_view p :
       {"_get_", "_is_", "_has_", "get_default_", "is_autocast_", "get_autocast_", "is_deterministic_",
        "are_deterministic_", "is_warn_always_", "_are_functorch", "is_autocast_cache_"})
    if (last.substr(0, p.size()) == p) return Effect::kStateQuery;
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

}  // namespace

bool ReadyModes() {
  return PyType_Ready(&ScopeType) == 0;
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

}  // namespace framejit::capture
