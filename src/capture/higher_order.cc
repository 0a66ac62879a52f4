// torch.cond, while_loop, scan, map, flex_attention and the like: what such an operator means is a Python function
// (framejit._higher_order), which is captured like any other. A branch that it takes by data is guessed (guess.h).
#include "capture/override.h"
#include "capture/semantics.h"
#include "tensor/import.h"

namespace framejit::capture {

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
