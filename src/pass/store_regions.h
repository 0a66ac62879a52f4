// A write to an input that replaces a part of it is a store of that part: what is not replaced is neither computed nor
// written.
//
//   before: %1 = slice %0 [0, 3)          after: write in0[3:5) <- %2
//           %3 = slice %0 [5, n)
//           %4 = cat %1, %2, %3
//           write in0 <- %4
//
// A write that replaces several parts becomes several writes of one input, in their order. All values are computed
// before the first of them is stored.
#pragma once

#include <optional>
#include <vector>

#include "framejit/graph.h"
#include "loop/kernel.h"

namespace framejit::pass {

struct Regions {
  Graph graph;  // not for the verifier: values are smaller than the inputs that they are written to
  // By write: which memory of the input, as strides and offset over its data; nothing: all of it.
  std::vector<std::optional<loop::Layout>> layouts;
};
std::optional<Regions> StoreRegions(const Graph& g);  // nothing: all writes are whole

}  // namespace framejit::pass
