// The status of the calling thread: IEEE exceptions as the processor keeps them, and what emitted code noted.
#pragma once

#include "framejit/compile.h"

namespace framejit::runtime {

void NoteStatus(int status);
int TakeStatus(int traps);  // those of `traps` that were raised since the last call; clears all

}  // namespace framejit::runtime
