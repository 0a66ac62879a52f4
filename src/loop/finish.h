// The last step of BuildKernel: what was emitted becomes the kernel's canonical form.
#pragma once

#include "loop/kernel.h"

namespace framejit::loop {

// While a kernel is emitted, outputs and scratch rows have these plus their index as buffer numbers: how many inputs
// there will be is not known yet.
inline constexpr int kOutput = 1 << 20, kScratch = 2 << 20;

// Dead instructions go, the others are renumbered in the order of the stages, symbols in the order of their use: equal
// kernels get equal text.
void Finish(const Graph& g, const std::vector<ValueId>& inputs, const std::vector<ValueId>& outputs,
            BuiltKernel* built);

}  // namespace framejit::loop
