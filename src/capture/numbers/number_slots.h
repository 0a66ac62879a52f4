// What numbers that became symbols do alike: what is not known of symbols happens on the number itself, which is
// guarded.
#pragma once

#include "capture/proxy.h"
#include "capture/ref.h"

namespace framejit::capture {

class Session;

Session* LiveNumber(PyObject* symbol);  // Its session, if that captures on this thread, else null with an error.
PyObject* Concrete(PyObject* o);        // A new reference: a symbol's number, guarded, or the object itself.
PyObject* OnNumbers(PyObject* a, PyObject* b, binaryfunc f);
template <binaryfunc kF>
PyObject* Other(PyObject* a, PyObject* b) {
  if (IsTensor(a) || IsTensor(b)) Py_RETURN_NOTIMPLEMENTED;
  return OnNumbers(a, b, kF);
}
template <unaryfunc kF>
PyObject* Converted(PyObject* a) {
  Ref x(Concrete(a));
  return x ? kF(x.get()) : nullptr;
}
Py_hash_t HashOfNumber(PyObject* a);
PyObject* AttributeOfNumber(PyObject* a, PyObject* name);
void FreeNumber(PyObject* a);
extern PyMethodDef number_methods[];  // Methods that C code looks for on the type of a number.

}  // namespace framejit::capture
