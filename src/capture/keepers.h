// What the framework keeps for its derivatives, by the calls of a program: a backward pass frees it.
#pragma once

#include <vector>

#include "framejit/call.h"
#include "tensor/autograd.h"

namespace framejit::capture {

// wanted: which inputs want gradients.
tensor::Training::Keepers KeepersOf(const Trace& t, const std::vector<bool>& wanted);

}  // namespace framejit::capture
