// Where the time of calls goes, while the event stream is on: in segments, in captures, and otherwise in Python, which
// is charged to the break behind which it runs. Calls that one segment does are timed now and then, all others wholly.
#pragma once

#include "capture/segment.h"

namespace framejit::capture {

class Meter {  // The clock of one call that runs in frames.
 public:
  Meter(Compiled& compiled, const CodeState* root);
  ~Meter();
  Meter(const Meter&) = delete;
  static int alive;                           // how many there are, in all threads: the GIL is held
  static void Broke(const Segment& segment);  // it has run up to its end, behind which Python goes on

  // While this is alive, time is not charged to Python.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;

   private:
    Meter* meter_;
  };

 private:
  void Charge();
  Compiled& compiled_;
  const CodeState* root_;
  Meter* outer_ = nullptr;
  bool on_, paused_ = false;
  int cause_ = -1;  // An index into Compiled::breaks, or -1.
  double since_ = 0;
};

class RunClock {  // The clock of one run of a segment that the event stream knows.
 public:
  // Runs that the next one stands for; 0: it is not timed. Calls that nobody meters are timed now and then.
  static int Weight(Segment& segment) { return Meter::alive ? 1 : segment.tally.sampler.Weight(); }
  RunClock(Segment& segment, int weight);
  ~RunClock();
  RunClock(const RunClock&) = delete;
  void Done();  // Says that the run counts.

 private:
  Segment& segment_;
  const int weight_;
  const bool metered_;
  bool done_ = false;
  double in_steps_ = 0;
  double* const outer_;
  const double start_;
};

// Write what has been measured to the event stream: of segments and of Python behind them; all of it.
void ReportRuns();
void ReportTimes();

}  // namespace framejit::capture
