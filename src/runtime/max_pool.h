// Two-dimensional max pooling of float32 and its gradient. Frameworks walk each window by itself.
#pragma once

#include "framejit/compile.h"

namespace framejit::runtime {

struct PoolWindow {
  int64_t kernel[2], stride[2], padding[2], dilation[2];
};

// x [n, c, h, w] -> out [n, c, oh, ow], dense. Of equal elements the first counts, of nans the last.
void MaxPool(Host& host, const Buffer& x, const PoolWindow& window, const Buffer& out);
// grad [n, c, oh, ow] goes to dx [n, c, h, w], dense, where each window's element came from.
void MaxPoolGradient(Host& host, const Buffer& grad, const Buffer& x, const PoolWindow& window, const Buffer& dx);

}  // namespace framejit::runtime
