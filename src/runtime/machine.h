// What a run uses of a device beside the CPU: its kernels and their launches. Memory of the device comes from the host
// (Host::AllocateOutput, Host::Copy). A target (compiler/target.h) names the machine that runs its plans.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/step_times.h"

namespace framejit::runtime {

// What a launch needs beside its arguments, for one tuple of sizes.
struct Launch {
  void* function = nullptr;
  unsigned grid = 0, threads = 0;  // With a grid of 0 there is nothing to do.
  unsigned shared_bytes = 0;       // shared memory beside what the function declares itself
  bool dependent = false;          // the kernel itself waits for the one before it, and may be started earlier
  bool operator==(const Launch&) const = default;
};

class DeviceKernel {
 public:
  virtual ~DeviceKernel() = default;
  // The launch for these values of the kernel's symbols. aligned: every buffer's address is a multiple of what
  // alignment() says. Compiles and loads what is missing. Throws std::runtime_error.
  virtual Launch Configure(const int64_t* symbols, bool aligned) const = 0;
  // For each buffer the alignment in bytes that the variant with vectors needs.
  virtual const std::vector<uint32_t>& alignment() const = 0;
};

class Machine {
 public:
  virtual ~Machine() = default;
  // Enter makes the device the thread's current one; Exit, which gets what Enter returned, undoes it.
  virtual bool Enter() const = 0;
  virtual void Exit(bool entered) const = 0;
  // Starts a kernel on the host's current stream. `arguments` are the addresses of the arguments, in order: the
  // pointers to the buffers, then the symbols (64 bits each). Throws std::runtime_error, whose text holds `name`.
  virtual void Start(const Launch& launch, void** arguments, void* stream, const std::string& name) const = 0;
  // Null where the stream cannot be timed now.
  virtual std::unique_ptr<StreamClock> TimeStream(void* /*stream*/,
                                                  const std::shared_ptr<StepShares>& /*shares*/) const {
    return nullptr;
  }
  // Can launches be recorded and then started again as one? Only CUDA's can (cuda/graph.h).
  virtual bool records() const { return false; }
};

// The launch for buffers at these addresses. Where one is not aligned it is that of the variant for such addresses,
// which is compiled at its first use.
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
