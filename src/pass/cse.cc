#include "pass/cse.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "graph/print.h"
#include "graph/rewrite.h"

namespace framejit::pass {
namespace {

bool Commutes(Op op) {  // bit for bit: max and min do not (signed zeros, which nan)
  return op == Op::kAdd || op == Op::kMul || op == Op::kAnd || op == Op::kOr || op == Op::kXor || op == Op::kEq ||
         op == Op::kNe;
}

bool Mergeable(const Node& n) {
  char kind = Info(n.op).kind;
  return n.op != Op::kInput && kind != 'X' && kind != 'W';
}

}  // namespace

int Cse(Graph& g) {
  Rewriter r(g);
  std::unordered_map<std::string, ValueId> seen;  // text of a node, which names everything that decides its value
  int removed = 0;
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    Node n = r.Remapped(v);
    if (!Mergeable(n)) {
      r.Set(v, r.Append(std::move(n)));
      continue;
    }
    if (Commutes(n.op)) std::sort(n.operands.begin(), n.operands.end());
    auto [it, fresh] = seen.try_emplace(NodeText(n, false), kNoValue);
    if (fresh) {
      it->second = r.Append(r.Remapped(v));
    } else {
      ++removed;
    }
    r.Set(v, it->second);
  }
  r.Finish();
  return removed;
}

}  // namespace framejit::pass
