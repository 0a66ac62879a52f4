#include "tensor/overrides.h"

#include "tensor/torch_api.h"

namespace framejit::tensor {

namespace {

bool IsClassMethod(PyObject* o) {
  Ref behind(o && Py_IS_TYPE(o, &PyClassMethod_Type) ? Attr(o, "__func__") : nullptr);
  return behind && PyFunction_Check(behind.get());
}

}  // namespace

bool OverridesFunctions(PyTypeObject* type) {
  static PyObject* const function_name = PyUnicode_InternFromString("__torch_function__");
  const TorchApi* t = bound_torch;
  if (!t || type == t->tensor || !PyType_IsSubtype(type, t->tensor)) return false;
  PyObject* function = _PyType_Lookup(type, function_name);
  return function != t->disabled_function && IsClassMethod(function);
}

bool IsWrapperClass(PyTypeObject* type) {
  static PyObject* const dispatch_name = PyUnicode_InternFromString("__torch_dispatch__");
  static PyObject* const flatten_name = PyUnicode_InternFromString("__tensor_flatten__");
  const TorchApi* t = bound_torch;
  if (!t || type == t->tensor || !PyType_IsSubtype(type, t->tensor)) return false;
  PyObject* own = _PyType_Lookup(type, dispatch_name);
  return own != _PyType_Lookup(t->tensor, dispatch_name) && IsClassMethod(own) && _PyType_Lookup(type, flatten_name);
}

bool Overrides(PyTypeObject* type) {
  static PyObject* const dispatch_name = PyUnicode_InternFromString("__torch_dispatch__");
  return OverridesFunctions(type) &&
         _PyType_Lookup(type, dispatch_name) == _PyType_Lookup(bound_torch->tensor, dispatch_name);
}

bool IsQuietClass(PyTypeObject* type) {
  static PyObject* const function_name = PyUnicode_InternFromString("__torch_function__");
  static PyObject* const dispatch_name = PyUnicode_InternFromString("__torch_dispatch__");
  const TorchApi* t = bound_torch;
  if (!t || !PyType_IsSubtype(type, t->tensor)) return false;
  return Overrides(type) || (t->disabled_function && _PyType_Lookup(type, function_name) == t->disabled_function &&
                             _PyType_Lookup(type, dispatch_name) == _PyType_Lookup(t->tensor, dispatch_name));
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
