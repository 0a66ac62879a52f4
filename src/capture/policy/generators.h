// Generators, coroutines and async generators that a compiled function has made: each resumption of them is a frame
// that is captured up to its next suspension.
#pragma once

#include <absl/functional/function_ref.h>

#include "capture/segment.h"

namespace framejit::capture {

// Remembers who made `generator`, for as long as it lives, and keeps the frame hook installed until then. Anything else
// is given back as it is. Steals and returns the reference; null, with an exception set, if memory is short.
PyObject* Followed(PyObject* generator, const std::shared_ptr<Compiled>& maker);
// Of the generator that is being resumed in this frame; null: no compiled function.
std::shared_ptr<Compiled> MakerOf(FjFrame* frame);
// Runs it up to its next suspension: as written, where that is as fast or resumptions from this place have found
// nothing (Timing), else by `drive`, if it is wanted. False: it has not run.
bool Resumed(const std::shared_ptr<Compiled>& compiled, PyThreadState* ts, FjFrame* frame,
             absl::FunctionRef<bool()> wants, absl::FunctionRef<PyObject*()> drive, PyObject** result);
// What an instruction of a generator does that ends a segment and is no break.
enum class Leaving : uint8_t { kNo, kYields, kAwaits /* something else runs first, which may want to be suspended */ };
Leaving LeavesAt(FjFrame* frame, int index);

}  // namespace framejit::capture
