// Groups of a graph that do the same to other values, as the layers of a model do: their kernels are built once.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "graph/same.h"
#include "loop/kernel.h"
#include "pass/fuse.h"
#include "runtime/plan.h"

namespace framejit::compiler {

// A group without the numbers of its values.
struct Pattern {
  std::vector<ValueId> values;  // the members, then what they read from outside, in the order in which they read it
  std::vector<int> operands;    // of all members, one behind the other, by place in `values`
  std::vector<int> stored;      // by place in `values`
};

class Patterns {
 public:
  explicit Patterns(const Graph& g) : g_(g), place_(g.nodes.size(), -1) {}

  Pattern Of(const pass::Group& group) {
    Pattern p;
    p.values = group.nodes;
    for (size_t i = 0; i < p.values.size(); ++i) place_[p.values[i]] = static_cast<int>(i);
    for (ValueId v : group.nodes) {
      for (ValueId o : g_.nodes[v].operands) {
        if (place_[o] < 0) {
          place_[o] = static_cast<int>(p.values.size());
          p.values.push_back(o);
        }
        p.operands.push_back(place_[o]);
      }
    }
    for (ValueId v : group.stored) p.stored.push_back(place_[v]);
    for (ValueId v : p.values) place_[v] = -1;
    return p;
  }

  // `members`: how many of the values are. Of what is read from outside a kernel knows how it lies, and of what type it
  // is.
  bool Alike(const Pattern& a, const Pattern& b, size_t members, const std::vector<loop::Layout>& layouts) const {
    if (a.operands != b.operands || a.stored != b.stored || a.values.size() != b.values.size()) return false;
    for (size_t i = 0; i < a.values.size(); ++i) {
      const Node &x = g_.nodes[a.values[i]], &y = g_.nodes[b.values[i]];
      if (i < members) {
        if (x.operands.size() != y.operands.size() || x.strides != y.strides) return false;
        if (!SameOperation(x.op, x.attrs, x.type, y)) return false;
      } else if (x.type != y.type || layouts[a.values[i]].strides != layouts[b.values[i]].strides) {
        return false;
      }
    }
    return std::all_of(a.stored.begin(), a.stored.end(),
                       [&](int i) { return layouts[a.values[i]].strides == layouts[b.values[i]].strides; });
  }

 private:
  const Graph& g_;
  std::vector<int> place_;  // by value, while a pattern is made
};

// A kernel that was made of a group.
struct MadeKernel {
  Pattern pattern;
  size_t members = 0;
  std::shared_ptr<const loop::Kernel> kernel;
  std::shared_ptr<const runtime::KernelWork> work;
  std::vector<int> buffers;  // by place in the pattern's values
};

}  // namespace framejit::compiler
