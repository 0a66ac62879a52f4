// On a GPU: large 16-bit products of an operand whose rows do not begin at multiples of 16 bytes (a vocabulary of
// 50257) run on a padded copy of it, most of which is written by whoever makes the operand anyway. Libraries have no
// fast kernels for such rows. Zeros are added along the contraction, or rows to the result, which are cut off. Returns
// the number of products.
//
//   before: %2 = matmul %0, %1 : [4096, 768]     after: %2 = pad %0 : [4096, 50264]   %3 = pad %1 : [50264, 768]
//                                                       %4 = matmul %2, %3
#pragma once

#include "framejit/graph.h"

namespace framejit::pass {

// min_flops: of a product, from where on the copy takes less time than it saves.
int PadProducts(Graph& g, Device device, double min_flops);

}  // namespace framejit::pass
