#include <algorithm>

#include "graph/rewrite.h"
#include "pass/fixed.h"
#include "pass/weights.h"

namespace framejit::pass {

std::vector<bool> FixedValues(const Graph& g, const std::vector<bool>& weights) {
  std::vector<bool> fixed(g.nodes.size(), false);
  for (size_t i = 0; i < g.inputs.size() && i < weights.size(); ++i) fixed[g.inputs[i]] = weights[i];
  for (const Write& w : g.writes) fixed[g.inputs[w.input]] = false;
  auto constant = [](const shape::Ints& v) {
    return std::all_of(v.begin(), v.end(), [](shape::Int e) { return e.is_const(); });
  };
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    const Node& n = g.nodes[v];
    if (n.op == Op::kInput) continue;
    const char kind = Info(n.op).kind;
    fixed[v] = kind != 'X' && kind != 'W' && !n.attrs.sym_scalar && constant(n.type.shape) && constant(n.attrs.syms) &&
               std::all_of(n.operands.begin(), n.operands.end(), [&](ValueId o) { return fixed[o]; });
  }
  return fixed;
}

Hoisted HoistWeights(Graph& g, const std::vector<bool>& weights) {
  const std::vector<bool> fixed = FixedValues(g, weights);
  std::vector<bool> moved(g.nodes.size(), false), needed(g.nodes.size(), false);
  for (const Node& n : g.nodes) {
    const bool convolution = n.op == Op::kConv && g.nodes[n.operands[1]].op == Op::kPack;
    for (size_t i = 1; i < n.operands.size(); ++i) {
      const ValueId o = n.operands[i];
      if (fixed[o] && (g.nodes[o].op == Op::kPack || (convolution && g.nodes[o].op != Op::kInput))) moved[o] = true;
    }
  }
  for (ValueId v : g.outputs) moved[v] = false;
  for (const Write& w : g.writes) moved[w.value] = false;
  bool any = false;
  for (ValueId v = g.nodes.size(); v-- > 0;) {
    any = any || moved[v];
    needed[v] = needed[v] || moved[v];
    if (!needed[v]) continue;
    for (ValueId o : g.nodes[v].operands) needed[o] = true;
  }
  Hoisted out;
  if (!any) return out;

  out.graph.name = g.name + " weights";
  std::vector<ValueId> there(g.nodes.size(), kNoValue);
  for (size_t i = 0; i < g.inputs.size(); ++i) {
    const ValueId v = g.inputs[i];
    if (!needed[v]) continue;
    there[v] = static_cast<ValueId>(out.graph.nodes.size());
    out.graph.inputs.push_back(there[v]);
    out.graph.nodes.push_back(g.nodes[v]);
    out.sources.push_back(static_cast<int>(i));
  }
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    if (!needed[v] || there[v] != kNoValue) continue;
    Node n = g.nodes[v];
    for (ValueId& o : n.operands) o = there[o];
    there[v] = static_cast<ValueId>(out.graph.nodes.size());
    out.graph.nodes.push_back(std::move(n));
  }

  std::vector<std::vector<int>> from(out.graph.nodes.size());  // by value: the sources behind it
  for (ValueId v = 0; v < out.graph.nodes.size(); ++v) {
    if (v < out.sources.size()) from[v] = {static_cast<int>(v)};
    for (ValueId o : out.graph.nodes[v].operands) {
      std::vector<int> all;
      std::set_union(from[v].begin(), from[v].end(), from[o].begin(), from[o].end(), std::back_inserter(all));
      from[v] = std::move(all);
    }
  }

  Rewriter r(g);
  for (ValueId v : g.inputs) r.Keep(v);
  std::vector<ValueId> made;
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    if (!moved[v]) continue;
    out.graph.outputs.push_back(there[v]);
    const bool optional = g.nodes[v].op == Op::kPack && g.nodes[v].attrs.name == "linear";
    out.values.push_back({from[there[v]], optional});
    Node n;
    n.op = Op::kInput;
    n.attrs.name = "weight " + std::to_string(made.size());
    n.type = g.nodes[v].type;
    n.strides = RowMajor(n.type.shape);
    r.Set(v, r.Append(std::move(n)));
    made.push_back(r[v]);
  }
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    if (g.nodes[v].op != Op::kInput && !moved[v]) r.Keep(v);
  }
  r.Finish();
  g.inputs.insert(g.inputs.end(), made.begin(), made.end());
  return out;
}

}  // namespace framejit::pass
