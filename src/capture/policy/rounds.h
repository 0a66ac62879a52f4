// Several rounds of a loop as one segment. A loop that repeats is cut (loops.h): each of its rounds is a run of its
// body's segment, of which guards, gradients and Python's objects are the larger part. Once some rounds have run so,
// the body is captured again, several rounds in a row, and such a segment runs wherever as many rounds are left.
//
//   for t in range(n):        body: begins behind FOR_ITER, ends at it      rounds: begins there, too, with the number
//       h = f(x[t], h)        one run, one FOR_ITER for each round          t as a symbol; takes t + step, ... itself
//
// The range's iterator is known to nobody but the frame. Its numbers are counted in the capture, and it is advanced
// behind the run. Of a `while` loop nothing is special but where the segment ends. Where a round goes another way (the
// last ones of a `while`, a branch), guards fail and the segment of one round runs.
#pragma once

#include "capture/segment.h"

namespace framejit::capture {

// What a capture of this thread counts that holds several rounds. The loop's iterator is that of a range, or null.
struct Counting {
  explicit Counting(const Place& place) : rounds(place.rounds), loop(place.loop), step(place.step), outer_(now) {
    now = this;
  }
  ~Counting() { now = outer_; }
  Counting(const Counting&) = delete;
  static inline thread_local Counting* now = nullptr;

  const int rounds, loop;  // The same numbers as the place has.
  const long step;
  PyObject *iterator = nullptr, *number = nullptr;  // The loop's iterator and what it gave last; both are borrowed.
  const guard::Source* source = nullptr;            // Where that number, which is a symbol, is found.
  int taken = 0;                                    // numbers that the iterator has given in the capture
  // Does the iterator give another number here?
  bool Gives(PyObject* it) const { return iterator && it == iterator && taken + 1 < rounds; }

 private:
  Counting* const outer_;
};

// Ends the capture where the frame comes to `at` again.
class OneRound : public frame::ConcreteSemantics {
 public:
  OneRound(FjFrame* frame, int at) : frame_(frame), at_(at) {}
  bool Before(FjFrame* frame, int index) override {
    ++steps;
    return frame != frame_ || index != at_ || std::exchange(first_, false);
  }

  int steps = 0;

 private:
  FjFrame* frame_;
  int at_;
  bool first_ = true;
};

// The place for several rounds of the loop in whose body's first instruction the frame is, if a segment of them may run
// or be captured now; else null. `once` is the place for one round.
Place* RoundsAt(const Compiled& compiled, CodeState& state, const Place& once, FjFrame* frame);
// Such a segment is to be captured now. False: more rounds are to be seen first.
bool Due(Place& rounds, const Place& once);
// Is a captured segment (null: none) what the place is for? If not, there will be none.
bool Serves(Place& rounds, const Segment* segment);

// The iterator of such a loop, held while a segment of its rounds runs.
class RangeInUse {
 public:
  explicit RangeInUse(FjFrame* frame);
  bool Has(const Segment& segment) const { return segment.advance <= left_; }
  void Advance(const Segment& segment);  // Called when a run of the segment has ended well.

 private:
  Ref iterator_;
  long left_ = 0;
};

}  // namespace framejit::capture
