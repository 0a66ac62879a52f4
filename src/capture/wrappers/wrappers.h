// Wrappers: tensors of a class with a __torch_dispatch__ (tensor/overrides.h). One from outside is an object like any
// other: its attributes are read with guards, and among them are the tensors in it. One that is made here is a real
// wrapper, private, with proxies for attributes. What torch does with them before it asks their class, it does itself,
// on stand-ins; each operation that reaches a class is captured as the call of its __torch_dispatch__.
#pragma once

#include "capture/proxy.h"
#include "capture/semantics.h"
#include "tensor/overrides.h"

namespace framejit::capture {

struct Wrappers {
  static inline bool seen = false;  // Has any capture met a wrapper?
};

inline bool IsWrapper(PyObject* o) {
  return Wrappers::seen && !IsTensor(o) && tensor::IsWrapperClass(Py_TYPE(o));
}
// Is it a class of torch's own, whose code is known to keep to its wrappers?
bool OfTorch(PyTypeObject* type);
// Is it a number of torch's that no integer stands for: the size of a ragged dimension?
bool IsRagged(PyObject* o);
// Is there one among these, or in tuples and lists there?
bool AnyWrapper(PyObject* const* args, Py_ssize_t n);

// One from outside: guards for what it says of itself. False (Break): it is none that is modelled.
bool NoteWrapper(Session& s, PyObject* o, const Source* source);
// Tensor._make_wrapper_subclass(...)
PyObject* MakeWrapper(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
// A call of a C function or an operator of torch with wrappers among its arguments.
PyObject* CallWrapped(Session& s, PyObject* function, std::string_view name, PyObject* const* args, Py_ssize_t nargs,
                      PyObject* kwnames);
// Where an ordinary tensor begins in its memory, which classes of wrappers ask for. Null: Break.
PyObject* StorageOffset(Session& s, PyObject* proxy);
// What torch.Tensor has under a name, of a wrapper. *found = false, and null: its class has another one, or it has no
// such thing.
PyObject* WrapperAttr(Session& s, PyObject* wrapper, PyObject* name, bool* found);
bool WrapperTakes(Session& s, PyObject* wrapper, PyObject* name);  // Before a store to it. False: a Break.
// Calls of operators of which an operand is a wrapper.
PyObject* WrapperBinary(Session& s, int nb_op, PyObject* a, PyObject* b);
PyObject* WrapperCompare(Session& s, PyObject* a, PyObject* b, int op);
PyObject* CallSpecial(Session& s, const char* method, PyObject* const* args,
                      Py_ssize_t nargs);  // The method is that of the first argument.
// torch.utils._python_dispatch.return_and_correct_aliasing(func, args, kwargs, out). Null without an error: it is to be
// captured like any other function.
PyObject* CorrectAliasing(Session& s, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
// A pair (callable, arguments) that makes a wrapper of the capture again, or null with an error.
std::pair<PyObject*, Ref> WrapperRecipe(Session& s, PyObject* wrapper);

}  // namespace framejit::capture
