#include "graph/raises.h"

#include <algorithm>

namespace framejit {

bool MayRaise(Op op, DType operand, DType result) {
  switch (Info(op).raises) {
    case 'f': return IsFloat(operand);
    case 'n': return !IsBool(operand);
    case 'c':
      if (IsBool(result) || !IsFloat(result)) return IsFloat(operand) && !IsBool(result);
      return result == DType::kFloat16 ? operand != DType::kFloat16 && DTypeSize(operand) > 1
                                       : IsFloat(operand) && DTypeSize(result) < DTypeSize(operand);
    default: return false;
  }
}

bool IsNoticed(const Node& n, DType operand, bool ieee) {
  const bool checks = (n.op == Op::kTake || n.op == Op::kGather) && n.attrs.flag;
  return checks || n.op == Op::kExtern || (ieee && !n.operands.empty() && MayRaise(n.op, operand, n.type.dtype));
}

namespace {

// Does `n` read every element of its operand?
bool ReadsAll(const Graph& g, const Node& n) {
  switch (n.op) {
    case Op::kSlice: return n.type.numel() == g.nodes[n.operands[0]].type.numel();
    case Op::kPad:
      return std::all_of(n.attrs.syms.begin(), n.attrs.syms.end(),
                         [](shape::Int i) { return i.is_const() && i.value() >= 0; });
    case Op::kTake:
    case Op::kGather: return false;
    case Op::kBroadcast: return n.type.numel() != shape::Int(0);
    default: return true;
  }
}

}  // namespace

std::vector<bool> StandIns(const Graph& g) {
  std::vector<bool> depends(g.nodes.size());
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    const Node& n = g.node(v);
    depends[v] = n.op == Op::kExtern && n.attrs.call && n.attrs.call->callee == kTangent;
    for (ValueId o : n.operands) depends[v] = depends[v] || depends[o];
  }
  return depends;
}

void KeepRaising(Graph& g, bool ieee) {
  const std::vector<bool> stand_ins = StandIns(g);
  std::vector<bool> computed = stand_ins;
  for (ValueId v : g.outputs) computed[v] = true;
  for (const Write& w : g.writes) computed[w.value] = true;
  for (size_t i = g.nodes.size(); i-- > 0;) {
    const auto v = static_cast<ValueId>(i);
    const Node& n = g.nodes[v];
    const DType operand = n.operands.empty() ? DType::kBool : g.nodes[n.operands[0]].type.dtype;
    if (!computed[v] && IsNoticed(n, operand, ieee)) {
      computed[v] = true;
      ValueId shown = v;
      if (n.op == Op::kExtern && n.attrs.result_types.size() > 1)
        ++shown;  // The node behind it picks its first result.
      if (n.op != Op::kExtern || !n.attrs.result_types.empty()) g.outputs.push_back(shown);
    }
    if (!computed[v] || stand_ins[v]) continue;
    const bool indexes = n.op == Op::kTake || n.op == Op::kGather;
    for (size_t k = 0; k < n.operands.size(); ++k) {
      if (ReadsAll(g, n) || (indexes && k == 1)) computed[n.operands[k]] = true;
    }
  }
}

}  // namespace framejit
