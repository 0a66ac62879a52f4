// An array's elements under a mask that are computed anew and put back under the same mask (`x[m] = np.sqrt(x[m])`).
// How many these are only data decides; but each can be computed where it is, and a `where` takes the others as they
// were:
//
//   %3 = extern %0, %2, call={numpy.ndarray.__getitem__(%0, %1)} : f64[s0]      %3 = where %2, %0, (a harmless number)
//   %4 = sqrt %3                                                                %4 = sqrt %3
//   (%4 is stored to %0 under %2)                                               %5 = where %2, %4, %0
#pragma once

#include <optional>
#include <set>
#include <span>

#include "framejit/graph.h"

namespace framejit::surface {

// Are they one value? The same expression of the same values is.
bool SameValue(const Graph& g, ValueId a, ValueId b, int depth = 0);

// What `base` is after such a store of `value` under `mask`, in nodes of `builder`. Nothing where `value` was not
// computed from elements under the same mask alone, or by operations that cost too much where they are not wanted.
// `replaced` grows by the nodes that are computed in another way now.
std::optional<ValueId> MaskedUpdate(Builder& builder, ValueId base, ValueId mask, ValueId value,
                                    std::set<ValueId>& replaced);

// Elements under a mask that nobody reads any more, but what was replaced, are not taken; the graph has its outputs and
// writes. Their number stays where the program asked for it: `asked` is what was said of sizes,
// and those that leave the graph.
void DropMasked(Graph& g, std::span<const shape::Guard> asked, const std::set<ValueId>& replaced, bool ieee);

}  // namespace framejit::surface
