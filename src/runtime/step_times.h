// How long the steps of plans take, while somebody wants to know: framejit.profile() times every run, the event stream
// one in many. Steps on a GPU are not timed: their kernels go on behind the call.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "diag/diag.h"

namespace framejit::runtime {

struct StepTime {
  std::string plan, step, kind;  // the function whose graph it was, "what@file:line", "kernel", "matmul" ...
  double runs = 0;               // all, of which some were timed
  double seconds = 0;            // of all, as the timed ones took
  double bytes = 0, flops = 0;   // read and written once; of library calls whose number is known, else 0. Of all runs
};

// Whoever shows what runs, a profiler: told of each step, around it, while it looks at some run.
struct StepListener {
  std::atomic<int> open{0};  // runs that it looks at
  void* (*begin)(const char* name) = nullptr;
  void (*end)(void* begun) = nullptr;
};
extern StepListener step_listener;  // its functions are set once, before anything runs

void TimeEveryRun(bool on);                  // nested: counted
std::vector<StepTime> TakeStepTimes();       // since the last time they were taken
void AddStepTime(const StepTime& measured);  // to what is taken

// What is sampled at its n-th time counts for so many; 0: it is not. The first ones, then the last one of many.
int SampleWeight(uint32_t n);

// Of one executable: does this run count, and for how many?
class StepSampler {
 public:
  int Weight() {  // 0: it is not timed
    if (every_.load(std::memory_order_relaxed) > 0) return 1;
    return diag::EventsOn() ? SampleWeight(runs_.fetch_add(1, std::memory_order_relaxed)) : 0;
  }

 private:
  friend void TimeEveryRun(bool on);
  static std::atomic<int> every_;  // how often that is on
  std::atomic<uint32_t> runs_{0};
};

}  // namespace framejit::runtime
