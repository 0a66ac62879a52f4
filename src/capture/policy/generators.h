// Generators, coroutines and async generators that a compiled function has made: each resumption of them is a frame
// that is captured up to its next suspension.
#pragma once

#include "capture/segment.h"

namespace framejit::capture {

// Remembers who made `generator`, for as long as it lives, and keeps the frame hook installed until then. Anything else
// is given back as it is. Steals and returns the reference; null, with an exception set, if memory is short.
PyObject* Followed(PyObject* generator, const std::shared_ptr<Compiled>& maker);
// Of the generator that is being resumed in this frame; null: no compiled function.
std::shared_ptr<Compiled> MakerOf(FjFrame* frame);
// What an instruction of a generator does that ends a segment and is no break.
enum class Leaving : uint8_t { kNo, kYields, kAwaits /* something else runs first, which may want to be suspended */ };
Leaving LeavesAt(FjFrame* frame, int index);

}  // namespace framejit::capture
