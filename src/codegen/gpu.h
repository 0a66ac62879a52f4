// Kernels for NVIDIA GPUs: loop kernel -> PTX -> the driver's compiler -> a function to launch. No LLVM type here.
#pragma once

#include <memory>
#include <string>

#include "codegen/codegen.h"
#include "runtime/machine.h"

namespace framejit::codegen {

// The kernel from the cache (*reused), or one that another thread compiles from now on. Throws CodegenUnsupported if
// there is no schedule for it, or a function that it needs is missing.
std::shared_ptr<const runtime::DeviceKernel> GetGpuKernel(const loop::Kernel& kernel, int device, bool* reused);
// The kernel as text for an architecture such as "sm_90"; what: "ptx" or "llvm". vectors: the variant for aligned
// addresses.
std::string EmitGpuText(const loop::Kernel& kernel, const std::string& arch, std::string_view what, bool vectors = true,
                        bool narrow = true);
bool LibdeviceFound();
void ClearGpuKernels();
void AddGpuKernelInfo(KernelCacheInfo* info);
int64_t GpuKernelsRead();  // how many were read from the cache folder

}  // namespace framejit::codegen
