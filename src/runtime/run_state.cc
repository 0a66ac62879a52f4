// A run from its inputs to its outputs: kernels, the memory of outputs, what is written to inputs at the end.
#include "runtime/run_state.h"

#include <absl/cleanup/cleanup.h>
#include <absl/container/fixed_array.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

#include "diag/diag.h"
#include "graph/device.h"
#include "runtime/copy.h"
#include "runtime/estimate.h"
#include "runtime/interpret_node.h"
#include "runtime/library.h"
#include "runtime/row_products.h"
#include "runtime/status.h"
#include "runtime/step_times.h"

namespace framejit::runtime {
namespace {

struct KernelCall {
  KernelFn fn;
  void* const* buffers;
  const int64_t* symbols;
  int traps = 0;
  std::atomic<int>* raised = nullptr;
};

void RunRows(void* context, int64_t begin, int64_t end) {
  const auto& call = *static_cast<const KernelCall*>(context);
  call.fn(call.buffers, call.symbols, begin, end);
}

void RunTrappedRows(void* context, int64_t begin, int64_t end) {  // on any thread, whose status may be stale
  const auto& call = *static_cast<const KernelCall*>(context);
  TakeStatus(call.traps);
  call.fn(call.buffers, call.symbols, begin, end);
  if (const int status = TakeStatus(call.traps)) call.raised->fetch_or(status, std::memory_order_relaxed);
}

struct Rehearsal {
  KernelCall call;
  const Step* step;
  int64_t line, row;  // elements
  const int* sizes;   // of elements, by rehearsed argument
};

struct Feed {
  Rehearsal kernel;
  size_t argument;
  int64_t columns;
};

// Makes rows of the matrix, and whatever else the kernel makes at once, in a piece of memory of the thread's own.
const void* FeedRows(void* context, int64_t begin, int64_t end) {
  const auto& f = *static_cast<const Feed*>(context);
  const auto& [call, step, line, row, sizes] = f.kernel;
  const int64_t per_line = (line + row - 1) / row, first = begin * f.columns, last = end * f.columns - 1;
  const auto row_of = [&](int64_t element) { return element / line * per_line + element % line / row; };
  const auto element_of = [&](int64_t r) { return r / per_line * line + r % per_line * row; };
  const int64_t from = row_of(first), to = row_of(last), at = element_of(from), room = element_of(to) + row - at;
  static thread_local std::vector<double> memory;
  if (static_cast<int64_t>(memory.size()) < room) memory.resize(room);
  absl::FixedArray<void*, 8> buffers(step->operands.size());
  std::copy_n(call.buffers, buffers.size(), buffers.begin());
  const auto base = reinterpret_cast<uintptr_t>(memory.data());
  buffers[f.argument] = reinterpret_cast<void*>(base - at * sizeof(double));  // NOLINT
  TakeStatus(call.traps);
  call.fn(buffers.data(), call.symbols, from, to + 1);
  if (const int status = TakeStatus(call.traps)) call.raised->fetch_or(status, std::memory_order_relaxed);
  return call.raised->load(std::memory_order_relaxed) ? nullptr : memory.data() + (first - at);
}

// The stores to rehearsed arguments go to a piece of memory of the thread's own, for a few rows at a time.
void RehearseRows(void* context, int64_t begin, int64_t end) {
  constexpr int64_t kElements = 4096, kWidest = 16;  // bytes of a complex128
  const auto& r = *static_cast<const Rehearsal*>(context);
  const int64_t room = std::max(kElements, r.row), at_once = room / r.row, rows_per_line = (r.line + r.row - 1) / r.row;
  static thread_local std::vector<std::byte> memory;
  const auto targets = static_cast<size_t>(std::popcount(r.step->rehearse));
  if (memory.size() < targets * room * kWidest) memory.resize(targets * room * kWidest);
  std::vector<void*> buffers(r.call.buffers, r.call.buffers + r.step->operands.size());
  TakeStatus(r.call.traps);
  for (int64_t row = begin; row < end; row += at_once) {
    const int64_t first = row / rows_per_line * r.line + row % rows_per_line * r.row;
    size_t t = 0;
    r.step->EachRehearsed([&](int argument) {
      const auto base = reinterpret_cast<uintptr_t>(memory.data() + t * room * kWidest);
      buffers[argument] = reinterpret_cast<void*>(base - first * r.sizes[t++]);  // NOLINT
    });
    r.call.fn(buffers.data(), r.call.symbols, row, std::min(end, row + at_once));
  }
  if (const int status = TakeStatus(r.call.traps)) r.call.raised->fetch_or(status, std::memory_order_relaxed);
}

}  // namespace

[[gnu::hot]] RunState::~RunState() {
  if (!done_) {
    for (size_t o = 0; o < outputs_.size(); ++o) {
      const int storage = plan_.outputs[o].handed_over ? plan_.values[plan_.outputs[o].value].storage : -1;
      if (storage >= 0 && c_->externals[storage].output_allocated) host_.FreeOutput(&outputs_[o]);
    }
    for (size_t k = 0; k < allocated_; ++k) host_.FreeOutput(&outputs_[index_.outputs_by_step[k].second]);
  }
  for (size_t s = 0; s < c_->externals.size(); ++s) ReleaseExternal(static_cast<int>(s));
  if (device_arena_.handle) host_.Release(&device_arena_);
  if (pooled_.data) ArenaPool::Get().Release(pooled_);
  if (graphs_) {
    if (!done_ && use_ == cuda::StreamGraphs::Use::kCapture) graphs_->Clear();
    graphs_->pool.taken.store(false, std::memory_order_release);
  }
  if (machine_) machine_->Exit(entered_);
}

[[gnu::hot]] void RunState::Run(std::span<const Buffer> inputs) {
  if (machine_) {
    entered_ = machine_->Enter();
    stream_ = host_.CurrentStream(plan_.device);
    std::shared_ptr<StepShares> shares;
    if (records_) shares = UseGraphs(inputs);
    if (weight_) clock_ = machine_->TimeStream(stream_, shares);
    AcquireDeviceArena();
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
  if (machine_) AllocateOutputs(plan_.steps.size());
  if (plan_.traps) TakeStatus(plan_.traps);
  const auto start = together_ ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
  RunSteps();
  if (together_) *together_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  AllocateOutputs(plan_.steps.size());
  if (use_ == cuda::StreamGraphs::Use::kCapture) graphs_->Captured(plan_, c_->pointers);
  if (plan_.traps && plan_.checked_steps == static_cast<int>(plan_.steps.size())) CheckStatus();
  // Kernels that write inputs directly were the last steps; nothing failed, and nothing can from here on.
  for (const auto& commit : plan_.commits) {
    if (commit.direct && c_->buffers[commit.value].data == inputs[commit.input].data) continue;
    StridedCopy(host_, c_->buffers[commit.value],
                c_->buffers[commit.target >= 0 ? commit.target : plan_.inputs[commit.input]]);
  }
  for (size_t o = 0; o < outputs_.size(); ++o) {
    if (plan_.outputs[o].handed_over) HandOver(o);
  }
  done_ = true;
}

[[gnu::hot]] void RunState::CheckStatus() {
  const int status = TakeStatus(plan_.traps) | raised_.load(std::memory_order_relaxed);
  if (status) throw StatusRaised{status};
}

[[gnu::hot]] void RunState::RunSteps() {
  size_t range = 0;
  const bool poisons = Poisons(), named = weight_ || listened_;
  for (size_t i = 0; i < plan_.steps.size(); ++i) {
    if (plan_.traps && i == static_cast<size_t>(plan_.checked_steps)) {
      for (size_t k = i; k < plan_.steps.size(); ++k) {
        if (!plan_.steps[k].rehearse) continue;
        AllocateOutputs(k);  // those that it makes besides are written for good
        Rehearse(k);
      }
      CheckStatus();
    }
    AllocateOutputs(i);
    if (graphs_ && range < graphs_->ranges.size() && static_cast<int>(i) == graphs_->ranges[range].first) {
      const auto end = static_cast<size_t>(graphs_->ranges[range].last);
      for (; index_.has_externs && i < end; ++i) AllocateLent(i);
      i = end - 1;
      RunRange(graphs_->ranges[range++]);
      continue;
    }
    if (index_.has_externs) AllocateLent(i);
    if (poisons) FillScratch(static_cast<int>(i), Poison::kFresh);
    if (named) [[unlikely]]
      RunNamed(i);
    else
      RunStep(i);
    ReleaseAfter(i);
    if (poisons) FillScratch(static_cast<int>(i), Poison::kOver);
  }
}

void RunState::RunNamed(size_t i) {
  const Step& step = plan_.steps[i];
  void* const begun =
      listened_ ? step_listener.begin((std::string(KindName(step.kind)) + " " + *step.name).c_str()) : nullptr;
  const absl::Cleanup end = [&] {
    if (listened_) step_listener.end(begun);
  };
  weight_ ? RunTimed(i) : RunStep(i);
}

void RunState::RunTimed(size_t i) {
  if (OnDevice(i)) {
    if (clock_) clock_->Begin();
    RunStep(i);
    if (clock_) clock_->End(i, {RunsOfStep(i)});
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  RunStep(i);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  StepTime t = RunsOfStep(i);
  t.seconds *= took.count();
  AddStepTime(t);
}

// Adds up what the runs that this one stands for read and write. Its seconds are the number of these runs.
StepTime RunState::RunsOfStep(size_t i) const {
  const StepCost cost = CostOfStep(plan_, *c_->instance, i);
  const std::string device = OnDevice(i) ? DeviceName(plan_.device) : "cpu";
  StepTime t{plan_.name, cost.name, cost.kind, device, 1.0, 1.0, cost.bytes, cost.flops};
  for (double* sum : {&t.runs, &t.seconds, &t.bytes, &t.flops}) *sum *= weight_;
  return t;
}

// Does it read or write memory of the device? What it does goes on there behind the call.
bool RunState::OnDevice(size_t i) const {
  if (!machine_) return false;
  const Step& step = plan_.steps[i];
  const auto there = [&](int value) { return plan_.storages[plan_.values[value].storage].on_device; };
  return std::ranges::any_of(step.operands, there) || std::ranges::any_of(step.results, there);
}

// What this step is the first to write, or the last to read.
void RunState::FillScratch(int step, Poison pattern) {
  for (size_t i = 0; i < plan_.storages.size(); ++i) {
    const Storage& s = plan_.storages[i];
    if (s.kind != Storage::Kind::kScratch || s.on_device || !c_->scratch) continue;
    const Instance::StorageInfo& info = c_->instance->storages[i];
    if ((pattern == Poison::kFresh ? s.first : s.last) == step)
      Fill(c_->scratch + info.scratch_offset - info.before, info.bytes, pattern);
  }
}

[[gnu::hot]] void RunState::ReleaseAfter(size_t i) {
  if (takes_inputs_) {
    for (int input : index_.inputs_after[i]) host_.InputDone(input);
  }
  if (!index_.has_externs) return;
  for (int s : index_.release_after[i]) ReleaseExternal(s);
}

void RunState::Rehearse(size_t i) {
  const Step& step = plan_.steps[i];
  const Instance::StepInfo& info = c_->instance->steps[i];
  if (info.rows <= 0) return;
  const auto [line, row] = step.kernel->code->line_and_row(info.symbols);
  if (row <= 0) return;
  int sizes[Step::kRehearsed], targets = 0;
  step.EachRehearsed([&](int argument) { sizes[targets++] = DTypeSize(plan_.values[step.operands[argument]].dtype); });
  Rehearsal r{{step.kernel->fn, c_->pointers.data() + index_.first_pointer[i], info.symbols, plan_.traps, &raised_},
              &step,
              line,
              row,
              sizes};
  raised_.fetch_or(TakeStatus(plan_.traps), std::memory_order_relaxed);
  if (info.grain > 0 && host_.NumThreads() > 1)
    host_.ParallelFor(info.rows, info.grain, RehearseRows, &r);
  else
    RehearseRows(&r, 0, info.rows);
}

// Computes the product behind step i from what that makes of its first operand. False: the two run as they are.
bool RunState::FeedProduct(size_t i) {
  constexpr int64_t kFewest = 1 << 15;  // elements
  const Step &step = plan_.steps[i], &product = plan_.steps[i + 1];
  const Instance::StepInfo& info = c_->instance->steps[i];
  const Buffer& a = c_->buffers[product.operands[0]];
  auto* const host = dynamic_cast<RowProducts*>(&host_);
  if (!host || a.sizes[0] * a.sizes[1] < kFewest || Poisons()) return false;
  const auto [line, row] = step.kernel->code->line_and_row(info.symbols);
  if (info.rows <= 0 || row <= 0 || line <= 0) return false;
  AllocateOutputs(i + 1);
  const size_t argument = std::ranges::find(step.operands, step.results[0]) - step.operands.begin();
  if (plan_.traps) raised_.fetch_or(TakeStatus(plan_.traps), std::memory_order_relaxed);
  std::atomic<int> raised = 0;  // then both run again, and what is told is told by them
  const KernelCall call{step.kernel->fn, c_->pointers.data() + index_.first_pointer[i], info.symbols, plan_.traps,
                        &raised};
  Feed feed{{call, &step, line, row, nullptr}, argument, a.sizes[1]};
  const bool done =
      host->MultiplyRows(a, c_->buffers[product.operands[1]], c_->buffers[product.results[0]], FeedRows, &feed);
  if (plan_.traps) TakeStatus(plan_.traps);
  return done && !raised;
}

// Computes the products i and i + 1 together. False: the two run as they are.
bool RunState::PairProducts(size_t i) {
  auto* const host = dynamic_cast<RowProducts*>(&host_);
  if (!host || Poisons()) return false;
  AllocateOutputs(i + 1);
  const auto product = [&](const Step& s) {
    return RowProducts::Product{c_->buffers[s.operands[0]], c_->buffers[s.operands[1]], c_->buffers[s.results[0]]};
  };
  return host->MultiplyBoth(product(plan_.steps[i]), product(plan_.steps[i + 1]));
}

// A direct write goes into the input, unless its memory overlaps that of another input.
void RunState::ChooseTarget(const Plan::Commit& commit, std::span<const Buffer> inputs) {
  auto range = [&](int input) {
    const Buffer& b = c_->buffers[plan_.inputs[input]];
    const Extent reach = ExtentOf(b);
    const int64_t item = DTypeSize(b.dtype);
    const auto data = reinterpret_cast<intptr_t>(inputs[input].data);
    return std::pair<intptr_t, intptr_t>(data + reach.low * item, data + reach.high * item);
  };
  const int storage = plan_.values[commit.value].storage;
  const auto [low, high] = range(commit.input);
  for (int i = 0; i < static_cast<int>(inputs.size()); ++i) {
    if (i == commit.input) continue;
    const auto [other_low, other_high] = range(i);
    if (low < other_high && other_low < high) {
      std::byte* arena = plan_.storages[storage].on_device ? c_->device_scratch : c_->scratch;
      return c_->SetStorage(storage, arena + c_->instance->storages[storage].scratch_offset);
    }
  }
  c_->SetStorage(storage, inputs[commit.input].data);
}

// Those that step `last` or one before it writes: not before, what died by then may leave them its memory.
[[gnu::hot]] void RunState::AllocateOutputs(size_t last) {
  const auto& order = index_.outputs_by_step;
  for (; allocated_ < order.size() && order[allocated_].first <= static_cast<int>(last); ++allocated_)
    AllocateOutput(order[allocated_].second);
}

[[gnu::hot]] void RunState::Allocate(Buffer& b, bool zeros) {
  b.data = b.handle = nullptr;
  const size_t rank = b.rank;
  std::optional<ArenaPool::Untouched> untouched;
  if (zeros) untouched.emplace();
  host_.AllocateOutput(b.dtype, {b.sizes, rank}, {b.strides, rank}, b.device, &b);
  if (Poisons() && b.device.kind == DeviceKind::kCpu && !untouched) {
    const Extent reach = ExtentOf(b);
    const int64_t item = DTypeSize(b.dtype);
    Fill(static_cast<std::byte*>(b.data) + reach.low * item, (reach.high - reach.low) * item, Poison::kFresh);
  }
}

// What lies row by row has, where a symbol is 0, the strides of one with a size of 1 there.
void RunState::AllocateEmpty(Buffer& b, const shape::Ints& planned) {
  const int64_t* const strides = b.strides;
  absl::FixedArray<int64_t, 16> rows(b.rank, 1), full(b.rank, 1);
  for (size_t i = b.rank; i-- > 1;) {
    rows[i - 1] = rows[i] * b.sizes[i];
    full[i - 1] = full[i] * std::max<int64_t>(1, b.sizes[i]);
  }
  const bool known = std::all_of(planned.begin(), planned.end(), [](shape::Int i) { return i.is_const(); });
  if (!known && std::equal(rows.begin(), rows.end(), strides)) b.strides = full.data();
  Allocate(b, false);
  b.strides = strides;
}

[[gnu::hot]] void RunState::AllocateOutput(size_t o) {
  const int value = plan_.outputs[o].value;
  Buffer& out = outputs_[o];
  out = c_->buffers[value];
  if (c_->instance->values[value].numel)
    Allocate(out, index_.zero_outputs[o]);
  else
    AllocateEmpty(out, plan_.values[value].strides);
  if (index_.output_storage[o] < 0) return;
  c_->SetStorage(index_.output_storage[o], out.data);
  c_->buffers[value].handle = out.handle;
}

Launch RunState::LaunchOf(size_t i) const {
  const Instance::StepInfo& info = c_->instance->steps[i];
  return LaunchFor(*plan_.steps[i].kernel->device_kernel, info.launch, info.symbols,
                   c_->pointers.data() + index_.first_pointer[i]);
}

[[gnu::hot]] void RunState::RunStep(size_t i) {
  const Step& step = plan_.steps[i];
  switch (step.kind) {
    case Step::Kind::kKernel: {
      const Instance::StepInfo& info = c_->instance->steps[i];
      if (step.feeds && FeedProduct(i)) {
        fed_ = true;
        break;
      }
      if (step.zeros && ArenaPool::Get().IsUntouched(c_->pointers[index_.first_pointer[i]])) break;
      if (step.on_device()) {
        const Launch launch = LaunchOf(i);
        if (launch.grid > 0) machine_->Start(launch, c_->params.data() + index_.first_param[i], stream_, *step.name);
        break;
      }
      KernelCall call{step.kernel->fn, c_->pointers.data() + index_.first_pointer[i], info.symbols, plan_.traps,
                      &raised_};
      if (info.grain > 0 && host_.NumThreads() > 1) {
        if (plan_.traps) raised_.fetch_or(TakeStatus(plan_.traps), std::memory_order_relaxed);
        host_.ParallelFor(info.rows, info.grain, plan_.traps ? RunTrappedRows : RunRows, &call);
      } else if (info.rows > 0) {
        call.fn(call.buffers, call.symbols, 0, info.rows);
      }
      break;
    }
    case Step::Kind::kCopy: StridedCopy(host_, c_->buffers[step.operands[0]], c_->buffers[step.results[0]]); break;
    case Step::Kind::kExtern:  // the framework looks at its own exceptions and may leave some behind
      if (plan_.traps) raised_.fetch_or(TakeStatus(plan_.traps), std::memory_order_relaxed);
      RunExtern(step);
      if (plan_.traps) TakeStatus(plan_.traps);
      break;
    default: {
      if (std::exchange(fed_, false)) break;
      if (plan_.traps) raised_.fetch_or(TakeStatus(plan_.traps), std::memory_order_relaxed);  // libraries clear it
      if (step.pairs && (fed_ = PairProducts(i))) break;
      absl::FixedArray<Buffer, 4> operands(step.operands.size());
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

void RunState::ReleaseExternal(int storage) {
  Context::External& x = c_->externals[storage];
  if (x.live) host_.Release(&x.buffer);
  if (x.device_copy.handle) host_.Release(&x.device_copy);
  FreeBlock(x.block);
  x = {};
}

}  // namespace framejit::runtime
