// LLVM IR of a loop kernel for NVPTX.
#pragma once

#include <llvm/IR/Module.h>

#include "codegen/gpu_schedule.h"
#include "codegen/isa.h"

namespace framejit::codegen {

// Adds the kernel `symbol(ptr buffers..., i64 symbols...)` to the module. Throws CodegenUnsupported.
void EmitGpuKernel(llvm::Module& m, const loop::Kernel& k, const Isa& isa, const GpuSchedule& schedule,
                   const std::string& symbol);

}  // namespace framejit::codegen
