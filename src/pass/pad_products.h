// On a GPU: 16-bit products whose operand has long rows that do not begin at multiples of 16 bytes (a vocabulary of
// 50257) run on a padded copy of it, most of which is written by whoever makes the operand anyway. Libraries have no
// fast kernels for such rows. Zeros are added along the contraction, or rows to the result, which are cut off. Returns
// the number of products.
//
//   before: %2 = matmul %0, %1 : [4096, 768]     after: %2 = pad %0 : [4096, 50264]   %3 = pad %1 : [50264, 768]
//                                                       %4 = matmul %2, %3
#pragma once

#include "framejit/graph.h"

namespace framejit::pass {

int PadProducts(Graph& g, Device device);

}  // namespace framejit::pass
