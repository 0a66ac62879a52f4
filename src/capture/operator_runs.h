// Runs of segments that call operators whose kernels are functions of Python (framejit._operators): what those do
// happens once, also where the run ends early and its frame is run again.
#pragma once

namespace framejit::capture {

class Retry;

class OperatorRun {
 public:
  // copies: results of operators may be written before the run ends.
  explicit OperatorRun(bool copies);
  ~OperatorRun();
  // again: what the operators did is the answer to the same calls until `within` has ended; null: until the next Retry
  // of this thread has ended.
  void End(bool again, Retry* within);

  static void Adopt(Retry* r);    // Called when `r` begins.
  static void Dropped(Retry* r);  // Called when `r` has ended.
  static bool Waits();            // Are there answers that no Retry has adopted?

 private:
  bool open_;
};

}  // namespace framejit::capture
