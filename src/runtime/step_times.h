// How long the steps of plans take, while somebody wants to know: framejit.profile() times every run, the event stream
// one in many. What a step does on a GPU is timed there (StreamClock), and known once the GPU is through.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "diag/diag.h"

namespace framejit::runtime {

struct StepTime {
  std::string plan, step, kind;  // the function whose graph it was, "what@file:line", "kernel", "matmul" ...
  std::string device;            // where it ran: "cpu", "cuda:0"
  double runs = 0;               // how often it ran; only some of the runs were timed
  double seconds = 0;            // that all runs took, as far as the timed ones tell
  // What all runs read and wrote, each value counted once, and their operations (0 where the step is no library call
  // whose number of operations is known).
  double bytes = 0, flops = 0;
};

// A profiler that shows what runs. It is told when a step begins and ends, while it looks at some run.
struct StepListener {
  std::atomic<int> open{0};  // How many runs are looked at now.
  void* (*begin)(const char* name) = nullptr;
  void (*end)(void* begun) = nullptr;
};
extern StepListener step_listener;  // its functions are set once, before anything runs

void TimeEveryRun(bool on);  // calls with true are counted, and undone by as many with false
// What was added since the last call. wait: what GPUs have not done yet is waited for, else it comes with a later call.
std::vector<StepTime> TakeStepTimes(bool wait);
void AddStepTime(const StepTime& measured);  // adds to what TakeStepTimes returns next

// The least time of each step of a plan where it was started by itself. By these, the steps of a CUDA graph share the
// time of the whole.
struct StepShares {
  explicit StepShares(size_t steps) : least(steps, 0.0) {}
  std::vector<double> least;  // seconds; 0: not known. Of who reads the clocks.
  bool measured = false;      // was a run made to know them? Of who holds the stream's graphs.
};

// Measures how long what one run starts on a stream takes there. What is measured goes to AddStepTime once the device
// is through.
class StreamClock {
 public:
  virtual ~StreamClock() = default;
  virtual void Begin() = 0;  // what is started from here on ...
  // ... up to here were these steps, of which `first` is the plan's number of the first one. Their `seconds` say for
  // how many runs they stand.
  virtual void End(size_t first, std::vector<StepTime> steps) = 0;
};

// Decides which runs of something are timed, so that this costs next to nothing: the first ones, then ever fewer, but
// one about every ten milliseconds. Runs in several threads may count one too few.
class Sampler {
 public:
  // For how many runs the next one stands: for those since the last one that was timed. 0: it is not timed.
  int Weight() {
    const uint32_t since = since_.load(std::memory_order_relaxed) + 1;
    const bool timed = since > wait_.load(std::memory_order_relaxed);
    since_.store(timed ? 0 : since, std::memory_order_relaxed);
    return timed ? static_cast<int>(since) : 0;
  }
  void Took(int weight, double seconds);  // the run that stood for so many
  void Back(int weight) {                 // Called where it was none.
    since_.store(since_.load(std::memory_order_relaxed) + static_cast<uint32_t>(weight) - 1, std::memory_order_relaxed);
  }

 private:
  std::atomic<uint32_t> since_{0}, wait_{0}, seen_{0};  // runs since the last timed one; that are left out; in all
};

// Where runs on this thread add how long their steps took together (on a GPU: to be started); null: nobody asks.
double*& StepsTogether();

// Which runs of an executable are timed step by step.
class StepSampler {
 public:
  static bool On() { return every_.load(std::memory_order_relaxed) > 0 || diag::EventsOn(); }
  // As Sampler::Weight, while it is on. warmup: how many runs say nothing.
  int Weight(uint32_t warmup) {
    if (every_.load(std::memory_order_relaxed) > 0) return 1;
    const uint32_t before = warm_.load(std::memory_order_relaxed);
    if (before >= warmup) [[likely]]
      return sampler_.Weight();
    warm_.store(before + 1, std::memory_order_relaxed);
    return 0;
  }
  void Took(int weight, double seconds) { sampler_.Took(weight, seconds); }

 private:
  friend void TimeEveryRun(bool on);
  static std::atomic<int> every_;  // TimeEveryRun calls that hold
  std::atomic<uint32_t> warm_{0};
  Sampler sampler_;
};

}  // namespace framejit::runtime
