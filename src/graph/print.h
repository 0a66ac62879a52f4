// One node as a line of the text form, for messages.
#pragma once

#include "framejit/graph.h"

namespace framejit {

std::string NodeText(const Graph& g, ValueId v, bool locations);

}  // namespace framejit
