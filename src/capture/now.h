#pragma once

#include <chrono>

namespace framejit::capture {

// Seconds of the clock that never goes back.
inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace framejit::capture
