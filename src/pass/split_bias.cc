#include "pass/split_bias.h"

#include "graph/rewrite.h"

namespace framejit::pass {

int SplitBias(Graph& g, Device device) {
  // By value: all users are pointwise or reductions, perhaps behind views.
  std::vector<bool> merges(g.nodes.size(), true), used(g.nodes.size(), false);
  for (ValueId v : g.outputs) merges[v] = false;
  for (const Write& w : g.writes) merges[w.value] = false;
  for (ValueId v = g.nodes.size(); v-- > 0;) {
    const Node& n = g.nodes[v];
    const char kind = Info(n.op).kind;
    const bool into = kind == 'P' || kind == 'R' || (kind == 'V' && merges[v] && used[v]);
    for (ValueId o : n.operands) {
      used[o] = true;
      if (!into) merges[o] = false;
    }
  }
  Rewriter r(g);
  int count = 0;
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    const Node& old = g.nodes[v];
    if (old.op != Op::kLinear || old.operands.size() != 3 || old.type.device != device ||
        old.type.dtype != DType::kFloat32 || !merges[v] || !used[v]) {
      r.Keep(v);
      continue;
    }
    Node n = r.Remapped(v);
    ++count;
    Node sum = n;
    sum.op = Op::kAdd;
    sum.attrs = {};
    Node bias = sum;
    bias.op = Op::kBroadcast;
    bias.strides.clear();
    bias.operands = {n.operands[2]};
    bias.attrs.axes = {n.type.rank() - 1};
    bias.attrs.syms = n.type.shape;
    n.operands.pop_back();
    n.strides.clear();
    const ValueId product = r.Append(std::move(n));
    sum.operands = {product, r.Append(std::move(bias))};
    r.Set(v, r.Append(std::move(sum)));
  }
  r.Finish();
  return count;
}

}  // namespace framejit::pass
