// Segments whose results want gradients: a forward and a backward executable behind one node of the framework's graph.
#pragma once

#include <memory>
#include <vector>

#include "autodiff/autodiff.h"
#include "capture/session.h"
#include "tensor/autograd.h"
#include "tensor/tensor.h"

namespace framejit::capture {

bool WantsGrad(const Session& s, const Trace& t);  // Does something that it makes or writes want a gradient?

struct TrainingPlan {
  Graph forward;              // The graph to compile.
  tensor::Training training;  // What the runner's hook needs.
};
// A result of the program that is a view and has gradients, as a value of the graph.
struct ViewResult {
  int plan;
  ValueId value;
};
// Takes them off the outputs of the session's finished graph, where they stand last.
std::vector<ViewResult> TakeViews(Session& s, const std::vector<TraceId>& results,
                                  const std::vector<tensor::OutputPlan>& plans);
// For the session's finished graph. calls: what runs the trace. writes: that wait until the run has shown what it must.
// Throws autodiff::Undifferentiable.
TrainingPlan PlanTraining(Session& s, const Trace& trace, const tensor::TraceRunner& calls,
                          const std::vector<tensor::OutputPlan>& plans, const std::vector<ViewResult>& views,
                          const std::vector<PyObject*>& constants, const CompileOptions& options, bool interpret,
                          const std::vector<std::pair<int, int>>& writes);
std::shared_ptr<Executable> MakeExecutableOf(const Graph& g, const CompileOptions& options, bool interpret);

}  // namespace framejit::capture
