// What is done with convolutions beside calling the library, where code of ours runs (DeviceTraits::host_code).
#pragma once

#include "framejit/graph.h"

namespace framejit::rules {

// Is it one that a product does better? One picture seen through windows of one element: weight [O, C] times pixels
// [C, positions], whose gradients are products, too. A training step of such a convolution, a normalisation and a ReLU
// takes 0.5 to 0.86 of what it takes with the library's convolution (64 to 2048 channels, 56x56 to 7x7, one thread of
// an AMD EPYC, torch 2.13, python -m bench.convolutions). With two to eight pictures libraries are as fast, with 32
// mostly faster, and so they are with larger windows.
bool IsProduct(const Graph& g, const Node& conv);
// One filter a channel, in two dimensions, a filter of known size: what our own kernels are for, on every device. What
// else each of them wants is asked beside it: IsHostDepthwise, loop::HasDepthwiseKernel.
bool IsDepthwise(const Graph& g, const Node& conv);
// Do the host's kernels (runtime/depthwise.h) take it?
bool IsHostDepthwise(const Graph& g, const Node& conv);
// What such a convolution sees: [C, positions]. out: its result's shape; attrs: its own.
ValueId Pixels(Builder& b, ValueId x, const shape::Ints& out, const Attrs& attrs);
// The transpose, to a picture of the shape x.
ValueId FromPixels(Builder& b, ValueId pixels, const shape::Ints& x, const shape::Ints& out, const Attrs& attrs);

}  // namespace framejit::rules
