// A plan for one tuple of values of its symbols: sizes, strides and symbols of kernels are numbers, scratch memory has
// offsets, and it is known how much one thread shall take. All runs with these sizes share it; nothing changes it.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/cuda/driver.h"
#include "runtime/plan.h"
#include "runtime/shared_list.h"

namespace framejit::runtime {

namespace cuda {
struct StreamGraphs;
}

// The symbols of a plan on which no size depends. The number of the round that a loop's segment begins with is one: it
// says where in an array something lies, and changes with each run.
struct Moving {
  explicit Moving(const Plan& plan);
  std::vector<bool> symbols;       // by symbol
  std::vector<int> values, steps;  // values whose offset depends on them; steps with a kernel that takes them
};

struct Instance {
  Instance(const Plan& plan, std::span<const int64_t> symbols);
  // One that differs from another in symbols that move.
  Instance(const Plan& plan, const Moving& moving, const Instance& like, std::span<const int64_t> symbols);
  ~Instance();
  // The CUDA graphs of this stream, made at the first use. Null where many other streams have some already.
  cuda::StreamGraphs* GraphsOn(const cuda::Driver& driver, int device, uint64_t stream_id) const;

  struct ValueInfo {
    const int64_t* sizes = nullptr;  // Both point into `numbers`.
    const int64_t* strides = nullptr;
    int64_t offset_bytes = 0;
    int64_t numel = 0;
    bool operator==(const ValueInfo&) const = default;
  };
  struct StepInfo {
    const int64_t* symbols = nullptr;  // The symbols of a kernel.
    int64_t rows = 0;
    int64_t grain = 0;  // rows that one thread takes at least; 0: a second thread does not pay
    Launch launch;
    bool operator==(const StepInfo&) const = default;
  };
  struct StorageInfo {
    int64_t bytes = 0;
    int64_t before = 0;          // those of them that lie before the first element
    int64_t scratch_offset = 0;  // of the first element
    bool operator==(const StorageInfo&) const = default;
  };

  int status = 0;  // not 0: it must not run, but end with this (Plan::Nothing)
  std::vector<int64_t> symbols;
  std::vector<int64_t> numbers;
  SharedList<ValueInfo> values;
  SharedList<StepInfo> steps;
  SharedList<StorageInfo> storages;
  int64_t scratch_bytes = 0, device_scratch_bytes = 0;

 private:
  StepInfo InfoOf(const Plan& plan, size_t i, const int64_t* kernel_symbols) const;

  mutable std::mutex graphs_mutex_;
  mutable std::vector<std::unique_ptr<cuda::StreamGraphs>> graphs_;
};

// Finds offsets for buffers that are used in the steps from first to last (inclusive), so that no two that are in use
// at once overlap. Returns the bytes that they take together.
struct Interval {
  int64_t bytes;
  int first, last;
};
int64_t PlanMemory(std::span<const Interval> intervals, std::span<int64_t> offsets, int64_t align = 64);

}  // namespace framejit::runtime
