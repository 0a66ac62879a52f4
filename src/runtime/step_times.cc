#include "runtime/step_times.h"

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "diag/diag.h"

namespace framejit::runtime {

StepListener step_listener;
std::atomic<int> StepSampler::every_{0};

namespace {

struct Table {
  std::mutex mutex;
  std::map<std::tuple<std::string, std::string, std::string>, StepTime> rows;
};
Table& Get() {
  static auto* table = new Table;  // asked while the process ends
  return *table;
}

}  // namespace

void TimeEveryRun(bool on) {
  StepSampler::every_ += on ? 1 : -1;
}

void AddStepTime(const StepTime& measured) {
  constexpr size_t kRows = 4096;  // code that is made anew all the time never ends
  Table& table = Get();
  std::lock_guard lock(table.mutex);
  const auto key = std::make_tuple(measured.plan, measured.step, measured.kind);
  if (table.rows.size() >= kRows && !table.rows.contains(key)) return;
  auto [at, made] = table.rows.try_emplace(key, measured);
  if (made) return;
  at->second.runs += measured.runs;
  at->second.seconds += measured.seconds;
  at->second.bytes += measured.bytes;
  at->second.flops += measured.flops;
}

std::vector<StepTime> TakeStepTimes() {
  Table& table = Get();
  std::lock_guard lock(table.mutex);
  std::vector<StepTime> all;
  for (auto& [key, row] : table.rows) all.push_back(std::move(row));
  table.rows.clear();
  return all;
}

int SampleWeight(uint32_t n) {
  constexpr uint32_t kEach = 8, kMany = 64;
  if (n < kEach) return 1;
  return (n + 1) % kMany ? 0 : static_cast<int>(n + 1 == kMany ? kMany - kEach : kMany);
}

}  // namespace framejit::runtime
