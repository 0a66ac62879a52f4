#pragma once

#include "framejit/call.h"

namespace framejit::surface {

// What was made of a result that is a view may give it gradients: is it such a one? The last outputs of a graph are
// these, as values.
inline bool IsViewResult(bool replayed, const TensorMeta& m) {
  return replayed && m.requires_grad && IsFloat(m.dtype);
}

}  // namespace framejit::surface
