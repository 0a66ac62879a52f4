// Running a plan. What a run needs is prepared per tuple of symbol values (Instance) and per concurrent run (Context).
// A run leases a context, patches the pointers that change (inputs, outputs, pooled scratch) and walks the steps; a
// small graph allocates nothing but its outputs. Contexts are passed on through one atomic slot, with a locked list
// behind it for concurrent and nested runs.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>

#include "diag/diag.h"
#include "runtime/context.h"
#include "runtime/copy.h"
#include "runtime/cuda/graph.h"
#include "runtime/cuda/launch.h"
#include "runtime/interpret_node.h"
#include "runtime/library.h"
#include "runtime/status.h"

namespace framejit::runtime {
namespace {

constexpr size_t kMaxIdleContexts = 8;
constexpr size_t kMaxInstances = 16;

struct KernelCall {
  KernelFn fn;
  void* const* buffers;
  const int64_t* symbols;
  int watch = 0;
  std::atomic<int>* raised = nullptr;
};

void RunRows(void* context, int64_t begin, int64_t end) {
  const auto& call = *static_cast<const KernelCall*>(context);
  call.fn(call.buffers, call.symbols, begin, end);
}

void RunWatchedRows(void* context, int64_t begin, int64_t end) {  // on any thread, whose status may be stale
  const auto& call = *static_cast<const KernelCall*>(context);
  TakeStatus(call.watch);
  call.fn(call.buffers, call.symbols, begin, end);
  if (const int status = TakeStatus(call.watch)) call.raised->fetch_or(status, std::memory_order_relaxed);
}

struct Rehearsal {
  KernelCall call;
  const Step* step;
  int64_t line, row;  // elements
  const int* sizes;   // of elements, by rehearsed argument
};

// The stores to rehearsed arguments go to a piece of memory of the thread's own, for a few rows at a time.
void RehearseRows(void* context, int64_t begin, int64_t end) {
  constexpr int64_t kElements = 4096;
  const auto& r = *static_cast<const Rehearsal*>(context);
  const int64_t room = std::max(kElements, r.row), at_once = room / r.row, rows_per_line = (r.line + r.row - 1) / r.row;
  static thread_local std::vector<std::byte> memory;
  const size_t targets = r.step->rehearse.size();
  if (memory.size() < targets * room * sizeof(int64_t)) memory.resize(targets * room * sizeof(int64_t));
  std::vector<void*> buffers(r.call.buffers, r.call.buffers + r.step->operands.size());
  TakeStatus(r.call.watch);
  for (int64_t row = begin; row < end; row += at_once) {
    const int64_t first = row / rows_per_line * r.line + row % rows_per_line * r.row;
    for (size_t t = 0; t < targets; ++t) {
      const auto base = reinterpret_cast<uintptr_t>(memory.data() + t * room * sizeof(int64_t));
      buffers[r.step->rehearse[t]] = reinterpret_cast<void*>(base - first * r.sizes[t]);  // NOLINT
    }
    r.call.fn(buffers.data(), r.call.symbols, row, std::min(end, row + at_once));
  }
  if (const int status = TakeStatus(r.call.watch)) r.call.raised->fetch_or(status, std::memory_order_relaxed);
}

class PlanExecutable : public Executable {
 public:
  PlanExecutable(Plan plan, CompileStats stats) : plan_(std::move(plan)), index_(plan_), stats_(std::move(stats)) {
    if (plan_.device.kind == DeviceKind::kCuda) {
      device_ = &cuda::GetDevice(plan_.device.index);
      driver_ = cuda::GetDriver();
      const std::vector<bool> moving(plan_.inputs.size(), false);
      graphs_ = plan_.graphs != GpuGraphs::kNever &&
                !cuda::FindRanges(plan_, moving, plan_.graphs == GpuGraphs::kAlways).empty();
    }
    ArenaPool::Get().AddUser();
  }

  ~PlanExecutable() override {
    delete hot_.load();
    for (Context* c : idle_) delete c;
    ArenaPool::Get().RemoveUser();
  }

  const CompileStats& stats() const override { return stats_; }
  std::string str() const override { return plan_.str(); }
  int64_t ScratchBytes(std::span<const int64_t> symbols) const override {
    const auto instance = GetInstance(symbols);
    return instance->scratch_bytes + instance->gpu_scratch_bytes;
  }

  void Run(Host& host, std::span<const Buffer> inputs, std::span<const int64_t> scalars,
           std::span<Buffer> outputs) override {
    FRAMEJIT_CHECK(inputs.size() == plan_.inputs.size() && outputs.size() == plan_.outputs.size());
    const size_t num_symbols = plan_.symbol_sources.size();
    int64_t few[16];
    std::vector<int64_t> many;
    int64_t* symbols = few;
    if (num_symbols > std::size(few)) {
      many.resize(num_symbols);
      symbols = many.data();
    }
    for (size_t i = 0; i < num_symbols; ++i) {
      const auto& source = plan_.symbol_sources[i];
      if (source.input < 0)
        symbols[i] = 0;
      else if (source.dim < 0)
        symbols[i] = scalars[source.input];
      else
        symbols[i] = inputs[source.input].sizes[source.dim];
    }
    RunState(*this, host, outputs, {symbols, num_symbols}).Run(inputs);
  }

 private:
  // One run. The destructor gives back everything that was taken, after a failure the outputs too.
  class RunState {
   public:
    RunState(PlanExecutable& e, Host& host, std::span<Buffer> outputs, std::span<const int64_t> symbols)
        : plan_(e.plan_),
          index_(e.index_),
          e_(e),
          host_(host),
          outputs_(outputs),
          c_(e.Lease(symbols)),
          takes_inputs_(host.TakesInputs()) {}

    ~RunState() {
      if (!done_) {
        for (size_t o = 0; o < outputs_.size(); ++o) {
          const int storage = plan_.outputs[o].handed_over ? plan_.values[plan_.outputs[o].value].storage : -1;
          if (storage >= 0 && c_->externals[storage].output_allocated) host_.FreeOutput(&outputs_[o]);
        }
        for (size_t k = 0; k < allocated_; ++k) host_.FreeOutput(&outputs_[index_.outputs_by_step[k].second]);
      }
      for (size_t s = 0; s < c_->externals.size(); ++s) ReleaseExternal(static_cast<int>(s));
      if (gpu_arena_.handle) host_.Release(&gpu_arena_);
      if (pooled_.data) ArenaPool::Get().Release(pooled_);
      if (graphs_) {
        if (!done_ && use_ == cuda::StreamGraphs::Use::kCapture) graphs_->Clear();
        graphs_->pool.taken.store(false, std::memory_order_release);
      }
      e_.Return(c_);
    }

    void Run(std::span<const Buffer> inputs) {
      if (e_.device_) {
        scope_.emplace(*e_.driver_, *e_.device_);
        stream_ = host_.CurrentStream(plan_.device);
        if (e_.graphs_) UseGraphs(inputs);
        AcquireGpuArena();
      }
      for (size_t i = 0; i < inputs.size(); ++i) {
        c_->SetStorage(index_.input_storage[i], inputs[i].data);
        c_->buffers[plan_.inputs[i]].handle = inputs[i].handle;
      }
      if (const int64_t bytes = c_->instance->scratch_bytes; bytes > kOwnScratch) {
        pooled_ = ArenaPool::Get().Acquire(bytes);
        c_->SetScratch(plan_, pooled_.data);
      }
      for (const auto& commit : plan_.commits) {
        if (commit.direct) ChooseTarget(commit, inputs);
      }
      if (e_.device_) AllocateOutputs(plan_.steps.size());
      if (plan_.watch) TakeStatus(plan_.watch);
      RunSteps();
      AllocateOutputs(plan_.steps.size());
      if (use_ == cuda::StreamGraphs::Use::kCapture) graphs_->Captured(plan_, c_->pointers);
      if (plan_.watch && plan_.checked_steps == static_cast<int>(plan_.steps.size())) CheckStatus();
      // Kernels that write inputs directly were the last steps; nothing failed, and nothing can from here on.
      for (const auto& commit : plan_.commits) {
        if (commit.direct && c_->buffers[commit.value].data == inputs[commit.input].data) continue;
        StridedCopy(host_, c_->buffers[commit.value], c_->buffers[plan_.inputs[commit.input]]);
      }
      for (size_t o = 0; o < outputs_.size(); ++o) {
        if (plan_.outputs[o].handed_over) HandOver(o);
      }
      done_ = true;
    }

   private:
    void CheckStatus() {
      const int status = TakeStatus(plan_.watch) | raised_.load(std::memory_order_relaxed);
      if (status) throw StatusRaised{status};
    }

    void RunSteps() {
      size_t range = 0;
      for (size_t i = 0; i < plan_.steps.size(); ++i) {
        if (plan_.watch && i == static_cast<size_t>(plan_.checked_steps)) {
          for (size_t k = i; k < plan_.steps.size(); ++k) {
            if (plan_.steps[k].rehearse.empty()) continue;
            AllocateOutputs(k);  // those that it makes besides are written for good
            Rehearse(k);
          }
          CheckStatus();
        }
        AllocateOutputs(i);
        if (graphs_ && range < graphs_->ranges.size() && static_cast<int>(i) == graphs_->ranges[range].first) {
          i = graphs_->ranges[range].last - 1;
          RunRange(graphs_->ranges[range++]);
          continue;
        }
        RunStep(i);
        ReleaseAfter(i);
      }
    }

    void ReleaseAfter(size_t i) {
      if (takes_inputs_) {
        for (int input : index_.inputs_after[i]) host_.InputDone(input);
      }
      if (!index_.has_externs) return;
      for (int s : index_.release_after[i]) ReleaseExternal(s);
    }

    // --- CUDA graphs (cuda/graph.h)
    void UseGraphs(std::span<const Buffer> inputs) {
      const cuda::Driver& d = *e_.driver_;
      uint64_t id = 0;
      int capturing = 0;  // by the user: then our steps are captured one by one
      if (d.stream_capturing(stream_, &capturing) || capturing || d.stream_id(stream_, &id)) return;
      cuda::StreamGraphs* g = c_->instance->GraphsOn(d, e_.device_->ordinal, id);
      if (!g || g->off || g->pool.taken.exchange(true, std::memory_order_acquire)) return;
      graphs_ = g;
      use_ = g->Next(plan_, inputs, host_.LibrarySettings());
      if (use_ == cuda::StreamGraphs::Use::kNone) {
        graphs_ = nullptr;
        g->pool.taken.store(false, std::memory_order_release);
      } else if (use_ == cuda::StreamGraphs::Use::kLaunch) {
        for (const auto& [value, data] : g->externals) {
          c_->SetStorage(plan_.values[value].storage, data);
          c_->buffers[value].handle = nullptr;
        }
      }
    }

    void RunRange(cuda::GraphRange& range) {
      const cuda::Driver& d = *e_.driver_;
      const bool known = use_ == cuda::StreamGraphs::Use::kLaunch;
      if (!graphs_->off && (known ? range.exec && Update(range) : Record(range))) {
        cuda::Check(d, d.graph_launch(range.exec, stream_), "cuGraphLaunch");
        for (int i = range.first; i < range.last; ++i) ReleaseAfter(i);
        return;
      }
      for (int i = range.first; i < range.last; ++i) {
        RunStep(i);
        ReleaseAfter(i);
      }
    }

    // Tells the graph's kernels which of their arguments have changed.
    bool Update(cuda::GraphRange& range) {
      for (const auto& kernel : range.kernels) {
        const Step& step = plan_.steps[kernel.step];
        const size_t first = index_.first_pointer[kernel.step], bytes = step.operands.size() * sizeof(void*);
        if (!std::memcmp(graphs_->pointers.data() + first, c_->pointers.data() + first, bytes)) continue;
        const cuda::Launch launch =
            cuda::LaunchFor(plan_, step, c_->instance->steps[kernel.step], c_->pointers.data() + first);
        cuda::KernelNodeParams node;
        node.function = launch.function;
        node.grid[0] = launch.grid;
        node.block[0] = launch.threads;
        node.shared_bytes = launch.shared_bytes;
        node.params = c_->params.data() + index_.first_param[kernel.step];
        if (e_.driver_->graph_set_kernel(range.exec, kernel.node, &node)) {
          graphs_->GiveUp(plan_, "a kernel's arguments cannot be changed");
          return false;
        }
        std::memcpy(graphs_->pointers.data() + first, c_->pointers.data() + first, bytes);
      }
      return true;
    }

    // Captures the steps; nothing of them has run then. False, and as if nothing had been tried, where that fails.
    bool Record(cuda::GraphRange& range) {
      const cuda::Driver& d = *e_.driver_;
      cuda::StreamPool& pool = graphs_->pool;
      if (!host_.BeginRecording(plan_.device, pool.side, &pool.memory)) {
        graphs_->GiveUp(plan_, "the framework gives no memory for it");
        return false;
      }
      const cuda::Stream user = std::exchange(stream_, pool.side);
      const size_t externals = graphs_->externals.size();
      std::vector<bool> made(c_->externals.size(), false);
      constexpr int kThreadLocal = 1;
      std::string why;
      cuda::Result failed = d.capture_begin(stream_, kThreadLocal);
      if (!failed) {
        try {
          for (int i = range.first; i < range.last; ++i) RecordStep(range, i, made);
        } catch (const std::exception& e) {
          why = e.what();
        } catch (...) {
          why = "a library call failed";
        }
        failed = d.capture_end(stream_, &range.graph);
      }
      stream_ = user;
      host_.EndRecording(plan_.device, pool.memory);
      if (!failed && why.empty()) failed = d.graph_instantiate(&range.exec, range.graph, 0);
      if (!failed && why.empty()) return true;
      if (range.graph) d.graph_destroy(range.graph);
      range.graph = range.exec = nullptr;
      range.kernels.clear();
      graphs_->externals.resize(externals);
      for (size_t s = 0; s < made.size(); ++s) {
        if (made[s]) ReleaseExternal(static_cast<int>(s));
      }
      const char* text = nullptr;
      if (why.empty() && !d.error_text(failed, &text) && text) why = text;
      graphs_->GiveUp(plan_, why);
      return false;
    }

    void RecordStep(cuda::GraphRange& range, int i, std::vector<bool>& made) {
      const cuda::Driver& d = *e_.driver_;
      const Step& step = plan_.steps[i];
      RunStep(i);
      if (step.kind == Step::Kind::kKernel) {
        if (c_->instance->steps[i].launch.grid == 0) return;
        int status = 0;
        uint64_t id = 0;
        cuda::Graph graph = nullptr;
        const cuda::GraphNode* last = nullptr;
        size_t count = 0;
        cuda::Check(d, d.capture_info(stream_, &status, &id, &graph, &last, &count), "cuStreamGetCaptureInfo");
        if (count != 1) throw std::runtime_error("a captured kernel is not one node");
        range.kernels.push_back({i, *last});
      }
      for (int v : step.results) {
        const int storage = plan_.values[v].storage;
        if (plan_.storages[storage].kind != Storage::Kind::kExtern) continue;
        made[storage] = true;
        graphs_->externals.push_back(
            {v, static_cast<std::byte*>(c_->buffers[v].data) - c_->instance->values[v].offset_bytes});
      }
      if (!index_.has_externs) return;
      for (int s : index_.release_after[i]) {  // others are read when the graph runs
        if (made[s]) ReleaseExternal(s);
      }
    }

    void Rehearse(size_t i) {
      const Step& step = plan_.steps[i];
      const Instance::StepInfo& info = c_->instance->steps[i];
      if (info.rows <= 0) return;
      const auto [line, row] = step.line_and_row(info.symbols);
      if (row <= 0) return;
      int sizes[16];
      FRAMEJIT_CHECK(step.rehearse.size() <= std::size(sizes));
      for (size_t t = 0; t < step.rehearse.size(); ++t)
        sizes[t] = DTypeSize(plan_.values[step.operands[step.rehearse[t]]].dtype);
      Rehearsal r{{step.fn, c_->pointers.data() + index_.first_pointer[i], info.symbols, plan_.watch, &raised_},
                  &step,
                  line,
                  row,
                  sizes};
      raised_.fetch_or(TakeStatus(plan_.watch), std::memory_order_relaxed);
      if (info.grain > 0 && host_.NumThreads() > 1)
        host_.ParallelFor(info.rows, info.grain, RehearseRows, &r);
      else
        RehearseRows(&r, 0, info.rows);
    }

    // From the framework, for each run: its allocator knows which stream the memory is used on. Graphs have their own.
    void AcquireGpuArena() {
      if (use_ == cuda::StreamGraphs::Use::kLaunch) {
        if (graphs_->arena) c_->SetGpuScratch(plan_, graphs_->arena);
        return;
      }
      const int64_t bytes = c_->instance->gpu_scratch_bytes, stride = 1;
      if (bytes == 0) return;
      const bool record = use_ == cuda::StreamGraphs::Use::kCapture &&
                          host_.BeginRecording(plan_.device, graphs_->pool.side, &graphs_->pool.memory);
      try {
        host_.AllocateOutput(DType::kUInt8, {&bytes, 1}, {&stride, 1}, plan_.device, &gpu_arena_);
      } catch (...) {
        if (record) host_.EndRecording(plan_.device, graphs_->pool.memory);
        throw;
      }
      if (record) {
        host_.EndRecording(plan_.device, graphs_->pool.memory);
        graphs_->arena = static_cast<std::byte*>(gpu_arena_.data);
      } else if (use_ == cuda::StreamGraphs::Use::kCapture) {
        graphs_->GiveUp(plan_, "the framework gives no memory for it");
      }
      c_->SetGpuScratch(plan_, static_cast<std::byte*>(gpu_arena_.data));
    }

    // A direct write goes into the input, unless its memory overlaps that of another input.
    void ChooseTarget(const Plan::Commit& commit, std::span<const Buffer> inputs) {
      auto range = [&](int input) {
        const Instance::ValueInfo& info = c_->instance->values[plan_.inputs[input]];
        const Buffer& b = c_->buffers[plan_.inputs[input]];
        int64_t low = 0, high = DTypeSize(b.dtype);
        for (int d = 0; d < b.rank; ++d) {
          const int64_t reach = (info.sizes[d] - 1) * info.strides[d] * DTypeSize(b.dtype);
          (reach < 0 ? low : high) += reach;
        }
        const auto data = reinterpret_cast<intptr_t>(inputs[input].data);
        return info.numel == 0 ? std::pair(data, data) : std::pair<intptr_t, intptr_t>(data + low, data + high);
      };
      const int storage = plan_.values[commit.value].storage;
      const auto [low, high] = range(commit.input);
      for (int i = 0; i < static_cast<int>(inputs.size()); ++i) {
        if (i == commit.input) continue;
        const auto [other_low, other_high] = range(i);
        if (low < other_high && other_low < high) {
          std::byte* arena = plan_.storages[storage].gpu ? c_->gpu_scratch : c_->scratch;
          return c_->SetStorage(storage, arena + c_->instance->scratch_offset[storage]);
        }
      }
      c_->SetStorage(storage, inputs[commit.input].data);
    }

    // Those that step `last` or one before it writes: not before, what died by then may leave them its memory.
    void AllocateOutputs(size_t last) {
      const auto& order = index_.outputs_by_step;
      for (; allocated_ < order.size() && order[allocated_].first <= static_cast<int>(last); ++allocated_)
        AllocateOutput(order[allocated_].second);
    }

    void AllocateOutput(size_t o) {
      const int value = plan_.outputs[o].value;
      Buffer& out = outputs_[o];
      out = c_->buffers[value];
      out.data = out.handle = nullptr;
      const size_t rank = out.rank;
      std::optional<ArenaPool::Untouched> untouched;
      if (index_.zero_outputs[o]) untouched.emplace();
      host_.AllocateOutput(out.dtype, {out.sizes, rank}, {out.strides, rank}, out.device, &out);
      if (index_.output_storage[o] < 0) return;
      c_->SetStorage(index_.output_storage[o], out.data);
      c_->buffers[value].handle = out.handle;
    }

    void RunStep(size_t i) {
      const Step& step = plan_.steps[i];
      switch (step.kind) {
        case Step::Kind::kKernel: {
          const Instance::StepInfo& info = c_->instance->steps[i];
          if (step.zeros && ArenaPool::Get().IsUntouched(c_->pointers[index_.first_pointer[i]])) break;
          if (step.gpu) {
            cuda::LaunchStep(*e_.driver_, plan_, step, info, c_->pointers.data() + index_.first_pointer[i],
                             c_->params.data() + index_.first_param[i], stream_);
            break;
          }
          KernelCall call{step.fn, c_->pointers.data() + index_.first_pointer[i], info.symbols, plan_.watch, &raised_};
          if (info.grain > 0 && host_.NumThreads() > 1) {
            if (plan_.watch) raised_.fetch_or(TakeStatus(plan_.watch), std::memory_order_relaxed);
            host_.ParallelFor(info.rows, info.grain, plan_.watch ? RunWatchedRows : RunRows, &call);
          } else if (info.rows > 0) {
            step.fn(call.buffers, call.symbols, 0, info.rows);
          }
          break;
        }
        case Step::Kind::kCopy: StridedCopy(host_, c_->buffers[step.operands[0]], c_->buffers[step.results[0]]); break;
        case Step::Kind::kExtern:  // the framework looks at its own exceptions and may leave some behind
          if (plan_.watch) raised_.fetch_or(TakeStatus(plan_.watch), std::memory_order_relaxed);
          RunExtern(step);
          if (plan_.watch) TakeStatus(plan_.watch);
          break;
        default: {
          if (plan_.watch) raised_.fetch_or(TakeStatus(plan_.watch), std::memory_order_relaxed);  // libraries clear it
          Buffer few[4];
          std::vector<Buffer> many(step.operands.size() > std::size(few) ? step.operands.size() : 0);
          std::span<Buffer> operands(many.empty() ? few : many.data(), step.operands.size());
          for (size_t k = 0; k < operands.size(); ++k) operands[k] = c_->buffers[step.operands[k]];
          Buffer& out = c_->buffers[step.results[0]];
          if (step.kind == Step::Kind::kNode) {
            InterpretNode(host_, step, c_->instance->symbols, operands, out);
          } else if (plan_.storages[plan_.values[step.results[0]].storage].kind == Storage::Kind::kExtern) {
            RunLending(step, operands);
          } else {
            RunLibrary(host_, step, c_->instance->symbols, operands, out);
          }
        }
      }
    }

    // A library call whose result is the library's own tensor, if it gives one.
    void RunLending(const Step& step, std::span<const Buffer> operands) {
      const int value = step.results[0], storage = plan_.values[value].storage;
      Context::External& x = c_->externals[storage];
      Buffer got = c_->buffers[value];
      got.data = got.handle = nullptr;
      if (RunHostLibrary(host_, step, c_->instance->symbols, operands, got)) {
        x.buffer = got;
        x.live = got.handle != nullptr;
        if (step.kind != Step::Kind::kPack) return Accept(step, value);
        c_->buffers[value].data = nullptr;  // nobody but the library knows how it lies
        c_->buffers[value].handle = got.handle;
        return;
      }
      if (step.kind == Step::Kind::kPack) throw std::runtime_error("no packed form of a weight");
      x.copy = AllocateFor(c_->buffers[value], x);
      c_->SetStorage(storage, x.copy);
      RunLibrary(host_, step, c_->instance->symbols, operands, c_->buffers[value]);
    }

    std::byte* AllocateFor(const Buffer& b, Context::External& x) {
      if (b.device.kind != DeviceKind::kCpu) {
        const size_t rank = b.rank;
        host_.AllocateOutput(b.dtype, {b.sizes, rank}, {b.strides, rank}, b.device, &x.gpu_copy);
        return static_cast<std::byte*>(x.gpu_copy.data);
      }
      int64_t last = 0;
      for (int d = 0; d < b.rank; ++d) last += std::max<int64_t>(0, b.sizes[d] - 1) * b.strides[d];
      auto* data = static_cast<std::byte*>(std::malloc((last + 1) * DTypeSize(b.dtype)));
      if (!data) throw std::bad_alloc();
      return data;
    }

    void RunExtern(const Step& step) {
      std::vector<Buffer> operands, results;
      for (int v : step.operands) operands.push_back(c_->buffers[v]);
      for (int v : step.results) {
        results.push_back(c_->buffers[v]);
        results.back().data = results.back().handle = nullptr;
      }
      host_.RunExtern(*step.node.attrs.call, operands, results);
      if (step.updates) return host_.Release(&results[0]);
      for (size_t r = 0; r < results.size(); ++r) {
        Context::External& x = c_->externals[plan_.values[step.results[r]].storage];
        x.buffer = results[r];
        x.live = true;
      }
      for (size_t r = 0; r < results.size(); ++r) Accept(step, step.results[r], operands);
    }

    // Whether the address lies in an operand whose memory is the plan's own: scratch, or a copy made by Accept.
    static bool InPlanMemory(const void* data, const Buffer& operand) {
      if (operand.handle || !operand.data) return false;
      const auto *at = static_cast<const std::byte*>(data), *first = static_cast<const std::byte*>(operand.data);
      const std::byte* last = first;
      for (int d = 0; d < operand.rank; ++d) {
        const int64_t reach = (operand.sizes[d] - 1) * operand.strides[d] * DTypeSize(operand.dtype);
        (reach < 0 ? first : last) += reach;
      }
      return at >= first && at < last + DTypeSize(operand.dtype);
    }

    // The rest of the plan relies on the layout that was predicted, and on the memory staying as it is: a framework may
    // answer with other strides, or with a view of an operand that does not keep the memory. Then a copy is used.
    void Accept(const Step& step, int value, std::span<const Buffer> operands = {}) {
      const int storage = plan_.values[value].storage;
      Context::External& x = c_->externals[storage];
      Buffer& expected = c_->buffers[value];
      const Buffer& got = x.buffer;
      bool fits = got.rank == expected.rank && got.dtype == expected.dtype;
      for (int d = 0; fits && d < got.rank; ++d) fits = got.sizes[d] == expected.sizes[d];
      if (!fits)
        throw std::runtime_error("extern " + step.name + ": the result has another shape or dtype than captured");
      int64_t numel = 1;
      for (int d = 0; d < got.rank; ++d) {
        if (got.sizes[d] != 1 && got.strides[d] != expected.strides[d]) fits = false;
        numel *= got.sizes[d];
      }
      for (const Buffer& operand : operands) fits = fits && !InPlanMemory(got.data, operand);
      if (!fits && numel > 0) {
        x.copy = AllocateFor(expected, x);
        Buffer to = expected;
        to.data = x.copy;
        StridedCopy(host_, got, to);
      }
      c_->SetStorage(storage, x.copy ? x.copy : got.data);
      c_->buffers[value].handle = x.copy ? nullptr : got.handle;
      const int output = plan_.storages[storage].index;
      if (output >= 0 && x.copy) {
        AllocateOutput(output);
        x.output_allocated = true;
        StridedCopy(host_, c_->buffers[value], outputs_[output]);
      }
    }

    void HandOver(size_t o) {
      Context::External& x = c_->externals[plan_.values[plan_.outputs[o].value].storage];
      if (x.output_allocated) return;
      outputs_[o] = x.buffer;
      x.live = false;
    }

    void ReleaseExternal(int storage) {
      Context::External& x = c_->externals[storage];
      if (x.live) host_.Release(&x.buffer);
      if (x.gpu_copy.handle)
        host_.Release(&x.gpu_copy);
      else
        std::free(x.copy);
      x = {};
    }

    const Plan& plan_;
    const PlanIndex& index_;
    PlanExecutable& e_;
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

  Context* Lease(std::span<const int64_t> symbols) {
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
    if (instances_.size() >= kMaxInstances) instances_.erase(instances_.begin());
    instances_.push_back(std::make_shared<Instance>(plan_, symbols));
    return instances_.back();
  }

  const Plan plan_;
  const PlanIndex index_;
  const CompileStats stats_;
  const cuda::DeviceInfo* device_ = nullptr;
  const cuda::Driver* driver_ = nullptr;
  bool graphs_ = false;  // worth looking at
  std::atomic<Context*> hot_{nullptr};
  mutable std::mutex mu_;
  std::vector<Context*> idle_;
  mutable std::vector<std::shared_ptr<const Instance>> instances_;
};

}  // namespace

std::shared_ptr<Executable> MakeExecutable(Plan plan, CompileStats stats) {
  ComputeLifetimes(plan);
  return std::make_shared<PlanExecutable>(std::move(plan), std::move(stats));
}

}  // namespace framejit::runtime
