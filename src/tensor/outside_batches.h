// Replays of what drew, in a pass that the framework runs for a batch of gradients.
#pragma once

#include <cstdint>

#include "tensor/ref.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

// While this lives, the framework's own vmap, in which it runs a pass with is_grads_batched, is left. Nothing may be
// drawn in there, and what a replay draws has no samples.
class OutsideBatches {
 public:
  explicit OutsideBatches(bool draws) {
    if (draws) levels_ = Nesting("_vmapmode_increment_nesting");
    for (int64_t i = 0; i < levels_; ++i) Nesting("_vmapmode_decrement_nesting");
  }
  ~OutsideBatches() {
    SavedError error;
    for (int64_t i = 1; i < levels_; ++i) Nesting("_vmapmode_increment_nesting");
  }
  OutsideBatches(const OutsideBatches&) = delete;

 private:
  static int64_t Nesting(const char* change) {  // how deep it is then
    Ref core(PyObject_GetAttrString(Torch()->module, "_C"));
    Ref level(core ? PyObject_CallMethod(core.get(), change, nullptr) : nullptr);
    const int64_t depth = level ? PyLong_AsLongLong(level.get()) : 0;
    PyErr_Clear();
    return depth;
  }
  int64_t levels_ = 0;  // with the one that was entered to ask
};

}  // namespace framejit::tensor
