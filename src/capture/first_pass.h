// What stays until a backward pass is compiled.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "autodiff/autodiff.h"
#include "graph/packed.h"

namespace framejit::capture {

// Lists of values, of which most are empty, in few bytes.
class PackedLists {
 public:
  explicit PackedLists(const std::vector<std::vector<ValueId>>& lists) : count_(lists.size()) {
    for (size_t i = 0; i < lists.size(); ++i)
      if (!lists[i].empty()) lists_.emplace(i, lists[i]);
  }
  std::vector<std::vector<ValueId>> Unpack() const {
    std::vector<std::vector<ValueId>> all(count_);
    for (const auto& [i, list] : lists_) all[i] = list;
    return all;
  }

 private:
  size_t count_;
  std::map<size_t, std::vector<ValueId>> lists_;
};

// No backward graph has the names of inputs.
inline Graph Nameless(Graph g) {
  for (ValueId v : g.inputs) g.nodes[v].attrs.name.clear();
  return g;
}

// The derivative of the function for the gradients of all its outputs, as planning has made it, and what it reads.
// Most often the first backward pass is one of all of them, and needs no other.
class FirstPass {
 public:
  FirstPass(autodiff::Joint j, std::vector<bool> tangents, std::vector<bool> read)
      : graph_(Nameless(std::exchange(j.graph, {}))),
        rest_(std::move(j)),
        tangents_(std::move(tangents)),
        read_(std::move(read)) {}
  bool Is(const std::vector<bool>& tangents) const { return tangents == tangents_; }
  autodiff::Joint Take(std::vector<bool>* read) {
    rest_.graph = graph_.Unpack();
    *read = std::move(read_);
    return std::move(rest_);
  }

 private:
  PackedGraph graph_;
  autodiff::Joint rest_;  // all but its graph
  std::vector<bool> tangents_, read_;
};

}  // namespace framejit::capture
