// What rules, derivatives, loops and passes ask of a kind of device. The answers are the targets' (compiler/target.h),
// a later stage.
#pragma once

#include <string>

#include "framejit/dtype.h"

namespace framejit {

struct DeviceTraits {
  // May our own code for the host's threads compute with its tensors? That is depthwise convolutions
  // (runtime/depthwise.h), convolutions as products of matrices, and gradients for which libraries take long
  // (framejit._gradients).
  bool host_code = false;
  bool checks = false;              // its kernels report an index out of range (Status)
  bool attention_as_query = false;  // the result of attention lies in memory as the query does
  bool rereads = false;             // reading a value from memory takes less time than computing it again
};

const DeviceTraits& TraitsOf(Device device);

std::string DeviceName(Device device);  // "cpu", "cuda:1", "meta"

}  // namespace framejit
