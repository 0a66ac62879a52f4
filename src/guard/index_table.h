// Finds entries of a list by what they hold, without a copy of it: open addressing over the entries' numbers.
#pragma once

#include <cstdint>
#include <vector>

namespace framejit::guard {

class IndexTable {
 public:
  // The number of the entry with that hash for which equal(number) holds. If there is none, `next` is entered and
  // returned.
  template <typename F>
  uint32_t FindOrEnter(size_t hash, uint32_t next, F&& equal) {
    if (4 * (used_ + 1) > 3 * slots_.size()) Grow();
    const auto tag = static_cast<uint32_t>(hash >> 32);
    for (size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      Slot& s = slots_[at];
      if (s.number == kNone) {
        s = {tag, static_cast<uint32_t>(hash), next};
        ++used_;
        return next;
      }
      if (s.tag == tag && equal(s.number)) return s.number;
    }
  }
  void Clear() {
    std::vector<Slot>().swap(slots_);
    used_ = 0;
  }

 private:
  static constexpr uint32_t kNone = ~0u;
  struct Slot {
    uint32_t tag = 0, low = 0, number = kNone;
  };
  void Grow() {
    std::vector<Slot> old(slots_.empty() ? 256 : 4 * slots_.size());
    old.swap(slots_);
    for (const Slot& s : old) {
      if (s.number == kNone) continue;
      size_t at = s.low & (slots_.size() - 1);
      while (slots_[at].number != kNone) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = s;
    }
  }
  std::vector<Slot> slots_;  // There is a power of two of them.
  size_t used_ = 0;
};

}  // namespace framejit::guard
