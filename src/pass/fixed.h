// Which values are made of weights (and constants) alone.
#pragma once

#include <vector>

#include "framejit/graph.h"

namespace framejit::pass {

std::vector<bool> FixedValues(const Graph& g, const std::vector<bool>& weights);

}  // namespace framejit::pass
