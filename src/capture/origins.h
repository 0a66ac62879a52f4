// Where the objects that captured code can reach come from.
#pragma once

#include <deque>
#include <memory_resource>
#include <vector>

#include "capture/ref.h"
#include "guard/guard.h"

namespace framejit::capture {

using guard::Source;
using guard::SourceKind;

struct Origin {
  enum Kind : uint8_t { kOutside, kFresh, kConst };
  Kind kind = kFresh;
  const Source* source = nullptr;  // kOutside; kConst: rooted at the object itself
  bool contents_noted = false;     // Have guards been taken on its length, keys and items?
  bool changes = false;            // Calls on it wait for the exit, so that it cannot be read any more.
  PyObject* proxy = nullptr;       // The proxy of an outside tensor, kept by the session.
  PyObject* shadow = nullptr;      // an outside container's copy with proxies in place of tensors (kept)
  PyObject* items[2] = {};         // of a list or tuple that is gone through, by the program or C code: a copy (kept)
  PyObject* real = nullptr;        // of such a copy, and of one that is written to: the container
  PyObject* written = nullptr;     // of an outside list: the private list that stands for it since it was written to
  bool viewed = false;             // of an outside dict or list: something that C code made goes on to read it
  bool shallow = false;            // of such a copy: what is in its items was not read
  bool hides = false;              // ... which has, or something in it, methods that the copy has not: AnswersItself
  bool IsGoneThrough() const {     // Does an iterator hold the copy?
    return (items[0] && Py_REFCNT(items[0]) > 1) || (items[1] && Py_REFCNT(items[1]) > 1);
  }
};

// Origins by object: open addressing over a list of them, whose places do not change.
class Origins {
 public:
  Origin* Find(PyObject* o) {
    if (slots_.empty()) return nullptr;
    const Slot& s = slots_[At(o)];
    return s.object ? &list_[s.index] : nullptr;
  }
  // What is known of `o`, or `fresh`, entered now (`added`).
  std::pair<Origin*, bool> Enter(PyObject* o, const Origin& fresh) {
    if (2 * (list_.size() + 1) > slots_.size()) Grow();
    Slot& s = slots_[At(o)];
    if (s.object) return {&list_[s.index], false};
    s = {o, static_cast<uint32_t>(list_.size())};
    list_.push_back(fresh);
    return {&list_.back(), true};
  }
  void Clear() {
    slots_.clear();
    list_.clear();
  }

 private:
  struct Slot {
    PyObject* object = nullptr;
    uint32_t index = 0;
  };
  size_t At(PyObject* o) const {
    const size_t mask = slots_.size() - 1;
    size_t at = reinterpret_cast<size_t>(o) / 16 * 0x9E3779B97F4A7C15u >> 32 & mask;
    while (slots_[at].object && slots_[at].object != o) at = (at + 1) & mask;
    return at;
  }
  void Grow() {
    std::vector<Slot> old(slots_.empty() ? 1024 : 4 * slots_.size());
    old.swap(slots_);
    for (const Slot& s : old)
      if (s.object) slots_[At(s.object)] = s;
  }
  std::vector<Slot> slots_;  // Their number is a power of two.
  std::pmr::monotonic_buffer_resource memory_{1 << 15};
  std::pmr::deque<Origin> list_{&memory_};
};

}  // namespace framejit::capture
