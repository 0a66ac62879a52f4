// On a GPU, in float32: the bias of a linear layer that goes on to pointwise operations is added by them. The product
// alone has the better kernels (cuBLAS against cuBLASLt with an epilogue), and the addition costs nothing there.
// Returns the number of biases.
//
//   before: %3 = linear %0, %1, %2     after: %3 = linear %0, %1    %4 = broadcast %2    %5 = add %3, %4
#pragma once

#include "framejit/graph.h"

namespace framejit::pass {

int SplitBias(Graph& g, Device device);

}  // namespace framejit::pass
