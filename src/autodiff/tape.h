// What the rule of a derivative gets: one node, its value, the gradient that arrived, and where to send the gradients
// of the operands.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "autodiff/autodiff.h"
#include "rules/compose.h"

namespace framejit::autodiff {

struct Tape {
  Builder& b;
  std::vector<bool> needs;     // for each value of the original graph: does it depend on a wanted input?
  std::vector<ValueId> grads;  // for each value: the gradient that has arrived; kNoValue: none yet
  std::map<ValueId, std::vector<ValueId>> results;  // for a call with several results: their gradients
  bool zeros = false;            // the program may differentiate the gradients, and zeros are as good to it as none
  std::vector<bool> moves = {};  // Moving; empty: nothing is written

  void Add(ValueId v, ValueId grad);
};

class At {
 public:
  // The operands are those of the node's Derivative, if it has one.
  At(Tape& tape, ValueId node, ValueId grad, bool widen);
  Tape& tape;
  Builder& b;
  const Node n;  // a copy, since building moves the nodes
  const std::vector<ValueId> operands;
  const ValueId id;
  rules::Expr y, g;  // value and gradient; those of pointwise nodes in 16-bit floats are widened to f32
  rules::Expr in(int i) const { return {b, widen_ ? rules::Widen(b, operands[i]) : operands[i]}; }
  // Of a value that the framework keeps in memory of its own, and does not read from what the program may write since.
  rules::Expr Before(ValueId v) const;
  bool Moves(ValueId v) const { return v < tape.moves.size() && tape.moves[v]; }
  const TensorType type(int i) const { return b.type(operands[i]); }
  bool needs(int i) const { return tape.needs[operands[i]]; }
  void Give(int i, ValueId grad);  // sends a gradient on to operand i, cast to its dtype
  double number(int i) const { return n.derivative->numbers[i]; }
  const std::vector<int64_t>& axes() const { return n.derivative ? n.derivative->axes : n.attrs.axes; }
  // v is the result of a reduction over `axes`: the same value for every element of `shape` that was reduced into it.
  rules::Expr Spread(ValueId v, const std::vector<int64_t>& axes, const shape::Ints& shape) const;
  rules::Expr Zeros(ValueId like) const { return {b, rules::Like(b, like, 0)}; }

 private:
  bool widen_;
};

// For each value: does it depend on a wanted input (Reached) or on one of these values (ReachedFrom)? What depends on
// `ends` alone does not.
std::vector<bool> Reached(const Graph& g, const std::vector<bool>& wanted);
std::vector<bool> ReachedFrom(const Graph& g, std::vector<bool> values, const std::vector<ValueId>& ends = {});
// What Propagate is told and tells.
struct Passage {
  std::vector<ValueId>* origin = nullptr;  // As Joint::origin.
  std::vector<bool>* passed = nullptr;     // for each node: did its rule run?
  std::vector<ValueId> stops = {};         // values from which no gradient goes on
  bool twice = false;                      // the program may differentiate the gradients: some rules must not be used
  ValueId* at = nullptr;                   // the node whose rule runs, or was the last to
};
// Runs the rules of the nodes before `end`, the last one first.
void Propagate(Tape& tape, ValueId end, const Passage& passage);
using Rule = void (*)(At& t);
Rule PrimitiveRule(Op op);                // null: the primitive has no derivative
Rule NamedRule(const std::string& name);  // The rule that a Derivative names.
// Is what the rule makes of smooth operands a formula whose own derivative is right everywhere?
bool HoldsTwice(const Node& n);
std::vector<std::string> RuleNames();
// --- shared by the rules of primitives and of names
// The gradient of what the node `what` reads, "take" (whose index has one dimension) or "gather", by the framework's
// kernel.
ValueId ScatterAdd(Builder& b, const char* what, const TensorType& data, ValueId index, ValueId grad, int64_t axis);
// Appends the call, whose results have these types and strides (row-major unless given). Returns the values of the
// results.
std::vector<ValueId> RunCall(Builder& b, std::shared_ptr<Call> call, std::vector<ValueId> operands,
                             const std::vector<TensorType>& types, std::vector<shape::Ints> strides = {});
void EmbeddingRule(At& t);
void ExtremeRule(At& t);        // kMax, kMin; under the names `extreme` and `largest` a NaN gets the gradient, too
bool KeptAttentionRule(At& t);  // for calls that KeepAttention has made; false: it is none
void ConvRule(At& t);
void AttentionRule(At& t);
void ExternRule(At& t);
void CustomRule(At& t);
void CustomResultRule(At& t);

inline rules::Expr Le(rules::Expr x, rules::Expr y) {
  return rules::Apply(Op::kLe, x, y);
}

}  // namespace framejit::autodiff
