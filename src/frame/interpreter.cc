// The loop. Each turn: store where we are and how deep the stack is (anything may look: tracebacks, destructors, gc),
// run one handler, then look at tracing and the eval breaker as CPython would at this kind of instruction. Exceptions
// are unwound here on every version, because handing a pending exception to CPython is inexact on some (frame.h) and
// because capture must keep control when a handler runs.
#include "frame/activation.h"

namespace framejit::frame {
namespace {

using Run = Flow (*)(Activation&, const Instr&);
constexpr Run kHandlers[] = {
#define OP(name, family) ops::name,
#include "bytecode/opcodes.def"
};

bool RunsAndLeaves(Op op) {
  return op == Op::kYieldValue || op == Op::kReturnGenerator;
}

}  // namespace

Activation::Activation(FjFrame* f, Semantics& s)
    : frame(f),
      sem(s),
      ts(PyThreadState_Get()),
      co(fj_code(f)),
      code(bytecode::Code::Of(co)),
      locals(fj_localsplus(f)),
      base(locals + fj_nlocalsplus(f)),
      sp(base + fj_stack_depth(f)),
      pc(fj_next(f)),
      arguments_offset(fj_is_suspended_generator(f) ? 0 : PY_VECTORCALL_ARGUMENTS_OFFSET) {}

bool Activation::Recover(int unit, bool add_traceback) {
  if (!sem.MayHandle()) return false;
  if (add_traceback && fj_is_complete(frame)) {
    if (PyFrameObject* object = PyEval_GetFrame()) PyTraceBack_Here(object);  // the linked frame is ours
  }
  const bytecode::Handler* h = code->FindHandler(unit);
  if (!h) return false;
  while (sp > base + h->depth) Drop();
  if (h->push_lasti) *sp++ = Slot::Position(fj_current(frame));  // differs from `unit` after a RERAISE that restored it
  Push(fj_take_raised());
  pc = h->target;
  return true;
}

Outcome Activation::Run(long max_steps, int* index, PyObject** out) {
  auto leave = [&](Outcome outcome) {
    fj_set_next(frame, pc);
    Store();
    *index = pc;
    return outcome;
  };
  auto raised = [&](int unit) {
    Store();
    *index = unit;
    return Outcome::kRaised;
  };
  auto hand_over = [&] {
    if (!RunsAndLeaves(code->At(pc).op) && !sem.MayHandOver(frame, pc)) return raised(code->At(pc).unit);
    return leave(Outcome::kHandOver);
  };
  for (;;) {
    const Instr& i = code->At(pc);
    fj_sync(frame, i.unit, sp);
    if (max_steps-- == 0) return leave(Outcome::kStopped);
    if (!sem.Before(frame, pc)) return PyErr_Occurred() ? raised(i.unit) : leave(Outcome::kStopped);
    Flow flow = kHandlers[static_cast<int>(i.op)](*this, i);
    if (flow == Flow::kError && !PyErr_Occurred()) flow = Flow::kHandOver;
    switch (flow) {
      case Flow::kNext: pc += i.length; break;
      case Flow::kJump: pc = i.target; break;
      case Flow::kReturn: *out = result; return leave(Outcome::kReturned);
      case Flow::kHandOver: return hand_over();
      case Flow::kError:
      case Flow::kReraise:
        Store();
        if (!Recover(i.unit, flow == Flow::kError)) return raised(i.unit);
        break;
    }
    int interrupts = fj_interrupts(ts, frame);
    if (!interrupts) continue;
    if (interrupts & FJ_TRACING) return hand_over();
    if (!i.polls || flow > Flow::kJump) continue;
    Store();
    int polled = fj_poll(ts);
    if (polled > 0) return hand_over();
    if (polled >= 0) continue;
    // Where the exception of, say, a signal handler counts as raised decides whether a `try` around the loop sees it.
    int where = flow == Flow::kJump && !bytecode::kPollsBeforeJump ? pc - 1 : i.unit;
    if (!Recover(where, true)) return raised(i.unit);
  }
}

Outcome Interpret(FjFrame* frame, Semantics& semantics, long max_steps, int* index, PyObject** result) {
  Activation m(frame, semantics);
  if (!m.code) {  // out of memory
    PyErr_Clear();
    *index = m.pc;
    return Outcome::kHandOver;
  }
  return m.Run(max_steps, index, result);
}

Outcome Unwind(FjFrame* frame, Semantics& semantics, int unit, int* index) {
  fj_set_current(frame, unit);
  PyObject* pending = fj_take_raised();  // decoding allocates
  Activation m(frame, semantics);
  if (!m.code) PyErr_Clear();
  fj_set_raised(pending);
  if (!m.code || !m.Recover(unit, true)) {
    m.Store();
    *index = unit;
    return Outcome::kRaised;
  }
  fj_set_next(frame, m.pc);
  m.Store();
  *index = m.pc;
  return Outcome::kStopped;
}

}  // namespace framejit::frame
