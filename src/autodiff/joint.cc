#include <algorithm>

#include "autodiff/tape.h"
#include "diag/diag.h"
#include "graph/effects.h"
#include "graph/rewrite.h"

namespace framejit::autodiff {

using shape::Int;
using shape::Ints;

void Tape::Add(ValueId v, ValueId grad) {
  ValueId& sum = grads[v];
  if (sum != kNoValue && DTypeSize(b.type(grad).dtype) < 2) throw Undifferentiable("sums of 8-bit gradients");
  sum = sum == kNoValue ? grad : b.Binary(Op::kAdd, sum, grad);
}

At::At(Tape& tape, ValueId node, ValueId grad, bool widen)
    : tape(tape),
      b(tape.b),
      n(tape.b.graph().node(node)),
      operands(n.derivative ? n.derivative->operands : n.operands),
      id(node),
      y(b, node),
      g(b, grad),
      widen_(widen) {
  if (widen) y = {b, rules::Widen(b, node)};
  if (widen && grad != kNoValue) g = {b, rules::Widen(b, grad)};
}

void At::Give(int i, ValueId grad) {
  if (!needs(i)) return;
  const TensorType t = type(i);
  if (const Ints shape = b.type(grad).shape; shape != t.shape) {
    const int lead = static_cast<int>(shape.size()) - t.rank();
    FRAMEJIT_CHECK(lead >= 0);
    std::vector<int64_t> stretched;  // what the operation broadcast
    for (int d = 0; d < static_cast<int>(shape.size()); ++d)
      if (d < lead || (t.shape[d - lead] == Int(1) && !(shape[d] == Int(1)))) stretched.push_back(d);
    if (!stretched.empty()) grad = rules::Sum(b, grad, stretched, true, b.type(grad).dtype);
    grad = b.Reshape(grad, t.shape);  // other sizes may be equal by a guard only: later stages want one expression
  }
  grad = b.Cast(grad, t.dtype);
  PutOn(b.graph(), grad, t.device);
  tape.Add(operands[i], grad);
}

rules::Expr At::Before(ValueId v) const {
  const ValueId was = Moves(v) ? b.Barrier(v, kBefore) : v;
  return {b, widen_ ? rules::Widen(b, was) : was};
}

rules::Expr At::Spread(ValueId v, const std::vector<int64_t>& axes, const Ints& shape) const {
  Ints ones = shape;
  for (int64_t a : axes) ones[a] = 1;
  return {b, b.Broadcast(b.Reshape(v, ones), shape)};
}

namespace {

// Where the program did this, for the user.
std::string LineOf(const Node& n) {
  return n.line > 0 ? " (" + n.file.str() + ":" + std::to_string(n.line) + ")" : "";
}

Rule RuleOf(const Node& n) {
  return n.derivative ? NamedRule(n.derivative->rule) : PrimitiveRule(n.op);
}

}  // namespace

// Which values a wanted input reaches. A float that is reached and cannot be differentiated is an error only if a
// gradient arrives there.
std::vector<bool> Reached(const Graph& g, const std::vector<bool>& wanted) {
  std::vector<bool> values(g.nodes.size());
  for (size_t i = 0; i < g.inputs.size(); ++i)
    values[g.inputs[i]] = wanted[i] && IsFloat(g.node(g.inputs[i]).type.dtype);
  return ReachedFrom(g, std::move(values));
}

std::vector<bool> ReachedFrom(const Graph& g, std::vector<bool> needs, const std::vector<ValueId>& ends) {
  std::vector<bool> ending(g.nodes.size());
  for (ValueId v : ends) ending[v] = true;
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    const Node& n = g.node(v);
    bool several = n.op == Op::kExtern && n.attrs.result_types.size() > 1;
    if (IsComplex(n.type.dtype))  // gradients flow through it, and no rule here says how
      for (ValueId o : n.operands)
        if (needs[o]) throw Undifferentiable("complex values" + LineOf(n));
    if (n.op == Op::kInput || (!several && !IsFloat(n.type.dtype))) continue;
    if (n.derivative && n.derivative->rule == "stop") continue;
    // Where the formula has no rule, the primitive's operands say where it leads.
    const auto& operands = n.derivative && RuleOf(n) ? n.derivative->operands : n.operands;
    for (ValueId o : operands) needs[v] = needs[v] || (needs[o] && !ending[o]);
  }
  return needs;
}

void Propagate(Tape& tape, ValueId end, const Passage& passage) {
  Builder& b = tape.b;
  const Graph& g = b.graph();
  for (ValueId v = end; v-- > 0;) {
    if (!tape.needs[v]) continue;
    const Node& node = g.node(v);
    bool several = node.op == Op::kExtern && node.attrs.result_types.size() > 1;
    if (node.op == Op::kInput) continue;
    if (std::find(passage.stops.begin(), passage.stops.end(), v) != passage.stops.end()) continue;
    if (several ? !tape.results.contains(v) : tape.grads[v] == kNoValue) continue;
    b.set_location(node.file, node.line);
    if (node.op == Op::kResult) {
      auto& all = tape.results[node.operands[0]];
      all.resize(g.node(node.operands[0]).attrs.result_types.size(), kNoValue);
      all[node.attrs.axes[0]] = tape.grads[v];
      continue;
    }
    const auto& operands = node.derivative ? node.derivative->operands : node.operands;
    const bool asked_for = std::none_of(operands.begin(), operands.end(), [&](ValueId o) { return tape.needs[o]; });
    if (asked_for && !(node.derivative && operands.empty())) continue;  // an unknown derivative names no operands
    if (passage.origin) passage.origin->resize(g.nodes.size() - end, kNoValue);
    if (passage.at) *passage.at = v;
    Rule rule = RuleOf(node);
    if (!rule) throw Undifferentiable(std::string("no derivative of ") + Info(node.op).name + " here");
    char kind = Info(node.op).kind;
    bool narrow = IsFloat(node.type.dtype) && DTypeSize(node.type.dtype) < 4 && (kind == 'P' || node.derivative);
    const size_t before = g.nodes.size();
    At at(tape, v, several ? kNoValue : tape.grads[v], narrow);
    rule(at);
    if (passage.origin) passage.origin->resize(g.nodes.size() - end, v);
    if (passage.passed) (*passage.passed)[v] = true;
    const bool once = passage.twice && !HoldsTwice(at.n);
    for (size_t i = before; passage.twice && i < g.nodes.size(); ++i) {
      Node& made = b.graph().nodes[i];
      if (once || (made.op == Op::kExtern && !(tape.zeros && made.attrs.call->callee.Has(kDerivedAgain))))
        made.derivative = std::make_shared<const Derivative>(Derivative{"once", made.operands, {}, {}});
    }
  }
}

std::vector<bool> DependsOn(const Graph& g, const std::vector<ValueId>& values) {
  std::vector<bool> from(g.nodes.size());
  for (ValueId v : values) from[v] = true;
  return ReachedFrom(g, std::move(from));
}

std::vector<bool> MadeOf(const Graph& g, const std::vector<ValueId>& values) {
  std::vector<bool> made(g.nodes.size());
  for (ValueId v : values) made[v] = true;
  for (ValueId v = 0; v < g.nodes.size(); ++v)
    if (!g.node(v).derivative || g.node(v).derivative->rule != "stop")
      for (ValueId o : g.node(v).operands) made[v] = made[v] || made[o];
  return made;
}

std::vector<ValueId> GradientsWithin(Builder& b, const std::vector<ValueId>& outputs,
                                     const std::vector<ValueId>& tangents, const std::vector<ValueId>& inputs,
                                     std::vector<bool>* passed, bool zeros) {
  const auto end = static_cast<ValueId>(b.graph().nodes.size());
  Tape tape{b, DependsOn(b.graph(), inputs), std::vector<ValueId>(end, kNoValue), {}, zeros};
  passed->assign(end, false);
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i] < end && tape.needs[outputs[i]]) tape.Add(outputs[i], b.Cast(tangents[i], b.type(outputs[i]).dtype));
  ValueId at = kNoValue;
  try {
    Propagate(tape, end, {.passed = passed, .twice = true, .at = &at});
  } catch (const Undifferentiable& e) {
    if (at == kNoValue) throw;
    throw Undifferentiable(e.what() + LineOf(b.graph().node(at)));
  }
  std::vector<ValueId> grads;
  for (ValueId v : inputs) grads.push_back(tape.grads[v]);
  return grads;
}

std::vector<std::vector<bool>> Needed(const Graph& g, const std::vector<ValueId>& values) {
  std::vector<std::vector<bool>> needed;
  for (ValueId value : values) {
    std::vector<bool> uses(g.nodes.size());  // the nodes that it depends on, itself included
    uses[value] = true;
    for (ValueId v = value + 1; v-- > 0;)
      if (uses[v])
        for (ValueId o : g.node(v).operands) uses[o] = true;
    needed.emplace_back();
    for (ValueId v : g.inputs) needed.back().push_back(uses[v]);
  }
  return needed;
}

std::vector<ValueId> SeenOutputs(const Graph& g, const std::vector<ValueId>& views) {
  std::vector<ValueId> seen;
  for (ValueId v : g.outputs) {  // a copy that the layout asked for is seen by nobody
    const Node& n = g.node(v);
    const bool copy = n.op == Op::kCast && !n.derivative && g.node(n.operands[0]).type.dtype == n.type.dtype;
    const bool other = copy && g.node(n.operands[0]).op != Op::kInput &&
                       std::find(g.outputs.begin(), g.outputs.end(), n.operands[0]) == g.outputs.end();
    seen.push_back(other ? n.operands[0] : v);
  }
  seen.insert(seen.end(), views.begin(), views.end());
  return seen;
}

std::vector<std::vector<bool>> MadeOfOutputs(const Graph& g, const std::vector<bool>& differentiable,
                                             const std::vector<ValueId>& views, std::vector<std::vector<bool>>* next) {
  const std::vector<ValueId> seen = SeenOutputs(g, views);
  const size_t n = seen.size();
  std::vector<ValueId> values = g.outputs;
  std::vector<bool> derived = differentiable;
  values.insert(values.end(), views.begin(), views.end());
  derived.resize(n, true);
  std::vector<std::vector<bool>> made(n, std::vector<bool>(n));
  *next = made;
  if (std::count(derived.begin(), derived.end(), true) < 2) return made;
  for (size_t i = 0; i < n; ++i) {
    if (!derived[i]) continue;
    const std::vector<bool> from = DependsOn(g, {seen[i]});
    std::vector<ValueId> others;
    std::vector<bool> begin(g.nodes.size());
    begin[seen[i]] = true;
    for (size_t k = 0; k < g.outputs.size(); ++k)
      if (derived[k] && seen[k] != seen[i]) others.push_back(seen[k]);
    const std::vector<bool> near = ReachedFrom(g, std::move(begin), others);
    for (size_t k = 0; k < n; ++k) {
      made[k][i] = k != i && seen[k] != seen[i] && derived[k] && from[values[k]];
      (*next)[k][i] = made[k][i] && near[seen[k]];
    }
  }
  return made;
}

Joint Differentiate(const Graph& g, const std::vector<bool>& wanted, const std::vector<bool>& tangents,
                    const std::vector<bool>& stops, const std::vector<ValueId>& views,
                    const std::vector<ValueId>& barred, std::vector<bool> moves) {
  Joint j;
  j.graph.nodes.reserve(3 * g.nodes.size());  // about so many there will be
  j.graph = g;
  j.graph.writes.clear();
  j.primal = static_cast<ValueId>(g.nodes.size());
  shape::Env env;
  for (const shape::SymbolInfo& s : g.symbols) env.NewSymbol(s);
  for (const Node& n : g.nodes)  // gradients have the sizes of before, which divisions need not give back
    if (n.op == Op::kReshape)
      env.Assume(shape::Cmp::kEq, shape::Product(g.node(n.operands[0]).type.shape), shape::Product(n.type.shape));
  Builder b(j.graph, env);
  Tape tape{b, Reached(g, wanted), std::vector<ValueId>(g.nodes.size(), kNoValue), {}, false, moves};
  j.moves = std::move(moves);
  for (size_t i = 0; i < g.outputs.size(); ++i) {
    ValueId out = g.outputs[i], tangent = kNoValue;
    if (tangents[i] && tape.needs[out]) {
      const Node& n = g.node(out);
      Ints strides = n.strides;
      if (strides.empty()) {
        strides.resize(n.type.shape.size());
        Int s = 1;
        for (size_t d = strides.size(); d-- > 0; s = s * n.type.shape[d]) strides[d] = s;
      }
      tangent = b.Input(n.type, strides, "tangent " + std::to_string(i));
    }
    j.tangents.push_back(tangent);
  }
  for (size_t i = 0; i < g.outputs.size(); ++i)
    if (j.tangents[i] != kNoValue) tape.Add(g.outputs[i], j.tangents[i]);
  const std::vector<ValueId> seen = SeenOutputs(g, views);
  Passage passage{.origin = &j.origin, .stops = barred};
  for (size_t i = 0; i < stops.size(); ++i)
    if (stops[i]) passage.stops.push_back(seen[i]);
  Propagate(tape, j.primal, passage);
  j.origin.resize(j.graph.nodes.size() - j.primal, kNoValue);
  for (const shape::Guard& guard : env.guards()) {
    bool appears = false;
    for (Int e : {guard.lhs, guard.rhs})
      e.ForEachSymbol([&](uint32_t id) { appears |= g.symbols[id].kind == shape::SymbolKind::kRuntime; });
    if (appears) throw Undifferentiable("a size that appears while it runs: " + guard.str());
  }
  if (!env.guards().empty()) throw WantsFixedSizes("sizes that are equal by chance: " + env.guards()[0].str());
  for (size_t i = 0; i < g.inputs.size(); ++i) j.grads.push_back(wanted[i] ? tape.grads[g.inputs[i]] : kNoValue);
  for (ValueId v : seen) j.arriving.push_back(tape.grads[v]);
  for (ValueId v = 0; v < j.primal; ++v) j.passed.push_back(tape.grads[v] != kNoValue);
  for (size_t i = 0; i < stops.size(); ++i) j.grads.push_back(stops[i] ? j.arriving[i] : kNoValue);
  j.graph.writes = g.writes;
  PlaceOperands(j.graph);
  return j;
}

}  // namespace framejit::autodiff
