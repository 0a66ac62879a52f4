#include "runtime/cuda/step_clock.h"

#include <deque>
#include <map>
#include <mutex>
#include <utility>

namespace framejit::runtime::cuda {
namespace {

constexpr size_t kMostEvents = 8192;  // that are not read yet

struct Interval {
  Event begin, end;
  size_t first;
  std::vector<StepTime> steps;
};

struct Sample {  // of one run
  const Driver* driver;
  const DeviceInfo* device;
  std::shared_ptr<StepShares> shares;  // null: the stream has no graphs
  std::vector<Interval> intervals;
};

struct Table {
  std::mutex mutex;  // of what follows; never held while the driver is asked
  std::deque<Sample> pending;
  size_t events = 0;                                     // in `pending`
  std::map<const DeviceInfo*, std::vector<Event>> idle;  // events are used again
  std::mutex reading;  // one thread reads at a time, so that samples are read in the order of the runs
};
Table& Get() {
  static auto* table = new Table;  // asked while the process ends
  return *table;
}

// While alive, this thread may ask about events although another one captures a stream: the driver would refuse it and
// spoil the capture.
class BesideCaptures {
 public:
  explicit BesideCaptures(const Driver& d) : d_(d) { failed_ = d.capture_mode(&mode_); }
  ~BesideCaptures() {
    if (!failed_) d_.capture_mode(&mode_);
  }
  BesideCaptures(const BesideCaptures&) = delete;

 private:
  const Driver& d_;
  int mode_ = 2;  // relaxed; then what it was before
  Result failed_;
};

class Clock final : public StreamClock {
 public:
  Clock(const Driver& driver, const DeviceInfo& device, Stream stream, std::shared_ptr<StepShares> shares)
      : driver_(driver), stream_(stream), sample_{&driver, &device, std::move(shares), {}} {}

  ~Clock() override {
    Table& table = Get();
    std::lock_guard lock(table.mutex);
    if (begun_) table.idle[sample_.device].push_back(begun_);
    if (sample_.intervals.empty()) return;
    table.events += 2 * sample_.intervals.size();
    table.pending.push_back(std::move(sample_));
  }

  void Begin() override {
    if (!begun_) begun_ = NewEvent();
    if (begun_ && driver_.event_record(begun_, stream_)) begun_ = nullptr;
  }

  void End(size_t first, std::vector<StepTime> steps) override {
    if (!begun_) return;
    Event end = NewEvent();
    if (end && driver_.event_record(end, stream_) == 0)
      sample_.intervals.push_back({std::exchange(begun_, nullptr), end, first, std::move(steps)});
  }

 private:
  Event NewEvent() {
    Table& table = Get();
    {
      std::lock_guard lock(table.mutex);
      std::vector<Event>& idle = table.idle[sample_.device];
      if (!idle.empty()) {
        Event event = idle.back();
        idle.pop_back();
        return event;
      }
    }
    const BesideCaptures beside(driver_);
    Event made = nullptr;
    constexpr unsigned kTimed = 0;
    return driver_.event_create(&made, kTimed) ? nullptr : made;
  }

  const Driver& driver_;
  const Stream stream_;
  Event begun_ = nullptr;
  Sample sample_;
};

// Is the GPU through with all of it? An error says that nobody will ever know.
enum class State { kDone, kUnderWay, kLost };
State StateOf(const Sample& sample, bool wait) {
  const Event last = sample.intervals.back().end;
  constexpr Result kNotReady = 600;
  const Result r = wait ? sample.driver->event_wait(last) : sample.driver->event_query(last);
  return r == 0 ? State::kDone : r == kNotReady ? State::kUnderWay : State::kLost;
}

// Which parts of the time are whose. What was never started by itself gets as much as the others do on average.
std::vector<double> PartsOf(const Interval& interval, const StepShares* shares) {
  const size_t n = interval.steps.size();
  std::vector<double> parts(n, 0.0);
  double known = 0, whole = 0;
  size_t count = 0;
  for (size_t i = 0; i < n && shares; ++i) {
    known += parts[i] = shares->least[interval.first + i];
    count += parts[i] > 0;
  }
  for (double& part : parts) {
    if (part == 0) part = count ? known / static_cast<double>(count) : 1.0;
    whole += part;
  }
  for (double& part : parts) part /= whole;
  return parts;
}

void Tell(const Sample& sample) {
  for (const Interval& interval : sample.intervals) {
    float milliseconds = 0;
    if (sample.driver->event_elapsed(&milliseconds, interval.begin, interval.end)) continue;
    const double seconds = milliseconds / 1e3;
    if (interval.steps.size() == 1 && sample.shares) {
      double& least = sample.shares->least[interval.first];
      if (least == 0 || seconds < least) least = seconds;
    }
    const std::vector<double> parts = PartsOf(interval, sample.shares.get());
    for (size_t i = 0; i < parts.size(); ++i) {
      StepTime t = interval.steps[i];
      t.seconds *= seconds * parts[i];
      AddStepTime(t);
    }
  }
}

}  // namespace

std::unique_ptr<StreamClock> MakeStreamClock(const Driver& driver, const DeviceInfo& device, Stream stream,
                                             std::shared_ptr<StepShares> shares) {
  CollectStepTimes(false);
  Table& table = Get();
  {
    std::lock_guard lock(table.mutex);
    if (table.events >= kMostEvents) return nullptr;
  }
  return std::make_unique<Clock>(driver, device, stream, std::move(shares));
}

void ForgetEvents() {
  Table& table = Get();
  std::lock_guard lock(table.mutex);
  table.pending.clear();
  table.idle.clear();
  table.events = 0;
}

void CollectStepTimes(bool wait) {
  Table& table = Get();
  std::unique_lock reading(table.reading, std::defer_lock);
  if (wait)
    reading.lock();
  else if (!reading.try_lock())
    return;
  for (;;) {
    Sample sample;
    {
      std::lock_guard lock(table.mutex);
      if (table.pending.empty()) return;
      sample = std::move(table.pending.front());
      table.pending.pop_front();
    }
    State state = State::kLost;
    try {
      const Scope scope(*sample.driver, *sample.device);
      const BesideCaptures beside(*sample.driver);
      state = StateOf(sample, wait);
      if (state == State::kDone) Tell(sample);
    } catch (const std::exception&) {  // no context can be had any more
    }
    std::lock_guard lock(table.mutex);
    if (state == State::kUnderWay) {
      table.pending.push_front(std::move(sample));
      return;
    }
    table.events -= 2 * sample.intervals.size();
    if (state == State::kLost) continue;
    for (const Interval& interval : sample.intervals)
      for (Event event : {interval.begin, interval.end}) table.idle[sample.device].push_back(event);
  }
}

}  // namespace framejit::runtime::cuda
