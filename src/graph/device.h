// What rules, derivatives, loops and passes ask of a kind of device. They stand before the targets (compiler/target.h),
// which answer.
#pragma once

#include "framejit/dtype.h"

namespace framejit {

struct DeviceTraits {
  // Code of ours for the host's threads takes its tensors: depthwise convolutions (runtime/depthwise.h), convolutions
  // as products of matrices, gradients that libraries make slowly (framejit._gradients).
  bool host_code = false;
  bool checks = false;              // its kernels tell an index out of range (Status)
  bool attention_as_query = false;  // attention answers in its query's memory order
  bool rereads = false;             // what is in memory is read sooner than it is computed again
};

const DeviceTraits& TraitsOf(Device device);

}  // namespace framejit
