// Runs that capture and launch CUDA graphs (cuda/graph.h), and memory on a GPU.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "runtime/cuda/machine.h"
#include "runtime/run_state.h"

namespace framejit::runtime {
namespace {

const cuda::CudaMachine& Cuda(const Machine* machine) {  // of those that record
  return static_cast<const cuda::CudaMachine&>(*machine);
}

}  // namespace

std::shared_ptr<StepShares> RunState::UseGraphs(std::span<const Buffer> inputs) {
  const cuda::Driver& d = Cuda(machine_).driver;
  uint64_t id = 0;
  int capturing = 0;  // by the user: then our steps are captured one by one
  if (d.stream_capturing(stream_, &capturing) || capturing || d.stream_id(stream_, &id)) return nullptr;
  cuda::StreamGraphs* g = c_->instance->GraphsOn(d, Cuda(machine_).device.ordinal, id);
  if (!g || g->off || g->pool.taken.exchange(true, std::memory_order_acquire)) return nullptr;
  if (weight_ && !std::exchange(g->shares->measured, true)) {  // a graph's steps cannot be told apart: one by one once
    g->pool.taken.store(false, std::memory_order_release);
    return g->shares;
  }
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
  return g->shares;
}

void RunState::RunRange(cuda::GraphRange& range) {
  const cuda::Driver& d = Cuda(machine_).driver;
  const bool known = use_ == cuda::StreamGraphs::Use::kLaunch;
  if (!graphs_->off && (known ? range.exec && Update(range) : Record(range))) {
    if (clock_) clock_->Begin();
    cuda::Check(d, d.graph_launch(range.exec, stream_), "cuGraphLaunch");
    if (clock_) {
      std::vector<StepTime> steps;
      for (int i = range.first; i < range.last; ++i) steps.push_back(RunsOfStep(i));
      clock_->End(range.first, std::move(steps));
    }
    for (int i = range.first; i < range.last; ++i) ReleaseAfter(i);
    return;
  }
  for (int i = range.first; i < range.last; ++i) {
    weight_ ? RunTimed(i) : RunStep(i);
    ReleaseAfter(i);
  }
}

// Tells the graph's kernels which of their arguments have changed.
bool RunState::Update(cuda::GraphRange& range) {
  for (const auto& kernel : range.kernels) {
    const Step& step = plan_.steps[kernel.step];
    const size_t first = index_.first_pointer[kernel.step], count = step.operands.size();
    void** known = graphs_->pointers.data() + first;
    void* const* now = c_->pointers.data() + first;
    if (std::equal(now, now + count, known)) continue;
    const Launch launch = LaunchOf(kernel.step);
    cuda::KernelNodeParams node;
    node.function = launch.function;
    node.grid[0] = launch.grid;
    node.block[0] = launch.threads;
    node.shared_bytes = launch.shared_bytes;
    node.params = c_->params.data() + index_.first_param[kernel.step];
    if (Cuda(machine_).driver.graph_set_kernel(range.exec, kernel.node, &node)) {
      graphs_->GiveUp(plan_, "a kernel's arguments cannot be changed");
      return false;
    }
    std::copy(now, now + count, known);
  }
  return true;
}

// Captures the steps; nothing of them has run then. False, and as if nothing had been tried, where that fails.
bool RunState::Record(cuda::GraphRange& range) {
  const cuda::Driver& d = Cuda(machine_).driver;
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

void RunState::RecordStep(cuda::GraphRange& range, int i, std::vector<bool>& made) {
  const cuda::Driver& d = Cuda(machine_).driver;
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
  for (int v : step.results) {  // a kernel makes none, but may write into one
    const int storage = plan_.values[v].storage;
    if (step.kind == Step::Kind::kKernel || plan_.storages[storage].kind != Storage::Kind::kExtern) continue;
    made[storage] = true;
    graphs_->externals.push_back(
        {v, static_cast<std::byte*>(c_->buffers[v].data) - c_->instance->values[v].offset_bytes});
  }
  if (!index_.has_externs) return;
  for (int s : index_.release_after[i]) {  // others are read when the graph runs
    if (made[s]) ReleaseExternal(s);
  }
}

// From the framework, for each run: its allocator knows which stream the memory is used on. Graphs have their own.
void RunState::AcquireDeviceArena() {
  if (use_ == cuda::StreamGraphs::Use::kLaunch) {
    if (graphs_->arena) c_->SetDeviceScratch(plan_, graphs_->arena);
    return;
  }
  const int64_t bytes = c_->instance->device_scratch_bytes, stride = 1;
  if (bytes == 0) return;
  const bool record = use_ == cuda::StreamGraphs::Use::kCapture &&
                      host_.BeginRecording(plan_.device, graphs_->pool.side, &graphs_->pool.memory);
  try {
    host_.AllocateOutput(DType::kUInt8, {&bytes, 1}, {&stride, 1}, plan_.device, &device_arena_);
  } catch (...) {
    if (record) host_.EndRecording(plan_.device, graphs_->pool.memory);
    throw;
  }
  if (record) {
    host_.EndRecording(plan_.device, graphs_->pool.memory);
    graphs_->arena = static_cast<std::byte*>(device_arena_.data);
  } else if (use_ == cuda::StreamGraphs::Use::kCapture) {
    graphs_->GiveUp(plan_, "the framework gives no memory for it");
  }
  c_->SetDeviceScratch(plan_, static_cast<std::byte*>(device_arena_.data));
}

}  // namespace framejit::runtime
