#include <algorithm>

#include "loop/space.h"

namespace framejit::loop {

bool CanFuse(const Graph& g, const std::vector<ValueId>& group, const std::vector<ValueId>& stored, std::string* why) {
  Space space(g, group, stored, nullptr);
  if (!space.Analyze()) {
    if (why) *why = space.why();
    return false;
  }
  if (group.size() == 1) return true;
  // A value that is read through several views is computed once for each of them, which is fine if it is cheap.
  int work = 0, once = 0;
  for (const Needed& n : space.needed()) {
    if (space.member(n.value)) work += Info(g.nodes[n.value].op).cost;
  }
  for (ValueId v : group) once += Info(g.nodes[v].op).cost;
  if (work <= 2 * once + 8) return true;
  if (why) *why = "a value would be computed once for each of the views it is read through";
  return false;
}

bool IsElementwise(const Graph& g, ValueId v) {
  const Node& n = g.nodes[v];
  const auto computes = [&](ValueId x) { return Computes(g.nodes[x].type.dtype); };
  return Info(n.op).kind == 'P' && n.type.device.kind != DeviceKind::kMeta && n.type.shape.size() <= kMostVars &&
         computes(v) && std::all_of(n.operands.begin(), n.operands.end(), computes);
}

}  // namespace framejit::loop
