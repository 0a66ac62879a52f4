#include "runtime/instance.h"

#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <limits>
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

// Intervals by the steps in which they are alive: those that one of them meets, without a look at all others. A
// balanced tree over all of them by their first step; of each part it is known how long what was added there lives.
class Lives {
 public:
  explicit Lives(std::span<const Interval> all)
      : all_(all), order_(all.size()), last_(all.size(), kNever), added_(all.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(), [&](int a, int b) { return Before(a, b); });
  }
  void Add(int i) {
    size_t from = 0, to = all_.size();
    while (from < to) {
      const size_t middle = (from + to) / 2;
      last_[middle] = std::max(last_[middle], all_[i].last);
      if (order_[middle] == i) {
        added_[middle] = true;
        return;
      }
      (Before(i, order_[middle]) ? to : from) = Before(i, order_[middle]) ? middle : middle + 1;
    }
  }
  template <class F>
  void Meeting(const Interval& x, const F& f) const {
    Meeting(x, 0, all_.size(), f);
  }

 private:
  static constexpr int kNever = std::numeric_limits<int>::min();
  bool Before(int a, int b) const { return all_[a].first != all_[b].first ? all_[a].first < all_[b].first : a < b; }
  template <class F>
  void Meeting(const Interval& x, size_t from, size_t to, const F& f) const {
    for (size_t middle; from < to && last_[middle = (from + to) / 2] >= x.first; from = middle + 1) {
      Meeting(x, from, middle, f);
      const Interval& y = all_[order_[middle]];
      if (y.first > x.last) return;
      if (added_[middle] && y.last >= x.first) f(order_[middle]);
    }
  }

  std::span<const Interval> all_;
  std::vector<int> order_, last_;
  std::vector<bool> added_;
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
  Lives placed(intervals);
  std::vector<int> met;
  int64_t total = 0;
  for (int i : order) {
    const Interval& x = intervals[i];
    int64_t offset = 0;
    met.clear();
    placed.Meeting(x, [&](int j) { met.push_back(j); });
    std::sort(met.begin(), met.end(), [&](int a, int b) { return offsets[a] < offsets[b]; });
    for (int j : met) {
      if (offset + x.bytes <= offsets[j]) break;
      offset = std::max(offset, (offsets[j] + intervals[j].bytes + align - 1) / align * align);
    }
    offsets[i] = offset;
    placed.Add(i);
    total = std::max(total, offset + x.bytes);
  }
  return total;
}

Moving::Moving(const Plan& plan) : symbols(plan.symbol_sources.size(), true) {
  const auto stays = [this](Int e) { e.ForEachSymbol([this](uint32_t id) { symbols[id] = false; }); };
  const auto moves = [this](Int e) {
    bool any = false;
    e.ForEachSymbol([&](uint32_t id) { any = any || symbols[id]; });
    return any;
  };
  for (const Value& v : plan.values) {
    for (Int e : v.sizes) stays(e);
    for (Int e : v.strides) stays(e);
  }
  for (const Plan::Nothing& n : plan.nothings) stays(n.size), stays(n.of);
  for (size_t v = 0; v < plan.values.size(); ++v)
    if (moves(plan.values[v].offset)) values.push_back(static_cast<int>(v));
  for (size_t i = 0; i < plan.steps.size(); ++i)
    if (plan.steps[i].kernel && std::ranges::any_of(plan.steps[i].kernel->symbols, moves))
      steps.push_back(static_cast<int>(i));
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
  for (const Step& s : plan.steps)
    if (s.kernel) enter(s.kernel->symbols);
  numbers.resize(count);
  for (const auto& [list, first] : at)
    for (size_t i = 0; i < list.size(); ++i) numbers[first + i] = list[i].Eval(symbols);
  values.Reserve(plan.values.size());
  const auto put = [&](const Ints& list) { return numbers.data() + at.find(std::span<const Int>(list))->second; };

  for (const Plan::Nothing& n : plan.nothings) {
    if (n.size.Eval(symbols) == 0 && n.of.Eval(symbols) != 0) status |= n.status;
  }

  std::vector<StorageInfo> all(plan.storages.size());
  for (const Value& v : plan.values) {
    ValueInfo info;
    info.sizes = put(v.sizes);
    info.strides = put(v.strides);
    info.offset_bytes = v.offset.Eval(symbols) * DTypeSize(v.dtype);
    info.numel = 1;
    for (size_t i = 0; i < v.sizes.size(); ++i) info.numel *= info.sizes[i];
    const Extent reach = ExtentOf({info.sizes, v.sizes.size()}, {info.strides, v.strides.size()});
    if (v.whole) {  // the first element is aligned where others lie before it, too
      const int64_t item = DTypeSize(v.dtype), align = plan.storages[v.storage].on_device ? kDeviceAlign : kAlign;
      all[v.storage].before = (-reach.low * item + align - 1) / align * align;
      all[v.storage].bytes = all[v.storage].before + reach.high * item;
    }
    values.Append(info);
  }
  steps.Reserve(plan.steps.size());
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const KernelWork* kernel = plan.steps[i].kernel.get();
    steps.Append(InfoOf(plan, i, kernel ? put(kernel->symbols) : nullptr));
  }

  for (bool on_device : {false, true}) {
    if (on_device && !plan.machine) break;
    absl::InlinedVector<Interval, 32> intervals;
    absl::InlinedVector<int, 32> which;
    for (size_t i = 0; i < plan.storages.size(); ++i) {
      const Storage& s = plan.storages[i];
      if (s.kind != Storage::Kind::kScratch || s.on_device != on_device || s.first < 0) continue;  // or not used
      intervals.push_back({all[i].bytes, s.first, s.last});
      which.push_back(i);
    }
    absl::InlinedVector<int64_t, 32> offsets(intervals.size());
    (on_device ? device_scratch_bytes : scratch_bytes) =
        PlanMemory(intervals, offsets, on_device ? kDeviceAlign : kAlign);
    for (size_t i = 0; i < which.size(); ++i) all[which[i]].scratch_offset = offsets[i] + all[which[i]].before;
  }
  storages.Reserve(all.size());
  for (const StorageInfo& info : all) storages.Append(info);
}

Instance::Instance(const Plan& plan, const Moving& moving, const Instance& like, std::span<const int64_t> symbol_values)
    : status(like.status),
      symbols(symbol_values.begin(), symbol_values.end()),
      numbers(like.numbers),
      values(like.values),
      steps(like.steps),
      storages(like.storages),
      scratch_bytes(like.scratch_bytes),
      device_scratch_bytes(like.device_scratch_bytes) {
  const auto mine = [&](const int64_t*& list) {
    if (list) list = numbers.data() + (list - like.numbers.data());
  };
  for (ValueInfo& v : values.entries()) mine(v.sizes), mine(v.strides);
  for (StepInfo& s : steps.entries()) mine(s.symbols);
  for (int v : moving.values) {
    ValueInfo info = values[v];
    info.offset_bytes = plan.values[v].offset.Eval(symbols) * DTypeSize(plan.values[v].dtype);
    values.Set(v, info);
  }
  for (int i : moving.steps) {
    const shape::IntList& from = plan.steps[i].kernel->symbols;
    int64_t* const to = numbers.data() + (steps[i].symbols - numbers.data());
    for (size_t k = 0; k < from.size(); ++k) to[k] = from[k].Eval(symbols);
    steps.Set(i, InfoOf(plan, i, to));
  }
  values.DropUnused(), steps.DropUnused();  // what moved in the other one: instances are made of each other for ever
}

Instance::~Instance() = default;

// What follows from the symbols of a kernel.
Instance::StepInfo Instance::InfoOf(const Plan& plan, size_t i, const int64_t* kernel_symbols) const {
  const Step& s = plan.steps[i];
  StepInfo info;
  info.symbols = kernel_symbols;
  if (s.on_device()) {
    info.launch = s.kernel->device_kernel->Configure(info.symbols, true);
  } else if (s.kernel) {
    const auto empty = [&](int v) { return values[v].numel == 0; };
    const bool nothing = !s.results.empty() && std::all_of(s.results.begin(), s.results.end(), empty);
    info.rows = nothing ? 0 : s.kernel->code->rows(info.symbols);  // kernels count on rows that hold something
    const int64_t work = s.kernel->code->work_per_row(info.symbols);
    info.grain = info.rows > 1 && work * info.rows >= kParallelWork
                     ? std::max<int64_t>(1, kPieceWork / std::max<int64_t>(1, work))
                     : 0;
  }
  return info;
}

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
