// A buffer that is written part by part is a chain of values, each the one before with a part replaced. What reads a
// part of such a value reads what was put there, and the value itself is put together once, of all its parts, where
// somebody needs the whole: n writes are n parts, not n copies of the buffer. Returns the number of values that were
// put together otherwise.
//
//   before: %2 = slice %0 [1, 3)            after: %3 = slice %0 [2, 3)
//           %3 = cat %1, %2                        %7 = cat %1, %4, %3
//           %5 = slice %3 [0, 1)
//           %6 = slice %3 [2, 3)
//           %7 = cat %5, %4, %6
#pragma once

#include "framejit/graph.h"

namespace framejit::pass {

int ForwardParts(Graph& g);

}  // namespace framejit::pass
