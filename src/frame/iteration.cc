// Iteration and unpacking.
#include <absl/container/fixed_array.h>

#include "frame/machine.h"

namespace framejit::frame::ops {
namespace {

Flow Unpack(Machine& m, int before, int after) {
  int n = before + (after < 0 ? 0 : after + 1);
  absl::FixedArray<PyObject*, 8> items(n);
  if (m.sem.Unpack(m.Top(), before, after, items.data()) < 0) return Flow::kError;
  m.Drop();
  while (n > 0) m.Push(items[--n]);  // the first item ends on top
  return Flow::kNext;
}

}  // namespace

Flow GetIter(Machine& m, const Instr&) {
  return m.Replace(1, m.sem.Iter(m.Top()));
}

Flow ForIter(Machine& m, const Instr&) {
  if (PyObject* v = m.sem.Next(m.Top())) {
    m.Push(v);
    return Flow::kNext;
  }
  if (PyErr_Occurred()) return Flow::kError;
  m.Drop();
  return Flow::kJump;
}

Flow EndFor(Machine& m, const Instr&) {
  m.Drop(bytecode::kEndForPops);
  return Flow::kNext;
}

Flow UnpackSequence(Machine& m, const Instr& i) {
  return Unpack(m, i.arg, -1);
}
Flow UnpackEx(Machine& m, const Instr& i) {
  return Unpack(m, i.arg & 0xFF, i.arg >> 8);
}

Flow GetYieldFromIter(Machine& m, const Instr&) {
  if (PyGen_CheckExact(m.Top())) return Flow::kNext;
  if (PyCoro_CheckExact(m.Top())) return Flow::kHandOver;  // allowed in coroutines only
  return m.Replace(1, m.sem.Iter(m.Top()));
}

Flow Send(Machine& m, const Instr&) {
  PyObject* v = nullptr;
  int yielded = m.sem.Send(m.Top(2), m.Top(), &v);
  if (yielded < 0) return Flow::kError;
  m.Drop(yielded || bytecode::kSendKeepsIterator ? 1 : 2);
  m.Push(v);
  return yielded ? Flow::kNext : Flow::kJump;
}

}  // namespace framejit::frame::ops
