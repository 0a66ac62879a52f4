#include "codegen/absent_lanes.h"

namespace framejit::codegen {

using loop::IKind;
using loop::Inst;

// Predicates are made as KernelBuilder::EvalPredicate makes them: the outer one first, then the bounds of its own.
// Bounds of an index that is read are an `and` that a program may have written, too: of such a one nothing is
// concluded.
std::vector<int> MeantWhere(const loop::Kernel& k) {
  const size_t count = k.insts.size();
  std::vector<int> meant(count, -1);
  std::vector<bool> bounds(count), perhaps(count);
  const auto is = [&](int n, Op op) { return k.insts[n].kind == IKind::kOp && k.insts[n].op == op; };
  for (size_t n = 0; n < count; ++n) {
    const Inst& inst = k.insts[n];
    if (inst.kind == IKind::kInBounds) bounds[n] = perhaps[n] = true;
    if (inst.kind == IKind::kLoad || inst.kind == IKind::kLoadAt) meant[n] = inst.predicate;
    if (inst.kind != IKind::kOp) continue;
    if (inst.op == Op::kAnd) {
      const int a = inst.operands[0], b = inst.operands[1];
      bounds[n] = bounds[a] || bounds[b];
      perhaps[n] = perhaps[a] || perhaps[b] || (is(a, Op::kLe) && is(b, Op::kLt));
    }
    if (inst.op == Op::kWhere && perhaps[inst.operands[0]]) {  // a pad, or a part of what is put together
      const int condition = inst.operands[0];
      if (!bounds[condition]) continue;
      const Inst& within = k.insts[condition];
      if (k.insts[inst.operands[1]].kind == IKind::kIota)  // counted numbers, as far as they are asked for
        meant[n] = condition;
      else if (within.kind == IKind::kOp && perhaps[within.operands[0]])
        meant[n] = within.operands[0];
      continue;
    }
    for (int o : inst.operands)
      if (meant[n] < 0) meant[n] = meant[o];
  }
  return meant;
}

}  // namespace framejit::codegen
