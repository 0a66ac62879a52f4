// What depends on weights alone is computed once and kept. These passes make such values.
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

// Products of weights (2-d, float32) may read them in a library's own form, where the host finds that faster: it
// decides when the weight is packed, for the number of rows that the graph was captured with.
//
//   before: %2 = linear %0, %w, %b       after: %2 = pack %w : name="linear", axes=[rows]
//           %3 = matmul %2, %v                  %3 = linear %0, %w, %b, %2 : name="packed"
//                                               %4 = permute %v    %5 = pack %4    %6 = linear %3, %4, %5
int PackProducts(Graph& g, const std::vector<bool>& weights);

// Moves packed forms and the biases of convolutions that are made of weights alone into a graph of their own, whose
// outputs become the last inputs of `g`.
struct Hoisted {
  struct Value {
    std::vector<int> sources;  // what it depends on: positions in Hoisted::sources
    bool optional = false;     // its readers can do without it
  };
  Graph graph;
  std::vector<int> sources;   // for each input of the new graph: its number among the inputs of g
  std::vector<Value> values;  // for each output of the new graph
};
Hoisted HoistWeights(Graph& g, const std::vector<bool>& weights);

}  // namespace framejit::pass
