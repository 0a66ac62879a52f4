// Depthwise convolutions of float32, their transposes (the gradient of what they read) and the gradients of their
// weights: little arithmetic on much memory, where libraries lay everything out in blocks and back, or turn each
// channel into a product of matrices with one row.
#pragma once

#include "framejit/compile.h"

namespace framejit::runtime {

struct DepthwiseWindow {
  int64_t stride[2], padding[2], dilation[2];
};

// x [n, c, h, w] -> out [n, c, oh, ow], w [c, 1, kh, kw], all in any layout; attrs: of a `conv` node, maybe transposed.
// False: it is another convolution.
bool DepthwiseConv(Host& host, const Buffer& x, const Buffer& w, const Buffer* bias, const Attrs& attrs, Buffer& out);

// grad [n, c, oh, ow], x [n, c, h, w], float32 in any layout; weight [c, 1, kh, kw] and bias [c] (null: not wanted),
// dense, are written.
void DepthwiseWeightGradient(Host& host, const Buffer& grad, const Buffer& x, const DepthwiseWindow& window,
                             const Buffer& weight, float* bias);

}  // namespace framejit::runtime
