#include "runtime/instance.h"

#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "diag/diag.h"
#include "runtime/copy.h"
#include "runtime/cuda/graph.h"

namespace framejit::runtime {
namespace {

constexpr int64_t kAlign = 64, kDeviceAlign = 256;

// One unit of a kernel's work estimate (an instruction on one element) takes about 0.03 ns in vector code; joining a
// second thread costs 0.3 to 1.5 us. Below this much work one thread is faster or as fast.
constexpr int64_t kParallelWork = 200'000;
constexpr int64_t kPieceWork = 60'000;

constexpr size_t kMostStreams = 4;  // with graphs of one instance

struct HashOfList {
  size_t operator()(std::span<const Int> list) const {
    size_t hash = list.size();
    for (Int e : list) hash = hash * 31 + std::hash<Int>()(e);
    return hash ^ hash >> 17;
  }
};
struct SameLists {
  bool operator()(std::span<const Int> a, std::span<const Int> b) const { return std::ranges::equal(a, b); }
};

}  // namespace

int64_t PlanMemory(std::span<const Interval> intervals, std::span<int64_t> offsets, int64_t align) {
  // Largest first, each at the lowest offset where it does not meet an already placed buffer that is alive with it.
  if (intervals.empty()) return 0;
  absl::InlinedVector<int, 32> order(intervals.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return intervals[a].bytes != intervals[b].bytes ? intervals[a].bytes > intervals[b].bytes : a < b;
  });
  absl::InlinedVector<int, 32> placed;  // by offset
  int64_t total = 0;
  for (int i : order) {
    const Interval& x = intervals[i];
    int64_t offset = 0;
    for (int j : placed) {
      const Interval& y = intervals[j];
      if (y.last < x.first || x.last < y.first) continue;
      if (offset + x.bytes <= offsets[j]) break;
      offset = std::max(offset, (offsets[j] + y.bytes + align - 1) / align * align);
    }
    offsets[i] = offset;
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), offset, [&](int64_t o, int j) { return o < offsets[j]; }), i);
    total = std::max(total, offset + x.bytes);
  }
  return total;
}

Instance::Instance(const Plan& plan, std::span<const int64_t> symbol_values)
    : symbols(symbol_values.begin(), symbol_values.end()) {
  // Layers of a model have the same sizes and strides: each list stands once.
  std::unordered_map<std::span<const Int>, size_t, HashOfList, SameLists> at;
  size_t count = 0;
  const auto enter = [&](const Ints& list) {
    if (at.try_emplace(std::span<const Int>(list), count).second) count += list.size();
  };
  for (const Value& v : plan.values) enter(v.sizes), enter(v.strides);
  for (const Step& s : plan.steps) enter(s.symbols);
  numbers.resize(count);
  for (const auto& [list, first] : at)
    for (size_t i = 0; i < list.size(); ++i) numbers[first + i] = list[i].Eval(symbols);
  values.reserve(plan.values.size());
  steps.reserve(plan.steps.size());
  const auto put = [&](const Ints& list) { return numbers.data() + at.find(std::span<const Int>(list))->second; };

  for (const Plan::Nothing& n : plan.nothings) {
    if (n.size.Eval(symbols) == 0 && n.of.Eval(symbols) != 0) status |= n.status;
  }

  storage_bytes.assign(plan.storages.size(), 0);
  for (const Value& v : plan.values) {
    ValueInfo info;
    info.sizes = put(v.sizes);
    info.strides = put(v.strides);
    info.offset_bytes = v.offset.Eval(symbols) * DTypeSize(v.dtype);
    info.numel = 1;
    for (size_t i = 0; i < v.sizes.size(); ++i) info.numel *= info.sizes[i];
    const Extent reach = ExtentOf({info.sizes, v.sizes.size()}, {info.strides, v.strides.size()});
    FRAMEJIT_CHECK(reach.low == 0 || plan.storages[v.storage].kind != Storage::Kind::kScratch || !v.whole);
    if (v.whole) storage_bytes[v.storage] = reach.high * DTypeSize(v.dtype);
    values.push_back(info);
  }
  for (const Step& s : plan.steps) {
    StepInfo info;
    if (s.device_kernel) {
      info.symbols = put(s.symbols);
      info.launch = s.device_kernel->Configure(info.symbols, true);
    } else if (s.kind == Step::Kind::kKernel) {
      info.symbols = put(s.symbols);
      const auto empty = [&](int v) { return values[v].numel == 0; };
      const bool nothing = !s.results.empty() && std::all_of(s.results.begin(), s.results.end(), empty);
      info.rows = nothing ? 0 : s.code->rows(info.symbols);  // kernels count on rows that hold something
      const int64_t work = s.code->work_per_row(info.symbols);
      if (info.rows > 1 && work * info.rows >= kParallelWork) {
        info.grain = std::max<int64_t>(1, kPieceWork / std::max<int64_t>(1, work));
      }
    }
    steps.push_back(info);
  }

  scratch_offset.assign(plan.storages.size(), 0);
  for (bool on_device : {false, true}) {
    if (on_device && !plan.machine) break;
    absl::InlinedVector<Interval, 32> intervals;
    absl::InlinedVector<int, 32> which;
    for (size_t i = 0; i < plan.storages.size(); ++i) {
      const Storage& s = plan.storages[i];
      if (s.kind != Storage::Kind::kScratch || s.on_device != on_device) continue;
      intervals.push_back({storage_bytes[i], s.first, s.last});
      which.push_back(i);
    }
    absl::InlinedVector<int64_t, 32> offsets(intervals.size());
    (on_device ? device_scratch_bytes : scratch_bytes) =
        PlanMemory(intervals, offsets, on_device ? kDeviceAlign : kAlign);
    for (size_t i = 0; i < which.size(); ++i) scratch_offset[which[i]] = offsets[i];
  }
}

Instance::~Instance() = default;

cuda::StreamGraphs* Instance::GraphsOn(const cuda::Driver& driver, int device, uint64_t stream_id) const {
  std::lock_guard lock(graphs_mutex_);
  for (const auto& g : graphs_) {
    if (g->stream_id == stream_id) return g.get();
  }
  if (graphs_.size() >= kMostStreams) return nullptr;
  graphs_.push_back(std::make_unique<cuda::StreamGraphs>(driver, device, stream_id, steps.size()));
  return graphs_.back().get();
}

}  // namespace framejit::runtime
