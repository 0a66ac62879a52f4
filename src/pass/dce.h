// Removes what nothing needs. Inputs stay, and so do calls of the framework (`extern`): they may draw random numbers or
// raise. Returns the number of nodes removed.
//
//   before: %1 = exp %0        after: %1 = tanh %0
//           %2 = tanh %0              return %1
//           return %2
#pragma once

#include "framejit/graph.h"

namespace framejit::pass {

int Dce(Graph& g);

}  // namespace framejit::pass
