// How much a graph computes, before anything is made of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framejit/graph.h"

namespace framejit {

struct GraphCost {
  // Arithmetic operations: two for each multiplication and addition of a product, one for each element of what is
  // computed element by element (what only moves or converts data does none), and of what a reduction goes through.
  double flops = 0;
  int64_t input_bytes = 0, output_bytes = 0;  // What is an input, too, is no output.
  std::vector<std::string> unknown;           // calls of the framework, whose operations nobody counts
};

// For the sizes that the graph was captured with.
GraphCost CostOf(const Graph& g);

}  // namespace framejit
