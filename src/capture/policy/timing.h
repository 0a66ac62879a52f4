// Is a compiled function faster than the plain one? Both are timed on calls that are made anyway: some of the first
// ones run as written. What is not faster compiled is left to Python, for arguments of that size, until it is
// measured again. Nothing is measured where a call's own time says little (graphs on GPUs, results that lead to a
// backward pass, graphs whose form is not settled) and with the option `leave` off.
#pragma once

#include <algorithm>
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
  // `whole`: what is computed with gradients has its backward pass in it, too.
  static bool Measurable(const Compiled& compiled, bool whole = false);
  void Ended(Compiled& compiled, const Turn& turn, PyObject* result);  // null: an exception

  // No segment is for these arguments. Has it been tried in vain so often that the call is Python's? That is so for a
  // function in which nothing of a framework and no loop for machine code was found, once two calls or more that ran in
  // frames have cost more than a small share of the time that has passed.
  bool InVain(PyObject* const* args, Py_ssize_t n) const { return in_vain_ && Spent() && HoldsNone(args, n); }
  // Is a call Python's without being asked of? So are some behind a short one that was (in vain, or as all are left).
  // One that takes long, or comes late, ends them: the clock is read at every fourth.
  bool Unasked(PyObject* const* args, Py_ssize_t n) {
    if (!unasked_ || !HoldsNone(args, n)) return false;
    return --unasked_ % kLook || SoonAgain();
  }
  // Such a call took so long in Python; and one that ran in frames.
  void RanInPython(double seconds) {
    plain_ = std::min(plain_, seconds);
    LeaveUnasked(in_vain_ && seconds < kShort ? kUnasked : 0);
  }
  void RanInFrames(Compiled& compiled, double seconds);

 private:
  static constexpr double kShort = 20e-6;  // seconds of a call for which it matters what is asked
  static constexpr int kUnasked = 64, kLook = 4;
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
  void LeaveUnasked(int calls);
  bool SoonAgain();  // Did the calls since the last look at the clock take little time?
  bool Spent() const;
  static bool HoldsNone(PyObject* const* args, Py_ssize_t n);  // no tensors and no modules
  void Judge(Compiled& compiled, Class& c);
  void Decide(Compiled& compiled, Class& c, bool leave);

  std::vector<Class> classes_;
  int left_ = 0, measuring_ = 0;  // Numbers of classes.
  long rest_ = 0;                 // The calls until arguments are looked at again.
  int detail_ = 2;                // Classes differ by strings (2) and ints (1), until there are too many.
  bool in_vain_ = false;          // See InVain.
  int in_frames_ = 0;             // calls that ran in frames in vain
  int unasked_ = 0;               // See Unasked.
  double clock_ = 0;              // when it was last looked at for these
  double spent_ = 0, first_ = 0;  // What calls in frames cost, and when the first one ended.
  double plain_ = 1e9;            // The shortest call in Python.
  int64_t looked_ = -1;           // captures when it was last asked whether there is anything to measure
};

}  // namespace framejit::capture
