// What torch.autocast does to the operands of a call.
#pragma once

#include "framejit/call.h"

namespace framejit::surface {

enum class CastRule : uint8_t {
  kNone,
  kLower,    // to the region's type
  kFloat32,  // to float32
  kPromote,  // to the widest type among them
  kRefused,  // an error, or decided call by call inside the framework's kernel
};
CastRule AutocastRule(const Call& call, bool cuda);

}  // namespace framejit::surface
