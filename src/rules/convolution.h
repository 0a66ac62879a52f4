// What is done with convolutions on a CPU beside calling the library. Those over one picture may be products of
// matrices: weight [O, C * taps] times the picture's patches [C * taps, positions].
#pragma once

#include "framejit/graph.h"

namespace framejit::rules {

// Is it one that products do better? Libraries lay the data of a call out in blocks and back: windows of one element
// need no layout, and where there are more filters than positions, patches cost less than the weight's other layout.
bool IsProduct(const Graph& g, const Node& conv);
// One filter a channel, in two dimensions, a filter of known size: what our own kernels are for, on every device. What
// else each of them wants is asked beside it: IsHostDepthwise, loop::HasDepthwiseKernel.
bool IsDepthwise(const Graph& g, const Node& conv);
// Do the CPU's kernels (runtime/depthwise.h) take it?
bool IsHostDepthwise(const Graph& g, const Node& conv);
// attrs: the convolution's; w: its weight's shape; out: its result's.
ValueId Patches(Builder& b, ValueId x, const shape::Ints& w, const shape::Ints& out, const Attrs& attrs);
// The transpose: what patches give to the picture that they are of.
ValueId FromPatches(Builder& b, ValueId patches, const shape::Ints& x, const shape::Ints& w, const shape::Ints& out,
                    const Attrs& attrs);

}  // namespace framejit::rules
