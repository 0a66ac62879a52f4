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
  double runs = 0;               // how often it ran; only some of the runs were timed
  double seconds = 0;            // that all runs took, as far as the timed ones tell
  // What all runs read and wrote, each value counted once, and their operations (0 where the step is no library call
  // whose number of operations is known).
  double bytes = 0, flops = 0;
};

// A profiler that shows what runs. It is told when a step begins and ends, while it looks at some run.
struct StepListener {
  std::atomic<int> open{0};  // how many runs it looks at
  void* (*begin)(const char* name) = nullptr;
  void (*end)(void* begun) = nullptr;
};
extern StepListener step_listener;  // its functions are set once, before anything runs

void TimeEveryRun(bool on);                  // calls with true are counted, and undone by as many with false
std::vector<StepTime> TakeStepTimes();       // what was added since the last call
void AddStepTime(const StepTime& measured);  // adds to what TakeStepTimes returns next

// For how many runs the n-th run counts; 0: it is not timed. The first ones are timed, then the last one of every many.
int SampleWeight(uint32_t n);

// Decides for one executable which runs are timed.
class StepSampler {
 public:
  // For how many runs the next one counts; 0: it is not timed.
  int Weight() {
    if (every_.load(std::memory_order_relaxed) > 0) return 1;
    return diag::EventsOn() ? SampleWeight(runs_.fetch_add(1, std::memory_order_relaxed)) : 0;
  }

 private:
  friend void TimeEveryRun(bool on);
  static std::atomic<int> every_;  // TimeEveryRun calls that hold
  std::atomic<uint32_t> runs_{0};
};

}  // namespace framejit::runtime
