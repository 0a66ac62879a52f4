// Jumps, returns, and what belongs to CPython.
#include "frame/activation.h"

namespace framejit::frame::ops {
namespace {

Flow PopJump(Activation& m, int condition) {
  if (condition < 0) return Flow::kError;
  m.Drop();
  return condition ? Flow::kJump : Flow::kNext;
}

int Negate(int truth) {
  return truth < 0 ? truth : !truth;
}

}  // namespace

Flow Unsupported(Activation&, const Instr&) {
  return Flow::kHandOver;
}
Flow HandOver(Activation&, const Instr&) {
  return Flow::kHandOver;
}
Flow YieldValue(Activation&, const Instr&) {
  return Flow::kHandOver;
}
Flow ReturnGenerator(Activation&, const Instr&) {
  return Flow::kHandOver;
}
Flow CleanupThrow(Activation&, const Instr&) {
  return Flow::kHandOver;
}
Flow Nop(Activation&, const Instr&) {
  return Flow::kNext;
}
Flow Resume(Activation&, const Instr&) {
  return Flow::kNext;
}
Flow Jump(Activation&, const Instr&) {
  return Flow::kJump;
}
Flow PopJumpIfFalse(Activation& m, const Instr&) {
  return PopJump(m, Negate(m.Truth(m.Top())));
}
Flow PopJumpIfTrue(Activation& m, const Instr&) {
  return PopJump(m, m.Truth(m.Top()));
}
Flow PopJumpIfNone(Activation& m, const Instr&) {
  return PopJump(m, m.sem.Is(m.Top(), Py_None));
}
Flow PopJumpIfNotNone(Activation& m, const Instr&) {
  return PopJump(m, Negate(m.sem.Is(m.Top(), Py_None)));
}

Flow JumpIfFalseOrPop(Activation& m, const Instr&) {
  int truth = m.Truth(m.Top());
  if (truth < 0) return Flow::kError;
  if (!truth) return Flow::kJump;
  m.Drop();
  return Flow::kNext;
}

Flow JumpIfTrueOrPop(Activation& m, const Instr&) {
  int truth = m.Truth(m.Top());
  if (truth < 0) return Flow::kError;
  if (truth) return Flow::kJump;
  m.Drop();
  return Flow::kNext;
}

Flow ReturnValue(Activation& m, const Instr&) {
  m.result = Py_NewRef(m.Top());
  return Flow::kReturn;
}

Flow ReturnConst(Activation& m, const Instr& i) {
  m.result = Py_NewRef(m.Const(i.arg));
  return Flow::kReturn;
}

}  // namespace framejit::frame::ops
