#include "pass/conv_products.h"

#include <algorithm>

#include "rules/convolution.h"

namespace framejit::pass {

int ConvProducts(Graph& g) {
  const auto count = std::count_if(g.nodes.begin(), g.nodes.end(), [&](auto& n) { return rules::IsProduct(g, n); });
  if (count == 0) return 0;
  const std::vector<Node> nodes = g.nodes;
  Graph old = g;
  g.nodes.clear();
  shape::Env env;
  for (const shape::SymbolInfo& s : g.symbols) env.NewSymbol(s);
  Builder b(g, env);
  std::vector<ValueId> map(old.nodes.size(), kNoValue);
  for (ValueId v = 0; v < old.nodes.size(); ++v) {
    Node n = old.nodes[v];
    for (ValueId& o : n.operands) o = map[o];
    n.derivative.reset();
    if (!rules::IsProduct(old, old.nodes[v])) {
      g.nodes.push_back(std::move(n));
      map[v] = static_cast<ValueId>(g.nodes.size() - 1);
      continue;
    }
    b.set_location(n.file, n.line);
    const shape::Ints w = b.type(n.operands[1]).shape, out = n.type.shape;
    const ValueId pixels = rules::Pixels(b, n.operands[0], out, n.attrs);
    ValueId sum = b.Add(Op::kMatMul, {b.Reshape(n.operands[1], {w[0], w[1]}), pixels});
    if (n.operands.size() > 2) sum = b.Binary(Op::kAdd, sum, b.Reshape(n.operands[2], {w[0], 1}));
    map[v] = b.Reshape(sum, out);
  }
  for (std::vector<ValueId>* list : {&g.inputs, &g.outputs})
    for (ValueId& v : *list) v = map[v];
  for (Write& w : g.writes) w.value = map[w.value];
  return static_cast<int>(count);
}

}  // namespace framejit::pass
