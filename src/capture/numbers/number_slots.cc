#include "capture/numbers/number_slots.h"

#include "capture/session.h"

namespace framejit::capture {
namespace {

constexpr const char *kFormat = "__format__", *kRound = "__round__", *kTrunc = "__trunc__", *kFloor = "__floor__",
                     *kCeil = "__ceil__", *kReduce = "__reduce_ex__";

template <const char* const* kName>
PyObject* Method(PyObject* a, PyObject* args) {
  Ref x(Concrete(a)), m(x ? PyObject_GetAttrString(x.get(), *kName) : nullptr);
  return m ? PyObject_CallObject(m.get(), args) : nullptr;
}

}  // namespace

PyMethodDef number_methods[] = {
    {kFormat, Method<&kFormat>, METH_VARARGS, nullptr},
    {kRound, Method<&kRound>, METH_VARARGS, nullptr},
    {kTrunc, Method<&kTrunc>, METH_VARARGS, nullptr},
    {kFloor, Method<&kFloor>, METH_VARARGS, nullptr},
    {kCeil, Method<&kCeil>, METH_VARARGS, nullptr},
    {kReduce, Method<&kReduce>, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

Session* LiveNumber(PyObject* symbol) {
  return Live(
      IsSymInt(symbol) ? reinterpret_cast<SymInt*>(symbol)->session : reinterpret_cast<SymFloat*>(symbol)->session,
      "number");
}

PyObject* Concrete(PyObject* o) {
  if (!IsSymInt(o) && !IsSymFloat(o)) return Py_NewRef(o);
  Session* s = LiveNumber(o);
  if (!s) return nullptr;
  return IsSymInt(o) ? PyLong_FromLongLong(s->env().Specialize(reinterpret_cast<SymInt*>(o)->expr))
                     : PyFloat_FromDouble(s->numbers().Specialize(reinterpret_cast<SymFloat*>(o)->symbol));
}

PyObject* OnNumbers(PyObject* a, PyObject* b, binaryfunc f) {
  Ref x(Concrete(a)), y(Concrete(b));
  return x && y ? f(x.get(), y.get()) : nullptr;
}

// As Python asks the two, but for its error, which would name them in the order in which they were asked.
PyObject* CompareConcrete(PyObject* a, PyObject* b, int op) {
  Ref x(Concrete(a)), y(Concrete(b));
  if (!x || !y) return nullptr;
  constexpr int kSwapped[] = {Py_GT, Py_GE, Py_EQ, Py_NE, Py_LT, Py_LE};
  PyTypeObject *of_x = Py_TYPE(x.get()), *of_y = Py_TYPE(y.get());
  const bool subclass = of_x != of_y && PyType_IsSubtype(of_y, of_x);  // is asked first
  const auto swapped = [&] { return Ref(of_y->tp_richcompare(y.get(), x.get(), kSwapped[op])); };
  Ref r(subclass ? swapped() : Ref(of_x->tp_richcompare(x.get(), y.get(), op)));
  if (r.get() == Py_NotImplemented && subclass) return of_x->tp_richcompare(x.get(), y.get(), op);
  if (r.get() == Py_NotImplemented && of_y->tp_richcompare) r = swapped();
  return r.release();
}

Py_hash_t HashOfNumber(PyObject* a) {
  Ref x(Concrete(a));
  return x ? PyObject_Hash(x.get()) : -1;
}

PyObject* AttributeOfNumber(PyObject* a, PyObject* name) {
  if (!PyUnicode_CompareWithASCIIString(name, "__class__"))
    return Py_NewRef(reinterpret_cast<PyObject*>(IsSymInt(a) ? &PyLong_Type : &PyFloat_Type));
  Ref x(Concrete(a));
  return x ? PyObject_GetAttr(x.get(), name) : nullptr;
}

bool ReadyNumbers() {
  for (PyTypeObject* type : {&SymIntType, &SymFloatType}) {
    if (PyType_Ready(type) < 0) return false;
    // NumPy's scalars leave arithmetic with it to the slots here, which give them the number.
    if (PyDict_SetItemString(type->tp_dict, "__array_ufunc__", Py_None) < 0) return false;
    PyType_Modified(type);
  }
  return true;
}

}  // namespace framejit::capture
