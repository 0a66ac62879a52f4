// A range in what torch's profiler shows.
#pragma once

#include "runtime/step_times.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

// Does one look on? What looks on in all threads at once is seen some runs late: torch takes a lock to answer that.
inline bool ProfilerOn() {
  if (!bound_torch) return false;
  constexpr unsigned kRuns = 64;
  static unsigned runs = 0;  // Read and written with the GIL held.
  static bool everywhere = false;
  if (runs++ % kRuns == 0) everywhere = bound_torch->observed_everywhere && bound_torch->observed_everywhere();
  return everywhere || (bound_torch->observed && bound_torch->observed());
}

inline void* BeginRange(const char* name) {
  void* range = nullptr;
  if (bound_torch->start_range && bound_torch->end_range) bound_torch->start_range(name, nullptr, nullptr, 0, &range);
  return range;
}
inline void EndRange(void* range) {
  if (range) bound_torch->end_range(range);
}

class ProfilerRange {  // While one is alive, the steps of what runs in it are shown, too.
 public:
  explicit ProfilerRange(const char* name) : handle_(BeginRange(name)) { ++runtime::step_listener.open; }
  ~ProfilerRange() {
    --runtime::step_listener.open;
    EndRange(handle_);
  }
  ProfilerRange(const ProfilerRange&) = delete;

 private:
  void* handle_;
};

}  // namespace framejit::tensor
