// A graph in few bytes, for what is seldom read again: what alike nodes have in common stands once.
#pragma once

#include <vector>

#include "framejit/graph.h"

namespace framejit {

class PackedGraph {
 public:
  explicit PackedGraph(Graph g);
  Graph Unpack() const;  // The graph that it was made of.

 private:
  struct Place {
    uint32_t kind;
    int line;
  };
  Graph rest_;                     // All but its nodes.
  std::vector<Node> kinds_;        // Their operands, and those of derivatives, are so many, and mean nothing.
  std::vector<Place> nodes_;       // By node.
  std::vector<ValueId> operands_;  // Of all nodes, one behind the other: its own, then those of its derivative.
};

}  // namespace framejit
