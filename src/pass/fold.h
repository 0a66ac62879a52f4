// Folds what is known: operations on constants, identities that hold bit for bit (x*1, x - 0.0, but not x + 0.0, which
// turns -0.0 into 0.0), casts through a type that loses nothing, views of views and views of constants. Returns the
// number of nodes changed; what became unused is left to dce.
//
//   before: %1 = constant value=2 : f32[4]       after: %4 = constant value=0.5 : f32[4]
//           %2 = div %0, %1                             %5 = mul %0, %4
//           %3 = cast %2 : f64[4]
//           %4 = cast %3 : f32[4]                       (users of %4 use %5)
#pragma once

#include "framejit/graph.h"

namespace framejit::pass {

int Fold(Graph& g);

}  // namespace framejit::pass
