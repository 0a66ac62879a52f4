// Owns intercepted frames. The hook (PEP 523) hands every new frame to Evaluate(); what happens there is decided by the
// installed FramePolicy. The hook is installed while at least one HookScope is alive (counted, with hysteresis).
#pragma once

#include <absl/functional/function_ref.h>

#include "frame/semantics.h"

namespace framejit::frame {

// What to do at an instruction boundary of an intercepted frame.
enum class Action {
  kStep,      // Runs the next instruction as it is, then asks again.
  kAgain,     // the policy changed the frame (ran a compiled segment, moved fj_next): ask again at the new place
  kReturn,    // the policy ran to the function's return: *result is the value
  kRaise,     // a Python exception is set, raised by the instruction at fj_next: look for a handler here
  kUnwound,   // a Python exception is set and this frame has no handler (RunLinked said kRaised): leave
  kHandOver,  // give the rest of this call to CPython
};

class FramePolicy {
 public:
  virtual ~FramePolicy() = default;
  // Asked once per new frame, before anything of it ran (not for generators and coroutines).
  // false: CPython runs it as if there were no hook.
  virtual bool Wants(FjFrame* frame) = 0;
  // Asked at each resumption of a generator that is not overridden. True: it has run; `drive` runs it as a frame that
  // is wanted.
  virtual bool Resumes(PyThreadState* ts, FjFrame* frame, absl::FunctionRef<PyObject*()> drive, PyObject** result) {
    return false;
  }
  // Runs a frame that is not wanted in CPython.
  virtual PyObject* Continue(PyThreadState* ts, FjFrame* frame, int throwflag) {
    return fj_continue(ts, frame, throwflag);
  }
  // Frames wanted by an interpreter in progress (capture): run all of it under these semantics instead of asking At().
  // Also asked for a generator at each resumption, which then runs from fj_next to its next yield.
  virtual Semantics* Override(FjFrame* frame) { return nullptr; }
  // Asked at every instruction boundary (after RESUME). The frame is linked, valid, its stack depth stored.
  virtual Action At(FjFrame* frame, PyObject** result) = 0;
};

FramePolicy* SetPolicy(FramePolicy* policy);  // process wide; null: the hook passes through. Returns the one before

class HookScope {  // While alive, this thread may need frames intercepted. It does nothing where HookUnavailable().
 public:
  HookScope();
  ~HookScope();
  HookScope(const HookScope&) = delete;
  bool active() const { return active_; }

 private:
  bool active_;
};
// Keep the hook installed, whatever this thread does, for frames that will be resumed. The hook is available.
void KeepHook();
void LetGoOfHook();
// A function is left to Python: sixteen such calls (or one, at_once) and the hook goes, unless somebody wants it.
void HookIsForNothing(bool at_once = false);
// Does nobody want frames, and has the hook been taken out because of that?
bool HookIsGone();
// Null, or why the hook cannot be used on this interpreter (private struct self-test failed, another owner of the hook,
// free-threaded build, sub-interpreter). Eager runs then.
const char* HookUnavailable();

// For At(): runs the linked frame under the policy's own semantics, in place. The frame is left where the outcome says,
// whatever the outcome; ending it, or restoring its locals and stack and going on elsewhere, is the caller's business.
inline Outcome RunLinked(FjFrame* frame, Semantics& semantics, long max_steps, int* index, PyObject** result) {
  return Interpret(frame, semantics, max_steps, index, result);
}

// Counters since the process began, for tests and reports.
struct DriverStats {
  long frames = 0;      // Frames that were handed to a policy or an override.
  long hand_overs = 0;  // Frames that were given to CPython in the middle.
  long raised = 0;      // Frames that were left by an exception.
  long returned = 0;
};
const DriverStats& Stats();

}  // namespace framejit::frame
