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

bool HasWatchers(PyObject* o) {
  PyTypeObject* type = Py_TYPE(o);
  if (!PyType_SUPPORTS_WEAKREFS(type)) return false;
  PyObject* first = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(o) + type->tp_weaklistoffset);
  for (auto* r = reinterpret_cast<PyWeakReference*>(first); r; r = r->wr_next)
    if (r->wr_callback && reinterpret_cast<PyObject*>(Py_TYPE(r)) != OwnType()) return true;
  return false;
}

}  // namespace framejit::tensor
