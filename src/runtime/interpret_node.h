// One node by the reference semantics of graph::Interpret: correct for every primitive and dtype, slow. For what
// neither the host nor code generation can do.
#pragma once

#include <span>

#include "runtime/plan.h"

namespace framejit::runtime {

void InterpretNode(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> operands,
                   const Buffer& out);

}  // namespace framejit::runtime
