// The cost of an expression.
#pragma once

#include "framejit/shape.h"

namespace framejit::shape {

// The number of nodes that an evaluation of the expression visits; a part that occurs twice is visited twice. At most
// UINT32_MAX.
uint32_t Steps(Int e);

}  // namespace framejit::shape
