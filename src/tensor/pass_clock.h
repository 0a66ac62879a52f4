// How long does the backward pass through what one call made take? The framework's engine runs, of the nodes that are
// ready, the one that was made last: what a call has made runs together, behind what was made of its results and
// before what its arguments were made of. So the clock of a call runs from a node of its own to the next node that is
// known to be none of its own, or to the end of the pass. Such nodes are those of segments, of results and of
// arguments.
#pragma once

#include <functional>
#include <memory>

#include "tensor/ref.h"

namespace framejit::tensor {

struct MeasuredCall {
  std::function<void(double)> done;  // It is told the seconds of the first pass that comes by, when that has ended.
  double seconds = 0;
  double aside = 0;      // Seconds that went into the hooks for this, before the pass.
  bool reached = false;  // by that pass
};
using Measured = std::shared_ptr<MeasuredCall>;

// The outermost call of this thread that is measured: nodes made meanwhile are its own.
inline thread_local Measured measured_call;
// At the beginning of a node of this call; null: of one that is not measured.
void PassComesTo(const Measured& call);
// At the end of the call. False: no pass will be noticed, or there is an exception.
bool WatchPass(const Measured& call, PyObject* result, PyObject* const* args, Py_ssize_t n);

}  // namespace framejit::tensor
