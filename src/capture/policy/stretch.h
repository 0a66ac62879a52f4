// Instructions of which nothing is compiled: how many a frame of this thread is to step over before captures are tried
// again, and how those run in one go.
#pragma once

#include <optional>

#include "capture/segment.h"
#include "frame/driver.h"

namespace framejit::capture {

void SkipNext(FjFrame* frame, long instructions);
// Counts one of the instructions that the frame was told to skip. Is it one of them, and not the last?
bool IsSkipping(FjFrame* frame);
// How many of them are left. It is 0 where nothing was told.
long LeftToSkip(FjFrame* frame);
// A frame that begins lies where another one lay: what that one skipped is no concern of it.
void ForgetSkips(FjFrame* frame);

struct Stretch {
  long steps = 1;
  int last = -1;  // instruction
};
// The frame is at one of the instructions that it was told to skip, or that its loops leave to Python. Runs as many of
// them as can be run without asking, while `goes_on`. Nothing: the frame has come to the next instruction, and *ran
// tells of those that were run.
std::optional<frame::Action> RunStretch(Compiled& compiled, CodeState& state, FjFrame* frame, bool (*goes_on)(),
                                        Stretch* ran, PyObject** result);

}  // namespace framejit::capture
