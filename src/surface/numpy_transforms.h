// Derivatives and batches of NumPy's functions (numpy_transforms.cc): the lowering of rows in numpy.cc. Their names
// there begin with F, for framejit._arrays.
#pragma once

#include "surface/rows.h"

namespace framejit::surface {

// A function of NumPy's that may stay a call of it where a derivative is taken.
bool HasNumpyDerivative(Callee callee);

Outs Leaf(Scope& s);
Outs Gradients(Scope& s);
Outs Sample(Scope& s);
Outs Batched(Scope& s);

}  // namespace framejit::surface
