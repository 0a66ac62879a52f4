#include "runtime/cuda/graph.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "diag/diag.h"

namespace framejit::runtime::cuda {
namespace {

constexpr int kWarmup = 2;     // runs before a capture: libraries load, choose and allocate in them
constexpr int kMostMoves = 2;  // of an input: then it is expected to move
constexpr int kMostCaptures = 6;
constexpr int kWorth = 6;  // of a range, in kernel launches
constexpr int kLibraryWorth = 3;

}  // namespace

StreamPool& PoolOf(const Driver& driver, int device, uint64_t stream_id) {
  static std::mutex mutex;
  static auto* pools = new std::map<std::pair<int, uint64_t>, StreamPool>();  // graphs may run until the very end
  std::lock_guard lock(mutex);
  StreamPool& pool = (*pools)[{device, stream_id}];
  constexpr unsigned kNonBlocking = 1;
  if (!pool.side) Check(driver, driver.stream_create(&pool.side, kNonBlocking), "cuStreamCreate");
  return pool;
}

bool IsLibrary(Step::Kind kind) {
  return kind == Step::Kind::kMatMul || kind == Step::Kind::kLinear || kind == Step::Kind::kConv ||
         kind == Step::Kind::kAttention;
}

std::vector<GraphRange> FindRanges(const Plan& plan, const std::vector<bool>& moving, bool forced) {
  const int n = static_cast<int>(plan.steps.size());
  std::vector<bool> barred(n, false);  // stands in no range that is worth it
  for (;;) {
    std::vector<bool> stays(plan.storages.size());
    for (size_t s = 0; s < plan.storages.size(); ++s) {
      const Storage& storage = plan.storages[s];
      stays[s] = storage.kind == Storage::Kind::kScratch ? storage.on_device
                 : storage.kind == Storage::Kind::kInput ? storage.on_device && !moving[storage.index]
                                                         : false;  // externs: once a step in a range has made them
    }
    for (const auto& c : plan.commits) {
      if (c.direct) stays[plan.values[c.value].storage] = false;
    }
    std::vector<bool> inside(n, false);
    for (int i = 0; i < n; ++i) {
      const Step& step = plan.steps[i];
      if (barred[i]) continue;
      if (step.kind == Step::Kind::kKernel) {
        inside[i] = step.on_device();
        continue;
      }
      if (!IsLibrary(step.kind)) continue;
      bool ok = true;
      for (int v : step.operands) ok = ok && stays[plan.values[v].storage];
      for (int v : step.results) {
        const Storage& s = plan.storages[plan.values[v].storage];
        ok = ok && s.on_device && (s.kind == Storage::Kind::kExtern ? s.index < 0 : stays[plan.values[v].storage]);
      }
      inside[i] = ok;
      for (int v : step.results) {
        const int s = plan.values[v].storage;
        if (plan.storages[s].kind == Storage::Kind::kExtern) stays[s] = ok;
      }
    }
    std::vector<GraphRange> ranges;
    bool changed = false;
    for (int i = 0; i < n;) {
      if (!inside[i]) {
        ++i;
        continue;
      }
      GraphRange range;
      range.first = i;
      int worth = 0;
      do {
        worth += plan.steps[i].kind == Step::Kind::kKernel ? 1 : kLibraryWorth;
        ++i;
      } while (i < n && inside[i] && !(plan.traps && i == plan.checked_steps));
      range.last = i;
      if (worth >= (forced ? 2 : kWorth)) {
        ranges.push_back(range);
        continue;
      }
      for (int k = range.first; k < range.last; ++k) {
        barred[k] = true;
        changed = changed || plan.steps[k].kind != Step::Kind::kKernel;  // its results move now
      }
    }
    if (!changed) return ranges;
  }
}

void StreamGraphs::Clear() {
  for (GraphRange& r : ranges) {
    if (r.exec) driver.graph_exec_destroy(r.exec);
    if (r.graph) driver.graph_destroy(r.graph);
  }
  ranges.clear();
  fixed.clear();
  pointers.clear();
  externals.clear();
  arena = nullptr;
}

void StreamGraphs::GiveUp(const Plan& plan, const std::string& why) {
  off = true;
  if (diag::Enabled(diag::Channel::perf_)) diag::Log(diag::Channel::perf_, plan.name + ": no CUDA graph: " + why);
}

void StreamGraphs::Captured(const Plan& plan, const std::vector<void*>& all) {
  pointers = all;
  if (off || !diag::Enabled(diag::Channel::perf_)) return;
  int steps = 0;
  for (const GraphRange& r : ranges) steps += r.last - r.first;
  diag::Log(diag::Channel::perf_, plan.name + ": " + std::to_string(steps) + " of " +
                                      std::to_string(plan.steps.size()) + " steps in " + std::to_string(ranges.size()) +
                                      " CUDA graph(s)");
}

StreamGraphs::Use StreamGraphs::Next(const Plan& plan, std::span<const Buffer> inputs, uint64_t now) {
  const bool forced = plan.graphs == GpuGraphs::kAlways;
  const auto here = std::this_thread::get_id();
  const bool same_thread = runs > 0 && here == thread;
  thread = here;
  if (runs == 0) {
    addresses.resize(inputs.size());
    moves.assign(inputs.size(), 0);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (runs > 0 && addresses[i] != inputs[i].data) ++moves[i];
    addresses[i] = inputs[i].data;
  }
  ++runs;
  const bool same_settings = std::exchange(settings, now) == now;
  if (!ranges.empty()) {
    const bool moved =  // kernels can be told, libraries cannot
        std::any_of(fixed.begin(), fixed.end(), [&](int i) { return captured[i] != inputs[i].data; });
    if (!moved && same_settings) return Use::kLaunch;
    Clear();
  }
  if (runs <= (forced ? 1 : kWarmup) || !same_thread) return Use::kNone;
  if (captures >= kMostCaptures) {
    GiveUp(plan, "inputs that library calls read keep moving");
    return Use::kNone;
  }
  std::vector<bool> moving(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) moving[i] = moves[i] >= kMostMoves;
  ranges = FindRanges(plan, moving, forced);
  if (ranges.empty()) {
    GiveUp(plan, "too few steps in a row that can be captured");
    return Use::kNone;
  }
  std::vector<bool> read(plan.storages.size(), false);
  for (const GraphRange& r : ranges) {
    for (int i = r.first; i < r.last; ++i) {
      if (!IsLibrary(plan.steps[i].kind)) continue;
      for (int v : plan.steps[i].operands) read[plan.values[v].storage] = true;
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (read[plan.values[plan.inputs[i]].storage]) fixed.push_back(static_cast<int>(i));
  }
  captured = addresses;
  ++captures;
  return Use::kCapture;
}

}  // namespace framejit::runtime::cuda
