// Segments whose results want gradients: a forward and a backward executable behind one node of the framework's graph.
#pragma once

#include <memory>
#include <vector>

#include "autodiff/autodiff.h"
#include "capture/session.h"
#include "tensor/tensor.h"

namespace framejit::capture {

bool WantsGrad(const Session& s, const Trace& t);  // something that it makes, or writes, does

// For the session's finished graph. *forward: the executable it runs. Throws autodiff::Undifferentiable.
std::unique_ptr<tensor::GraphRunner> MakeTrainingRunner(Session& s, const Trace& trace,
                                                        const std::vector<tensor::OutputPlan>& plans,
                                                        const std::vector<PyObject*>& constants,
                                                        const CompileOptions& options, bool interpret,
                                                        tensor::RunCheck check, std::shared_ptr<Executable>* forward);

}  // namespace framejit::capture
