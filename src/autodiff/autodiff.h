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

struct Undifferentiable : std::runtime_error {  // what() says why, for the user
  using std::runtime_error::runtime_error;
};
struct WantsFixedSizes : Undifferentiable {  // with numbers in place of symbols it would be differentiated
  using Undifferentiable::Undifferentiable;
};

// The graph's own nodes, in place, then one input node a tangent, then the nodes of the gradients.
struct Joint {
  Graph graph;
  ValueId primal = 0;             // nodes before this one are the original's
  std::vector<ValueId> tangents;  // by output; kNoValue: no gradient comes from there
  std::vector<ValueId> grads;     // by input; kNoValue: not wanted, or no output with a tangent depends on it
  std::vector<bool> passed;       // by node before `primal`: a gradient arrives there
  std::vector<ValueId> arriving;  // by output: what a pass that looks for that result asks for; kNoValue, likewise
  std::vector<ValueId> origin;    // by node from `primal` on: whose derivative it belongs to
  // By node before `primal`, of those that the program wants made again in the backward pass (torch.utils.checkpoint):
  // the number of the region they are in, from 1; below 0: a call that draws random numbers there, which is kept.
  // Empty: there are none.
  std::vector<int> region;
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
// The graph with such calls instead of attention that gradients pass. wanted: by input; region: as Joint's, of the
// graph it is given, then of the one it makes. So are values, by whatever.
Graph KeepAttention(const Graph& g, const std::vector<bool>& wanted, const AttentionFinder& find,
                    std::vector<int>* region = nullptr, std::vector<std::vector<ValueId>>* values = nullptr);

// wanted: by input; tangents: by output. Throws Undifferentiable.
// stops, by output (empty: none): what arrives there goes no further; it is one more of the gradients, behind those of
// the inputs (as many as there are outputs).
Joint Differentiate(const Graph& g, const std::vector<bool>& wanted, const std::vector<bool>& tangents,
                    const std::vector<bool>& stops = {});

// A derivative as part of the program: the nodes of d outputs / d inputs, along the tangents, behind the graph's own.
// kNoValue: no output depends on it. passed: by node, those whose rules ran. Throws Undifferentiable.
std::vector<ValueId> GradientsWithin(Builder& b, const std::vector<ValueId>& outputs,
                                     const std::vector<ValueId>& tangents, const std::vector<ValueId>& inputs,
                                     std::vector<bool>* passed);
// By node: a derivative leads from it to one of these values; it is made of one, by comparisons, say.
std::vector<bool> DependsOn(const Graph& g, const std::vector<ValueId>& values);
std::vector<bool> MadeOf(const Graph& g, const std::vector<ValueId>& values);

// The values of the forward part that the backward part starts from: fewest bytes (symbols count with their hints),
// where cheap things are computed again rather than kept. Values of the original graph, in order. `passing`, by input:
// the program may write to it before the gradients come (what another operation has made, say), as it may to results.
// Of those only what derivatives read themselves is kept, which the framework keeps too, and not what other things
// could be made of again.
std::vector<ValueId> ChooseSaved(const Joint& j, const std::vector<bool>& passing = {});

// By output, then by input: what is to stay as it is until a pass of these tangents. An output that a derivative reads,
// and what the framework keeps for one (kept, by output and input: for those of these values). The framework refuses
// the pass if it was written.
std::vector<bool> ReadOutputs(const Joint& j, const std::vector<std::vector<ValueId>>& kept);

struct SavedValue {
  int input = -1;   // it is this input,
  int output = -1;  // or this output of the forward graph
};
// The original graph with the saved values as further outputs (those that are none already).
Graph ForwardGraph(const Joint& j, const std::vector<ValueId>& saved, std::vector<SavedValue>* where);

struct GradSource {
  enum Kind : uint8_t { kNone, kOutput, kTangent } kind = kNone;
  int index = 0;  // output of the backward graph / number of the tangent
};
// Inputs: the saved values, then the tangents there are; symbols are scalars 0, 1, ... Every saved value is an input,
// used or not: one saved set serves the joints of all subsets of the tangents it was chosen for.
Graph BackwardGraph(const Joint& j, const std::vector<ValueId>& saved, std::vector<GradSource>* grads);

// A backward graph in parts that run one after the other, each for the gradients of its own inputs of the program.
// What they pass on is numbered: first the inputs of the whole backward graph, then what parts make for others.
struct BackwardPart {
  Graph graph;
  std::vector<int> inputs;   // numbers
  std::vector<int> outputs;  // numbers
};
struct BackwardParts {
  std::vector<BackwardPart> parts;
  std::vector<int> grads;  // by input of the program: number, or -1
  int count = 0;           // of numbers
};
// part: by input of the program; num_saved: so many of the backward graph's inputs come before the tangents.
BackwardParts SplitBackward(const Graph& backward, const std::vector<GradSource>& grads, const std::vector<int>& part,
                            int num_saved);

// By output: the inputs that its value depends on.
std::vector<std::vector<bool>> Needed(const Graph& g);

// By output: the value that the others see of it.
std::vector<ValueId> SeenOutputs(const Graph& g);
// By output: the outputs that it is made of, by what gradients pass; itself excepted.
std::vector<std::vector<bool>> MadeOfOutputs(const Graph& g, const std::vector<bool>& differentiable);

}  // namespace framejit::autodiff
