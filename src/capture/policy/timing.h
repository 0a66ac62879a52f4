// Is a compiled function faster than the plain one? Both are timed on calls that are made anyway: some of the first
// ones run as written. What is not faster compiled is left to Python, for arguments of that size, until it is
// measured again. Nothing is measured where a call's own time says little (graphs on GPUs, gradients, graphs whose form
// is not settled) and with the option `leave` off.
#pragma once

#include <vector>

#include "capture/segment.h"

namespace framejit::capture {

class Timing {
 public:
  struct Turn {
    bool python = false;  // Is this call run as written?
    bool timed = false;   // Does Ended() want to know the time?
    uint64_t key = 0;
    int64_t captures = 0, loops = 0;  // that there were; loops: those that became code
    uint64_t mapped = 0;              // See ArenaPool.
    double start = 0;
  };
  // at: which part of the function, if not all of it.
  Turn Begin(Compiled& compiled, PyObject* const* args, Py_ssize_t n, uint64_t at = 0) {
    if (!left_ && !measuring_ && --rest_ > 0) return {};
    return Choose(compiled, args, n, at);
  }
  // Does the time of a call, or of a part of it, say what it costs? Work on GPUs goes on behind it, and so may
  // a backward pass.
  static bool Measurable(const Compiled& compiled);
  void Ended(Compiled& compiled, const Turn& turn, bool ok);

 private:
  enum class State : uint8_t { kMeasuring, kKept, kLeft };
  struct Class {  // The times of calls whose arguments have like sizes.
    uint64_t key;
    State state = State::kMeasuring;
    int warm = 0, tries = 0, maps = 0;    // calls without and with captures; those that got memory from the system
    std::vector<double> compiled, plain;  // Seconds of the calls that were timed.
    long until = 0, pause = 0;            // The calls until it is measured again.
  };
  Turn Choose(Compiled& compiled, PyObject* const* args, Py_ssize_t n, uint64_t at);
  Class* Find(uint64_t key);
  void Judge(Compiled& compiled, Class& c);
  void Decide(Compiled& compiled, Class& c, bool leave);

  std::vector<Class> classes_;
  int left_ = 0, measuring_ = 0;  // Numbers of classes.
  long rest_ = 0;                 // The calls until arguments are looked at again.
  int64_t looked_ = -1;           // captures when it was last asked whether there is anything to measure
};

}  // namespace framejit::capture
