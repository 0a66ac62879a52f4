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

// Gives what a module calls by this name, and imports the module where nobody has. It is a new reference, or null with
// an error.
inline PyObject* FromModule(const char* module, const char* name) {
  SuspendScope off;
  tensor::Ref imported(tensor::Import(module));
  return imported ? PyObject_GetAttrString(imported.get(), name) : nullptr;
}

}  // namespace framejit::capture
