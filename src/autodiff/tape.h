// What a derivative rule sees: one node, its value, the gradient that arrived, and where to send what it sends on.
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
  std::vector<bool> needs;     // by value of the original graph: a wanted input depends on nothing else, or it on one
  std::vector<ValueId> grads;  // by value; kNoValue: nothing arrived yet
  std::map<ValueId, std::vector<ValueId>> results;  // extern: gradients of its results

  void Add(ValueId v, ValueId grad);
};

class At {
 public:
  // operands: the node's, or its Derivative's
  At(Tape& tape, ValueId node, ValueId grad, bool widen);
  Tape& tape;
  Builder& b;
  const Node n;  // a copy: building moves the nodes
  const std::vector<ValueId> operands;
  const ValueId id;
  rules::Expr y, g;  // 16-bit floats of pointwise nodes as f32
  rules::Expr in(int i) const { return {b, widen_ ? rules::Widen(b, operands[i]) : operands[i]}; }
  const TensorType type(int i) const { return b.type(operands[i]); }
  bool needs(int i) const { return tape.needs[operands[i]]; }
  void Give(int i, ValueId grad);  // cast to the operand's dtype
  double number(int i) const { return n.derivative->numbers[i]; }
  const std::vector<int64_t>& axes() const { return n.derivative ? n.derivative->axes : n.attrs.axes; }
  // v reduced over the axes (sizes kept or dropped), seen with ones there and spread to shape.
  rules::Expr Spread(ValueId v, const std::vector<int64_t>& axes, const shape::Ints& shape) const;
  rules::Expr Zeros(ValueId like) const { return {b, rules::Like(b, like, 0)}; }

 private:
  bool widen_;
};

std::vector<bool> Reached(const Graph& g, const std::vector<bool>& wanted);  // values, by wanted inputs
std::vector<bool> ReachedFrom(const Graph& g, std::vector<bool> values);
// The rules of the nodes before `end`, last first; origin: as Joint's. twice: the program may differentiate what they
// make, which rules that hold for the first derivative alone forbid (`once`).
struct Passage {
  std::vector<ValueId>* origin = nullptr;
  std::vector<bool>* passed = nullptr;  // by node: its rule ran
  std::vector<ValueId> stops = {};      // nothing goes on from there
  bool twice = false;
  ValueId* at = nullptr;  // the node whose rule runs, or was the last to
};
void Propagate(Tape& tape, ValueId end, const Passage& passage);
using Rule = void (*)(At& t);
Rule PrimitiveRule(Op op);                // null: none
Rule NamedRule(const std::string& name);  // of a Derivative
// Is what the rule makes of smooth operands a formula whose own derivative is right everywhere?
bool HoldsTwice(const Node& n);
std::vector<std::string> RuleNames();
// Shared by rules of both kinds.
// The framework's kernel. what: "take" (index: one dimension) or "gather".
ValueId ScatterAdd(Builder& b, const char* what, const TensorType& data, ValueId index, ValueId grad, int64_t axis);
// The call with results of these types; the first's id, or that of its `result` node. strides: row-major unless given.
std::vector<ValueId> RunCall(Builder& b, std::shared_ptr<Call> call, std::vector<ValueId> operands,
                             const std::vector<TensorType>& types, std::vector<shape::Ints> strides = {});
void EmbeddingRule(At& t);
void ExtremeRule(At& t);        // kMax and kMin; `extreme`, `largest`: not-a-numbers get the gradient, too
bool KeptAttentionRule(At& t);  // of a call that KeepAttention made
void ConvRule(At& t);
void AttentionRule(At& t);
void ExternRule(At& t);
void CustomRule(At& t);
void CustomResultRule(At& t);

inline rules::Expr Le(rules::Expr x, rules::Expr y) {
  return rules::Apply(Op::kLe, x, y);
}

}  // namespace framejit::autodiff
