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

// Finds the types of the results of a call that has no row. nullopt: they cannot be known, and the caller breaks before
// the call; *why is set to the reason. The call (like that of an extern node) refers to tensors by position: an
// argument kTensor t is operands[t]. The function sets call.result to the structure of the results, in which kTensor t
// is result number t; if it stays None there is one tensor. Calls that write an operand must be refused.
using InferFn =
    std::function<std::optional<Inferred>(Call& call, const std::vector<TensorMeta>& operands, std::string* why)>;

// Thrown where the caller must let the framework run the call for real. kRefused: the framework would raise, or this
// form of the call has no graph. kData: data decides the result. kMixedCasts: autocast has cast a leaf to another type
// before, and the framework takes that cast and raises. kLeaf: the graph has derivatives by this leaf of the program's.
// kShapes: the framework raises for these shapes.
struct Decline : std::runtime_error {
  enum class Cause : uint8_t { kRefused, kData, kMixedCasts, kLeaf, kShapes };
  explicit Decline(const std::string& why, Cause because = Cause::kRefused) : std::runtime_error(why), cause(because) {}
  Cause cause;
};

// Says for each operand of a call without a row whether it wants a gradient and the framework gives it none, not even
// zeros. What the call's derivative keeps may follow, as numbers of KeptMemory.
using WithoutGradientFn = std::function<std::vector<bool>(const Call& call, const std::vector<TensorMeta>& operands)>;

// Turns a growing Trace into a growing Graph.
class Lowering {
 public:
  Lowering(Trace& trace, Graph& graph, shape::Env& env, InferFn infer, WithoutGradientFn without = nullptr);
  ~Lowering();
  // writable: of what wants gradients, with these.
  TraceId AddInput(TensorMeta meta, std::string name, bool writable = true);
  void Lend(TraceId t);  // From now on nothing is written to its memory, unless it is an input's: somebody may see it.
  // Appends the call to the trace and its meaning to the graph, and sets call.results and call.result. A tuple that is
  // a class of the framework has the name of that class in result.s ("torch.return_types.max"). Throws Decline, and
  // then trace and graph are as before.
  void Apply(Call& call);
  const TensorMeta& meta(TraceId t) const;
  ValueId ValueOf(TraceId t);  // what it is in the graph now
  // Why the graph does not say what the program does, such as a write through a view that has no functional form. The
  // trace is still exact, and the segment runs through TraceRunner. Empty: the graph is good.
  const std::string& graph_unusable() const;
  // Why the graph must not be differentiated, though its values are right. Empty: it may be.
  const std::string& undifferentiable() const;
  bool WritesInputWithGradients() const;  // does a write make an input have gradients?
  // The truth of a tensor of one element, where it is the same in every run: a draw from [0, 1) is never below 0.
  std::optional<bool> KnownTruth(TraceId t);
  // A torch.autograd.Function (lowering_custom.cc). The caller begins, captures its forward, asks with Tangents for
  // stand-ins for the gradients of its differentiable outputs, captures its backward, and ends with the call that the
  // trace keeps in place of all that. `inputs` and `grads` have an entry for each argument. EndCustom returns what the
  // program sees in place of the outputs. Tangents and EndCustom throw Decline.
  struct Custom {
    size_t calls = 0, tensors = 0, nodes = 0;
    std::vector<int> versions;
    std::vector<TraceId> outputs;
    std::vector<ValueId> tangents;
    bool as_it_is = false;  // the backward is one call, of the user's function
  };
  void BeginCustom(Custom* c);
  std::vector<TraceId> Tangents(Custom* c, const std::vector<TraceId>& outputs);
  std::vector<TraceId> EndCustom(Custom* c, Call call, const std::vector<std::optional<TraceId>>& inputs,
                                 const std::vector<std::optional<TraceId>>& grads);
  // torch.utils.checkpoint: the backward pass computes again what is appended between these two calls. EndCheckpoint
  // throws Decline.
  void BeginCheckpoint();
  void EndCheckpoint();
  using Range = std::pair<size_t, size_t>;         // the first node of the graph, and the one behind the last
  const std::vector<Range>& checkpointed() const;  // In the order in which they were made.
  // One of the reentrant form: its nodes, and the values that wanted gradients and were given to it.
  struct Reentrant {
    Range nodes;
    std::vector<ValueId> given;
  };
  Reentrant BeginReentrant(const std::vector<TraceId>& given);
  void EndReentrant(Reentrant r);
  const std::vector<Reentrant>& reentrant() const;
  // Of custom functions: results, and values given to them for which their backward answers None.
  struct Unanswered {
    std::vector<ValueId> results, given;
  };
  const std::vector<Unanswered>& unanswered() const;
  // The values for whose derivatives the framework surely keeps the memory of t.
  std::vector<ValueId> KeptFor(TraceId t) const;
  const std::vector<ValueId>& held() const;  // values that the framework has in memory of their own (derivatives.h)
  bool MayBeKept(TraceId t) const;           // may a derivative of the framework's keep the memory of t?
  // Derivatives that the program itself takes (lowering_gradients.cc). Leaf makes a tensor that stands for `t` from
  // here on and has gradients of its own; it is a call of the trace and a value of the graph. Throws Decline.
  TraceId Leaf(TraceId t);
  // t.requires_grad_(on) as a call of the trace and nothing else: the object itself is a leaf, or none any more. The
  // graph has no derivatives by it. Throws Decline.
  void Track(TraceId t, bool on);
  bool IsTracked(TraceId t) const;
  bool tracks() const;  // Has Track been called?
  // What torch.autograd.grad(outputs, inputs, seeds) gives, as a call of the trace. There is nothing for an input that
  // no output depends on. A seed that is nothing stands for ones. The results may have gradients with respect to the
  // leaves in `live`. Throws Decline.
  struct Question {
    std::vector<TraceId> outputs, inputs;
    std::vector<std::optional<TraceId>> seeds;
    bool create = false, retain = false;
    std::vector<TraceId> live;
    bool zeros = false;  // the program gets zeros where there is no gradient
  };
  std::vector<std::optional<TraceId>> Gradients(const Question& q, Call call);
  // Does t depend on one of these, along a way that gradients take?
  bool Depends(TraceId t, const std::vector<TraceId>& on);
  std::vector<TraceId> TrackedInputs() const;
  bool differentiates() const;  // has Leaf or Gradients been called?
  bool IsLeaf(TraceId t) const;
  // Is it a view, made in no_grad, of what has gradients? It says that it wants some itself.
  bool ViewedWithoutGradients(TraceId t) const;
  void Show(TraceId t);  // The program sees the strides of t: what they were taken for becomes guards.
  // The graph's derivatives are not the program's from here on, for this reason: the framework's are taken.
  void LeaveDerivatives(const std::string& why);
  bool IsFreed(TraceId t);             // was what its derivative needs freed, so that the framework would refuse it?
  void Captured(size_t tensors);       // tensors before this one must not be written from now on; 0: they may again
  TraceId AddHidden(TensorMeta meta);  // a tensor of the program that stands for another one
  bool IsHidden(TraceId t) const;  // is it such a tensor, or one of a custom function, which the trace does not make?
  // How an output of the trace is made at the end of a run (tensor::OutputPlan means the same). For kReplay the index
  // is that of the graph output which holds the base, or ~i for graph input i; `calls` make the output from it, the
  // oldest first.
  struct Made {
    enum Kind { kGraphOutput, kInput, kReplay } kind;
    int index = 0;
    std::vector<int> calls;
  };
  // Ends the graph: declares its symbols, makes outputs of the base tensors of `outputs` that are not inputs, and
  // writes of the inputs that were changed. ieee: IEEE exceptions of operations matter, as in NumPy; then values that
  // might raise and that nobody reads are outputs, too.
  std::vector<Made> Finish(const std::vector<TraceId>& outputs, bool ieee = false);
  // To be called where the outermost autocast region ends: from then on casts of leaves are made anew.
  void EndAutocast();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Makes a finished graph of NumPy's compute on another device: inputs are copied there, results and writes are copied
// back.
void MoveTo(Graph& g, Device device);

bool HasRow(Callee callee);
std::vector<std::string> AllRows();  // all names, for pages and for finding objects of the frameworks at their import

}  // namespace framejit::surface
