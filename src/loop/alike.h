// Groups of a graph that do the same to other values, as the layers of a model do: whether they are one kernel is asked
// once, and their kernels are built once.
#pragma once

#include <algorithm>
#include <vector>

#include "graph/same.h"
#include "loop/kernel.h"

namespace framejit::loop {

// A group without the numbers of its values.
struct Pattern {
  std::vector<ValueId> values;  // the members, then what they read from outside, in the order in which they read it
  std::vector<int> operands;    // of all members, one behind the other, by place in `values`
  std::vector<int> stored;      // by place in `values`
};

class Patterns {
 public:
  explicit Patterns(const Graph& g) : g_(g), place_(g.nodes.size(), -1) {}

  Pattern Of(const std::vector<ValueId>& nodes, const std::vector<ValueId>& stored) {
    Pattern p;
    Write(nodes, stored, &p);
    return p;
  }
  // Into what may have been another one before.
  void Write(const std::vector<ValueId>& nodes, const std::vector<ValueId>& stored, Pattern* to) {
    Pattern& p = *to;
    p.values.assign(nodes.begin(), nodes.end());
    p.operands.clear();
    p.stored.clear();
    for (size_t i = 0; i < p.values.size(); ++i) place_[p.values[i]] = static_cast<int>(i);
    for (ValueId v : nodes) {
      for (ValueId o : g_.nodes[v].operands) {
        if (place_[o] < 0) {
          place_[o] = static_cast<int>(p.values.size());
          p.values.push_back(o);
        }
        p.operands.push_back(place_[o]);
      }
    }
    for (ValueId v : stored) p.stored.push_back(place_[v]);
    for (ValueId v : p.values) place_[v] = -1;
  }

  // `members`: how many of the values are. Of what is read from outside a kernel knows how it lies, and of what type it
  // is. Null layouts: how values lie does not matter.
  bool Alike(const Pattern& a, const Pattern& b, size_t members, const std::vector<Layout>* layouts) const {
    const auto lie_alike = [&](ValueId x, ValueId y) {
      return !layouts || (*layouts)[x].strides == (*layouts)[y].strides;
    };
    if (a.operands != b.operands || a.stored != b.stored || a.values.size() != b.values.size()) return false;
    for (size_t i = 0; i < a.values.size(); ++i) {
      const Node &x = g_.nodes[a.values[i]], &y = g_.nodes[b.values[i]];
      if (i < members) {
        if (x.operands.size() != y.operands.size() || x.strides != y.strides) return false;
        if (!SameOperation(x.op, x.attrs, x.type, y)) return false;
      } else if (x.type != y.type || !lie_alike(a.values[i], b.values[i])) {
        return false;
      }
    }
    return std::all_of(a.stored.begin(), a.stored.end(), [&](int i) { return lie_alike(a.values[i], b.values[i]); });
  }

 private:
  const Graph& g_;
  std::vector<int> place_;  // by value, while a pattern is made
};

// Asks CanFuse, once for the groups that do the same.
class Fusing {
 public:
  explicit Fusing(const Graph& g) : g_(g), patterns_(g) {}

  bool Can(const std::vector<ValueId>& nodes, const std::vector<ValueId>& stored) {
    patterns_.Write(nodes, stored, &asked_);
    const auto known = std::find_if(known_.rbegin(), known_.rend(), [&](const Known& k) {
      return k.members == nodes.size() && patterns_.Alike(k.pattern, asked_, k.members, nullptr);
    });
    if (known != known_.rend()) return known->can;
    if (known_.size() == kKnown) known_.erase(known_.begin());
    return known_.emplace_back(Known{asked_, nodes.size(), CanFuse(g_, nodes, stored)}).can;
  }

 private:
  struct Known {
    Pattern pattern;
    size_t members;
    bool can;
  };
  static constexpr size_t kKnown = 16;  // the last ones
  const Graph& g_;
  Patterns patterns_;
  Pattern asked_;
  std::vector<Known> known_;
};

}  // namespace framejit::loop
