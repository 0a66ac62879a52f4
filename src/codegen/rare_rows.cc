// See the header.
#include "codegen/rare_rows.h"

#include <algorithm>

namespace framejit::codegen {
namespace {

using loop::IKind;
using loop::Inst;
using shape::Int;

// Is something small looked for along a long outer axis?
bool Rare(const loop::Kernel& k, int condition) {
  const Inst& inst = k.insts[condition];
  if (inst.kind == IKind::kOp && inst.op == Op::kAnd)
    return std::any_of(inst.operands.begin(), inst.operands.end(), [&](int o) { return Rare(k, o); });
  if (inst.kind != IKind::kInBounds || !inst.sym.is_const() || !(inst.index.inner == Int(0))) return false;
  for (size_t d = 0; d < k.outer.size(); ++d)
    if (inst.index.outer[d] == Int(1) || inst.index.outer[d] == Int(-1))
      return !k.outer[d].is_const() || k.outer[d].value() > 2 * inst.sym.value();
  return false;
}

}  // namespace

std::vector<int> RareConditions(const loop::Kernel& k, const loop::Stage& stage, const std::vector<bool>& uniform) {
  std::vector<int> found;
  for (int n : stage.insts) {
    const Inst& inst = k.insts[n];
    if (inst.kind == IKind::kReduce || inst.kind == IKind::kScan) return {};
    if (inst.kind != IKind::kOp || inst.op != Op::kWhere) continue;
    const int condition = inst.operands[0];
    const bool before = std::find(stage.insts.begin(), stage.insts.end(), condition) == stage.insts.end();
    if (before && uniform[condition] && k.insts[inst.operands[2]].kind == IKind::kConst && Rare(k, condition))
      found.push_back(condition);
  }
  return found;
}

}  // namespace framejit::codegen
