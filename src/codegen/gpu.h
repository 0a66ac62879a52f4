// Kernels for NVIDIA GPUs: loop kernel -> PTX -> the driver's compiler -> a function to launch. No LLVM type here.
#pragma once

#include <memory>
#include <string>

#include "codegen/codegen.h"
#include "runtime/machine.h"

namespace framejit::codegen {

// Compiled (in another thread, from now on) or from the cache; *reused tells. Throws CodegenUnsupported for what no
// schedule or function exists.
std::shared_ptr<const runtime::DeviceKernel> GetGpuKernel(const loop::Kernel& kernel, int device, bool* reused);
// "ptx" or "llvm" for an architecture such as "sm_90". vectors: the variant for aligned addresses.
std::string EmitGpuText(const loop::Kernel& kernel, const std::string& arch, std::string_view what, bool vectors = true,
                        bool narrow = true);
bool LibdeviceFound();
void ClearGpuKernels();
void AddGpuKernelInfo(KernelCacheInfo* info);
int64_t GpuKernelsRead();  // from the disk

}  // namespace framejit::codegen
