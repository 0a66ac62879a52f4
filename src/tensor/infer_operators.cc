// What torch's registry of operators says of one.
#include "tensor/import.h"
#include "tensor/infer.h"

namespace framejit::tensor {

// Does an operator of a library or of the user have kernels in Python, and none of them says what it returns? On a
// stand-in they would run.
bool RunsPython(const std::string& callee) {
  SavedError saved;
  const size_t space = callee.find('.', 6) + 1, dot = callee.find('.', space);
  if (dot == std::string::npos) return true;
  const std::string ns = callee.substr(space, dot - space);
  std::string op = callee.substr(dot + 1);
  if (op.ends_with(".default")) op.resize(op.size() - 8);
  Ref library(Import("torch.library")), c(Import("torch._C"));
  Ref known(library ? PyObject_GetAttrString(library.get(), "_impls") : nullptr);
  Ref all(known ? PySequence_List(known.get()) : nullptr);
  bool python = !all;
  const std::string prefix = ns + "/" + op + "/";
  for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(all.get()); ++i) {
    const char* key =
        PyUnicode_Check(PyList_GET_ITEM(all.get(), i)) ? PyUnicode_AsUTF8(PyList_GET_ITEM(all.get(), i)) : nullptr;
    python |= key && std::string_view(key).starts_with(prefix);
  }
  if (!python) return false;
  Ref has(
      c ? PyObject_CallMethod(c.get(), "_dispatch_has_kernel_for_dispatch_key", "ss", (ns + "::" + op).c_str(), "Meta")
        : nullptr);
  return !has || has.get() != Py_True;
}

// By its schema. Where autograd is off for the thread, no version tells.
bool WritesBySchema(const std::string& callee) {
  SavedError saved;
  if (!callee.starts_with("torch.ops.")) return false;
  Ref op(ResolveCallee(callee)), schema(op ? PyObject_GetAttrString(op.get(), "_schema") : nullptr);
  Ref writes(schema ? PyObject_GetAttrString(schema.get(), "is_mutable") : nullptr);
  PyErr_Clear();
  return writes.get() == Py_True;
}

bool DropsNothing(PyObject* op, PyObject* args, PyObject* kwargs) {
  Ref schema(PyObject_GetAttrString(op, "_schema"));
  Ref all(schema ? PyObject_GetAttrString(schema.get(), "arguments") : nullptr);
  bool nothing = false;
  for (Py_ssize_t i = 0; all && PyList_Check(all.get()) && i < PyList_GET_SIZE(all.get()); ++i) {
    Ref name(PyObject_GetAttrString(PyList_GET_ITEM(all.get(), i), "name"));
    if (!name || (PyUnicode_CompareWithASCIIString(name.get(), "dropout_p") &&
                  PyUnicode_CompareWithASCIIString(name.get(), "dropout")))
      continue;
    Ref value = i < PyTuple_GET_SIZE(args) ? Ref::Borrow(PyTuple_GET_ITEM(args, i)) : Ref();
    if (!value && kwargs && PyDict_Check(kwargs)) value = Ref::Borrow(PyDict_GetItem(kwargs, name.get()));
    if (!value) value = Ref(PyObject_GetAttrString(PyList_GET_ITEM(all.get(), i), "default_value"));
    nothing = value && PyFloat_Check(value.get()) && PyFloat_AS_DOUBLE(value.get()) == 0;
  }
  PyErr_Clear();
  return nothing;
}

}  // namespace framejit::tensor
