// Strided element copy, any rank and element size, parallel when it is large.
#pragma once

#include <span>

#include "framejit/compile.h"

namespace framejit::runtime {

// The elements that a layout reaches, counted from its first one: strides may be negative. Both 0 if there is none.
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

// to[...] = from[...]; sizes are `to`'s. The two must not overlap (or be the same memory in the same order). On and
// between GPUs by the host.
void StridedCopy(Host& host, const Buffer& from, const Buffer& to);

}  // namespace framejit::runtime
