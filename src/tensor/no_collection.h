// While alive no garbage is collected: finalizers of strangers run Python code, which can come back to where we are.
// Wanted where a static is initialised with objects: a second entry would wait for the first for ever.
#pragma once

#include <Python.h>

namespace framejit::tensor {

class NoCollection {
 public:
  NoCollection() : was_(PyGC_Disable()) { paused_ |= was_; }
  ~NoCollection() {
    if (!was_) return;
    paused_ = false;
    PyGC_Enable();
  }
  NoCollection(const NoCollection&) = delete;

 private:
  friend class CollectionAsBefore;
  static inline bool paused_ = false;  // Read and written with the GIL held.
  const int was_;
};

// While alive the collector is on if the program has it on: what the program asks of it in a pause is answered so.
class CollectionAsBefore {
 public:
  CollectionAsBefore() : on_(NoCollection::paused_) {
    if (on_) PyGC_Enable();
  }
  ~CollectionAsBefore() {
    if (on_) PyGC_Disable();
  }
  CollectionAsBefore(const CollectionAsBefore&) = delete;

 private:
  const bool on_;
};

}  // namespace framejit::tensor
