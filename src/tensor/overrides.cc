#include "tensor/overrides.h"

#include "tensor/torch_api.h"

namespace framejit::tensor {

bool Overrides(PyTypeObject* type) {
  static PyObject* const function_name = PyUnicode_InternFromString("__torch_function__");
  static PyObject* const dispatch_name = PyUnicode_InternFromString("__torch_dispatch__");
  const TorchApi* t = bound_torch;
  if (!t || type == t->tensor || !PyType_IsSubtype(type, t->tensor)) return false;
  PyObject* function = _PyType_Lookup(type, function_name);
  if (!function || function == t->disabled_function ||
      _PyType_Lookup(type, dispatch_name) != _PyType_Lookup(t->tensor, dispatch_name) ||
      !Py_IS_TYPE(function, &PyClassMethod_Type))
    return false;
  Ref behind(Attr(function, "__func__"));
  return behind && PyFunction_Check(behind.get());
}

void OverridesOff::Enter() {
  SavedError saved;
  static PyObject* const scope = bound_torch ? Attr(bound_torch->c_module, "DisableTorchFunctionSubclass") : nullptr;
  scope_ = Ref(scope ? PyObject_CallNoArgs(scope) : nullptr);
  Ref entered(scope_ ? PyObject_CallMethod(scope_.get(), "__enter__", nullptr) : nullptr);
  if (!entered) {
    PyErr_Clear();
    scope_ = Ref();
  }
}

void OverridesOff::Leave() {
  SavedError saved;
  Ref left(PyObject_CallMethod(scope_.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
  if (!left) PyErr_Clear();
}

}  // namespace framejit::tensor
