// Is a compiled function faster than the plain one? Both are timed on calls that are made anyway: some of the first
// ones run as written. What is not faster compiled is left to Python, for arguments of that size, until it is
// measured again. Nothing is measured where a call's own time says little (graphs on GPUs, graphs whose form is not
// settled) and with the option `leave` off. Where the result leads to a backward pass, the time of that pass through
// what the call has made counts, too (tensor/pass_clock.h): such a sample comes when the pass has ended. Where that is
// most of the time from the call to the end of the pass, all of this time counts: what runs before, between and behind
// the call's own code takes longer where it is not warm. A program that takes no passes saves nothing by them. What is
// kept and gains little is measured again, too. Where results want gradients there is a third way: the segments make
// the framework's calls, which bring their own derivatives. It is measured where graphs gain little or nothing: what is
// mostly calls of libraries costs a node of ours for nothing.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "capture/policy/verdict.h"
#include "capture/segment.h"
#include "tensor/pass_clock.h"

namespace framejit::capture {

class Timing {
 public:
  struct Turn {
    bool python = false;  // Is this call run as written?
    bool calls = false;   // else: do segments whose results want gradients make the framework's calls?
    bool timed = false;   // Does Ended() want to know the time?
    uint64_t key = 0;
    int64_t captures = 0, loops = 0;  // that there were; loops: those that became code
    uint64_t mapped = 0;              // See ArenaPool.
    double start = 0;
    double before = 0, waited = -1;  // See Waited, and when that was; -1: of a short call, which is rarely disturbed.
    tensor::Measured call;           // null: it is part of another call that is timed
  };
  // at: which part of the function, if not all of it.
  Turn Begin(Compiled& compiled, PyObject* const* args, Py_ssize_t n, uint64_t at = 0) {
    if (!left_ && !calling_ && --rest_ > 0) return {};
    return Choose(compiled, args, n, at);
  }
  // Does the time of a call, or of a part of it, say what it costs? Work on GPUs goes on behind it, and so may
  // a backward pass.
  // `whole`: what is computed with gradients has its backward pass in it, too.
  static bool Measurable(const Compiled& compiled, bool whole = false);
  void Ended(Compiled& compiled, const Turn& turn, PyObject* const* args, Py_ssize_t n,
             PyObject* result);  // null: an exception

  // No segment is for these arguments. Has it been tried in vain so often that the call is Python's? That is so for a
  // function in which nothing of a framework and no loop for machine code was found, once two calls or more that ran in
  // frames have cost more than a small share of the time that has passed.
  bool InVain(PyObject* const* args, Py_ssize_t n) const { return in_vain_ && Spent() && HoldsNone(args, n); }
  // May that be so of a generator that is resumed at this place?
  bool VainFrom(int at) const {
    const auto known = resumed_.find(at);
    return in_vain_ && known != resumed_.end() && known->second > 1;
  }
  // Is a call Python's without being asked of? So are some behind a short one that was (in vain, or as all are left),
  // if their arguments are of types that were seen in these. One that takes long, or comes late, ends them: the clock
  // is read at every fourth.
  bool Unasked(PyObject* const* args, Py_ssize_t n) {
    if (unasked_ <= 0) return false;
    for (Py_ssize_t i = 0; i < n; ++i)
      if (std::find(types_.begin(), types_.end(), Py_TYPE(args[i])) == types_.end()) return false;
    return --unasked_ % kLook || SoonAgain();
  }
  // The arguments of a call that is Python's.
  void Seen(PyObject* const* args, Py_ssize_t n);
  // Such a call took so long in Python; and one that ran in frames (of a generator: from this place).
  void RanInPython(double seconds) {
    plain_ = std::min(plain_, seconds);
    LeaveUnasked(in_vain_ && seconds < kShortCall ? kUnasked : 0);
  }
  void RanInFrames(Compiled& compiled, double seconds, int at = -1);

 private:
  // Calls that are not asked of; fewer with tensors, whose sizes may be new.
  static constexpr int kUnasked = 64, kUnaskedTensors = 16, kLook = 4;
  enum class State : uint8_t { kMeasuring, kKept, kLeft };
  struct Class {  // The times of calls whose arguments have like sizes.
    uint64_t key;
    State state = State::kMeasuring;
    bool calls = false;                 // See Turn.
    double graphs_save = 0;             // Then the seconds that graphs save; below 0: they do not.
    int warm = 0, tries = 0, maps = 0;  // calls without and with captures; those that got memory from the system
    Samples seconds, whole;             // whole: from the call to the end of the pass
    long until = 0, pause = 0;          // The calls until it is measured again; 0: it is not.
    int64_t passes = 0;                 // Backward passes that there had been before it was met.
    bool with_pass = false;             // Do samples have the time of their passes in them?
    const Samples& judged() const;
    int waiting = 0, missed = 0;  // calls whose passes have not ended yet; those that were not measured because of that
  };
  Turn Choose(Compiled& compiled, PyObject* const* args, Py_ssize_t n, uint64_t at);
  Class* Find(uint64_t key);
  void Take(Compiled& compiled, Class& c, bool python, double seconds, double whole = 0);
  void Again(Class& c);
  void Restart(Class& c);
  void Forget();
  static bool MayCall(const Compiled& compiled);
  void Await(Compiled& compiled, Class& c, const Turn& turn, PyObject* const* args, Py_ssize_t n, PyObject* result,
             double seconds);
  void Passed(Compiled& compiled, const Turn& turn, double seconds, double whole);
  bool AllLeft() const { return left_ && !measuring_ && left_ == static_cast<int>(classes_.size()); }
  void Rest(long calls) { rest_ = span_ = calls; }
  void LeaveUnasked(long calls);
  bool SoonAgain();  // Did the calls since the last look at the clock take little time?
  bool Spent() const;
  static bool HoldsNone(PyObject* const* args, Py_ssize_t n);  // no tensors and no modules
  void Decide(Compiled& compiled, Class& c, bool leave);

  std::vector<Class> classes_;
  int left_ = 0, measuring_ = 0;          // Numbers of classes.
  int calling_ = 0;                       // of these, kept with the framework's calls
  long rest_ = 0, span_ = 0;              // The calls until arguments are looked at again, and how many these were.
  long look_ = 0, ask_ = 0;               // how often they were looked at; calls until it is asked what can be measured
  long soon_ = 0;                         // as long as nothing can
  int written_ = 0;                       // timed calls as written
  int detail_ = 2;                        // Classes differ by strings (2) and ints (1), until there are too many.
  bool in_vain_ = false;                  // See InVain.
  int in_frames_ = 0;                     // calls that ran in frames in vain
  std::map<int, int> resumed_;            // of these, where a generator was resumed
  int unasked_ = 0;                       // See Unasked.
  std::array<PyTypeObject*, 8> types_{};  // addresses alone: a call that was not asked of is right, too
  size_t next_type_ = 0;
  double clock_ = 0;              // when it was last looked at for these
  double spent_ = 0, first_ = 0;  // What calls in frames cost, and when the first one ended.
  double plain_ = 1e9;            // The shortest call in Python.
  int64_t looked_ = -1;           // captures when it was last asked whether there is anything to measure
};

}  // namespace framejit::capture
