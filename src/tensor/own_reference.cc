#include "tensor/own_reference.h"

#include "tensor/import.h"

namespace framejit::tensor {
namespace {

PyObject* OwnType() {  // a subclass of weakref.ref, kept for ever
  static PyObject* const type =
      PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(O){s():s:s}", "OwnReference",
                            &_PyWeakref_RefType, "__slots__", "__module__", "framejit");
  return type;
}

}  // namespace

Ref OwnReference(PyObject* o, PyObject* callback) {
  PyObject* type = OwnType();
  return Ref(type ? PyObject_CallFunctionObjArgs(type, o, callback, nullptr) : nullptr);
}

bool HasWeakReferences(PyObject* o) {
  static PyObject* const module = Import("_weakref");
  static PyObject* const all = module ? PyObject_GetAttrString(module, "getweakrefs") : nullptr;
  Ref list(all ? PyObject_CallOneArg(all, o) : nullptr);
  if (!list || !PyList_Check(list.get())) return PyErr_Clear(), false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list.get()); ++i)
    if (reinterpret_cast<PyObject*>(Py_TYPE(PyList_GET_ITEM(list.get(), i))) != OwnType()) return true;
  return false;
}

}  // namespace framejit::tensor
