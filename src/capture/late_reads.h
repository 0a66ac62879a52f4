// What custom functions read of the program that may be another when a pass runs.
#pragma once

#include "tensor/autograd.h"

namespace framejit::capture {

class Session;

void NoteLate(const Session& s, tensor::Training* t);

}  // namespace framejit::capture
