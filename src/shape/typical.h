// What was taken for granted while an Env::Typical was alive. Questions about layouts are asked under it, whose answers
// show in nothing but strides of what has one element along a dimension. A size that is at least 2 now is taken to be
// so always, and becomes a guard (Lt(1, size)) only where such strides show.
#pragma once

#include "framejit/shape.h"

namespace framejit::shape {

// The sizes that answers in this thread rested on since the last call of this.
Ints TakenForGranted();
void TakeForGranted(Int size);  // Adds one more size.

// While alive, questions of this thread record nothing: what cannot be proven is answered by the hints.
class Trial {
 public:
  Trial();
  ~Trial();
  Trial(const Trial&) = delete;
  bool proven() const;  // Were all answers so far proven?
};

}  // namespace framejit::shape
