#include "runtime/step_times.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "diag/diag.h"
#include "runtime/cuda/step_clock.h"

namespace framejit::runtime {

StepListener step_listener;
std::atomic<int> StepSampler::every_{0};

namespace {

struct Table {
  std::mutex mutex;
  std::map<std::tuple<std::string, std::string, std::string, std::string>, StepTime> rows;
};
Table& Get() {
  static auto* table = new Table;  // asked while the process ends
  return *table;
}

}  // namespace

void TimeEveryRun(bool on) {
  StepSampler::every_ += on ? 1 : -1;
}

double*& StepsTogether() {
  static thread_local double* sum = nullptr;
  return sum;
}

void AddStepTime(const StepTime& measured) {
  constexpr size_t kRows = 4096;  // code that is made anew all the time never ends
  Table& table = Get();
  std::lock_guard lock(table.mutex);
  const auto key = std::make_tuple(measured.plan, measured.step, measured.kind, measured.device);
  if (table.rows.size() >= kRows && !table.rows.contains(key)) return;
  auto [at, made] = table.rows.try_emplace(key, measured);
  if (made) return;
  at->second.runs += measured.runs;
  at->second.seconds += measured.seconds;
  at->second.bytes += measured.bytes;
  at->second.flops += measured.flops;
}

std::vector<StepTime> TakeStepTimes(bool wait) {
  cuda::CollectStepTimes(wait);
  Table& table = Get();
  std::lock_guard lock(table.mutex);
  std::vector<StepTime> all;
  for (auto& [key, row] : table.rows) all.push_back(std::move(row));
  table.rows.clear();
  return all;
}

void Sampler::Took(int weight, double seconds) {
  constexpr double kBetween = 10e-3;  // seconds
  constexpr uint32_t kMost = 1023, kPart = 8;
  const uint32_t seen = seen_.load(std::memory_order_relaxed) + static_cast<uint32_t>(weight);
  seen_.store(seen, std::memory_order_relaxed);
  const double fit = kBetween / std::max(seconds, 1e-9);
  wait_.store(std::min({kMost, seen / kPart, static_cast<uint32_t>(fit)}), std::memory_order_relaxed);
}

}  // namespace framejit::runtime
