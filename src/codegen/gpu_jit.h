// PTX text of loop kernels. No LLVM type here.
#pragma once

#include <string>

#include "codegen/gpu_schedule.h"

namespace framejit::codegen {

// arch: "sm_80", "sm_90", ... what == "ptx" or "llvm". Throws CodegenUnsupported or std::runtime_error.
std::string GpuKernelText(const loop::Kernel& kernel, const GpuSchedule& schedule, const std::string& arch,
                          const std::string& symbol, std::string_view what);

// The newest architecture this LLVM emits that runs on a device of that compute capability.
std::string ArchOf(int major, int minor);

// NVIDIA's math functions as LLVM bitcode: $FRAMEJIT_LIBDEVICE, beside torch's Triton, or in a CUDA toolkit. Empty
// where there is none: the few functions that need it are not compiled then.
const std::string& LibdevicePath();
// The folder that torch is installed in; empty without torch.
std::string SitePackages();

}  // namespace framejit::codegen
