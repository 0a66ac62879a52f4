// While alive, every Python frame entered on this thread runs under `semantics` (a capture is in progress).
#pragma once

#include "frame/semantics.h"
#include "tensor/import.h"

namespace framejit::capture {

class OverrideScope {
 public:
  explicit OverrideScope(frame::Semantics* semantics);
  ~OverrideScope();

 private:
  frame::Semantics* before_;
};

// While alive, nothing on this thread is captured or intercepted: framejit's own calls into Python (shape inference by
// the framework, running a segment, imports).
class SuspendScope {
 public:
  SuspendScope();
  ~SuspendScope();
  SuspendScope(const SuspendScope&) = delete;

 private:
  frame::Semantics* semantics_;
  void* active_;  // A shared_ptr<Compiled>, or null if none was active.
};

// While alive, a signal's handler does not run on this thread: it would be captured with the program, and what it
// raises would end the capture instead of the program. It runs, and raises, once the frame goes on.
class SignalsWait {
 public:
  SignalsWait() : held_(fj_hold_signals()) {}
  ~SignalsWait() {
    if (held_) fj_release_signals();
  }
  SignalsWait(const SignalsWait&) = delete;

 private:
  int held_;
};
// But what is called for the program itself may be interrupted.
class SignalsServed {
 public:
  SignalsServed() : released_(fj_release_signals()) {}
  ~SignalsServed() {
    if (released_) fj_hold_signals();
  }
  SignalsServed(const SignalsServed&) = delete;

 private:
  int released_;
};

// Gives what a module calls by this name, and imports the module where nobody has. It is a new reference, or null with
// an error.
inline PyObject* FromModule(const char* module, const char* name) {
  SuspendScope off;
  tensor::Ref imported(tensor::Import(module));
  return imported ? PyObject_GetAttrString(imported.get(), name) : nullptr;
}

}  // namespace framejit::capture
