// Machine code from LLVM modules, in process. No LLVM type here, so that few files pay for LLVM's headers.
#pragma once

#include <memory>
#include <string>

#include "codegen/codegen.h"
#include "codegen/isa.h"

namespace framejit::codegen {

// What `cpu` (as GetKernel takes it) stands for. Throws CodegenUnsupported if `run` and this machine cannot run it.
Isa IsaOf(const std::string& cpu, bool run);

struct Code {
  void* address = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<const void> memory;
};
Code CompileKernel(const loop::Kernel& kernel, const Isa& isa, const std::string& symbol, int64_t* block);
std::string KernelText(const loop::Kernel& kernel, const Isa& isa, const std::string& symbol, bool assembly);

}  // namespace framejit::codegen
