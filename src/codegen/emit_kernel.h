// LLVM IR of a loop kernel for the CPU.
#pragma once

#include <llvm/IR/Module.h>

#include "codegen/isa.h"
#include "loop/kernel.h"

namespace framejit::codegen {

// Lanes and unroll factor follow from kernel and isa; `block` is CompiledKernel::block.
struct Schedule {
  int lanes = 8;
  int unroll = 1;
  int strip = 1;  // column kernels: groups of `unroll` vectors that run side by side
  int64_t block = 0;
};
Schedule MakeSchedule(const loop::Kernel& k, const Isa& isa);

// Adds `void symbol(ptr buffers, ptr symbols, i64 begin, i64 end)` to the module. Throws CodegenUnsupported.
void EmitKernel(llvm::Module& m, const loop::Kernel& k, const Isa& isa, const Schedule& schedule,
                const std::string& symbol);

}  // namespace framejit::codegen
