#include <algorithm>

#include "loop/space.h"

namespace framejit::loop {

namespace {

constexpr int kStoreCost = 32;       // operations that cost no more than to store an element and to load it again
constexpr int64_t kLarge = 4 << 20;  // bytes: more than a core's own caches hold

// The bytes of the largest member that is not stored, if it has a fixed size.
int64_t Unstored(const Graph& g, const std::vector<ValueId>& group, const std::vector<ValueId>& stored) {
  int64_t most = 0;
  for (ValueId v : group) {
    const Node& n = g.nodes[v];
    const shape::Int numel = n.type.numel();
    if (Info(n.op).kind == 'P' && numel.is_const() && std::find(stored.begin(), stored.end(), v) == stored.end())
      most = std::max(most, numel.value() * DTypeSize(n.type.dtype));
  }
  return most;
}

// Are there complex numbers, each of which is a vector to the code, and functions or sums that want as many at once as
// there is room for?
bool TakesLanes(const Graph& g, const std::vector<ValueId>& group) {
  constexpr int kCheap = 4;  // a quotient or a root
  const auto complex = [&](ValueId v) { return g.nodes[v].type.dtype == DType::kComplex128; };
  return std::ranges::any_of(group, complex) && std::ranges::any_of(group, [&](ValueId v) {
           const OpInfo& info = Info(g.nodes[v].op);
           return !complex(v) && (info.cost > kCheap || info.kind == 'R');
         });
}

}  // namespace

bool CanFuse(const Graph& g, const std::vector<ValueId>& group, const std::vector<ValueId>& stored, std::string* why) {
  Space space(g, group, stored, nullptr);
  if (!space.Analyze()) {
    if (why) *why = space.why();
    return false;
  }
  if (group.size() == 1) return true;
  if (TakesLanes(g, group)) {
    if (why) *why = "complex numbers are computed one at a time, and what is beside them costs more then";
    return false;
  }
  // A value that is read through several views is computed once for each of them, which is fine if it is cheap.
  int work = 0, once = 0;
  for (const Needed& n : space.needed()) {
    if (space.member(n.value)) work += Info(g.nodes[n.value].op).cost;
  }
  for (ValueId v : group) once += Info(g.nodes[v].op).cost;
  if (work <= 2 * once + 8) return true;
  // A large one that is not stored has no memory to go through.
  if (work <= once + kStoreCost && Unstored(g, group, stored) >= kLarge) return true;
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
