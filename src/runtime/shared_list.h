// A list of which many entries are equal, as those of a model's layers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace framejit::runtime {

// Equal entries stand once. (One that was last seen long ago may stand twice.)
template <class T>
class SharedList {
 public:
  size_t size() const { return number_.size(); }
  const T& operator[](size_t i) const { return entries_[number_[i]]; }
  void Reserve(size_t count) { number_.reserve(count); }
  void Append(const T& entry) { number_.push_back(NumberOf(entry)); }
  void Set(size_t i, const T& entry) { number_[i] = NumberOf(entry); }
  std::vector<T>& entries() { return entries_; }
  // Entries that no place has any more are gone.
  void DropUnused() {
    constexpr uint32_t kUnused = ~uint32_t{0};
    std::vector<uint32_t> moved(entries_.size(), kUnused);
    std::vector<T> used;
    for (uint32_t& n : number_) {
      if (moved[n] == kUnused) {
        moved[n] = static_cast<uint32_t>(used.size());
        used.push_back(entries_[n]);
      }
      n = moved[n];
    }
    entries_ = std::move(used);
  }

 private:
  uint32_t NumberOf(const T& entry) {
    constexpr size_t kLookedAt = 16;
    const size_t from = entries_.size() - std::min(entries_.size(), kLookedAt);
    for (size_t n = entries_.size(); n-- > from;)
      if (entries_[n] == entry) return static_cast<uint32_t>(n);
    entries_.push_back(entry);
    return static_cast<uint32_t>(entries_.size() - 1);
  }
  std::vector<T> entries_;
  std::vector<uint32_t> number_;  // of the entry
};

}  // namespace framejit::runtime
