#include "tensor/overrides.h"

#include "tensor/import.h"
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

namespace {

// A byte of TensorImpl, and its bits by which torch asks the class. -1: not found.
struct Asked {
  int at = -1;
  uint8_t mask = 0;
};

// The first byte between the device and the key set in which wrappers that ask their class differ from those that do
// not. What lies behind the flags is not initialized, and may differ so, too.
Asked FindAsked(const TorchApi& t) {
  static constexpr const char* kWays[] = {"", "", "sizes", "strides", "device", "sizes", "device"};
  SavedError saved;
  std::vector<Ref> made;
  Ref module(Import("framejit._wrappers"));
  for (const char* way : kWays) {
    made.emplace_back(module ? PyObject_CallMethod(module.get(), "asking", "s", way) : nullptr);
    if (!made.back() || t.at.device < 0) return PyErr_Clear(), Asked();
  }
  for (int at = t.at.device + 3; at < t.at.key_set; ++at) {
    const auto differs = [&](size_t k) {
      return static_cast<uint8_t>(Field<uint8_t>(ImplOf(made[k].get()), at) ^
                                  Field<uint8_t>(ImplOf(made[0].get()), at));
    };
    const uint8_t sizes = differs(2), strides = differs(3), device = differs(4);
    if (differs(1) || !sizes || !strides || !device || (device & (sizes | strides)) || differs(5) != sizes ||
        differs(6) != device)
      continue;
    return {at, static_cast<uint8_t>(sizes | strides | device)};
  }
  return {};
}

}  // namespace

bool ClassIsAsked(PyObject* wrapper) {
  static const Asked asked = Torch() ? FindAsked(*Torch()) : Asked();
  return asked.at < 0 || (Field<uint8_t>(ImplOf(wrapper), asked.at) & asked.mask);
}

bool Overrides(PyTypeObject* type) {
  static PyObject* const dispatch_name = PyUnicode_InternFromString("__torch_dispatch__");
  return OverridesFunctions(type) &&
         _PyType_Lookup(type, dispatch_name) == _PyType_Lookup(bound_torch->tensor, dispatch_name);
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
