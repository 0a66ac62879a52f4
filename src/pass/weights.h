// What is made of weights alone, and convolutions that profit from it.
#pragma once

#include <vector>

#include "framejit/graph.h"

namespace framejit::pass {

// Convolutions (2-d, float32, of weights) in channels-last layout with packed weights; a normalisation with fixed
// statistics that follows is folded into weight and bias.
//
//   before: %2 = conv %0, %w             after: %3 = mul %w, broadcast(scale)   %4 = pack %3
//           %3 = mul %2, scale                  %5 = conv %0, %4, shift : strides channels-last
//           %4 = add %3, shift
//           %5 = maximum %4, 0                  %6 = maximum %5, 0 : strides channels-last
//
// What is read by something that looks at the memory order keeps the one that was promised. `weights`: by input.
int PackConvolutions(Graph& g, const std::vector<bool>& weights);

// Moves packed forms and the biases of convolutions that are made of weights alone into a graph of their own, whose
// outputs become the last inputs of `g`.
struct Hoisted {
  Graph graph;
  std::vector<int> sources;  // its inputs, as numbers of g's
};
Hoisted HoistWeights(Graph& g, const std::vector<bool>& weights);

}  // namespace framejit::pass
