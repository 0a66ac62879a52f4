#pragma once

#include <atomic>
#include <functional>
#include <iterator>
#include <string_view>

namespace framejit {

// Names that live for the process. It only grows and takes no lock, so that a fork in the middle of another thread's
// capture does no harm. An entry has a `name` and the `next` one.
template <class Entry, size_t kHeads>
class NameTable {
 public:
  template <class Make>
  const Entry* Find(std::string_view name, Make make) {
    std::atomic<const Entry*>& head = heads_[std::hash<std::string_view>()(name) % kHeads];
    const Entry* first = head.load(std::memory_order_acquire);
    const Entry* end = nullptr;  // The entries from here on were compared before.
    Entry* made = nullptr;
    while (true) {
      for (const Entry* e = first; e != end; e = e->next) {
        if (e->name != name) continue;
        delete made;
        return e;
      }
      if (!made) made = make();
      made->next = end = first;
      if (head.compare_exchange_weak(first, made, std::memory_order_acq_rel)) return made;
    }
  }

 private:
  std::atomic<const Entry*> heads_[kHeads] = {};
};

}  // namespace framejit
