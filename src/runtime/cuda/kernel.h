// A kernel for a GPU, as a plan step holds it. Made by codegen, launched by the executable.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/cuda/driver.h"

namespace framejit::runtime::cuda {

// What a launch needs beside its arguments, for one tuple of sizes.
struct Launch {
  Function function = nullptr;
  unsigned grid = 0, threads = 0;  // grid 0: nothing to do
  unsigned shared_bytes = 0;       // beside what the function has of its own
  bool dependent = false;          // waits for what runs before it by itself
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  // symbols: values of the kernel's symbols. aligned: every buffer's address is a multiple of what alignment() says.
  // Compiles and loads what is missing. Throws std::runtime_error.
  virtual Launch Configure(int device, const int64_t* symbols, bool aligned) const = 0;
  // Bytes, by buffer: what the vectors of the fast variant need.
  virtual const std::vector<uint32_t>& alignment() const = 0;
  // Arguments in the order of the launch: buffers, then symbols (64 bits each).
  virtual int num_symbols() const = 0;
};

}  // namespace framejit::runtime::cuda
