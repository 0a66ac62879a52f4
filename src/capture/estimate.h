// framejit.cost_analysis: what a call would compute, move and hold. It is captured and compiled as one graph, and
// nothing of it runs.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>
#include <vector>

#include "capture/segment.h"
#include "framejit/graph.h"
#include "graph/cost.h"
#include "runtime/estimate.h"

namespace framejit::capture {

class Estimate {
 public:
  struct Pass {  // The figures of the program's graph or of a part of the backward pass.
    std::string name;
    GraphCost graph;
    runtime::PlanCost plan;
  };
  static Estimate* Current();  // The estimate that this thread makes; null where calls really run.
  // Note the program's graph before anything is made of it, and each executable that is made for the call.
  void NoteProgram(const Graph& g);
  void Note(const Graph& g, const Executable& executable);
  // The capture is over: sets the exception that ends the call. segment: what it made, if anything.
  void End(const Compiled& compiled, const Segment* segment);

 private:
  friend PyObject* EstimateCall(PyObject*, PyObject* args);
  PyObject* Answer() const;
  GraphCost program_;
  std::vector<Pass> passes_;
  bool captured_ = false, done_ = false;
};

// (compiled function, positional arguments, keyword arguments) -> a dictionary, see _framejit.pyi.
PyObject* EstimateCall(PyObject*, PyObject* args);

}  // namespace framejit::capture
