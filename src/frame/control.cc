// Jumps, returns, and what belongs to CPython.
#include "frame/machine.h"

namespace framejit::frame::ops {
namespace {

Flow PopJump(Machine& m, int condition) {
  if (condition < 0) return Flow::kError;
  m.Drop();
  return condition ? Flow::kJump : Flow::kNext;
}

int Negate(int truth) {
  return truth < 0 ? truth : !truth;
}

}  // namespace

Flow Unsupported(Machine&, const Instr&) {
  return Flow::kHandOver;
}
Flow HandOver(Machine&, const Instr&) {
  return Flow::kHandOver;
}
Flow YieldValue(Machine&, const Instr&) {
  return Flow::kHandOver;
}
Flow ReturnGenerator(Machine&, const Instr&) {
  return Flow::kHandOver;
}
Flow CleanupThrow(Machine&, const Instr&) {
  return Flow::kHandOver;
}
Flow Nop(Machine&, const Instr&) {
  return Flow::kNext;
}
Flow Resume(Machine&, const Instr&) {
  return Flow::kNext;
}
Flow Jump(Machine&, const Instr&) {
  return Flow::kJump;
}
Flow PopJumpIfFalse(Machine& m, const Instr&) {
  return PopJump(m, Negate(m.Truth(m.Top())));
}
Flow PopJumpIfTrue(Machine& m, const Instr&) {
  return PopJump(m, m.Truth(m.Top()));
}
Flow PopJumpIfNone(Machine& m, const Instr&) {
  return PopJump(m, m.sem.Is(m.Top(), Py_None));
}
Flow PopJumpIfNotNone(Machine& m, const Instr&) {
  return PopJump(m, Negate(m.sem.Is(m.Top(), Py_None)));
}

Flow JumpIfFalseOrPop(Machine& m, const Instr&) {
  int truth = m.Truth(m.Top());
  if (truth < 0) return Flow::kError;
  if (!truth) return Flow::kJump;
  m.Drop();
  return Flow::kNext;
}

Flow JumpIfTrueOrPop(Machine& m, const Instr&) {
  int truth = m.Truth(m.Top());
  if (truth < 0) return Flow::kError;
  if (truth) return Flow::kJump;
  m.Drop();
  return Flow::kNext;
}

Flow ReturnValue(Machine& m, const Instr&) {
  m.result = Py_NewRef(m.Top());
  return Flow::kReturn;
}

Flow ReturnConst(Machine& m, const Instr& i) {
  m.result = Py_NewRef(m.Const(i.arg));
  return Flow::kReturn;
}

}  // namespace framejit::frame::ops
