// Owning references, as the tensor stage defines them; Borrow(o) owns a new reference to a borrowed pointer.
#pragma once

#include "tensor/ref.h"

namespace framejit::capture {

using tensor::Ref;
inline Ref Borrow(PyObject* o) {
  return Ref::Borrow(o);
}
// For a name that is kept in a static variable.
inline PyObject* Interned(const char* text) {
  return PyUnicode_InternFromString(text);
}

}  // namespace framejit::capture
