// Tensors whose memory no kernel of ours reads: sparse and quantised ones (tensor/opaque.h). To a graph such a tensor
// is a value of a device of its own, whose number says which form it has. The framework makes every call with it.
#pragma once

#include <algorithm>

#include "framejit/graph.h"

namespace framejit {

inline constexpr int16_t kFirstForm = 256;  // no device of a framework has such a number
inline bool IsOpaque(const Device& d) {
  return d.kind == DeviceKind::kMeta && d.index >= kFirstForm;
}
inline bool IsOpaque(const TensorMeta& m) {
  return IsOpaque(m.device);
}
inline bool AnyOpaque(const std::vector<TensorMeta>& all) {
  return std::any_of(all.begin(), all.end(), [](const TensorMeta& m) { return IsOpaque(m); });
}
inline bool HasOpaque(const Graph& g) {
  return std::any_of(g.nodes.begin(), g.nodes.end(), [](const Node& n) { return IsOpaque(n.type.device); });
}
// Inferred::Alias::operand of a result that shares memory with such a tensor, or is one that shares that of an operand.
inline constexpr int kSharesOpaque = -2;
// What an extern makes of its operands: may it keep their memory?
inline bool MakesOpaque(const Node& n) {
  const auto& types = n.attrs.result_types;
  return IsOpaque(n.type.device) ||
         std::any_of(types.begin(), types.end(), [](const TensorType& t) { return IsOpaque(t.device); });
}

}  // namespace framejit
