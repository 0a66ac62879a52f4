// Who makes the calls of a segment. It is one table, of which the first row that holds decides.
#pragma once

#include <string>

#include "capture/segment.h"
#include "capture/session.h"

namespace framejit::capture {

enum class Runner : uint8_t {
  kCompiled,  // The compiled graph runs.
  kPair,      // the compiled graph of the forward pass, and one of the backward pass when that is asked for
  kCallable,  // The user's backend runs.
  kReplay,    // The framework makes call after call.
  kPython,    // The plain function is faster, and runs.
};

struct RunnerQuestion {
  const Compiled& compiled;
  Session& session;
  const Trace& trace;
  bool returns;  // Does the segment end with the function?
  bool shares;   // Does an input that is written share memory with another one?
  int ieee;      // The floating-point errors that NumPy would report.
};

struct RunnerChoice {
  Runner runner = Runner::kCompiled;
  std::string note;                       // why not the compiled graph; empty: it is, or that is what was asked for
  diag::Leave left = diag::Leave::kNone;  // Why the plain function is the faster one.
  int64_t number = -1;                    // of those that are compiled (TakeSegmentFuel)
  bool calls = false;                     // The framework's calls may run in the place of the pair (Timing).
  bool again = false;                     // not with the derivatives that the segment holds: they are left to Python
};

RunnerChoice ChooseRunner(const RunnerQuestion& q);

// Do the framework's calls, in their order, say it all, whatever memory the inputs share?
bool FollowsCalls(Session& s, const std::vector<TraceId>& outputs);

// So much is computed, with gradients, behind leaves made inside that a graph of its own is worth it: there they are
// inputs. In this one the framework makes each call.
bool MuchOfLeaves(Session& s, const std::vector<TraceId>& outputs);

}  // namespace framejit::capture
