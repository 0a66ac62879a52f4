// This file has the instructions that shuffle the stack, and those of locals, cells and globals.
#include "frame/activation.h"

namespace framejit::frame::ops {
namespace {

bool PushLocal(Activation& m, int i) {  // false: unbound, CPython knows the message
  PyObject* v = m.locals[i];
  if (!v) return false;
  m.PushNew(v);
  return true;
}

}  // namespace

Flow PushNull(Activation& m, const Instr&) {
  m.Push(nullptr);
  return Flow::kNext;
}

Flow PopTop(Activation& m, const Instr&) {
  m.Drop();
  return Flow::kNext;
}

Flow Copy(Activation& m, const Instr& i) {
  *m.sp = m.sp[-i.arg].Copy();
  ++m.sp;
  return Flow::kNext;
}

Flow Swap(Activation& m, const Instr& i) {
  std::swap(m.sp[-1], m.sp[-i.arg]);
  return Flow::kNext;
}

Flow EndSend(Activation& m, const Instr&) {
  Slot value = *--m.sp;
  Slot iterator = std::exchange(m.sp[-1], value);
  m.Release(iterator);
  return Flow::kNext;
}

Flow LoadConst(Activation& m, const Instr& i) {
  m.PushNew(m.Const(i.arg));
  return Flow::kNext;
}

Flow LoadSmallInt(Activation& m, const Instr& i) {
  m.Push(PyLong_FromLong(i.arg));  // one that there is already
  return Flow::kNext;
}

Flow LoadCommon(Activation& m, const Instr& i) {
  m.PushNew(fj_common_constant(i.arg));
  return Flow::kNext;
}

Flow LoadFast(Activation& m, const Instr& i) {
  return PushLocal(m, i.arg) ? Flow::kNext : Flow::kHandOver;
}

Flow LoadFastAndClear(Activation& m, const Instr& i) {
  *m.sp++ = std::exchange(m.locals[i.arg], Slot::Of(nullptr));
  return Flow::kNext;
}

Flow LoadFastPair(Activation& m, const Instr& i) {
  if (!m.locals[i.arg] || !m.locals[i.target]) return Flow::kHandOver;
  PushLocal(m, i.arg);
  PushLocal(m, i.target);
  return Flow::kNext;
}

Flow StoreFast(Activation& m, const Instr& i) {
  m.SetLocal(i.arg, *--m.sp);  // nothing when an inlined comprehension restores an unbound name
  return Flow::kNext;
}

Flow StoreFastLoadFast(Activation& m, const Instr& i) {
  if (i.arg != i.target && !m.locals[i.target]) return Flow::kHandOver;
  m.SetLocal(i.arg, *--m.sp);
  PushLocal(m, i.target);
  return Flow::kNext;
}

Flow StoreFastPair(Activation& m, const Instr& i) {
  m.SetLocal(i.arg, *--m.sp);
  m.SetLocal(i.target, *--m.sp);
  return Flow::kNext;
}

Flow DeleteFast(Activation& m, const Instr& i) {
  if (!m.locals[i.arg]) return Flow::kHandOver;
  m.SetLocal(i.arg, Slot::Of(nullptr));
  return Flow::kNext;
}

Flow MakeCell(Activation& m, const Instr& i) {
  PyObject* cell = m.sem.MakeCell(m.locals[i.arg]);
  if (!cell) return Flow::kError;
  m.SetLocal(i.arg, Slot::Of(cell));
  return Flow::kNext;
}

Flow CopyFreeVars(Activation& m, const Instr& i) {
  PyObject* closure = reinterpret_cast<PyFunctionObject*>(fj_function(m.frame))->func_closure;
  Slot* to = m.base - i.arg;
  for (int k = 0; k < i.arg; ++k) to[k] = Slot::New(PyTuple_GET_ITEM(closure, k));
  return Flow::kNext;
}

Flow LoadClosure(Activation& m, const Instr& i) {
  return LoadFast(m, i);
}

Flow LoadDeref(Activation& m, const Instr& i) {
  PyObject* v = m.sem.LoadCell(m.locals[i.arg]);
  if (!v) return Flow::kError;
  m.Push(v);
  return Flow::kNext;
}

Flow StoreDeref(Activation& m, const Instr& i) {
  return m.Done(m.sem.StoreCell(m.locals[i.arg], m.Top()), 1);
}

Flow DeleteDeref(Activation& m, const Instr& i) {
  PyObject* old = m.sem.LoadCell(m.locals[i.arg]);
  if (!old) return Flow::kError;
  Py_DECREF(old);
  return m.Done(m.sem.StoreCell(m.locals[i.arg], nullptr), 0);
}

Flow LoadGlobal(Activation& m, const Instr& i) {
  PyObject* v = m.sem.LoadGlobal(fj_globals(m.frame), fj_builtins(m.frame), m.Name(i.arg));
  if (!v) return Flow::kError;
  if (i.flag && !bytecode::kNullAfterCallable) m.Push(nullptr);
  m.Push(v);
  if (i.flag && bytecode::kNullAfterCallable) m.Push(nullptr);
  return Flow::kNext;
}

Flow StoreGlobal(Activation& m, const Instr& i) {
  return m.Done(m.sem.StoreGlobal(fj_globals(m.frame), m.Name(i.arg), m.Top()), 1);
}

Flow DeleteGlobal(Activation& m, const Instr& i) {
  return m.Done(m.sem.StoreGlobal(fj_globals(m.frame), m.Name(i.arg), nullptr), 0);
}

}  // namespace framejit::frame::ops
