#include "graph/packed.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "graph/same.h"

namespace framejit {
namespace {

bool SameNumbers(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) { return SameBits(x, y); });
}

bool SameDerivative(const Derivative* a, const Derivative* b) {
  if (!a || !b) return a == b;
  return a->rule == b->rule && a->operands.size() == b->operands.size() && a->axes == b->axes &&
         SameNumbers(a->numbers, b->numbers);
}

bool SameKind(const Node& a, const Node& b) {
  return SameOperation(a.op, a.attrs, a.type, b) && a.operands.size() == b.operands.size() && a.strides == b.strides &&
         a.file == b.file && SameDerivative(a.derivative.get(), b.derivative.get());
}

// The same of nodes of one kind.
size_t HashOf(const Node& n) {
  size_t hash = static_cast<size_t>(n.op);
  const auto mix = [&](size_t part) { hash = (hash ^ part) * 0x9E3779B97F4A7C15u ^ hash >> 29; };
  mix(n.operands.size());
  mix(reinterpret_cast<size_t>(&n.type.shape.list()));
  mix(reinterpret_cast<size_t>(&n.strides.list()));
  for (int64_t axis : n.attrs.axes) mix(static_cast<size_t>(axis));
  if (!n.attrs.name.empty()) mix(std::hash<std::string>()(n.attrs.name));
  mix(reinterpret_cast<size_t>(n.attrs.call.get()));
  if (n.derivative) mix(std::hash<std::string>()(n.derivative->rule));
  return hash;
}

}  // namespace

PackedGraph::PackedGraph(Graph g) {
  std::vector<Node> nodes = std::exchange(g.nodes, {});
  rest_ = std::move(g);
  nodes_.reserve(nodes.size());
  std::unordered_multimap<size_t, uint32_t> known;
  for (Node& n : nodes) {
    const int line = std::exchange(n.line, 0);
    operands_.insert(operands_.end(), n.operands.begin(), n.operands.end());
    if (n.derivative) operands_.insert(operands_.end(), n.derivative->operands.begin(), n.derivative->operands.end());
    const size_t hash = HashOf(n);
    auto [at, last] = known.equal_range(hash);
    while (at != last && !SameKind(kinds_[at->second], n)) ++at;
    if (at == last) {
      at = known.emplace(hash, static_cast<uint32_t>(kinds_.size()));
      kinds_.push_back(std::move(n));
    }
    nodes_.push_back({at->second, line});
  }
  kinds_.shrink_to_fit();
  operands_.shrink_to_fit();
}

Graph PackedGraph::Unpack() const {
  Graph g = rest_;
  g.nodes.reserve(nodes_.size());
  const ValueId* next = operands_.data();
  const auto take = [&](std::vector<ValueId>& operands) {
    for (ValueId& o : operands) o = *next++;
  };
  for (const Place& place : nodes_) {
    Node& n = g.nodes.emplace_back(kinds_[place.kind]);
    n.line = place.line;
    take(n.operands);
    if (!n.derivative || n.derivative->operands.empty()) continue;
    Derivative d = *n.derivative;
    take(d.operands);
    n.derivative = std::make_shared<const Derivative>(std::move(d));
  }
  return g;
}

}  // namespace framejit
