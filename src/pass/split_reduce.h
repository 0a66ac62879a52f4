// Cuts a large reduction to few results in two, so that threads can share it (and floating-point sums err less).
//
//   before: %1 = sum %0, axes=[0, 1] : f32[]          (%0 : f32[512, 768])
//   after:  %1 = sum %0, axes=[1] : f32[512]          rows in parallel
//           %2 = sum %1, axes=[0] : f32[]
//
// A one-dimensional operand is reshaped to rows first. A GPU wants many more rows, and its sums over leading axes are
// cut, too:  sum f32[8192, 768], axes=[0]  ->  f32[32, 256, 768] -> f32[32, 1, 768] -> f32[768].  Returns the number of
// reductions cut.
#pragma once

#include <cstdint>

#include "framejit/graph.h"

namespace framejit::pass {

// What keeps the target busy.
struct Parallel {
  int64_t rows = 16;    // results that are rows of work
  int64_t columns = 0;  // results side by side, where sums over leading axes are cut; 0: they are not
};
int SplitReduce(Graph& g, const Parallel& wanted);

}  // namespace framejit::pass
