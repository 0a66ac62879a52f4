#pragma once

#include <chrono>
#include <cstdio>

namespace framejit::capture {

// Seconds of the clock that never goes back.
inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds that this thread was ready to run and had no CPU, as Linux counts them (proc_pid_schedstat(5), the second
// number); 0 where it does not. It takes some 10 us.
inline double Waited() {
  std::FILE* file = std::fopen("/proc/thread-self/schedstat", "re");
  if (!file) return 0;
  long long waited = 0;
  const int read = std::fscanf(file, "%*d %lld", &waited);
  std::fclose(file);
  return read == 1 ? 1e-9 * static_cast<double>(waited) : 0;
}

}  // namespace framejit::capture
