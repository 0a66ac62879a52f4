// This file has the instructions that make displays, comprehensions and functions.
#include <vector>

#include "frame/activation.h"

namespace framejit::frame::ops {

Flow BuildTuple(Activation& m, const Instr& i) {
  return m.Replace(i.arg, m.sem.BuildTuple(Pointers(m.sp - i.arg, i.arg), i.arg));
}
Flow BuildList(Activation& m, const Instr& i) {
  return m.Replace(i.arg, m.sem.BuildList(Pointers(m.sp - i.arg, i.arg), i.arg));
}
Flow BuildSet(Activation& m, const Instr& i) {
  return m.Replace(i.arg, m.sem.BuildSet(Pointers(m.sp - i.arg, i.arg), i.arg));
}
Flow BuildMap(Activation& m, const Instr& i) {
  return m.Replace(2 * i.arg, m.sem.BuildMap(Pointers(m.sp - 2 * i.arg, 2 * i.arg), i.arg, 2));
}

Flow BuildConstKeyMap(Activation& m, const Instr& i) {
  PyObject* keys = m.Top();
  Slot* values = m.sp - 1 - i.arg;
  std::vector<PyObject*> pairs(2 * i.arg);
  for (int k = 0; k < i.arg; ++k) pairs[2 * k] = PyTuple_GET_ITEM(keys, k), pairs[2 * k + 1] = values[k];
  return m.Replace(i.arg + 1, m.sem.BuildMap(pairs.data(), i.arg, 2));
}

Flow BuildSlice(Activation& m, const Instr& i) {
  if (i.arg == 3) return m.Replace(3, m.sem.BuildSlice(m.Top(3), m.Top(2), m.Top()));
  return m.Replace(2, m.sem.BuildSlice(m.Top(2), m.Top(), nullptr));
}

Flow BuildString(Activation& m, const Instr& i) {
  return m.Replace(i.arg, m.sem.BuildString(Pointers(m.sp - i.arg, i.arg), i.arg));
}

Flow ListAppend(Activation& m, const Instr& i) {
  return m.Done(m.sem.ListAppend(m.Top(i.arg + 1), m.Top()), 1);
}
Flow ListExtend(Activation& m, const Instr& i) {
  return m.Done(m.sem.ListExtend(m.Top(i.arg + 1), m.Top()), 1);
}
Flow SetAdd(Activation& m, const Instr& i) {
  return m.Done(m.sem.SetAdd(m.Top(i.arg + 1), m.Top()), 1);
}
Flow SetUpdate(Activation& m, const Instr& i) {
  return m.Done(m.sem.SetUpdate(m.Top(i.arg + 1), m.Top()), 1);
}
Flow MapAdd(Activation& m, const Instr& i) {
  return m.Done(m.sem.MapAdd(m.Top(i.arg + 2), m.Top(2), m.Top()), 2);
}
Flow DictUpdate(Activation& m, const Instr& i) {
  return m.Done(m.sem.DictUpdate(m.Top(i.arg + 1), m.Top()), 1);
}

Flow DictMerge(Activation& m, const Instr& i) {  // keywords of a CALL_FUNCTION_EX: the callable is below the arguments
  PyObject* callee = m.Top(i.arg + (bytecode::kNullAfterCallable ? 4 : 3));
  return m.Done(m.sem.DictMerge(m.Top(i.arg + 1), m.Top(), callee), 1);
}

Flow ListToTuple(Activation& m, const Instr&) {
  return m.Replace(1, m.sem.ListToTuple(m.Top()));
}

Flow MakeFunction(Activation& m, const Instr& i) {
  PyObject* function = m.sem.MakeFunction(m.Top(), fj_globals(m.frame));
  if (!function) return Flow::kError;
  int used = 1;
  if (!bytecode::kNullAfterCallable) {  // later versions have SET_FUNCTION_ATTRIBUTE
    for (int field : {8, 4, 2, 1}) {
      if (!(i.arg & field)) continue;
      if (m.sem.SetFunctionField(function, field, m.Top(++used)) < 0) {
        Py_DECREF(function);
        return Flow::kError;
      }
    }
  }
  return m.Replace(used, function);
}

Flow SetFunctionAttribute(Activation& m, const Instr& i) {
  if (m.sem.SetFunctionField(m.Top(), i.arg, m.Top(2)) < 0) return Flow::kError;
  std::swap(m.sp[-1], m.sp[-2]);
  m.Drop();
  return Flow::kNext;
}

Flow LoadBuildClass(Activation& m, const Instr&) {
  return m.Replace(0, m.sem.LoadBuildClass(fj_builtins(m.frame)));
}

}  // namespace framejit::frame::ops
