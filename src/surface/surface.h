// What users call, as signature rows: name, signature, lowering to primitives. Tensors of the captured program are
// objects (they can be views of each other and written in place); this stage keeps that bookkeeping (functionalisation)
// and emits a purely functional graph. It knows nothing of Python: arguments are framejit::Arg.
//
//   row:  {"torch.softmax", "(Tensor input, int dim, ScalarType? dtype=None)", &LowerSoftmax}
//
// A call without a row, or whose lowering declines, becomes an `extern` node; its result types come from `infer`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "framejit/call.h"
#include "framejit/graph.h"

namespace framejit::surface {

// Result types of a call that has no row; nullopt: cannot be known (data-dependent): the caller breaks before it. The
// call it is given (and an extern node's call) refers to tensors by position: kTensor t is operands[t]. It fills in
// call.result with the structure of the results, where kTensor t is result number t (left None: one tensor). Calls that
// write an operand must be refused.
using InferFn = std::function<std::optional<Inferred>(Call& call, const std::vector<TensorMeta>& operands)>;

// The caller must let the framework run this call for real: it would raise here, or this form has no graph; data
// decides the result; or autocast has cast to another type before, and the framework takes that cast, and raises.
struct Decline : std::runtime_error {
  enum class Cause : uint8_t { kRefused, kData, kMixedCasts };
  explicit Decline(const std::string& why, Cause because = Cause::kRefused) : std::runtime_error(why), cause(because) {}
  Cause cause;
};

// By operand of a call without a row: the framework has no gradient for it, though it wants one, not even zeros.
using WithoutGradientFn = std::function<std::vector<bool>(const Call& call, const std::vector<TensorMeta>& operands)>;

// Turns a growing Trace into a growing Graph.
class Lowering {
 public:
  Lowering(Trace& trace, Graph& graph, shape::Env& env, InferFn infer, WithoutGradientFn without = nullptr);
  ~Lowering();
  TraceId AddInput(TensorMeta meta, std::string name, bool writable = true);
  // Appends the call to the trace and its meaning to the graph; fills call.results and call.result. Throws Decline.
  // A tuple that is a class of the framework has that class's name in result.s ("torch.return_types.max").
  // On Decline trace and graph are unchanged.
  void Apply(Call& call);
  const TensorMeta& meta(TraceId t) const;
  // Set once something had no functional meaning here (say, a write through a view we do not model): the trace is still
  // exact, the graph is not; the segment runs through TraceRunner. Empty: the graph is good.
  const std::string& graph_unusable() const;
  // Why the graph must not be differentiated, though its values are right. Empty: it may be.
  const std::string& undifferentiable() const;
  bool WritesInputWithGradients() const;  // which has some from then on
  // The truth of a tensor of one element, where it is the same in every run: a draw from [0, 1) is never below 0.
  std::optional<bool> KnownTruth(TraceId t);
  // A torch.autograd.Function (lowering_custom.cc): begin, capture its forward, ask for stand-ins for the gradients of
  // its differentiable outputs, capture its backward, end with the call that the trace keeps instead. inputs, grads: by
  // argument. Returns what the program sees in place of the outputs. Tangents and EndCustom throw Decline.
  struct Custom {
    size_t calls = 0, tensors = 0, nodes = 0;
    std::vector<int> versions;
    std::vector<TraceId> outputs;
    std::vector<ValueId> tangents;
  };
  void BeginCustom(Custom* c);
  std::vector<TraceId> Tangents(Custom* c, const std::vector<TraceId>& outputs);
  std::vector<TraceId> EndCustom(Custom* c, Call call, const std::vector<std::optional<TraceId>>& inputs,
                                 const std::vector<std::optional<TraceId>>& grads);
  // torch.utils.checkpoint: what is made between the two is made again in the backward pass. EndCheckpoint throws
  // Decline.
  void BeginCheckpoint();
  void EndCheckpoint();
  using Range = std::pair<size_t, size_t>;         // of nodes of the graph
  const std::vector<Range>& checkpointed() const;  // in order
  // Its memory is what the framework keeps for the derivative of calls that made these values.
  std::vector<ValueId> KeptFor(TraceId t) const;
  bool MayBeKept(TraceId t) const;  // it is not known that no derivative of the framework's keeps its memory
  // Derivatives in the program (lowering_gradients.cc). A tensor that is `t` from here on and has gradients of its own:
  // a call of the trace, a value of the graph. Throws Decline.
  TraceId Leaf(TraceId t);
  // What torch.autograd.grad(outputs, inputs, seeds) gives, as a call of the trace; nothing where no output depends on
  // the input. Nothing for a seed: ones. Of `live` leaves results may have gradients. Throws Decline.
  struct Question {
    std::vector<TraceId> outputs, inputs;
    std::vector<std::optional<TraceId>> seeds;
    bool create = false, retain = false;
    std::vector<TraceId> live;
    bool zeros = false;  // the program takes nothing for zeros
  };
  std::vector<std::optional<TraceId>> Gradients(const Question& q, Call call);
  bool Depends(TraceId t, const std::vector<TraceId>& on);  // with gradients
  std::vector<TraceId> TrackedInputs() const;
  bool differentiates() const;  // there are leaves or gradients
  bool IsLeaf(TraceId t) const;
  bool IsFreed(TraceId t);             // the framework could not differentiate it any more
  void Captured(size_t tensors);       // tensors before this one must not be written from now on; 0: they may
  TraceId AddHidden(TensorMeta meta);  // a tensor of the program that stands for another one
  bool IsHidden(TraceId t) const;      // of that kind, or made inside a custom function: the trace does not make it
  // Ends the graph: declares its symbols; outputs are the base tensors of `outputs` that are not inputs; writes are the
  // mutated inputs. Returns for each trace output how it is made (see tensor::OutputPlan, same meaning). kReplay: index
  // is the graph output that holds the base, or ~i for graph input i; `calls` make the output from it, oldest first.
  struct Made {
    enum Kind { kGraphOutput, kInput, kReplay } kind;
    int index = 0;
    std::vector<int> calls;
  };
  // `ieee`: IEEE exceptions of operations matter (NumPy's). Further graph outputs hold what might raise unread.
  std::vector<Made> Finish(const std::vector<TraceId>& outputs, bool ieee = false);
  // The casts of leaves are made anew: the outermost autocast region ended.
  void EndAutocast();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A finished graph of NumPy's is computed on another device: its inputs are copied there, its results and writes back.
void MoveTo(Graph& g, Device device);

bool HasRow(Callee callee);
std::vector<std::string> AllRows();  // for docs and for mapping objects to rows at import

}  // namespace framejit::surface
