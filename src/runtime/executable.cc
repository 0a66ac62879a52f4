// Running a plan. What a run needs is prepared per tuple of symbol values (Instance) and per concurrent run (Context).
// A run leases a context, patches the pointers that change (inputs, outputs, pooled scratch) and walks the steps; a
// small graph allocates nothing but its outputs. Contexts are passed on through one atomic slot, with a locked list
// behind it for concurrent and nested runs.

#include <absl/container/fixed_array.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>

#include "diag/diag.h"
#include "runtime/estimate.h"
#include "runtime/run_state.h"
#include "runtime/step_times.h"

namespace framejit::runtime {
namespace {

constexpr size_t kMaxIdleContexts = 8;
constexpr size_t kMaxInstances = 16;
constexpr uint32_t kDeviceWarmup = 2;  // runs in which libraries load and choose: their times on a device say nothing

class PlanExecutable : public Executable, public Estimated {
 public:
  PlanExecutable(Plan plan, const CompileStats& stats) : plan_(std::move(plan)), index_(plan_), stats_(stats) {
    if (plan_.machine && plan_.machine->records() && plan_.graphs != GpuGraphs::kNever) {
      const std::vector<bool> moving(plan_.inputs.size(), false);
      records_ = !cuda::FindRanges(plan_, moving, plan_.graphs == GpuGraphs::kAlways).empty();
    }
  }

  ~PlanExecutable() override {
    delete hot_.load();
    for (Context* c : idle_) delete c;
  }

  const CompileStats& stats() const override { return stats_; }
  std::string str() const override { return plan_.str(); }
  int64_t ScratchBytes(std::span<const int64_t> symbols) const override {
    const auto instance = GetInstance(symbols);
    return instance->scratch_bytes + instance->device_scratch_bytes;
  }

  void AddCost(std::span<const int64_t> symbols, PlanCost* cost) const override {
    const auto instance = GetInstance(symbols);
    for (size_t i = 0; i < plan_.steps.size(); ++i) cost->steps.push_back(CostOfStep(plan_, *instance, i));
    // Beside the arena: what the framework's own calls make and nobody outside is given, and what is lent.
    int64_t made = 0;
    for (int i = 0; i < static_cast<int>(plan_.steps.size()); ++i) {
      int64_t alive = 0;
      for (size_t s = 0; s < plan_.storages.size(); ++s) {
        const Storage& storage = plan_.storages[s];
        const bool own =
            storage.kind == Storage::Kind::kLent || (storage.kind == Storage::Kind::kExtern && storage.index < 0);
        if (own && storage.first <= i && i <= storage.last) alive += instance->storages[s].bytes;
      }
      made = std::max(made, alive);
    }
    cost->scratch_bytes =
        std::max(cost->scratch_bytes, instance->scratch_bytes + instance->device_scratch_bytes + made);
  }

  [[gnu::hot]] void Run(Host& host, std::span<const Buffer> inputs, std::span<const int64_t> scalars,
                        std::span<Buffer> outputs) override {
    FRAMEJIT_CHECK(inputs.size() == plan_.inputs.size() && outputs.size() == plan_.outputs.size());
    const size_t num_symbols = plan_.symbol_sources.size();
    absl::FixedArray<int64_t, 16> symbols(num_symbols);
    for (size_t i = 0; i < num_symbols; ++i) {
      const auto& source = plan_.symbol_sources[i];
      if (source.input < 0)
        symbols[i] = 0;
      else if (source.dim < 0)
        symbols[i] = scalars[source.input];
      else
        symbols[i] = inputs[source.input].sizes[source.dim];
    }
    const Lease lease(*this, symbols);
    if (const int status = lease.context->instance->status) throw StatusRaised{status};
    RunState run(plan_, index_, records_, host, outputs, lease.context);
    if (!StepSampler::On()) [[likely]]
      return run.Run(inputs);
    const int weight = sampler_.Weight(plan_.machine ? kDeviceWarmup : 0);
    double* const together = StepsTogether();
    if (!weight && !together) return run.Run(inputs);
    const auto start = std::chrono::steady_clock::now();
    run.TimeSteps(weight, together);
    run.Run(inputs);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (weight) sampler_.Took(weight, took.count());
  }

 private:
  struct Lease {
    Lease(PlanExecutable& e, std::span<const int64_t> symbols) : context(e.Take(symbols)), e_(e) {}
    ~Lease() { e_.Return(context); }
    Lease(const Lease&) = delete;
    Context* const context;

   private:
    PlanExecutable& e_;
  };

  Context* Take(std::span<const int64_t> symbols) {
    Context* c = hot_.exchange(nullptr, std::memory_order_acquire);
    if (!c) {
      std::lock_guard lock(mu_);
      if (!idle_.empty()) {
        c = idle_.back();
        idle_.pop_back();
      }
    }
    std::unique_ptr<Context> owned(c ? c : new Context());
    if (!owned->instance || !std::equal(symbols.begin(), symbols.end(), owned->instance->symbols.begin())) {
      owned->Bind(plan_, index_, GetInstance(symbols));
    }
    return owned.release();
  }

  void Return(Context* c) {
    Context* empty = nullptr;
    if (hot_.compare_exchange_strong(empty, c, std::memory_order_release, std::memory_order_relaxed)) return;
    std::lock_guard lock(mu_);
    if (idle_.size() < kMaxIdleContexts)
      idle_.push_back(c);
    else
      delete c;
  }

  std::shared_ptr<const Instance> GetInstance(std::span<const int64_t> symbols) const {
    std::lock_guard lock(mu_);
    for (size_t i = instances_.size(); i-- > 0;) {
      if (!std::equal(symbols.begin(), symbols.end(), instances_[i]->symbols.begin())) continue;
      std::rotate(instances_.begin() + i, instances_.begin() + i + 1, instances_.end());  // most recent last
      return instances_.back();
    }
    const auto alike = [&](const std::shared_ptr<const Instance>& other) {
      for (size_t s = 0; s < symbols.size(); ++s)
        if (!moving_.symbols[s] && symbols[s] != other->symbols[s]) return false;
      return true;
    };
    const auto like = std::find_if(instances_.rbegin(), instances_.rend(), alike);
    auto made = like == instances_.rend() ? std::make_shared<const Instance>(plan_, symbols)
                                          : std::make_shared<const Instance>(plan_, moving_, **like, symbols);
    if (instances_.size() >= kMaxInstances) instances_.erase(instances_.begin());
    instances_.push_back(std::move(made));
    return instances_.back();
  }

  const ArenaPool::User user_;
  const Plan plan_;
  const PlanIndex index_;
  const Moving moving_{plan_};
  const CompileStats stats_;
  bool records_ = false;
  StepSampler sampler_;
  std::atomic<Context*> hot_{nullptr};
  mutable std::mutex mu_;
  std::vector<Context*> idle_;
  mutable std::vector<std::shared_ptr<const Instance>> instances_;
};

}  // namespace

std::shared_ptr<Executable> MakeExecutable(Plan plan, const CompileStats& stats) {
  ComputeLifetimes(plan);
  return std::make_shared<PlanExecutable>(std::move(plan), stats);
}

}  // namespace framejit::runtime
