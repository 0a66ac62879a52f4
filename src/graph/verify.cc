#include <absl/container/inlined_vector.h>

#include <algorithm>

#include "framejit/graph.h"
#include "graph/infer.h"
#include "graph/print.h"

namespace framejit {
namespace {

using shape::Int;
using shape::Ints;

// Sizes are equal by algebra or, as a graph does not carry the guards it was captured under, by their hints.
bool SameShape(const Ints& a, const Ints& b, shape::Env& env) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](Int x, Int y) { return env.Eq(x, y); });
}

std::string CheckNode(const Graph& g, ValueId v, shape::Env& env) {
  const Node& n = g.nodes[v];
  absl::InlinedVector<const TensorType*, 8> types;
  for (ValueId o : n.operands) {
    if (o >= v) return "operand %" + std::to_string(o) + " is not defined before its use";
    types.push_back(&g.nodes[o].type);
  }
  for (ValueId o : n.operands)
    if (g.nodes[o].op == Op::kExtern && g.nodes[o].attrs.result_types.size() != 1 && n.op != Op::kResult)
      return "uses a call that has not exactly one result: pick one with `result`";
  uint32_t limit = static_cast<uint32_t>(g.symbols.size());
  std::string bad;
  auto known = [&](Int e) {
    if (e.is_const()) return;
    e.ForEachSymbol([&](uint32_t id) {
      if (id >= limit) bad = "symbol s" + std::to_string(id) + " is not declared";
    });
  };
  for (const shape::IntList* list : {&n.type.shape, &n.strides, &n.attrs.syms})
    for (Int e : *list) known(e);
  if (n.attrs.sym_scalar) known(*n.attrs.sym_scalar);
  for (const TensorType& t : n.attrs.result_types)
    for (Int e : t.shape) known(e);
  if (!bad.empty()) return bad;
  if (!n.strides.empty() && n.strides.size() != n.type.shape.size()) return "needs a stride per dim";
  if (n.op == Op::kInput) {
    if (!std::binary_search(g.inputs.begin(), g.inputs.end(), v)) return "input is not listed once";
    return "";
  }
  if (n.op == Op::kExtern && !n.attrs.call) return "extern without a call";
  TensorType expected;
  if (n.op == Op::kResult) {
    if (n.operands.size() != 1 || g.nodes[n.operands[0]].op != Op::kExtern)
      return "result of something else than a call";
    const auto& results = g.nodes[n.operands[0]].attrs.result_types;
    if (n.attrs.axes.size() != 1 || n.attrs.axes[0] < 0 || n.attrs.axes[0] >= std::ssize(results))
      return "no such result";
    expected = results[n.attrs.axes[0]];
  } else {
    try {
      expected = InferAt(n.op, types, n.attrs, env);
    } catch (const ShapeError& e) {
      return e.what();
    }
  }
  bool creation = Info(n.op).kind == 'C';  // Such a node says what it makes, but not on which device.
  if (expected.dtype != n.type.dtype ||
      !(expected.shape == n.type.shape || SameShape(expected.shape, n.type.shape, env)) ||
      (!creation && !(expected.device == n.type.device)))
    return "type should be " + expected.str();
  return "";
}

}  // namespace

std::string Verify(const Graph& g) {
  if (!g.symbol_sources.empty() && g.symbol_sources.size() != g.symbols.size()) return "a symbol has no source";
  shape::Env env;
  for (const shape::SymbolInfo& s : g.symbols) env.NewSymbol(s);
  for (size_t i = 0; i < g.inputs.size(); ++i) {
    if (g.inputs[i] >= g.nodes.size() || g.nodes[g.inputs[i]].op != Op::kInput) return "an input is no `input` node";
    if (i > 0 && g.inputs[i] <= g.inputs[i - 1]) return "inputs are not in the order of their nodes";
  }
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    std::string problem = CheckNode(g, v, env);
    if (!problem.empty()) return problem + ": " + NodeText(g, v, true);
  }
  for (const Graph::SymbolSource& s : g.symbol_sources) {
    if (s.input < 0 || s.dim < 0) continue;
    if (s.input >= g.inputs.size() || s.dim >= g.nodes[g.inputs[s.input]].type.rank())
      return "a symbol's source is not there";
  }
  for (ValueId v : g.outputs)
    if (v >= g.nodes.size()) return "output %" + std::to_string(v) + " is not defined";
  for (const Write& w : g.writes) {
    if (w.value >= g.nodes.size()) return "written value %" + std::to_string(w.value) + " is not defined";
    if (w.input < 0 || w.input >= g.inputs.size()) return "write to an input that is not there";
    const TensorType &to = g.nodes[g.inputs[w.input]].type, &from = g.nodes[w.value].type;
    if (to.dtype != from.dtype || !SameShape(to.shape, from.shape, env))
      return "write of " + from.str() + " to input " + std::to_string(w.input) + " of type " + to.str();
  }
  return "";
}

}  // namespace framejit
