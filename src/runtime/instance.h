// A plan for one tuple of symbol values: sizes, strides and kernel symbols as numbers, scratch offsets, parallel
// grains. Immutable and shared by all runs with these sizes.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/cuda/driver.h"
#include "runtime/plan.h"

namespace framejit::runtime {

namespace cuda {
struct StreamGraphs;
}

struct Instance {
  Instance(const Plan& plan, std::span<const int64_t> symbols);
  ~Instance();
  // Captured steps for this stream; null where there are graphs for many others. Made at the first use.
  cuda::StreamGraphs* GraphsOn(const cuda::Driver& driver, int device, uint64_t stream_id) const;

  struct ValueInfo {
    const int64_t* sizes = nullptr;  // into `numbers`
    const int64_t* strides = nullptr;
    int64_t offset_bytes = 0;
    int64_t numel = 0;
  };
  struct StepInfo {
    const int64_t* symbols = nullptr;  // kernels
    int64_t rows = 0;
    int64_t grain = 0;  // rows of one parallel piece; 0: not worth a second thread
    Launch launch;
  };

  bool bad_index = false;  // indices go along an axis of nothing: must not run
  std::vector<int64_t> symbols;
  std::vector<int64_t> numbers;
  std::vector<ValueInfo> values;
  std::vector<StepInfo> steps;
  std::vector<int64_t> storage_bytes, scratch_offset;  // by storage
  int64_t scratch_bytes = 0, device_scratch_bytes = 0;

 private:
  mutable std::mutex graphs_mutex_;
  mutable std::vector<std::unique_ptr<cuda::StreamGraphs>> graphs_;
};

// Offsets of buffers that live from first to last (inclusive) such that no two live at once overlap; returns the total.
struct Interval {
  int64_t bytes;
  int first, last;
};
int64_t PlanMemory(std::span<const Interval> intervals, std::span<int64_t> offsets, int64_t align = 64);

}  // namespace framejit::runtime
