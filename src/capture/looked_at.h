// How much of containers captures have looked at, which no count of instructions shows: a call of heapq.heappush is one
// instruction, and looks at the whole heap.
#pragma once

namespace framejit::capture {

inline long looked_at = 0;            // items, in all captures
inline constexpr long kLikeOne = 32;  // So many take as long as an instruction.

}  // namespace framejit::capture
