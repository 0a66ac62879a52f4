// One run of a plan, from its inputs to its outputs.
#pragma once

#include <atomic>
#include <optional>

#include "runtime/context.h"
#include "runtime/cuda/graph.h"
#include "runtime/step_times.h"

namespace framejit::runtime {

// The destructor gives back everything that the run took, and after a failure the outputs too. The context is the
// caller's.
class RunState {
 public:
  // records: may this run record its launches as CUDA graphs, or start such as were recorded?
  RunState(const Plan& plan, const PlanIndex& index, bool records, Host& host, std::span<Buffer> outputs, Context* c)
      : plan_(plan),
        index_(index),
        machine_(plan.machine.get()),
        records_(records),
        host_(host),
        outputs_(outputs),
        c_(c),
        takes_inputs_(host.TakesInputs()),
        listened_(step_listener.open.load(std::memory_order_relaxed) > 0) {}
  ~RunState();
  RunState(const RunState&) = delete;
  void Run(std::span<const Buffer> inputs);
  // weight: for how many runs the times of each step count; 0: they are not timed. together: what is added to how long
  // all took, or null.
  void TimeSteps(int weight, double* together) { weight_ = weight, together_ = together; }

 private:
  void RunSteps();
  void RunTimed(size_t i);
  StepTime RunsOfStep(size_t i) const;
  bool OnDevice(size_t i) const;
  void RunNamed(size_t i);
  void RunStep(size_t i);
  Launch LaunchOf(size_t i) const;
  bool FeedProduct(size_t i);
  bool PairProducts(size_t i);
  void Rehearse(size_t i);
  void CheckStatus();
  void ReleaseAfter(size_t i);
  void FillScratch(int step, Poison pattern);
  void ReleaseExternal(int storage);
  void AllocateOutputs(size_t last);
  void AllocateOutput(size_t o);
  void Allocate(Buffer& b, bool zeros);
  void AllocateEmpty(Buffer& b, const shape::Ints& planned);
  void ChooseTarget(const Plan::Commit& commit, std::span<const Buffer> inputs);

  // run_externs.cc
  void RunLending(const Step& step, std::span<const Buffer> operands);
  void OutputFromCopy(int storage, int value);
  void AllocateLent(size_t step);
  void* OwnerOf(int storage) const;
  void RunExtern(const Step& step);
  bool Extrapolated(const Step& step) const;
  void Accept(const Step& step, int value, std::span<const Buffer> operands = {});
  std::byte* AllocateFor(const Buffer& b, Context::External& x);
  void HandOver(size_t o);

  // cuda/run_graphs.cc
  std::shared_ptr<StepShares> UseGraphs(std::span<const Buffer> inputs);  // of the stream, where it may have graphs
  void RunRange(cuda::GraphRange& range);
  bool Update(cuda::GraphRange& range);
  bool Record(cuda::GraphRange& range);
  void RecordStep(cuda::GraphRange& range, int i, std::vector<bool>& made);
  void AcquireDeviceArena();

  const Plan& plan_;
  const PlanIndex& index_;
  const Machine* const machine_;  // null: nothing runs beside the CPU
  const bool records_;
  Host& host_;
  std::span<Buffer> outputs_;
  Context* c_;
  const bool takes_inputs_;
  const bool listened_;
  Block pooled_;
  bool fed_ = false;  // the product that is the next step has been computed
  std::atomic<int> raised_{0};
  Buffer device_arena_;
  bool entered_ = false;
  void* stream_ = nullptr;
  cuda::StreamGraphs* graphs_ = nullptr;  // while it is set, its memory pool is this run's alone
  cuda::StreamGraphs::Use use_ = cuda::StreamGraphs::Use::kNone;
  size_t allocated_ = 0;
  int weight_ = 0;  // 0: no step is timed
  double* together_ = nullptr;
  std::unique_ptr<StreamClock> clock_;  // times what steps do on the device
  bool done_ = false;
};

}  // namespace framejit::runtime
