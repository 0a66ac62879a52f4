// A range in what torch's profiler shows.
#pragma once

#include "runtime/step_times.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

inline bool ProfilerOn() {
  return bound_torch && bound_torch->observed && bound_torch->observed();
}

inline void* BeginRange(const char* name) {
  void* range = nullptr;
  if (bound_torch->start_range && bound_torch->end_range) bound_torch->start_range(name, nullptr, nullptr, 0, &range);
  return range;
}
inline void EndRange(void* range) {
  if (range) bound_torch->end_range(range);
}

class ProfilerRange {  // while alive; the steps of what runs in it are shown, too
 public:
  explicit ProfilerRange(const char* name) : handle_(BeginRange(name)) { ++runtime::step_watch.open; }
  ~ProfilerRange() {
    --runtime::step_watch.open;
    EndRange(handle_);
  }
  ProfilerRange(const ProfilerRange&) = delete;

 private:
  void* handle_;
};

}  // namespace framejit::tensor
