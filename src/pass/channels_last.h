// On a GPU, 2-d convolutions between channels-last values: the libraries' kernels work that way, and convert around
// every call whatever lies otherwise. What convolutions and the pointwise operations behind them make is stored
// channels-last; inputs that a convolution reads (weights, images) are copied once a call. Returns the number of values
// that changed.
//
//   before: %2 = conv %0, %1           after: %2 = cast %0 strides NHWC      %3 = cast %1 strides NHWC
//           %3 = maximum %2, ..               %4 = conv %2, %3 strides NHWC  %5 = maximum %4, .. strides NHWC
#pragma once

#include "framejit/graph.h"

namespace framejit::pass {

int ChannelsLast(Graph& g, Device device);

}  // namespace framejit::pass
