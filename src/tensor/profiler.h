// A range in what torch's profiler shows.
#pragma once

#include "tensor/torch_api.h"

namespace framejit::tensor {

inline bool ProfilerOn() {
  return bound_torch && bound_torch->observed && bound_torch->observed();
}

class ProfilerRange {  // while alive
 public:
  explicit ProfilerRange(const char* name) {
    if (bound_torch->start_range && bound_torch->end_range)
      bound_torch->start_range(name, nullptr, nullptr, 0, &handle_);
  }
  ~ProfilerRange() {
    if (handle_) bound_torch->end_range(handle_);
  }
  ProfilerRange(const ProfilerRange&) = delete;

 private:
  void* handle_ = nullptr;
};

}  // namespace framejit::tensor
