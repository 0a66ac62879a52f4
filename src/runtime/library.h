// Contractions: the host's library first, then the runtime's own loops, then the reference semantics.
#pragma once

#include <span>

#include "runtime/plan.h"

namespace framejit::runtime {

// The host's library alone; false: not one of its products.
bool RunHostLibrary(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> operands,
                    Buffer& out);
void RunLibrary(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> operands,
                Buffer& out);

}  // namespace framejit::runtime
