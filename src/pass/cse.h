// Computes every value once. Calls of the framework and random primitives are never merged. Returns the number of nodes
// that were replaced by an earlier equal one (they are gone afterwards).
//
//   before: %1 = exp %0        after: %1 = exp %0
//           %2 = exp %0               %2 = add %1, %1
//           %3 = add %1, %2
#pragma once

#include "framejit/graph.h"

namespace framejit::pass {

int Cse(Graph& g);

}  // namespace framejit::pass
