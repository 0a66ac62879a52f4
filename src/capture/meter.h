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
  static void Broke(const Segment& segment);  // It ran to its end, and Python goes on behind it.

  // While this is alive, time is not charged to Python.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;
    bool metered() const { return meter_; }

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
  explicit RunClock(Segment& segment);
  void Done();  // The run counts: its time is kept.

 private:
  Segment& segment_;
  Meter::Pause pause_;
  int weight_;  // The number of runs that this one stands for.
  double start_;
};

// Write what has been measured to the event stream: of segments and of Python behind them; all of it.
void ReportRuns();
void ReportTimes();

}  // namespace framejit::capture
