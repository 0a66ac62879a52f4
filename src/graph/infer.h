// Infers the type of a node whose operands stay where the graph has them.
#pragma once

#include <span>

#include "framejit/graph.h"

namespace framejit {

TensorType InferAt(Op op, std::span<const TensorType* const> operands, const Attrs& attrs, shape::Env& env);

}  // namespace framejit
