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

// Names everything that decides the value of a node. For a reduction it does not matter whether its axes stay, with
// size 1: of two the second is the first one, in another shape.
std::string KeyOf(Node n) {
  if (IsReduction(n.op) && n.strides.empty()) {
    n.attrs.flag = false;
    n.type.shape.clear();
  }
  return NodeText(n, false);
}

Node Reshaped(const Node& like, ValueId value) {
  Node n = like;
  n.op = Op::kReshape;
  n.operands = {value};
  n.attrs = {};
  n.attrs.syms = like.type.shape;
  return n;
}

}  // namespace

int Cse(Graph& g) {
  Rewriter r(g);
  std::unordered_map<std::string, ValueId> seen;  // by KeyOf
  int removed = 0;
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    Node n = r.Remapped(v);
    if (!Mergeable(n)) {
      r.Set(v, r.Append(std::move(n)));
      continue;
    }
    if (Commutes(n.op)) std::sort(n.operands.begin(), n.operands.end());
    auto [it, fresh] = seen.try_emplace(KeyOf(n), kNoValue);
    if (fresh) {
      it->second = r.Append(r.Remapped(v));
    } else {
      ++removed;
    }
    ValueId now = it->second;
    if (r.node(now).type.shape != n.type.shape) {
      Node shaped = Reshaped(n, now);
      const auto [same, first] = seen.try_emplace(NodeText(shaped, false), kNoValue);
      if (first) same->second = r.Append(std::move(shaped));
      now = same->second;
    }
    r.Set(v, now);
  }
  r.Finish();
  return removed;
}

}  // namespace framejit::pass
