#include "capture/meter.h"

#include <utility>

#include "capture/events.h"
#include "capture/now.h"
#include "capture/policy/policy.h"
#include "diag/diag.h"
#include "runtime/step_times.h"

namespace framejit::capture {
namespace {

thread_local Meter* innermost = nullptr;

// A program that is killed has told what was measured until a few seconds before.
void ReportNowAndThen(double now) {
  constexpr double kSeconds = 5;
  static double last = 0;  // the GIL is held
  if (now - last < kSeconds) return;
  const bool first = !last;
  last = now;
  if (!first) ReportTimes();
}

// Why nothing is compiled for a call.
int FirstCause(const Compiled& compiled, const CodeState* root) {
  int first = -1;
  if (root)
    for (auto& [at, reason] : root->stopped) {
      if (reason >= compiled.breaks.size()) continue;
      if (compiled.breaks[reason].id == diag::BreakId::kLimit) return static_cast<int>(reason);
      if (first < 0) first = static_cast<int>(reason);
    }
  return first;
}

}  // namespace

int Meter::alive = 0;

Meter::Meter(Compiled& compiled, const CodeState* root) : compiled_(compiled), root_(root), on_(diag::EventsOn()) {
  if (!on_) return;
  if (!std::exchange(compiled.metered, true))  // what was compiled before events were asked for runs, too
    for (auto& [code, state] : compiled.codes)
      for (auto& [at, place] : state->places)
        for (auto& segment : place.segments) segment->has_event = true;
  ++alive;
  outer_ = std::exchange(innermost, this);
  if (outer_) outer_->Charge();
  since_ = Now();
}

Meter::~Meter() {
  if (!on_) return;
  --alive;
  if (!paused_) {
    cause_ = FirstCause(compiled_, root_);
    ++compiled_.elsewhere[cause_].times;
  }
  Charge();
  innermost = outer_;
  if (outer_) outer_->since_ = since_;
  ReportNowAndThen(since_);
}

void Meter::Charge() {
  const double now = Now();
  compiled_.elsewhere[cause_].seconds += now - since_;
  since_ = now;
}

void Meter::Broke(const Segment& segment) {
  if (!innermost) return;
  innermost->cause_ = segment.ends.empty() ? -1 : static_cast<int>(segment.ends[0]);
  ++innermost->compiled_.elsewhere[innermost->cause_].times;
}

Meter::Pause::Pause() : meter_(innermost) {
  if (!meter_) return;
  meter_->paused_ = true;
  meter_->Charge();
}

Meter::Pause::~Pause() {
  if (meter_ && innermost == meter_) meter_->since_ = Now();
}

RunClock::RunClock(Segment& segment, int weight)
    : segment_(segment),
      weight_(weight),
      metered_(Meter::alive),
      outer_(std::exchange(runtime::StepsTogether(), &in_steps_)),
      start_(Now()) {}

RunClock::~RunClock() {
  runtime::StepsTogether() = outer_;
  if (!done_ && !metered_) segment_.tally.sampler.Back(weight_);
}

void RunClock::Done() {
  done_ = true;
  const double now = Now();
  segment_.tally.seconds += weight_ * (now - start_);
  segment_.tally.in_steps += weight_ * in_steps_;
  segment_.tally.timed += weight_;
  if (metered_) return;
  segment_.tally.sampler.Took(weight_, now - start_);
  ReportNowAndThen(now);
}

void ReportRuns() {
  for (const auto& compiled : AllCompiled()) {
    PythonEvents(*compiled);
    for (auto& [code, state] : compiled->codes)
      for (auto& [at, place] : state->places)
        for (auto& segment : place.segments) RunsEvent(*segment);
  }
}

void ReportTimes() {
  if (!diag::EventsOn()) return;
  ReportRuns();
  for (const runtime::StepTime& t : runtime::TakeStepTimes(false)) StepEvent(t);
  MemoryEvent();
}

}  // namespace framejit::capture
