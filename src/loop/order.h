// The order in which NumPy's add.reduce adds up what lies row by row: what lies side by side in pairs, if that is
// summed, and what came of it one behind the other, as it lies. Its multiply.reduce takes all one behind the other.
#pragma once

#include <optional>
#include <vector>

#include "loop/kernel.h"

namespace framejit::loop {

inline bool IsNumpys(const Node& n) {
  return (n.op == Op::kSum || n.op == Op::kProd || n.op == Op::kCumSum) && n.attrs.name == kNumpys;
}
inline bool IsNumpysSum(const Node& n) {
  return n.op == Op::kSum && IsNumpys(n);
}

struct Order {
  int fastest;  // the variable of what lies side by side; of products, that of what is multiplied
  bool only;    // that one is the inner one; else it may be any that is not summed along, too
  uint64_t reduced;
  std::vector<int64_t> steps;  // by variable, those of what lies row by row, where all sizes that change are alike
  bool MayBeInner(int v) const { return v == fastest || (!only && !(reduced >> v & 1)); }
};

// at: by variable, where elements lie. sums: else all are products. Nothing where NumPy sums along several of them as
// along one axis, or goes backwards to the kernel.
inline std::optional<Order> OrderOf(const Ints& at, const Ints& extents, const std::vector<bool>& alive,
                                    uint64_t reduced, size_t symbols, bool sums) {
  Order order{.fastest = -1, .only = false, .reduced = reduced, .steps = {}};
  const std::vector<int64_t> alike(symbols, 8);
  for (const Int& step : at) order.steps.push_back(step.Eval(alike));
  for (size_t v = 0; v < at.size(); ++v)
    if (alive[v] && (reduced >> v & 1) && order.steps[v] < 0) return std::nullopt;  // the kernel goes the other way
  if (!sums) {
    for (int v = 0; v < static_cast<int>(at.size()); ++v)
      if (alive[v] && (reduced >> v & 1) && (order.fastest < 0 || order.steps[v] < order.steps[order.fastest]))
        order.fastest = v;
    return order;
  }
  int others = 0;
  for (int v = 0; v < static_cast<int>(at.size()); ++v) {
    if (!alive[v]) continue;
    others += reduced >> v & 1;
    if (at[v] == Int(1)) order.fastest = v;
  }
  if (order.fastest < 0) return others ? std::nullopt : std::optional(order);
  if (!(reduced >> order.fastest & 1)) return order;
  const Int row = extents[order.fastest];
  for (int v = 0; v < static_cast<int>(at.size()); ++v)
    if (alive[v] && v != order.fastest && (reduced >> v & 1) && at[v] == row) return std::nullopt;
  order.only = others > 1 || !row.is_const() || row.value() >= 8;  // fewer are added one behind the other, too
  return order;
}

}  // namespace framejit::loop
