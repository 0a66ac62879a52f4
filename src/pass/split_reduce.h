// Cuts a large reduction to few results in two, so that threads can share it (and floating-point sums err less).
//
//   before: %1 = sum %0, axes=[0, 1] : f32[]          (%0 : f32[512, 768])
//   after:  %1 = sum %0, axes=[1] : f32[512]          rows in parallel
//           %2 = sum %1, axes=[0] : f32[]
//
// A one-dimensional operand is reshaped to rows first. Returns the number of reductions cut.
#pragma once

#include "framejit/graph.h"

namespace framejit::pass {

int SplitReduce(Graph& g);

}  // namespace framejit::pass
