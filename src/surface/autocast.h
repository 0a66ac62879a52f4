// What torch.autocast does to the operands of a call.
#pragma once

#include "graph/effects.h"

namespace framejit::surface {

// By the row of the function, and by the arguments of a few that torch breaks down in different ways.
CastRule AutocastRule(const Call& call, bool cuda);
// Are views of the operands cast, which a region's cache does not keep?
bool CastsViews(const Call& call, bool cuda);

}  // namespace framejit::surface
