// Weak references of framejit's own. They are of a class by themselves: what only they refer to dies unseen by the
// program, which has no such reference and cannot ask one of ours.
#pragma once

#include "tensor/ref.h"

namespace framejit::tensor {

Ref OwnReference(PyObject* o, PyObject* callback = nullptr);  // Null with an exception.
bool HasWatchers(PyObject* o);                                // Are there some with a callback that are not ours?
bool HasWeakReferences(PyObject* o);                          // Are there some that are not ours?

}  // namespace framejit::tensor
