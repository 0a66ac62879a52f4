// Threads for hosts that bring none: workers spin for some tens of microseconds after a region, then sleep on a futex.
// Honours FRAMEJIT_NUM_THREADS and OMP_NUM_THREADS; usable again in a forked child.
#pragma once

#include <cstdint>

namespace framejit::runtime {

class ThreadPool {
 public:
  static ThreadPool& Get();
  int num_threads() const;      // The caller is one of them.
  void set_num_threads(int n);  // takes effect with the next region
  // f over pieces of [0, n) of at least `grain`; the caller takes part. f must not throw. Runs everything in the caller
  // when another region is in progress (nested, or from another thread).
  void ParallelFor(int64_t n, int64_t grain, void (*f)(void* ctx, int64_t begin, int64_t end), void* ctx);

 private:
  struct State;
  ThreadPool();
  State* s_;
};

}  // namespace framejit::runtime
