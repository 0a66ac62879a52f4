// This file has the instructions of attributes, methods, super() and imports.
#include "frame/activation.h"

namespace framejit::frame::ops {
namespace {

// Replaces n operands by what a call instruction expects to find for a callable without self.
Flow ReplaceByCallable(Activation& m, int n, PyObject* callable) {
  if (!callable) return Flow::kError;
  m.Drop(n);
  if (!bytecode::kNullAfterCallable) m.Push(nullptr);
  m.Push(callable);
  if (bytecode::kNullAfterCallable) m.Push(nullptr);
  return Flow::kNext;
}

}  // namespace

Flow LoadAttr(Activation& m, const Instr& i) {
  return m.Replace(1, m.sem.LoadAttr(m.Top(), m.Name(i.arg)));
}

Flow LoadMethod(Activation& m, const Instr& i) {
  PyObject* method = nullptr;
  int unbound = m.sem.LoadMethod(m.Top(), m.Name(i.arg), &method);
  if (unbound < 0) return Flow::kError;
  if (!unbound) return ReplaceByCallable(m, 1, method);
  Slot self = std::exchange(m.sp[-1], Slot::Of(method));
  *m.sp++ = self;
  return Flow::kNext;
}

Flow StoreAttr(Activation& m, const Instr& i) {
  return m.Done(m.sem.StoreAttr(m.Top(), m.Name(i.arg), m.Top(2)), 2);
}

Flow DeleteAttr(Activation& m, const Instr& i) {
  return m.Done(m.sem.StoreAttr(m.Top(), m.Name(i.arg), nullptr), 1);
}

Flow LoadSuperAttr(Activation& m, const Instr& i) {
  PyObject *super = m.Top(3), *cls = m.Top(2), *self = m.Top(), *name = m.Name(i.arg);
  PyObject* v;
  if ((i.flag & 2) || (super == reinterpret_cast<PyObject*>(&PySuper_Type) && PyType_Check(cls))) {
    v = m.sem.LoadSuperAttr(super, cls, self, name);
  } else {  // as the source says, without arguments: `super` is some other object, or complains of a class that is none
    PyObject* none[1] = {nullptr};
    PyObject* proxy = m.sem.Call(super, none + 1, 0 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    if (!proxy) return Flow::kError;
    v = m.sem.LoadAttr(proxy, name);
    Py_DECREF(proxy);
  }
  return i.flag & 1 ? ReplaceByCallable(m, 3, v) : m.Replace(3, v);
}

Flow ImportName(Activation& m, const Instr& i) {
  return m.Replace(2, m.sem.Import(m.Name(i.arg), fj_globals(m.frame), fj_locals(m.frame), m.Top(), m.Top(2)));
}

Flow ImportFrom(Activation& m, const Instr& i) {
  PyObject* v = m.sem.ImportFrom(m.Top(), m.Name(i.arg));
  if (!v) return Flow::kError;
  m.Push(v);
  return Flow::kNext;
}

}  // namespace framejit::frame::ops
