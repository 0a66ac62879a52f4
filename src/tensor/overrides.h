// Classes of tensors that say by a __torch_function__ what torch's functions do with them.
#pragma once

#include <optional>

#include "tensor/ref.h"

namespace framejit::tensor {

// Is it such a class? Its __torch_function__ is torch.Tensor's own or a class method in Python, and nothing of it is in
// the dispatcher.
bool Overrides(PyTypeObject* type);

// While alive, torch's functions ask no class on this thread: what runs has been captured with what they do.
class OverridesOff {
 public:
  OverridesOff() {
    if (seen) [[unlikely]]
      Enter();
  }
  ~OverridesOff() {
    if (scope_) [[unlikely]]
      Leave();
  }
  OverridesOff(const OverridesOff&) = delete;
  static inline bool seen = false;  // a tensor of such a class, by any capture

 private:
  void Enter();
  void Leave();
  Ref scope_;
};

}  // namespace framejit::tensor
