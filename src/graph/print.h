// One node as text: for messages ("%3 = add %1, %2 : f32[4]"), and without its number as a key that names everything
// that decides its value.
#pragma once

#include "framejit/graph.h"

namespace framejit {

std::string NodeText(const Node& n, bool locations);
std::string NodeText(const Graph& g, ValueId v, bool locations);

}  // namespace framejit
