// A device beside the CPU as a run uses it: its kernels and their launches. Its memory comes from the host (Host::
// AllocateOutput, Copy). A target (compiler/target.h) names the machine of its plans.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace framejit::runtime {

// What a launch needs beside its arguments, for one tuple of sizes.
struct Launch {
  void* function = nullptr;
  unsigned grid = 0, threads = 0;  // grid 0: nothing to do
  unsigned shared_bytes = 0;       // beside what the function has of its own
  bool dependent = false;          // waits for what runs before it by itself
};

class DeviceKernel {
 public:
  virtual ~DeviceKernel() = default;
  // symbols: values of the kernel's symbols. aligned: every buffer's address is a multiple of what alignment() says.
  // Compiles and loads what is missing. Throws std::runtime_error.
  virtual Launch Configure(const int64_t* symbols, bool aligned) const = 0;
  // Bytes, by buffer: what the vectors of the fast variant need.
  virtual const std::vector<uint32_t>& alignment() const = 0;
};

class Machine {
 public:
  virtual ~Machine() = default;
  // Makes the device the thread's current one. Exit gets what Enter returned.
  virtual bool Enter() const = 0;
  virtual void Exit(bool entered) const = 0;
  // arguments: addresses of the arguments, in order: the buffers' pointers, then the symbols (64 bits each). stream:
  // the host's current one. Throws std::runtime_error with the name.
  virtual void Start(const Launch& launch, void** arguments, void* stream, const std::string& name) const = 0;
  // Launches can be recorded and started again as one (cuda/graph.h, which is for CUDA alone).
  virtual bool records() const { return false; }
};

// The launch for these addresses. Compiles the variant for odd ones if it must.
inline Launch LaunchFor(const DeviceKernel& kernel, const Launch& aligned, const int64_t* symbols,
                        void* const* pointers) {
  if (aligned.grid == 0) return aligned;
  const std::vector<uint32_t>& alignment = kernel.alignment();
  uintptr_t odd = 0;
  for (size_t i = 0; i < alignment.size(); ++i) odd |= reinterpret_cast<uintptr_t>(pointers[i]) & (alignment[i] - 1);
  if (odd) [[unlikely]]  // a view that begins between two vectors
    return kernel.Configure(symbols, false);
  return aligned;
}

}  // namespace framejit::runtime
