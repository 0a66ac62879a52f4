// While alive no garbage is collected: finalizers of strangers run Python code, which can come back to where we are.
// Wanted where a static is initialised with objects: a second entry would wait for the first for ever.
#pragma once

#include <Python.h>

namespace framejit::tensor {

class NoCollection {
 public:
  NoCollection() : was_(PyGC_Disable()) {}
  ~NoCollection() {
    if (was_) PyGC_Enable();
  }
  NoCollection(const NoCollection&) = delete;

 private:
  const int was_;
};

}  // namespace framejit::tensor
