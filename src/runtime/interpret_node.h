// One node by the reference semantics of graph::Interpret: correct for every primitive and dtype, slow. For what
// neither the host nor code generation can do.
#pragma once

#include <atomic>
#include <span>

#include "runtime/plan.h"

namespace framejit::runtime {

// Tests of the stages without a framework have the reference semantics run what no library of their host does.
// Elsewhere that is a NoKernel: the framework does it.
inline std::atomic<bool> reference_steps{false};

// Throws diag::NoKernel.
void InterpretNode(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> operands,
                   const Buffer& out);

}  // namespace framejit::runtime
