// Derivatives and batches of NumPy's functions (numpy_transforms.cc): the lowering of rows in numpy.cc. Their names
// there begin with F, for framejit._arrays.
#pragma once

#include <optional>
#include <string>

#include "surface/rows.h"

namespace framejit::surface {

// A function of NumPy's that may stay a call of it where a derivative is taken.
bool HasNumpyDerivative(Callee callee);

// The last of the samples whose function framejit.vmap is calling where the trace ends.
std::optional<TraceId> OpenSample(const Trace& trace);

// What of the graph's first outputs and its writes rests on one sample, and so is wrong: a text, or nothing.
std::string EscapedSample(const Graph& g, size_t outputs);

Outs Leaf(Scope& s);
Outs Gradients(Scope& s);
Outs Sample(Scope& s);
Outs Batched(Scope& s);

}  // namespace framejit::surface
