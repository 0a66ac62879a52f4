#include "pass/dce.h"

#include "graph/raises.h"
#include "graph/rewrite.h"

namespace framejit::pass {

int Dce(Graph& g) {
  std::vector<bool> live(g.nodes.size());
  for (ValueId v : g.outputs) live[v] = true;
  for (const Write& w : g.writes) live[w.value] = true;
  const std::vector<bool> stand_ins = StandIns(g);
  for (ValueId v = static_cast<ValueId>(g.nodes.size()); v-- > 0;) {
    const Node& n = g.nodes[v];
    if (n.op == Op::kInput || (n.op == Op::kExtern && !stand_ins[v])) live[v] = true;
    if (!live[v]) continue;
    for (ValueId o : n.operands) live[o] = true;
  }
  Rewriter r(g);
  int removed = 0;
  for (ValueId v = 0; v < live.size(); ++v) {
    if (live[v]) {
      r.Keep(v);
    } else {
      ++removed;
    }
  }
  r.Finish();
  return removed;
}

}  // namespace framejit::pass
