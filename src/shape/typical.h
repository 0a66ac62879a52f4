// What was taken for granted while an Env::Typical was alive. Questions about layouts are asked under it, whose answers
// show in nothing but strides of what has one element along a dimension. A size that is at least 2 now is taken to be
// so always, and becomes a guard (Lt(1, size)) only where such strides show.
#pragma once

#include "framejit/shape.h"

namespace framejit::shape {

// The sizes that answers in this thread rested on since the last call of this.
Ints TakenForGranted();
void TakeForGranted(Int size);  // Adds one more size.
// Somebody sees a stride that rests on this size: it becomes a guard.
void NoteShown(Env& env, Int size);

// While alive, symbols of this thread that are 1 now are taken to be at least 2 as well, as if they had been met with
// another size. Where strides show that rest on that, nothing may come of what was made meanwhile.
class OnesAsAny {
 public:
  explicit OnesAsAny(bool on);
  ~OnesAsAny();
  OnesAsAny(const OnesAsAny&) = delete;
  static bool On();
  static bool Shown();

 private:
  const bool on_, shown_;
};

// While alive, questions of this thread record nothing: what cannot be proven is answered by the hints.
class Trial {
 public:
  Trial();
  ~Trial();
  Trial(const Trial&) = delete;
  bool proven() const;  // Were all answers so far proven?
};

}  // namespace framejit::shape
