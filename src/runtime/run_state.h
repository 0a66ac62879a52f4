// One run of a plan.
#pragma once

#include <atomic>
#include <optional>

#include "runtime/context.h"
#include "runtime/cuda/graph.h"

namespace framejit::runtime {

struct PlanGpu {  // where a plan runs; null: on the CPU
  const cuda::DeviceInfo* device = nullptr;
  const cuda::Driver* driver = nullptr;
  bool graphs = false;  // worth looking at
};

// The destructor gives back everything that was taken, after a failure the outputs too. `c` is the caller's.
class RunState {
 public:
  RunState(const Plan& plan, const PlanIndex& index, const PlanGpu& gpu, Host& host, std::span<Buffer> outputs,
           Context* c)
      : plan_(plan),
        index_(index),
        gpu_(gpu),
        host_(host),
        outputs_(outputs),
        c_(c),
        takes_inputs_(host.TakesInputs()) {}
  ~RunState();
  RunState(const RunState&) = delete;
  void Run(std::span<const Buffer> inputs);

 private:
  void RunSteps();
  void RunStep(size_t i);
  void Rehearse(size_t i);
  void CheckStatus();
  void ReleaseAfter(size_t i);
  void FillScratch(int step, Poison pattern);
  void ReleaseExternal(int storage);
  void AllocateOutputs(size_t last);
  void AllocateOutput(size_t o);
  void ChooseTarget(const Plan::Commit& commit, std::span<const Buffer> inputs);

  // run_externs.cc
  void RunLending(const Step& step, std::span<const Buffer> operands);
  void RunExtern(const Step& step);
  void Accept(const Step& step, int value, std::span<const Buffer> operands = {});
  std::byte* AllocateFor(const Buffer& b, Context::External& x);
  void HandOver(size_t o);

  // cuda/run_graphs.cc
  void UseGraphs(std::span<const Buffer> inputs);
  void RunRange(cuda::GraphRange& range);
  bool Update(cuda::GraphRange& range);
  bool Record(cuda::GraphRange& range);
  void RecordStep(cuda::GraphRange& range, int i, std::vector<bool>& made);
  void AcquireGpuArena();

  const Plan& plan_;
  const PlanIndex& index_;
  const PlanGpu& gpu_;
  Host& host_;
  std::span<Buffer> outputs_;
  Context* c_;
  const bool takes_inputs_;
  Block pooled_;
  std::atomic<int> raised_{0};
  Buffer gpu_arena_;
  std::optional<cuda::Scope> scope_;
  cuda::Stream stream_ = nullptr;
  cuda::StreamGraphs* graphs_ = nullptr;  // its pool is this run's
  cuda::StreamGraphs::Use use_ = cuda::StreamGraphs::Use::kNone;
  size_t allocated_ = 0;
  bool done_ = false;
};

}  // namespace framejit::runtime
