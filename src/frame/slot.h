// A local or a value of the stack, as a frame holds it. Up to 3.13 that is a pointer. From 3.14 on its lowest bit says
// that the frame holds no reference of its own (nothing, what never dies, what a local holds longer), and with the
// second bit it is a plain integer: the position that a handler notes on the stack, which takes part in no operation.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <absl/container/inlined_vector.h>

#include <cstdint>

#include "frame/frame.h"

namespace framejit::frame {

inline constexpr bool kTaggedSlots = PY_VERSION_HEX >= 0x030E0000;

class Slot {
 public:
  Slot() = default;
  static Slot Of(PyObject* owned) {
    if constexpr (!kTaggedSlots) return Slot(reinterpret_cast<uintptr_t>(owned));
    return Slot(!owned ? kUncounted : reinterpret_cast<uintptr_t>(owned) | (NeverDies(owned) ? kUncounted : 0));
  }
  static Slot New(PyObject* borrowed) { return Of(Py_XNewRef(borrowed)); }
  // Null: out of memory.
  static Slot Position(int unit) {
    if constexpr (!kTaggedSlots) return Of(PyLong_FromLong(unit));
    return Slot(static_cast<uintptr_t>(unit) << 2 | kInteger);
  }

  // Borrowed; null for nothing, and for a position.
  PyObject* get() const {
    if constexpr (!kTaggedSlots) return reinterpret_cast<PyObject*>(bits_);
    return is_integer() ? nullptr : reinterpret_cast<PyObject*>(bits_ & ~kUncounted);
  }
  operator PyObject*() const { return get(); }
  PyObject* operator->() const { return get(); }
  bool is_integer() const { return kTaggedSlots && (bits_ & kInteger) == kInteger; }
  // -1: it is none.
  int position() const {
    if (is_integer()) return static_cast<int>(bits_ >> 2);
    return !kTaggedSlots && get() && PyLong_Check(get()) ? static_cast<int>(PyLong_AsLong(get())) : -1;
  }
  bool counted() const { return kTaggedSlots ? !(bits_ & kUncounted) : bits_ != 0; }
  // A reference of the caller's, which the slot is without from now on.
  PyObject* Take() { return counted() ? reinterpret_cast<PyObject*>(bits_) : Py_XNewRef(get()); }
  Slot Copy() const { return is_integer() ? *this : New(get()); }

 private:
  static constexpr uintptr_t kUncounted = 1, kInteger = 3;
  explicit Slot(uintptr_t bits) : bits_(bits) {}
  static bool NeverDies(PyObject* o) {
#ifdef _Py_IsImmortal
    return _Py_IsImmortal(o);
#else
    return false;
#endif
  }
  uintptr_t bits_;
};
static_assert(sizeof(Slot) == sizeof(PyObject*));

// So many slots as pointers, for what takes an array of them. Where slots are pointers it is they themselves. One more
// lies in front, for PY_VECTORCALL_ARGUMENTS_OFFSET.
template <bool tagged>
class PointersTo {
 public:
  PointersTo(const Slot* slots, int n) : slots_(slots) {}
  PyObject** data() { return reinterpret_cast<PyObject**>(const_cast<Slot*>(slots_)); }
  operator PyObject**() { return data(); }

 private:
  const Slot* slots_;
};
template <>
class PointersTo<true> {
 public:
  PointersTo(const Slot* slots, int n) : pointers_(n + 1) {
    for (int i = 0; i < n; ++i) pointers_[i + 1] = slots[i].get();
  }
  PyObject** data() { return pointers_.data() + 1; }
  operator PyObject**() { return data(); }

 private:
  absl::InlinedVector<PyObject*, 24> pointers_;
};
using Pointers = PointersTo<kTaggedSlots>;

// All of a frame's locals, and its stack.
inline Pointers PointersOf(FjFrame* frame) {
  return {fj_localsplus(frame), fj_nlocalsplus(frame) + fj_stack_depth(frame)};
}

}  // namespace framejit::frame
