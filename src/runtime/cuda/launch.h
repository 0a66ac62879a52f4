// Launching the GPU kernels of a plan.
#pragma once

#include "runtime/context.h"

namespace framejit::runtime::cuda {

// The launch for these addresses. Compiles the variant for odd ones if it must.
Launch LaunchFor(const Plan& plan, const Step& step, const Instance::StepInfo& info, void* const* pointers);

// pointers, params: of the step, from the context. Throws std::runtime_error.
void LaunchStep(const Driver& driver, const Plan& plan, const Step& step, const Instance::StepInfo& info,
                void* const* pointers, void** params, Stream stream);

}  // namespace framejit::runtime::cuda
