// A depthwise convolution as a kernel of its own: every element sums its taps. Libraries take seconds to prepare
// theirs.
#pragma once

#include <optional>

#include "loop/kernel.h"

namespace framejit::loop {

// Of depthwise ones (rules::IsDepthwise): few taps, every size known but the batch's.
bool HasDepthwiseKernel(const Graph& g, const Node& conv);
// The strides in which it wants the filters, with their channels inside.
Ints DepthwiseFilterStrides(const Ints& filters);
// It is nothing unless operands and result lie with their channels inside. layouts: those of conv and its operands.
std::optional<BuiltKernel> BuildDepthwise(const Graph& g, ValueId conv, const std::vector<Layout>& layouts);

}  // namespace framejit::loop
