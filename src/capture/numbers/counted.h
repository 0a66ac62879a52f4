// Calls whose result has as many elements as a mask, or another value, has that are not zero.
#pragma once

#include <optional>

#include "framejit/call.h"
#include "framejit/graph.h"

namespace framejit::capture {

bool IsWhole(const Arg& index);  // the slice `:`

// A tensor of which a call counts the elements that are not zero, and which size of its first result that number is.
struct Counted {
  TraceId tensor;
  size_t dim;
};

std::optional<Counted> CountedOf(const Call& call);
// The symbol of that number, if a call of the graph says it already of the same value.
std::optional<uint32_t> KnownNumber(const Graph& g, ValueId value);

}  // namespace framejit::capture
