// The derivative of a torch.autograd.Function, whose backward was captured once on stand-ins for its gradients.
#include <map>

#include "autodiff/tape.h"

namespace framejit::autodiff {

// operands: what wants gradients, the stand-ins, these gradients; numbers: how many of the first two there are, and
// whether the backward is one call of the user's function. The result is this node; several are nodes of their own
// (CustomResultRule).
void CustomRule(At& t) {
  const auto inputs = static_cast<size_t>(t.number(0)), tangents = static_cast<size_t>(t.number(1));
  std::map<ValueId, ValueId> now;
  ValueId first = kNoValue, last = 0;
  for (size_t i = 0; i < tangents; ++i) {
    const ValueId stand_in = t.operands[inputs + i], grad = tangents > 1 ? t.tape.results[t.id][i] : t.tape.grads[t.id];
    now[stand_in] = grad != kNoValue ? t.b.Cast(grad, t.b.type(stand_in).dtype) : rules::Like(t.b, stand_in, 0);
    first = std::min(first, stand_in);
  }
  for (size_t i = inputs + tangents; i < t.operands.size(); ++i) last = std::max(last, t.operands[i]);
  for (ValueId v = first; v <= last; ++v) {
    if (now.contains(v)) continue;
    Node n = t.b.graph().node(v);
    bool depends = false;
    for (ValueId& o : n.operands) {
      auto at = now.find(o);
      if (at == now.end()) continue;
      o = at->second;
      depends = true;
    }
    if (!depends) continue;
    n.derivative.reset();
    t.b.graph().nodes.push_back(std::move(n));
    now[v] = static_cast<ValueId>(t.b.graph().nodes.size() - 1);
  }
  for (size_t i = 0; i < inputs; ++i) {
    const ValueId grad = t.operands[inputs + tangents + i];
    if (!now.contains(grad)) {  // it is the forward pass's, and kept for being read here
      now[grad] = t.b.Barrier(grad);
      t.b.graph().nodes[now[grad]].derivative.reset();
    }
    t.Give(static_cast<int>(i), now[grad]);
  }
}

// One of several results: what arrives here is noted for CustomRule, which zeros call. operands: the call's node;
// numbers: how many results there are, and which one this is.
void CustomResultRule(At& t) {
  std::vector<ValueId>& all = t.tape.results[t.operands[0]];
  all.resize(static_cast<size_t>(t.number(0)), kNoValue);
  all[static_cast<size_t>(t.number(1))] = t.g;
  t.Give(0, rules::Like(t.b, t.operands[0], 0));
}

}  // namespace framejit::autodiff
