// Tensors of classes with a __torch_function__ (tensor/overrides.h). Such a tensor has a proxy like any other. What
// torch would hand to its class is asked of torch itself, with stand-ins, and the class's function is called, so that
// it is captured like any other. A tensor that is made here gets its class as an attribute of its own, `__class__`.
#pragma once

#include "capture/session.h"

namespace framejit::capture {

frame::Semantics* CurrentSemantics();  // Of the capture on this thread, or null.

// The class of this tensor, if torch asks it now; null: it does not. Borrowed.
PyTypeObject* Asked(Session& s, PyObject* proxy);
// Is there one among these, or in tuples and lists there?
bool AnyAsked(Session& s, PyObject* const* args, Py_ssize_t n);
// A call of a function of torch with such tensors. *asked = false, and null: torch asks none of their classes in it.
PyObject* CallOverride(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                       bool* asked);
// What the class of such a tensor has under a name. *found = false, and null: what torch.Tensor has.
PyObject* OwnAttribute(Session& s, PyObject* proxy, PyObject* name, bool* found);
PyTypeObject* MadeClass(Session& s, TraceId id);  // The class that it got here, or null.
PyObject* AsParameter(Session& s, PyObject* type, PyObject* data, PyObject* tracked);  // Is Tensor._make_subclass.
PyObject* AsClass(Session& s, PyObject* proxy, PyTypeObject* type);                    // Is tensor.as_subclass(type).
bool OverridesFit(Session& s, PyTypeObject* type);  // False (Break): it replaces more than is known.
// The same of a class whose __torch_function__ is torch's own or disabled: its methods are found where the program asks
// a tensor for them, and torch's functions do not look.
bool QuietFits(Session& s, PyTypeObject* type);

}  // namespace framejit::capture
