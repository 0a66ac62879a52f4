// Inputs that the program gives other memory (`x.data = u`), where gradients are recorded.
#pragma once

#include <cstddef>
#include <vector>

#include "capture/session.h"
#include "tensor/autograd.h"

namespace framejit::capture {

// What an input got, and this input, as autodiff::ReadOutputs counts: the framework keeps the input, and counts writes
// to that. beside: a derivative reads what it got by another tensor, too.
struct GotMemory {
  size_t from, input;
  bool beside;
};

// Notes the inputs that get other memory. kept: by output and input, as Plan has it; what is kept of the memory that an
// input got is kept of the input.
std::vector<GotMemory> NoteRebound(Session& s, const Trace& trace, const std::vector<TraceId>& outputs,
                                   std::vector<std::vector<ValueId>>* kept, tensor::Training* t);

}  // namespace framejit::capture
