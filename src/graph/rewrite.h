// Rebuilds the node list of a graph in execution order: a pass walks the old nodes once, appends what it keeps and says
// which new value stands for each old one. Finish() installs the new list and remaps inputs, outputs and writes.
#pragma once

#include <utility>
#include <vector>

#include "diag/diag.h"
#include "framejit/graph.h"

namespace framejit {

// Constants and what is made of them alone have no place of their own: they are where they are needed.
inline void PutOn(Graph& g, ValueId v, Device device) {
  Node& n = g.nodes[v];
  if (n.type.device == device || !(n.type.device == Device{}) || n.op == Op::kInput || Info(n.op).kind == 'X') return;
  n.type.device = device;
  for (size_t i = 0; i < n.operands.size(); ++i) PutOn(g, n.operands[i], device);
}
inline void PlaceOperands(Graph& g) {  // of calls they may be anywhere
  for (ValueId v = static_cast<ValueId>(g.nodes.size()); v-- > 0;) {
    if (Info(g.nodes[v].op).kind == 'X') continue;
    for (ValueId o : g.nodes[v].operands) PutOn(g, o, g.nodes[v].type.device);
  }
}

class Rewriter {
 public:
  explicit Rewriter(Graph& g) : g_(g), map_(g.nodes.size(), kNoValue) { nodes_.reserve(g.nodes.size()); }

  // The old node with operands in new numbers.
  Node Remapped(ValueId old) const {
    Node n = g_.nodes[old];
    for (ValueId& o : n.operands) o = (*this)[o];
    n.derivative.reset();  // names values by their old numbers
    return n;
  }
  const Node& node(ValueId now) const { return nodes_[now]; }
  ValueId operator[](ValueId old) const {
    FRAMEJIT_CHECK(map_[old] != kNoValue);  // operands precede users, and a pass drops no value that is used
    return map_[old];
  }
  ValueId Append(Node n) {
    nodes_.push_back(std::move(n));
    return static_cast<ValueId>(nodes_.size() - 1);
  }
  void SetStrides(ValueId now, shape::Ints strides) { nodes_[now].strides = std::move(strides); }
  void SetDerivative(ValueId now, Derivative d) {  // Its operands have new numbers.
    nodes_[now].derivative = std::make_shared<const Derivative>(std::move(d));
  }
  void Set(ValueId old, ValueId now) { map_[old] = now; }
  void Keep(ValueId old) { Set(old, Append(Remapped(old))); }

  void Finish() {
    for (std::vector<ValueId>* list : {&g_.inputs, &g_.outputs})
      for (ValueId& v : *list) v = (*this)[v];
    for (Write& w : g_.writes) w.value = (*this)[w.value];
    g_.nodes = std::move(nodes_);
  }

 private:
  Graph& g_;
  std::vector<Node> nodes_;
  std::vector<ValueId> map_;
};

}  // namespace framejit
