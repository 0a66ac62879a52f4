// Tensors whose memory no kernel of ours reads: sparse and quantised ones (tensor/opaque.h). To a graph such a tensor is
// a value of a device of its own, whose number says which form it has. The framework makes every call with it.
#pragma once

#include "framejit/call.h"

namespace framejit {

inline constexpr int16_t kFirstForm = 256;  // no device of a framework has such a number
inline bool IsOpaque(const Device& d) {
  return d.kind == DeviceKind::kMeta && d.index >= kFirstForm;
}
inline bool IsOpaque(const TensorMeta& m) {
  return IsOpaque(m.device);
}

}  // namespace framejit
