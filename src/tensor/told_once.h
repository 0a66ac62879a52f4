// Warnings that torch gives once in a process, of what is no call of the graph.
#pragma once

namespace framejit::tensor {

// torch warns where float() is asked of a tensor that requires gradients. If nobody has seen that yet, the warning is
// given now, in the line that is captured. False: it would be given each time, or raised.
bool FloatsAreTold();

}  // namespace framejit::tensor
