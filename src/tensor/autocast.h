// The regions of torch.autocast that are open on this thread, and the casts of leaves that torch keeps in them.
#pragma once

#include "framejit/call.h"
#include "tensor/tensor.h"

namespace framejit::tensor {

bool InAutocastRegion();  // on or off
// What torch takes for this leaf in a region of that type: what it has cast before, or a cast of now, which it keeps.
// Null with an exception.
PyObject* CastOfRegion(PyObject* leaf, DType to);

}  // namespace framejit::tensor
