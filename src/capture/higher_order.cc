// torch.cond, while_loop, scan, map, flex_attention and the like: what such an operator means is a Python function
// (framejit._higher_order), which is captured like any other. A branch that it takes by data is guessed (guess.h).
#include <algorithm>

#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "tensor/import.h"

namespace framejit::capture {

// torch.func.linearize of tensors of floats, which torch does by a graph of its own.
PyObject* CaptureSemantics::CallLinearize(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static PyObject* const linearize = FromModule("framejit._higher_order", "linearize");
  if (!linearize || nargs < 2 || kwnames || s_.vmap.open()) return nullptr;
  for (Py_ssize_t i = 1; i < nargs; ++i) {
    PyObject* primal = s_.Resolve(args[i]);
    if (!primal) return nullptr;
    if (!IsTensor(primal) || !IsFloat(s_.meta(AsTensor(primal)->id).dtype)) return nullptr;
  }
  if (!s_.SourceOf(linearize)) return s_.Break(BreakId::kUnknownCall, "torch.func.linearize");
  const size_t before = s_.trace().calls.size();
  Ref made(CallPython(linearize, args, static_cast<size_t>(nargs), kwnames));
  // torch calls the function more often, and what is linear in the tangents draws anew.
  if (made && std::any_of(s_.trace().calls.begin() + static_cast<ptrdiff_t>(before), s_.trace().calls.end(),
                          [](const auto& c) { return Draws(c.callee); }))
    return s_.Break(BreakId::kUnknownCall, "torch.func.linearize of what draws random numbers");
  return made.release();
}

bool IsLinearize(PyObject* function) {
  static PyObject* linearize = nullptr;
  if (!linearize) {
    PyObject* modules = tensor::TorchLoaded() ? PyImport_GetModuleDict() : nullptr;
    PyObject* module = modules ? PyDict_GetItemString(modules, "torch._functorch.eager_transforms") : nullptr;
    linearize = module ? Py_XNewRef(PyDict_GetItemString(PyModule_GetDict(module), "linearize")) : nullptr;
  }
  return linearize && function == linearize;
}

bool IsHigherOrder(PyObject* function) {
  static PyObject* call = nullptr;
  if (!call) {
    PyObject* module = tensor::TorchLoaded() ? PyDict_GetItemString(PyImport_GetModuleDict(), "torch._ops") : nullptr;
    PyObject* type = module ? PyDict_GetItemString(PyModule_GetDict(module), "HigherOrderOperator") : nullptr;
    if (!type) return false;
    call = PyObject_GetAttrString(type, "__call__");
    if (!call) return PyErr_Clear(), false;
  }
  return function == call;
}

PyObject* CaptureSemantics::CallHigherOrder(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static PyObject* const meaning = FromModule("framejit._higher_order", "meaning");
  if (!meaning || nargs < 1 || !s_.IsOutside(args[0])) return nullptr;
  Ref function;
  {
    SuspendScope off;
    function = Ref(PyObject_CallOneArg(meaning, args[0]));
  }
  if (!function || function.get() == Py_None) return nullptr;
  s_.guards().Is(s_.SourceOf(args[0]), args[0]);
  if (!s_.SourceOf(function.get())) return s_.Break(BreakId::kUnknownCall, "a higher-order operator");
  return CallPython(function.get(), args + 1, static_cast<size_t>(nargs - 1), kwnames);
}

}  // namespace framejit::capture
