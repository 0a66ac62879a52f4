// While alive, every Python frame entered on this thread runs under `semantics` (a capture is in progress).
#pragma once

#include "frame/semantics.h"

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

}  // namespace framejit::capture
