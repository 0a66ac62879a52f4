#include "loop/space.h"

namespace framejit::loop {

bool CanFuse(const Graph& g, const std::vector<ValueId>& group, const std::vector<ValueId>& stored) {
  Space space(g, group, stored, nullptr);
  if (!space.Analyze()) return false;
  if (group.size() == 1) return true;
  // A value that is read through several views is computed once for each of them, which is fine if it is cheap.
  int work = 0, once = 0;
  for (const Needed& n : space.needed()) {
    if (space.member(n.value)) work += Info(g.nodes[n.value].op).cost;
  }
  for (ValueId v : group) once += Info(g.nodes[v].op).cost;
  return work <= 2 * once + 8;
}

}  // namespace framejit::loop
