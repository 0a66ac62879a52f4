// On a GPU, in 16 bits: a ReLU or a GELU (the tanh form, however the program writes it) of a linear layer's result that
// nobody else reads is done by the product's own kernel, which rounds once. Only where no kernel remains behind it:
// what else is pointwise there does it for nothing. Not of results of the graph, where the call's own tensor would be
// copied. Returns the number of functions.
//
//   before: %3 = linear %0, %1, %2    %4 = maximum %3, 0     after: %3 = linear %0, %1, %2, name="relu"
#pragma once

#include "framejit/graph.h"

namespace framejit::pass {

int Epilogues(Graph& g, Device device);

}  // namespace framejit::pass
