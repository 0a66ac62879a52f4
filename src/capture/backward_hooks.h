// Hooks of a module's backward pass.
#pragma once

#include "frame/frame.h"

namespace framejit::capture {

// Is it torch's call of a module with hooks of the old kind (register_backward_hook), with gradients on?
bool HasHooksOfOldKind(FjFrame* frame);

}  // namespace framejit::capture
