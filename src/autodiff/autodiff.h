// Reverse-mode differentiation of captured graphs, and the cut of the result into a forward and a backward graph.
//
//   %0 = input x                         forward: y, saved            backward: dx
//   %1 = exp %0          joint:          %1 = exp %0                  %0 = input saved (%1)
//   return %1            %2 = input dy   return %1, saved %1          %1 = input dy
//                        %3 = mul %2 %1                               %2 = mul %1 %0
//
// Works on graphs as they were built (before any pass): their nodes still carry Derivatives.
#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "framejit/graph.h"

namespace framejit::autodiff {

// what() says to the user why there is no derivative.
struct Undifferentiable : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// There would be one if the sizes were numbers and no symbols.
struct WantsFixedSizes : Undifferentiable {
  using Undifferentiable::Undifferentiable;
};

// One graph of the function and its derivative: first the function's own nodes with their old numbers, then an input
// node for each tangent (the gradient that arrives at an output), then the nodes that compute the gradients.
struct Joint {
  Graph graph;
  ValueId primal = 0;             // the number of nodes that are the function's own
  std::vector<ValueId> tangents;  // for each output; kNoValue: no gradient comes from there
  std::vector<ValueId> grads;     // for each input; kNoValue: it is not wanted, or no output with a tangent uses it
  std::vector<bool> passed;       // for each of the function's nodes: does a gradient arrive there?
  // For each output, then for each view: the gradient that arrives there, which a backward pass can ask for; kNoValue:
  // none does.
  std::vector<ValueId> arriving;
  std::vector<ValueId> origin;  // for each node behind those: the node whose derivative it is part of
  // For each of the function's nodes: the number (from 1) of the region of torch.utils.checkpoint that it is in, which
  // the backward pass computes again. A negative number marks a call that draws random numbers there: its result is
  // kept. Empty: the program has no such region.
  std::vector<int> region;
  std::vector<bool> moves;  // for each of the function's nodes: Moving
};

// Attention, as asked of the framework, and how it answers: the kernel by name, and the types and strides of what its
// forward part gives, the result first, then what its backward part wants.
struct AttentionRequest {
  std::vector<TensorType> types;  // query, key, value, maybe a mask
  std::vector<shape::Ints> strides;
  double dropout = 0, scale = 0;
  bool causal = false;
};
struct AttentionForm {
  std::string kernel;
  std::vector<TensorType> types;
  std::vector<shape::Ints> strides;
};
using AttentionFinder = std::function<std::optional<AttentionForm>(const AttentionRequest&)>;
// Replaces attention that gradients pass by calls in the form that `find` gives. `wanted` says of each input whether
// its gradient is. `region` (as in Joint) and `values` hold node numbers of g, and are changed to those of the result.
Graph KeepAttention(const Graph& g, const std::vector<bool>& wanted, const AttentionFinder& find,
                    std::vector<int>* region = nullptr, std::vector<std::vector<ValueId>>* values = nullptr);

// Adds the derivative. `wanted` says of each input whether its gradient is asked for, `tangents` of each output whether
// a gradient comes from there. `stops` (empty: none) says of each output whether what arrives there goes no further:
// such gradients follow those of the inputs in Joint::grads, one for each output. `views` are values that have a place
// behind the outputs in this list: views that are results, of which others are made. No gradient goes through nodes in
// `barred`. `moves`: what Moving says of g; empty: nothing is written. Throws Undifferentiable.
Joint Differentiate(const Graph& g, const std::vector<bool>& wanted, const std::vector<bool>& tangents,
                    const std::vector<bool>& stops = {}, const std::vector<ValueId>& views = {},
                    const std::vector<ValueId>& barred = {}, std::vector<bool> moves = {});
// For each value: is it, or does the framework make it again from, memory that the program may write between the
// function and its gradients without telling the framework? `held`: the values that the framework has in memory of
// their own, and the inputs that may be written so. `region`: as in Joint.
std::vector<bool> Moving(const Graph& g, const std::vector<int>& region, const std::vector<ValueId>& held);
// The rule of an identity in a derivative: it reads a value as it was when the function ran.
inline constexpr char kBefore[] = "before";
bool ReadsBefore(const Graph& g, ValueId v);

// A derivative that the program itself asks for (torch.autograd.grad): appends the nodes that compute the gradients of
// the inputs from the tangents of the outputs. kNoValue: no output depends on that input. `passed` says of each node
// whether its rule ran. `zeros`: gradients of zeros stand for such that do not exist, so that the framework may be
// asked for derivatives of its derivatives. Throws Undifferentiable.
std::vector<ValueId> GradientsWithin(Builder& b, const std::vector<ValueId>& outputs,
                                     const std::vector<ValueId>& tangents, const std::vector<ValueId>& inputs,
                                     std::vector<bool>* passed, bool zeros = false);
// For each node: does a derivative lead from it to one of these values (DependsOn)? Is it computed from one, though it
// may be by comparisons, which have no derivative (MadeOf)?
std::vector<bool> DependsOn(const Graph& g, const std::vector<ValueId>& values);
std::vector<bool> MadeOf(const Graph& g, const std::vector<ValueId>& values);

// Chooses the values of the forward part that the backward part starts from: the fewest bytes (symbols count with their
// hints), where what is cheap is computed again and not kept. They are numbers of the original graph, in order.
// `passing` says of each input whether the program may write to it before the gradients come, as it may to results. Of
// those only what a derivative reads is kept, since the framework keeps that too and refuses the pass after a write;
// they are no source for computing other values again. `held`: as Moving has it. What a derivative reads of these
// inputs and of results is read from them themselves, as the framework does, so that such a write is seen by both. What
// is made again of them, and the framework has in memory of its own, is made from what they were: a number behind those
// of the function's nodes (Joint::primal) stands for a copy.
std::vector<ValueId> ChooseSaved(const Joint& j, const std::vector<bool>& passing = {},
                                 const std::vector<ValueId>& held = {});

// For each output, then for each input: must it stay as it is until the backward pass with these tangents? That holds
// of what a derivative reads, and of what the framework keeps for the derivatives of the values in `kept` (for each
// output and input). The framework refuses the pass if one of them was written.
std::vector<bool> ReadOutputs(const Joint& j, const std::vector<std::vector<ValueId>>& kept);

struct SavedValue {
  int input = -1;   // It is this input of the forward graph, or -1.
  int output = -1;  // It is this output of the forward graph, or -1.
};
// The original graph with the saved values as further outputs, where they are none already; `where` says of each saved
// value which one it is.
Graph ForwardGraph(const Joint& j, const std::vector<ValueId>& saved, std::vector<SavedValue>* where);

struct GradSource {
  enum Kind : uint8_t { kNone, kOutput, kTangent } kind = kNone;
  int index = 0;  // of the output of the backward graph, or of the tangent
};
// The backward graph. Its inputs are the saved values, then the tangents that there are; its symbols are the scalars 0,
// 1, ... Every saved value is an input even if this graph does not use it, so that one set of saved values serves the
// backward graphs of all subsets of the tangents it was chosen for. `grads` says where the gradient of each input is.
Graph BackwardGraph(const Joint& j, const std::vector<ValueId>& saved, std::vector<GradSource>* grads);

// A backward graph in parts that run one after the other; each computes the gradients of some inputs of the program.
// What goes into and out of parts is numbered: first the inputs of the whole backward graph, then what parts make.
struct BackwardPart {
  Graph graph;
  std::vector<int> inputs;   // The numbers of what goes into it.
  std::vector<int> outputs;  // The numbers of what comes out of it.
};
struct BackwardParts {
  std::vector<BackwardPart> parts;
  std::vector<int> grads;  // for each input of the program: the number of its gradient, or -1
  int count = 0;           // How many numbers there are.
};
// part[i] is the part that computes the gradient of input i. The first `num_saved` inputs of the backward graph are the
// saved values, the others are tangents.
BackwardParts SplitBackward(Graph backward, const std::vector<GradSource>& grads, const std::vector<int>& part,
                            int num_saved);

// For each of these values: which inputs does it depend on?
std::vector<std::vector<bool>> Needed(const Graph& g, const std::vector<ValueId>& values);

// For each output: its value without the copy that its layout asked for, which nothing else in the graph reads. Behind
// these: `views`.
std::vector<ValueId> SeenOutputs(const Graph& g, const std::vector<ValueId>& views = {});
// For each output, then for each of `views`: which others of them is it computed from, along a way that gradients take?
// next: likewise, along one that comes by no other output.
std::vector<std::vector<bool>> MadeOfOutputs(const Graph& g, const std::vector<bool>& differentiable,
                                             const std::vector<ValueId>& views, std::vector<std::vector<bool>>* next);

}  // namespace framejit::autodiff
