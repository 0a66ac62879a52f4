// Copies elements between layouts with strides, of any rank and element size, in parallel if there are many.
#pragma once

#include <span>

#include "framejit/compile.h"

namespace framejit::runtime {

// The range of elements that a layout reaches, counted from its first one, since strides may be negative. Both are 0 if
// there is no element.
struct Extent {
  int64_t low = 0, high = 0;
};
inline Extent ExtentOf(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  Extent e{0, 1};
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return {0, 0};
    const int64_t reach = (sizes[d] - 1) * strides[d];
    (reach < 0 ? e.low : e.high) += reach;
  }
  return e;
}
inline Extent ExtentOf(const Buffer& b) {
  return ExtentOf({b.sizes, static_cast<size_t>(b.rank)}, {b.strides, static_cast<size_t>(b.rank)});
}

// to[...] = from[...]; the sizes are those of `to`. The two must not overlap, unless they are the same memory in the
// same order. The host makes copies on GPUs and between devices.
void StridedCopy(Host& host, const Buffer& from, const Buffer& to);

}  // namespace framejit::runtime
