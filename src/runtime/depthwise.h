// The gradient of a depthwise convolution's weight and bias: sums over all positions of a picture, where libraries have
// no kernel of their own and turn each channel into a product of matrices with one row.
#pragma once

#include "framejit/compile.h"

namespace framejit::runtime {

struct DepthwiseWindow {
  int64_t stride[2], padding[2], dilation[2];
};

// grad [n, c, oh, ow], x [n, c, h, w], float32 in any layout; weight [c, 1, kh, kw] and bias [c] (null: not wanted),
// dense, are written.
void DepthwiseWeightGradient(Host& host, const Buffer& grad, const Buffer& x, const DepthwiseWindow& window,
                             const Buffer& weight, float* bias);

}  // namespace framejit::runtime
