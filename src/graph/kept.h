// What the framework's derivative of a call keeps, as it says on stand-ins and as the node of the call has it.
#pragma once

#include <vector>

namespace framejit {

// The name of a call's node whose results are views of its one operand.
inline constexpr char kViews[] = "views";

struct KeptMemory {
  bool known = false;
  bool others = false;                  // what the call made inside
  std::vector<bool> operands, results;  // these, in their own memory

  // As numbers: `others`, then one for each operand, then one for each result; none: that is not known.
  template <class Numbers>
  static KeptMemory From(const Numbers& all, size_t num_operands) {
    if (all.empty()) return {};
    const auto first = all.begin() + 1, behind = first + static_cast<std::ptrdiff_t>(num_operands);
    return {true, all[0] != 0, {first, behind}, {behind, all.end()}};
  }
  template <class Numbers>
  void AddTo(Numbers* all) const {
    if (!known) return;
    all->push_back(others);
    all->insert(all->end(), operands.begin(), operands.end());
    all->insert(all->end(), results.begin(), results.end());
  }
};

}  // namespace framejit
