// Machine code of GPU kernels on disk, so that later processes compile none of them again: a file a kernel in the
// folder diag::CacheFolder(). Files that are damaged, of another kernel or of another build of this library count as
// absent; a cache that cannot be written is none.
#pragma once

#include <optional>
#include <string>

#include "codegen/gpu_schedule.h"
#include "runtime/cuda/driver.h"

namespace framejit::codegen {

struct GpuCode {
  std::string symbol, code;  // a cubin; PTX where there is no assembler but the driver's
};

// Everything that the code depends on. Empty: it is not to be kept.
std::string GpuCodeKey(const loop::Kernel& kernel, const GpuSchedule& schedule,
                       const runtime::cuda::DeviceInfo& device);
std::optional<GpuCode> ReadGpuCode(const std::string& key);
void WriteGpuCode(const std::string& key, const GpuCode& code);

}  // namespace framejit::codegen
