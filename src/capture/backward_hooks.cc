// Hooks of a module's backward pass (Module.register_full_backward_hook and register_full_backward_pre_hook). torch
// hangs them on nodes of its own; what they do around a call is a Python function (framejit._backward_hooks), which is
// captured like any other, and in which they are a function with a gradient of its own. Those of the old kind
// (register_backward_hook) are hooks of the node that made the result: of the framework's own, so the call is made by
// it.
#include "capture/backward_hooks.h"

#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

// A method of torch.utils.hooks.BackwardHook. It is null before somebody has imported that.
PyObject* MethodOfTorch(const char* name) {
  PyObject* module =
      tensor::TorchLoaded() ? PyDict_GetItemString(PyImport_GetModuleDict(), "torch.utils.hooks") : nullptr;
  PyObject* type = module ? PyDict_GetItemString(PyModule_GetDict(module), "BackwardHook") : nullptr;
  PyObject* method = type ? PyObject_GetAttrString(type, name) : nullptr;
  if (!method) PyErr_Clear();
  return method;
}

// The parts of what torch made for one call of a module: the module and its hooks. They are guarded by identity. Null
// without an error: some of them are not from outside.
Ref PartsOf(CaptureSemantics& c, Session& s, PyObject* self) {
  std::vector<Ref> parts;
  for (const char* name : {"module", "user_hooks", "user_pre_hooks"}) {
    Ref text(PyUnicode_InternFromString(name)), part(text ? c.LoadAttr(self, text.get()) : nullptr);
    PyObject* o = part ? s.Resolve(part.get()) : nullptr;
    if (!o) return {};
    const bool list = PyList_CheckExact(o);
    std::vector<PyObject*> all;
    for (Py_ssize_t i = 0; i < (list ? PyList_GET_SIZE(o) : 1); ++i) {
      all.push_back(s.Resolve(list ? PyList_GET_ITEM(o, i) : o));
      if (!all.back() || !s.IsOutside(all.back()) || !s.SourceOf(all.back())) return {};
      s.guards().Is(s.SourceOf(all.back()), all.back());
    }
    Ref hooks(list ? PyTuple_New(static_cast<Py_ssize_t>(all.size())) : Py_NewRef(o));
    for (size_t i = 0; list && hooks && i < all.size(); ++i)
      PyTuple_SET_ITEM(hooks.get(), static_cast<Py_ssize_t>(i), Py_NewRef(all[i]));
    parts.push_back(std::move(hooks));
  }
  return Ref(PyTuple_Pack(3, parts[0].get(), parts[1].get(), parts[2].get()));
}

}  // namespace

bool IsBackwardHook(PyObject* function) {
  static PyObject *input = nullptr, *output = nullptr;
  if (!output) input = MethodOfTorch("setup_input_hook"), output = MethodOfTorch("setup_output_hook");
  return output && (function == input || function == output);
}

// Has this dict hooks, and does the flag say that they are of the old kind? The names are those of a module's
// attributes or of globals of torch's.
static bool AreOfOldKind(PyObject* hooks, PyObject* full) {
  return hooks && full == Py_False && PyDict_Check(hooks) && PyDict_GET_SIZE(hooks) > 0;
}

bool HasHooksOfOldKind(FjFrame* frame) {
  static PyObject *const name = Interned("_call_impl"), *const hooks = Interned("_backward_hooks"),
                         *const full = Interned("_is_full_backward_hook"),
                         *const all = Interned("_global_backward_hooks"),
                         *const all_full = Interned("_global_is_full_backward_hook");
  PyCodeObject* code = fj_code(frame);
  if (code->co_name != name || !IsCodeOf(code, "torch") || !tensor::ReadMode().grad) return false;
  PyObject *self = fj_localsplus(frame)[0].get(), *function = fj_function(frame);
  PyObject* globals = function && PyFunction_Check(function) ? PyFunction_GET_GLOBALS(function) : nullptr;
  if (!self || !globals) return false;
  Ref own(PyObject_GenericGetAttr(self, hooks)), kind(own ? PyObject_GenericGetAttr(self, full) : nullptr);
  PyErr_Clear();
  return AreOfOldKind(own.get(), kind.get()) ||
         AreOfOldKind(PyDict_GetItem(globals, all), PyDict_GetItem(globals, all_full));
}

PyObject* CaptureSemantics::CallBackwardHook(PyObject* function, PyObject* const* args, Py_ssize_t nargs) {
  static PyObject *const make = FromModule("framejit._backward_hooks", "hooks_of"),
                         *const input = FromModule("framejit._backward_hooks", "setup_input_hook"),
                         *const output = FromModule("framejit._backward_hooks", "setup_output_hook");
  static PyObject* const of_results = MethodOfTorch("setup_output_hook");
  if (!make || !input || !output || nargs != 2) return PyErr_Clear(), nullptr;
  if (function == of_results) {  // what the arguments went through says which way the results go
    static PyObject* const name = Interned("hooks");
    Ref dict(PyObject_GenericGetDict(args[0], nullptr));
    const bool ours = dict && PyDict_Contains(dict.get(), name) == 1;
    PyErr_Clear();
    return ours && s_.SourceOf(output) ? CallPython(output, args, 2, nullptr) : nullptr;
  }
  Ref parts = PartsOf(*this, s_, args[0]), hooks;
  if (!parts) return nullptr;
  {
    SuspendScope off;
    hooks = Ref(PyObject_CallObject(make, parts.get()));
  }
  if (!hooks || hooks.get() == Py_None || !s_.SourceOf(input)) return nullptr;
  Ref found(s_.FromOutside(hooks.get(), s_.guards().Const(hooks.get())));
  // Both ways are the graph's, or torch's: where the graph ends between them, it ends before the first.
  Ref between(found ? NewUnseen(s_, "a module between the hooks of its backward pass") : nullptr);
  PyObject* four[] = {args[0], found.get(), between.get(), args[1]};
  return between ? CallPython(input, four, 4, nullptr) : nullptr;
}

}  // namespace framejit::capture
