// Sums of pads, as the gradients of many parts of one array are, hold something in few rows. The other rows are
// constants, for which the loop over a row is there a second time.
#pragma once

#include <vector>

#include "loop/kernel.h"

namespace framejit::codegen {

// The conditions, known before the loop over a row, of elements that are a constant elsewhere, if they hold in few
// rows. Only of stages that keep nothing from element to element. `uniform`: the instructions with one value for all
// lanes.
std::vector<int> RareConditions(const loop::Kernel& k, const loop::Stage& stage, const std::vector<bool>& uniform);

}  // namespace framejit::codegen
