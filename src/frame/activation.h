// The interpreter's working state over one frame, and the handlers of instructions (one function per row of
// bytecode/opcodes.def, in the file of its family). A handler leaves its operands on the stack until nothing can fail
// any more: a failure without exception hands the instruction to CPython, which must find it untouched.
#pragma once

#include <utility>

#include "bytecode/code.h"
#include "frame/semantics.h"
#include "frame/slot.h"

namespace framejit::frame {

using bytecode::Instr;
using bytecode::Op;

enum class Flow : uint8_t {
  kNext,
  kJump,      // Goes on at Instr::target.
  kReturn,    // Activation::result is set.
  kHandOver,  // CPython shall run this instruction
  kError,     // exception set (none: kHandOver)
  kReraise,   // exception set that already has its traceback entry here
};

struct Activation {
  Activation(FjFrame* frame, Semantics& semantics);

  Outcome Run(long max_steps, int* index, PyObject** result);
  bool Recover(int unit, bool add_traceback);  // It is true where pc is at the handler.

  PyObject* Top(int n = 1) const { return sp[-n]; }
  PyObject* Const(int i) const { return PyTuple_GET_ITEM(co->co_consts, i); }
  PyObject* Name(int i) const { return PyTuple_GET_ITEM(co->co_names, i); }
  void Push(PyObject* owned) { *sp++ = Slot::Of(owned); }
  void PushNew(PyObject* borrowed) { Push(Py_NewRef(borrowed)); }
  PyObject* Pop() { return (--sp)->Take(); }
  // Pops and releases; the stack pointer is stored before a destructor can look at the frame.
  void Drop(int n = 1) {
    while (n-- > 0) Release(*--sp);
  }
  void Release(Slot slot) {
    if (slot.counted()) Release(slot.get());
  }
  void Release(PyObject* o) {
    if (!o) return;
    if (Py_REFCNT(o) == 1) Store();
    Py_DECREF(o);
  }
  void Store() { fj_set_stack_depth(frame, static_cast<int>(sp - base)); }
  // Replaces n operands by a result, which is null where the operation failed.
  Flow Replace(int n, PyObject* result) {
    if (!result) return Flow::kError;
    Drop(n);
    Push(result);
    return Flow::kNext;
  }
  Flow Done(int status, int n) {  // Ends an operation that has no result.
    if (status < 0) return Flow::kError;
    Drop(n);
    return Flow::kNext;
  }
  Flow ReplaceBool(int n, int truth) {
    return truth < 0 ? Flow::kError : Replace(n, Py_NewRef(truth ? Py_True : Py_False));
  }
  int Truth(PyObject* o) { return o == Py_True ? 1 : o == Py_False ? 0 : sem.Truth(o); }
  void SetLocal(int i, Slot slot) {
    Slot old = std::exchange(locals[i], slot);
    Release(old);
  }

  FjFrame* frame;
  Semantics& sem;
  PyThreadState* ts;
  PyCodeObject* co;
  const bytecode::Code* code;
  Slot* locals;
  Slot* base;
  Slot* sp;
  int pc;
  // A suspended generator's frame is visited by the garbage collector, so its stack must hold only what it owns:
  // callees may not borrow the slot in front of the arguments.
  size_t arguments_offset;
  PyObject* result = nullptr;
};

namespace ops {
#define OP(name, family) Flow name(Activation& m, const Instr& i);
#include "bytecode/opcodes.def"
}  // namespace ops

}  // namespace framejit::frame
