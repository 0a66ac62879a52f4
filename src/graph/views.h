// Layout algebra of view primitives: what a view costs nothing, because the same storage read with other strides is it.
#pragma once

#include <optional>
#include <span>

#include "framejit/graph.h"

namespace framejit {

struct Layout {  // of a materialised value, in elements
  shape::Ints strides;
  shape::Int offset = 0;
};

// Are the strides those of a dense row-major value? Strides of dimensions of size 1 do not matter.
bool IsRowMajor(std::span<const shape::Int> sizes, std::span<const shape::Int> strides);

// Equal for every dimension that is not of size 1.
bool SameStrides(std::span<const shape::Int> sizes, std::span<const shape::Int> a, std::span<const shape::Int> b);

// The layout of view node `n` over an operand that lies as `from`; nullopt if no strides express it (a reshape that
// needs a copy, pad, cat) or if they would be negative (flip: library calls do not take them).
std::optional<Layout> ViewLayout(const Node& n, const TensorType& operand, const Layout& from);

// How a value lies if no view is copied: a chain of views reads what it is made of, which lies as it promises
// (Node::strides) or row by row. What no strides express is made row by row. What a view itself promises does not
// count: it says how the value lies once something copies it, as it does for an output.
Layout LaidBy(const Graph& g, ValueId v);

}  // namespace framejit
