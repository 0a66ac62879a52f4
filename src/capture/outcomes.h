// What becomes of outcomes (diag/outcome.h): counted, and where they are bugs of ours reported once, or under
// FRAMEJIT_STRICT raised.
#pragma once

#include <functional>
#include <string>

#include "capture/segment.h"

namespace framejit::capture {

// A bug of framejit, or something that it should have done itself. Strict: false, with errors.InternalError set; else a
// warning, the first time that it is told, and true: eager goes on.
bool Report(const std::string& problem);

// {what ended early and why, in words: how often}; since_told: in the call that is explained. A new reference or null.
PyObject* EarlyEndsDict(const Outcomes& outcomes, bool since_told);

// The part of a call that Python does again because a run ended early. Where the framework refused, Python must raise,
// too: where it does not, a guess about data was wrong, or the fault was ours. Exceptions that the program catches
// itself are seen by tracing the thread.
class Retry {
 public:
  Retry();
  ~Retry();
  Retry(const Retry&) = delete;
  // A run has ended early. The innermost one of this thread, if there is one, takes the pending exception, if there is
  // one. False: it goes to the program.
  static bool Ended(const Segment& segment, diag::RunEnd end);
  PyObject* Finish(PyObject* result);  // The result of the call, or null with an exception.
  static Retry* Current();             // The innermost one of this thread, or null.

 private:
  bool Begin(const Segment& segment, diag::RunEnd end);
  static int Trace(PyObject*, PyFrameObject*, int what, PyObject* arg);
  void StopWatching();
  Retry* outer_;
  std::shared_ptr<Outcomes> outcomes_;
  std::function<void()> refute_;  // See Assumed::Refutation. Empty: nothing was guessed.
  std::string what_;
  bool tracing_ = false, raised_ = false;
};

}  // namespace framejit::capture
