// Where the values of a kernel mean something: elements that a pad or a part of a cat does not have are computed all
// the same, and nobody asks for them.
#pragma once

#include <vector>

#include "loop/kernel.h"

namespace framejit::codegen {

// By instruction: the bool instruction outside of which its value is of no element, -1: it always is of one.
std::vector<int> MeantWhere(const loop::Kernel& k);

}  // namespace framejit::codegen
