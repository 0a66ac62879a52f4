// On a CPU, convolutions that products of matrices do better (rules/convolution.h). Returns their number.
//
//   before: %2 = conv %0, %1        after: %3 = reshape %1 : [O, C]    %4 = reshape %0 : [C, H * W]
//                                          %5 = matmul %3, %4          %2 = reshape %5 : [1, O, H, W]
#pragma once

#include "framejit/graph.h"

namespace framejit::pass {

int ConvProducts(Graph& g);

}  // namespace framejit::pass
