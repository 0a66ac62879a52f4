#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "capture/scalar/made.h"
#include "capture/scalar/values.h"

namespace framejit::capture::scalar {

// Arrays that were made at two places of the code are apart, unless one name may stand for either. So each place, or
// those that share a name, has a number of its own.
void SplitMade(codegen::ScalarCode& code) {
  const int values = code.num_values, all = values + static_cast<int>(code.variables.size());
  std::vector<int> same(all + 1);  // of values, of variables, and of what nothing is known of
  std::iota(same.begin(), same.end(), 0);
  const auto find = [&](int v) {
    while (same[v] != v) v = same[v] = same[same[v]];
    return v;
  };
  const auto join = [&](int a, int b) { same[find(a)] = find(b); };
  for (const auto& instructions : code.blocks)
    for (const ScalarInst& i : instructions) {
      if (i.type != ScalarType::kPtr && i.op != ScalarOp::kSet) continue;
      switch (i.op) {
        case ScalarOp::kConst:
          if (i.imm != 0) join(i.id, all);
          break;
        case ScalarOp::kGet: join(i.id, values + static_cast<int>(i.imm)); break;
        case ScalarOp::kSet:
          if (code.variables[i.imm] == ScalarType::kPtr) join(i.a, values + static_cast<int>(i.imm));
          break;
        case ScalarOp::kAt: join(i.id, i.a); break;
        case ScalarOp::kSelect: join(i.id, i.b), join(i.id, i.c); break;
        default:
          if (!i.fresh) join(i.id, all);
      }
    }
  std::map<int, int> arrays;
  for (auto& instructions : code.blocks)
    for (ScalarInst& i : instructions)
      if (i.array == kMadeArrays) {
        if (find(i.a) == find(all)) return;
        arrays.try_emplace(find(i.a), kFirstMade + static_cast<int>(arrays.size()));
      }
  for (auto& instructions : code.blocks)
    for (ScalarInst& i : instructions)
      if (i.array == kMadeArrays) i.array = arrays.at(find(i.a));
}

}  // namespace framejit::capture::scalar
