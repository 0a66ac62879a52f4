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

}  // namespace framejit::capture
