// This file has the calls. The stack holds two slots before the arguments: NULL and the callable, or a function and its
// self. The order of the former changed in 3.13.
#include "frame/activation.h"

namespace framejit::frame::ops {
namespace {

PyObject* CallSlots(Activation& m, Slot* args, int n, PyObject* names) {
  PyObject* callable;
  bool has_self;
  if (bytecode::kNullAfterCallable) {
    callable = args[-2], has_self = args[-1] != nullptr;
  } else {
    has_self = args[-2] != nullptr, callable = args[has_self ? -2 : -1];
  }
  if (has_self) --args, ++n;
  size_t positional = n - (names ? PyTuple_GET_SIZE(names) : 0);
  return m.sem.Call(callable, Pointers(args, n), positional | m.arguments_offset, names);
}

}  // namespace

Flow Call(Activation& m, const Instr& i) {
  return m.Replace(i.arg + 2, CallSlots(m, m.sp - i.arg, i.arg, nullptr));
}

Flow CallConstNames(Activation& m, const Instr& i) {
  return m.Replace(i.arg + 2, CallSlots(m, m.sp - i.arg, i.arg, m.Const(i.target)));
}

Flow CallStackNames(Activation& m, const Instr& i) {
  return m.Replace(i.arg + 3, CallSlots(m, m.sp - 1 - i.arg, i.arg, m.Top()));
}

Flow CallEx(Activation& m, const Instr& i) {
  bool has_kwargs = i.arg & 1;
  Slot* args = m.sp - 1 - has_kwargs;
  PyObject* callable = args[bytecode::kNullAfterCallable ? -2 : -1];
  PyObject* kwargs = has_kwargs ? m.Top() : nullptr;
  if (kwargs && !PyDict_CheckExact(kwargs)) return Flow::kHandOver;
  return m.Replace(3 + has_kwargs, m.sem.CallEx(callable, args[0], kwargs));
}

Flow Intrinsic1(Activation& m, const Instr& i) {
  switch (fj_intrinsic(i.arg)) {
    case FJ_INTRINSIC_POSITIVE: return Positive(m, i);
    case FJ_INTRINSIC_LIST_TO_TUPLE: return ListToTuple(m, i);
    case FJ_INTRINSIC_STOP_ITERATION:  // An exception is leaving a generator. Any other than these stays what it is.
      if (PyErr_GivenExceptionMatches(m.Top(), PyExc_StopIteration) ||
          PyErr_GivenExceptionMatches(m.Top(), PyExc_StopAsyncIteration))
        return Flow::kHandOver;
      return Flow::kNext;
    default: return Flow::kHandOver;
  }
}

}  // namespace framejit::frame::ops
