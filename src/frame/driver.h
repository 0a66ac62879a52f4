// Owns intercepted frames. The hook (PEP 523) hands every new frame to Evaluate(); what happens there is decided by the
// installed FramePolicy. The hook is installed while at least one HookScope is alive (counted, with hysteresis).
#pragma once

#include "frame/semantics.h"

namespace framejit::frame {

// What to do at an instruction boundary of an intercepted frame.
enum class Action {
  kStep,      // run the next instruction concretely, then ask again
  kAgain,     // the policy changed the frame (ran a compiled segment, moved fj_next): ask again at the new place
  kReturn,    // the policy ran to the function's return: *result is the value
  kRaise,     // a Python exception is set, raised by the instruction at fj_next
  kHandOver,  // give the rest of this call to CPython
};

class FramePolicy {
 public:
  virtual ~FramePolicy() = default;
  // Asked once per new frame, before anything of it ran. false: CPython runs it as if there were no hook.
  virtual bool Wants(FjFrame* frame) = 0;
  // Frames wanted by an interpreter in progress (capture): run all of it under these semantics instead of asking At().
  virtual Semantics* Override(FjFrame* frame) { return nullptr; }
  // Asked at every instruction boundary (after RESUME). The frame is linked, valid, its stack depth stored.
  virtual Action At(FjFrame* frame, PyObject** result) = 0;
};

void SetPolicy(FramePolicy* policy);  // process wide; null: the hook passes through

class HookScope {  // RAII: this thread may need frames intercepted
 public:
  HookScope();
  ~HookScope();
  HookScope(const HookScope&) = delete;
};
int HookCount();
// Null, or why the hook cannot be used on this interpreter (private struct self-test failed, another owner of the hook,
// free-threaded build, sub-interpreter). Eager runs then.
const char* HookUnavailable();

// Abandons a frame that an Override semantics was running (MayHandle() returned false): no handler, no finally runs.
// Used by the driver itself; exposed for tests.

// Testing: run `n` instructions of every frame of `code` (or of all frames with null) concretely, then hand over.
void SetSweep(PyObject* code_or_null, long n, unsigned long long seed_or_0);

}  // namespace framejit::frame
