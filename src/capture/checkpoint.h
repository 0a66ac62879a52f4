// torch.utils.checkpoint, which makes the calls of a function again in the backward pass.
#pragma once

namespace framejit::capture {

bool InCheckpoint();  // Is the function of one being captured on this thread?

}  // namespace framejit::capture
