// A region is published by one pointer. A worker first counts itself in (`active`), then reads the pointer; the caller
// takes the pointer back, then waits until the count is zero. With both sides sequentially consistent, a worker either
// sees null or is seen by the caller, so a region's memory (the caller's stack) outlives every reader.

#include "runtime/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "diag/diag.h"

namespace framejit::runtime {
namespace {

// How often a worker looks for the next region before it sleeps. Two threads on two cores take the same time for four
// programs from 0 to 20,000; it is for machines whose idle cores wake up slowly, and ends well below a millisecond.
constexpr int kSpins = 2000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

struct Region {
  void (*f)(void*, int64_t, int64_t);
  void* ctx;
  int64_t n, piece;
  std::atomic<int64_t> next{0};

  void Work() {
    for (;;) {
      const int64_t begin = next.fetch_add(piece, std::memory_order_relaxed);
      if (begin >= n) return;
      f(ctx, begin, std::min(n, begin + piece));
    }
  }
};

int DefaultThreads() {
  if (int n = std::atoi(diag::GetOption("num_threads").c_str()); n > 0) return n;
  if (const char* omp = std::getenv("OMP_NUM_THREADS")) {
    if (int n = std::atoi(omp); n > 0) return n;
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

struct ThreadPool::State {
  std::mutex region_mu;  // held during a region
  std::atomic<Region*> region{nullptr};
  std::atomic<int> active{0};
  std::atomic<uint32_t> epoch{0};
  std::atomic<int> sleepers{0};
  int workers = 0;  // They are started once and never stopped, and sleep in between.
  std::atomic<int> threads{1};

  void Worker(int index) {
    uint32_t seen = 0;
    for (;;) {
      uint32_t now = epoch.load(std::memory_order_acquire);
      for (int i = 0; i < kSpins && now == seen; ++i) {
        Pause();
        now = epoch.load(std::memory_order_acquire);
      }
      if (now == seen) {
        sleepers.fetch_add(1);
        epoch.wait(seen);
        sleepers.fetch_sub(1);
        continue;
      }
      seen = now;
      active.fetch_add(1);
      if (Region* r = region.load(); r && index < threads.load(std::memory_order_relaxed) - 1) r->Work();
      active.fetch_sub(1);
    }
  }

  void Start(int wanted) {
    while (workers < wanted) {
      std::thread(&State::Worker, this, workers++).detach();
    }
  }
};

ThreadPool& ThreadPool::Get() {
  static ThreadPool* pool = [] {
    auto* p = new ThreadPool();  // never destroyed: its threads never end
    pthread_atfork(nullptr, nullptr, [] {
      // The child has no workers, and its copy of the state may be in the middle of a region: start afresh.
      const int threads = Get().num_threads();
      Get().s_ = new State();
      Get().s_->threads = threads;
    });
    return p;
  }();
  return *pool;
}

ThreadPool::ThreadPool() : s_(new State()) {
  s_->threads = DefaultThreads();
}

int ThreadPool::num_threads() const {
  return s_->threads.load(std::memory_order_relaxed);
}

void ThreadPool::set_num_threads(int n) {
  s_->threads = std::max(1, n);
}

void ThreadPool::ParallelFor(int64_t n, int64_t grain, void (*f)(void*, int64_t, int64_t), void* ctx) {
  State& s = *s_;
  const int threads = s.threads.load(std::memory_order_relaxed);
  if (n <= 0) return;
  std::unique_lock lock(s.region_mu, std::defer_lock);
  if (threads <= 1 || n <= grain || !lock.try_lock()) return f(ctx, 0, n);
  s.Start(threads - 1);
  // Four pieces a thread: a worker that was descheduled must not hold up the region by more than a piece.
  Region region{f, ctx, n, std::max<int64_t>(std::max<int64_t>(1, grain), (n + 4 * threads - 1) / (4 * threads))};
  s.region.store(&region);
  s.epoch.fetch_add(1, std::memory_order_seq_cst);
  if (s.sleepers.load() > 0) s.epoch.notify_all();
  region.Work();
  s.region.store(nullptr);
  for (int i = 0; s.active.load() != 0; ++i) {
    if (i < kSpins)
      Pause();
    else
      sched_yield();
  }
}

}  // namespace framejit::runtime
