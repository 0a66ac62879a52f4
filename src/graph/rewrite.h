// Rebuilds the node list of a graph in execution order: a pass walks the old nodes once, appends what it keeps and says
// which new value stands for each old one. Finish() installs the new list and remaps inputs, outputs and writes. What
// stands in front of the first change stays where it is: a pass that changes nothing copies nothing.
#pragma once

#include <iterator>
#include <map>
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
  explicit Rewriter(Graph& g) : g_(g), map_(g.nodes.size(), kNoValue) {}

  // The old node with operands in new numbers. (Into a node that was used before no memory has to be taken.)
  void Remap(ValueId old, Node* n) const {
    *n = g_.nodes[old];
    for (ValueId& o : n->operands) o = (*this)[o];
    n->derivative.reset();  // names values by their old numbers
  }
  Node Remapped(ValueId old) const {
    Node n;
    Remap(old, &n);
    return n;
  }
  const Node& node(ValueId now) const {
    if (now >= stay_) return nodes_[now - stay_];
    const auto changed = changed_.find(now);
    return changed == changed_.end() ? g_.nodes[now] : changed->second;
  }
  ValueId operator[](ValueId old) const {
    FRAMEJIT_CHECK(map_[old] != kNoValue);  // operands precede users, and a pass drops no value that is used
    return map_[old];
  }
  ValueId Append(Node n) {
    if (nodes_.empty()) nodes_.reserve(g_.nodes.size() - stay_);
    nodes_.push_back(std::move(n));
    return stay_ + static_cast<ValueId>(nodes_.size() - 1);
  }
  void SetStrides(ValueId now, shape::Ints strides) { Changed(now).strides = std::move(strides); }
  void SetDerivative(ValueId now, Derivative d) {  // Its operands have new numbers.
    Changed(now).derivative = std::make_shared<const Derivative>(std::move(d));
  }
  void Set(ValueId old, ValueId now) {
    moved_ = moved_ || (old < stay_ && old != now);
    map_[old] = now;
  }
  void Keep(ValueId old) {
    const bool stays = old == stay_ && nodes_.empty() && !moved_;
    Set(old, stays ? stay_++ : Append(Remapped(old)));
  }

  void Finish() {
    for (std::vector<ValueId>* list : {&g_.inputs, &g_.outputs})
      for (ValueId& v : *list) v = (*this)[v];
    for (Write& w : g_.writes) w.value = (*this)[w.value];
    for (ValueId v = 0; v < stay_; ++v) g_.nodes[v].derivative.reset();
    for (auto& [v, n] : changed_) g_.nodes[v] = std::move(n);
    if (stay_ == 0) {
      g_.nodes = std::move(nodes_);
      return;
    }
    g_.nodes.erase(g_.nodes.begin() + stay_, g_.nodes.end());
    std::move(nodes_.begin(), nodes_.end(), std::back_inserter(g_.nodes));
  }

 private:
  Node& Changed(ValueId now) {
    if (now >= stay_) return nodes_[now - stay_];
    const auto [at, fresh] = changed_.try_emplace(now, g_.nodes[now]);
    if (fresh) at->second.derivative.reset();
    return at->second;
  }

  Graph& g_;
  ValueId stay_ = 0;                 // so many old nodes are the first new ones
  std::map<ValueId, Node> changed_;  // those of them that are others now
  bool moved_ = false;               // does another value stand for one of them?
  std::vector<Node> nodes_;          // the new ones behind them
  std::vector<ValueId> map_;
};

}  // namespace framejit
