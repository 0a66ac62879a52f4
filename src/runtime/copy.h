// Strided element copy, any rank and element size, parallel when it is large.
#pragma once

#include "framejit/compile.h"

namespace framejit::runtime {

// to[...] = from[...]; sizes are `to`'s. The two must not overlap (or be the same memory in the same order). On and
// between GPUs by the host.
void StridedCopy(Host& host, const Buffer& from, const Buffer& to);

}  // namespace framejit::runtime
