#include "capture/runner_choice.h"

#include <algorithm>

#include "capture/backends.h"
#include "capture/estimate.h"
#include "capture/numbers/guess.h"
#include "capture/policy/leave.h"
#include "capture/training.h"
#include "framejit/compile.h"
#include "graph/arguments.h"
#include "graph/opaque.h"

namespace framejit::capture {
namespace {

using Question = RunnerQuestion;
using diag::Leave;

bool MixesInference(const Trace& t) {
  return std::any_of(t.calls.begin(), t.calls.end(),
                     [&](const Call& c) { return c.mode.inference != t.calls[0].mode.inference; });
}

bool Detached(const Trace& trace, const TraceTensor& view) {
  for (int at = view.view_call; at >= 0;) {
    const Call& call = trace.calls[at];
    if (call.callee.last() == "detach") return true;
    at = !call.args.empty() && call.args[0].is(Arg::Kind::kTensor) ? trace.tensors[call.args[0].t].view_call : -1;
  }
  return false;
}

bool AnyTracked(const Trace& trace) {
  return std::any_of(trace.outputs.begin(), trace.outputs.end(), [&](TraceId t) {
    const TraceTensor& x = trace.tensors[t];
    // What is detached has no graph. Another view, which was made without gradients of a tensor that has one, must not
    // be written.
    return x.input < 0 && (x.meta.requires_grad || (!Detached(trace, x) && trace.tensors[x.base].meta.requires_grad));
  });
}

// Somebody may ask for gradients of what the segment makes.
bool Tracked(const Question& q) {
  const surface::Lowering& l = q.session.lowering();
  return l.differentiates() || l.tracks() ? AnyTracked(q.trace) || l.WritesInputWithGradients()
                                          : WantsGrad(q.session, q.trace);
}

// Operators and functions of the user's: what a run of them has done is noted by what runs the segment.
bool CallsUsers(const Trace& t) {
  return std::any_of(t.calls.begin(), t.calls.end(),
                     [](const Call& c) { return c.callee.Has(kForeign) || c.callee == kCustomCall; });
}

bool Callable(const Question& q) {
  return FindBackend(q.compiled.backend) != nullptr;
}

std::string Nothing(const Question&) {
  return "";
}
template <Leave why>
std::string Left(const Question&) {
  return diag::Text(why);
}

struct Row {
  bool (*holds)(const Question& q);
  Runner runner;
  std::string (*note)(const Question& q);
  Leave left = Leave::kNone;
};

// clang-format off: a table
const Row kRows[] = {
    {[](const Question& q) { return !Estimate::Current() && LeftToNumpy(q.trace, q.session.graph(), q.ieee); },
     Runner::kPython, Left<Leave::kCheapInPlace>, Leave::kCheapInPlace},
    {[](const Question& q) { return !Estimate::Current() && q.returns && q.compiled.backend == "llvm" && MostlyNumpys(q.session, q.trace, q.session.graph()); },
     Runner::kReplay, Left<Leave::kMostlyNumpys>, Leave::kMostlyNumpys},
    {[](const Question& q) { return q.compiled.backend == "eager"; },
     Runner::kReplay, [](const Question&) -> std::string { return "backend=\"eager\""; }},
    {[](const Question& q) { return q.shares; },
     Runner::kReplay, [](const Question&) -> std::string { return "inputs share memory, and one is written: runs through the framework"; }},
    {[](const Question& q) { return MixesInference(q.trace); },
     Runner::kReplay, [](const Question&) -> std::string { return "calls in and out of inference mode: runs through the framework"; }},
    {[](const Question& q) { return !q.session.lowering().graph_unusable().empty(); },
     Runner::kReplay, [](const Question& q) { return q.session.lowering().graph_unusable() + ": runs through the framework"; }},
    {[](const Question& q) { return !DeviceObstacle(q.session.graph()).empty(); },
     Runner::kReplay, [](const Question& q) { return DeviceObstacle(q.session.graph()) + ": runs through the framework"; }},
    {[](const Question& q) { return q.compiled.backend != "llvm" && HasOpaque(q.session.graph()); },
     Runner::kReplay, [](const Question&) -> std::string { return "sparse or quantised tensors: runs through the framework"; }},
    {[](const Question& q) { return Callable(q) && !q.session.lowering().differentiates() && WantsGrad(q.session, q.trace); },
     Runner::kReplay, [](const Question&) -> std::string { return "gradients are wanted and backends get none: runs through the framework"; }},
    {Callable, Runner::kCallable, Nothing},
    {Tracked, Runner::kPair, Nothing},
    {[](const Question&) { return true; }, Runner::kCompiled, Nothing},
};
// clang-format on

}  // namespace

RunnerChoice ChooseRunner(const RunnerQuestion& q) {
  const Row& row = *std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.holds(q); });
  RunnerChoice choice{row.runner, row.note(q), row.left};
  if (row.runner < Runner::kReplay && (choice.number = TakeSegmentFuel()) < 0) {
    choice.runner = Runner::kReplay;
    choice.note = "no segment fuel is left: runs through the framework";
  }
  const bool own_derivatives = q.session.lowering().differentiates() || q.session.lowering().tracks();
  choice.calls = choice.runner == Runner::kPair && !own_derivatives && !CallsUsers(q.trace);
  // Derivatives inside the segment are nodes of the graph: nobody else has them.
  const bool whole = choice.runner == Runner::kReplay || choice.runner == Runner::kCallable;
  choice.again = whole && q.session.lowering().differentiates();
  return choice;
}

// Is it one of two or more of the program's tensors that it writes? The framework may refuse that for the memory they
// share, and says so at the program's line alone.
static bool WritesBesideInputs(const Trace& trace, const Call& call) {
  if (!call.callee.Has(kInPlace) && call.callee.last() != "__setitem__") return false;
  std::vector<TraceId> inputs;
  EachTensor(call, [&](TraceId t) {
    const TraceId base = trace.tensors[t].base;
    if (trace.tensors[base].input >= 0) inputs.push_back(t);
  });
  return inputs.size() > 1;
}

// Of what is read of inputs beside the calls (guesses, conditions, what leaves the graph) they may have written some.
bool FollowsCalls(Session& s, const std::vector<TraceId>& outputs) {
  return !s.libraries.numpy && s.pending().stopped.empty() && s.guessing().made().empty() &&
         s.data_sizes().all().empty() && s.graph().conditions.empty() && !CallsUsers(s.trace()) &&
         std::none_of(s.trace().calls.begin(), s.trace().calls.end(),
                      [&](const Call& c) { return WritesBesideInputs(s.trace(), c); }) &&
         std::none_of(outputs.begin(), outputs.end(), [&](TraceId t) { return s.trace().tensors[t].input >= 0; });
}

bool MuchOfLeaves(Session& s, const std::vector<TraceId>& outputs) {
  constexpr int kMuch = 24;
  static const Callee track("framejit._gradients.track");
  if (!s.lowering().tracks() ||
      std::none_of(outputs.begin(), outputs.end(), [&](TraceId t) { return s.meta(t).requires_grad; }))
    return false;
  int calls = 0;
  bool leaf = false;
  for (const Call& c : s.trace().calls) {
    leaf |= c.callee == track;
    if (leaf && c.mode.grad && !c.mode.inference)
      calls += std::any_of(c.results.begin(), c.results.end(), [&](TraceId t) { return s.meta(t).requires_grad; });
  }
  return calls > kMuch;
}

}  // namespace framejit::capture
