// What numbers that became symbols do alike: what is not known of symbols happens on the number itself, which is
// guarded.
#pragma once

#include <string_view>

#include "capture/proxy.h"
#include "capture/ref.h"

namespace framejit::capture {

class Session;

Session* LiveNumber(PyObject* symbol);  // Its session, if that captures on this thread, else null with an error.
PyObject* Concrete(PyObject* o);        // A new reference: a symbol's number, guarded, or the object itself.
PyObject* OnNumbers(PyObject* a, PyObject* b, binaryfunc f);
PyObject* CompareConcrete(PyObject* a, PyObject* b, int op);  // NotImplemented: Python says so of the stand-ins
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
// max or min of integers, some of which are symbols. Null without an error: they are compared one by one.
PyObject* Extreme(PyObject* const* args, Py_ssize_t n, bool least);
// A function of the module `math` of the number that a tensor holds, which the framework computes to the same bits.
// Null without an error: another one.
PyObject* ItemFunction(std::string_view name, PyObject* item);
PyObject* FiniteOrZero(PyObject* item);  // the number that a tensor holds, or 0.0 where it is infinite or none
// Does sum(..., start) of this Python add floats in a way that a stand-in does not take part in? Then SumOfFloats is
// it.
bool SumsFloats(PyObject* start);
PyObject* SumOfFloats(PyObject* items, PyObject* start);
Py_hash_t HashOfNumber(PyObject* a);
PyObject* AttributeOfNumber(PyObject* a, PyObject* name);
extern PyMethodDef number_methods[];  // Methods that C code looks for on the type of a number.

// The type of such numbers, which differ in what they do with each other.
constexpr PyTypeObject NumberType(const char* name, Py_ssize_t size, PyNumberMethods* operations, richcmpfunc compare) {
  return {
      .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
      .tp_name = name,
      .tp_basicsize = size,
      .tp_dealloc = FreeStandIn,
      .tp_repr = Converted<PyObject_Repr>,
      .tp_as_number = operations,
      .tp_hash = HashOfNumber,
      .tp_str = Converted<PyObject_Repr>,
      .tp_getattro = AttributeOfNumber,
      .tp_flags = Py_TPFLAGS_DEFAULT,
      .tp_richcompare = compare,
      .tp_methods = number_methods,
  };
}

}  // namespace framejit::capture
