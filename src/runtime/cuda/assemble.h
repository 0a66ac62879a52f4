// PTX to machine code by the assembler that torch's Triton brings, or a CUDA toolkit: as many at once as are asked for.
// The driver does one module at a time, and does not hand out what it has made. (NVIDIA's nvJitLink, which is also
// there, makes relocatable code: more registers, slower kernels.)
#pragma once

#include <string>

#include "runtime/cuda/driver.h"

namespace framejit::runtime::cuda {

// A cubin, or the PTX itself, for the driver to compile. `site`: the folder of Python packages, or empty.
std::string Assemble(const DeviceInfo& device, const std::string& ptx, const std::string& site);

}  // namespace framejit::runtime::cuda
