// A target for a device of its own, as small as one can be: kernels are C, made into machine code by the system's
// compiler, and the device's memory is out of the host's reach but for launches and copies. Begin here to write
// another.
//
//   c_target::Register();                       // from now on Compile() takes graphs whose values are @private:0
//   void* x = c_target::Allocate(bytes);        // the device's memory, for a Host's AllocateOutput
//   c_target::Open open;                        // while it lives the host may read and write that memory (Host::Copy)
//
// tests/cpp/c_target_test.cc runs it on random graphs against the reference interpreter.
#pragma once

#include <cstddef>
#include <string>

#include "loop/kernel.h"

namespace framejit::c_target {

void Register();
void* Allocate(size_t bytes);  // throws std::bad_alloc
void Free(void* data);         // null: nothing

struct Open {
  Open();
  ~Open();
  Open(const Open&) = delete;
};

// The function `kernel` in C. Throws codegen::CodegenUnsupported for types and operations that it does not have.
std::string EmitC(const loop::Kernel& kernel);

}  // namespace framejit::c_target
