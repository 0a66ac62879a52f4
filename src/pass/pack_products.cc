#include <algorithm>
#include <map>

#include "graph/hints.h"
#include "graph/rewrite.h"
#include "pass/cse.h"
#include "pass/fixed.h"
#include "pass/weights.h"

namespace framejit::pass {
namespace {

constexpr int64_t kMinElements = 32 << 10;  // of a weight: smaller ones are packed in no time anyway
constexpr int64_t kMinRows = 16;            // below, reading the weight is what takes the time

// Gives the weight that operand 1 of a product is, as it lies in memory, and kNoValue if it is anything else.
ValueId WeightOf(const Graph& g, const std::vector<bool>& fixed, const Node& n) {
  const bool product = n.op == Op::kLinear || (n.op == Op::kMatMul && n.type.rank() == 2);
  if (!product || !n.attrs.name.empty() || !n.strides.empty() || n.type.dtype != DType::kFloat32) return kNoValue;
  ValueId w = n.operands[1];
  const TensorType& type = g.nodes[w].type;
  if (!fixed[w] || type.rank() != 2) return kNoValue;
  if (type.shape[0].value() * type.shape[1].value() < kMinElements) return kNoValue;
  if (g.nodes[w].op == Op::kPermute && g.nodes[w].attrs.axes[0] == 1) w = g.nodes[w].operands[0];
  return g.nodes[w].op == Op::kInput ? w : kNoValue;
}

}  // namespace

int PackProducts(Graph& g, const std::vector<bool>& weights) {
  const std::vector<bool> fixed = FixedValues(g, weights);
  const std::vector<int64_t> hints = Hints(g);
  std::map<ValueId, int64_t> rows;  // by weight: of its largest product
  for (const Node& n : g.nodes) {
    const ValueId w = WeightOf(g, fixed, n);
    if (w == kNoValue) continue;
    int64_t m = 1;
    for (size_t i = 0; i + 1 < n.type.shape.size(); ++i) m *= n.type.shape[i].Eval(hints);
    rows[w] = std::max(rows[w], m);
  }
  std::erase_if(rows, [](const auto& r) { return r.second < kMinRows; });
  if (rows.empty()) return 0;

  int changed = 0;
  Rewriter r(g);
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    const auto at = rows.find(WeightOf(g, fixed, g.nodes[v]));
    if (at == rows.end()) {
      r.Keep(v);
      continue;
    }
    Node n = r.Remapped(v);
    if (n.op == Op::kMatMul) {
      n.op = Op::kLinear;
      if (const Node& w = r.node(n.operands[1]); w.op == Op::kPermute) {
        n.operands[1] = w.operands[0];  // so that equal forms of a weight look equal
      } else {
        Node turned = n;
        turned.op = Op::kPermute;
        turned.operands = {n.operands[1]};
        turned.attrs.axes = {1, 0};
        turned.type = w.type;
        turned.type.shape = {w.type.shape[1], w.type.shape[0]};
        n.operands[1] = r.Append(std::move(turned));
      }
    }
    Node pack = n;
    pack.op = Op::kPack;
    pack.operands = {n.operands[1]};
    pack.attrs.name = "linear";
    pack.attrs.axes = {at->second};
    pack.type = r.node(n.operands[1]).type;
    n.attrs.name = "packed";
    n.operands.push_back(r.Append(std::move(pack)));
    r.Set(v, r.Append(std::move(n)));
    ++changed;
  }
  r.Finish();
  Cse(g);  // equal packed forms of a weight would be two outputs of one value: they cannot be copied
  return changed;
}

}  // namespace framejit::pass
