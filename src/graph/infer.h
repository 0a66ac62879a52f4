// Infer of operands that stay where they are.
#pragma once

#include "framejit/graph.h"

namespace framejit {

TensorType InferAt(Op op, const std::vector<const TensorType*>& operands, const Attrs& attrs, shape::Env& env);

}  // namespace framejit
