// Infers the type of a node whose operands stay where the graph has them.
#pragma once

#include "framejit/graph.h"

namespace framejit {

TensorType InferAt(Op op, const std::vector<const TensorType*>& operands, const Attrs& attrs, shape::Env& env);

}  // namespace framejit
