// These instructions iterate and unpack.
#include <absl/container/fixed_array.h>

#include "frame/activation.h"

namespace framejit::frame::ops {
namespace {

Flow Unpack(Activation& m, int before, int after) {
  int n = before + (after < 0 ? 0 : after + 1);
  absl::FixedArray<PyObject*, 8> items(n);
  if (m.sem.Unpack(m.Top(), before, after, items.data()) < 0) return Flow::kError;
  m.Drop();
  while (n > 0) m.Push(items[--n]);  // the first item ends on top
  return Flow::kNext;
}

}  // namespace

Flow GetIter(Activation& m, const Instr&) {
  return m.Replace(1, m.sem.Iter(m.Top()));
}

Flow ForIter(Activation& m, const Instr&) {
  if (PyObject* v = m.sem.Next(m.Top())) {
    m.Push(v);
    return Flow::kNext;
  }
  if (PyErr_Occurred()) return Flow::kError;
  m.Drop();
  return Flow::kJump;
}

Flow EndFor(Activation& m, const Instr&) {
  m.Drop(bytecode::kEndForPops);
  return Flow::kNext;
}

Flow UnpackSequence(Activation& m, const Instr& i) {
  return Unpack(m, i.arg, -1);
}
Flow UnpackEx(Activation& m, const Instr& i) {
  return Unpack(m, i.arg & 0xFF, i.arg >> 8);
}

Flow GetYieldFromIter(Activation& m, const Instr&) {
  if (PyGen_CheckExact(m.Top())) return Flow::kNext;
  if (PyCoro_CheckExact(m.Top())) return Flow::kHandOver;  // allowed in coroutines only
  return m.Replace(1, m.sem.Iter(m.Top()));
}

// Gives what `await` sends to. What CPython refuses it refuses itself, as long as nothing was called.
Flow GetAwaitable(Activation& m, const Instr&) {
  PyObject* o = m.Top();
  if (PyCoro_CheckExact(o)) {
    PyObject* awaits = PyObject_GetAttrString(o, "cr_await");
    if (!awaits) return Flow::kError;
    Py_DECREF(awaits);
    return awaits == Py_None ? Flow::kNext : Flow::kHandOver;
  }
  if (PyGen_CheckExact(o)) return Flow::kHandOver;  // of types.coroutine, or no awaitable
  static PyObject* const name = PyUnicode_InternFromString("__await__");
  PyObject* method = m.sem.LoadSpecial(o, name);
  if (!method) return PyErr_Occurred() ? Flow::kError : Flow::kHandOver;
  PyObject* awaited = m.sem.Call(method, nullptr, 0, nullptr);
  Py_DECREF(method);
  if (awaited && (PyCoro_CheckExact(awaited) || !PyIter_Check(awaited))) {
    if (PyCoro_CheckExact(awaited))
      PyErr_SetString(PyExc_TypeError, "__await__() returned a coroutine");
    else
      PyErr_Format(PyExc_TypeError, "__await__() returned non-iterator of type '%.100s'", Py_TYPE(awaited)->tp_name);
    Py_CLEAR(awaited);
  }
  return m.Replace(1, awaited);
}

Flow Send(Activation& m, const Instr&) {
  PyObject* v = nullptr;
  int yielded = m.sem.Send(m.Top(2), m.Top(), &v);
  if (yielded < 0) return Flow::kError;
  m.Drop(yielded || bytecode::kSendKeepsIterator ? 1 : 2);
  m.Push(v);
  return yielded ? Flow::kNext : Flow::kJump;
}

}  // namespace framejit::frame::ops
