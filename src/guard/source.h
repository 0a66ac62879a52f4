// Sources as a tree: interning, printing, and one step from a base object to the object a source names.
#pragma once

#include <deque>
#include <vector>

#include "guard/guard.h"
#include "guard/index_table.h"
#include "tensor/ref.h"

namespace framejit::guard {

using tensor::Ref;

// A reference to an expected object: weak where the type allows it and that is asked, else strong. Matches nothing once
// the object died.
class Expected {
 public:
  Expected() = default;
  explicit Expected(PyObject* o, bool weakly = true);
  bool Is(PyObject* o) const {
    return o == object_ && (!weak_ || reinterpret_cast<PyWeakReference*>(ref_.get())->wr_object == o);
  }
  PyObject* get() const { return !weak_ || Is(object_) ? object_ : nullptr; }  // Borrowed. Null: the object is dead.
  bool dead() const { return weak_ && !Is(object_); }
  PyObject* held() const { return ref_.get(); }  // the object or its weak reference
  bool weak() const { return weak_; }

 private:
  PyObject* object_ = nullptr;
  Ref ref_;
  bool weak_ = false;
};

// The owner of sources. Shared by builder and set.
class SourcePool {
 public:
  ~SourcePool();
  const Source* Intern(SourceKind kind, const Source* base, int index, PyObject* object);
  size_t size() const { return sources_.size(); }
  const std::deque<Source>& sources() const { return sources_; }
  void Weaken();  // constants that allow it are held weakly from now on

 private:
  std::deque<Source> sources_;  // Their addresses are stable.
  IndexTable index_;
};

// Where a C member (slot) descriptor of a type points to, remembered by type tag.
struct MemberCache {
  uint32_t tag = 0;
  Py_ssize_t offset = 0;
  bool object_or_none = false;  // Null is read as None.
};

// The keys of the dict or set that was asked last, in the order in which they are gone through: where many are asked,
// it is gone through once. To be used while no code runs.
class KeyList {
 public:
  PyObject* At(PyObject* container, int index);  // null: there are not so many

 private:
  PyObject* of_ = nullptr;
  Py_ssize_t at_ = 0;
  std::vector<PyObject*> keys_;
};

// From base (null: led nowhere) to what a source of this kind, index and object names. Borrowed: something reachable
// holds it. Null: there is no such thing. Runs no Python code, sets no error.
PyObject* Step(SourceKind kind, int index, PyObject* object, PyObject* base, PyObject* const* slots,
               MemberCache* member, KeyList* keys);
inline PyObject* Step(const Source& s, PyObject* base, PyObject* const* slots, MemberCache* member, KeyList* keys) {
  return Step(s.kind, s.index, s.object, base, slots, member, keys);
}
PyObject* DictLookup(PyObject* dict, PyObject* key);  // As Step does for kDictItem.
bool IsText(PyObject* o);              // Is it a str, or of a class (StrEnum) that hashes and compares as str does?
bool IsDeque(PyObject* o);             // exactly a collections.deque
bool ComparesByIdentity(PyObject* o);  // has object's own __eq__ and __hash__
// A set of which nothing was taken out is copied place by place, into as many places; others are filled anew.
int64_t PlacesOfCopy(PyObject* set);
bool HashesInC(PyObject* o);  // Does its hash run no code of the program's, as far as is known?

// Text of a value for reports, without running Python code.
std::string ValueText(PyObject* o);

}  // namespace framejit::guard
