#pragma once

#include "capture/ref.h"
#include "tensor/import.h"

namespace framejit::capture {

// From 3.12 on iterators of itertools warn whoever pickles them. Here they are only rebuilt so, of which the program
// must not hear.
class NoWarnings {
 public:
  NoWarnings() : module_(tensor::Import("warnings")) {
    filters_ = Ref(module_ ? PyObject_GetAttrString(module_.get(), "filters") : nullptr);
    Ref none(filters_ ? Py_BuildValue("[(sOOOi)]", "ignore", Py_None, PyExc_Warning, Py_None, 0) : nullptr);
    if (!none || PyObject_SetAttrString(module_.get(), "filters", none.get()) < 0) PyErr_Clear();
  }
  ~NoWarnings() {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (filters_ && PyObject_SetAttrString(module_.get(), "filters", filters_.get()) < 0) PyErr_Clear();
    PyErr_Restore(type, value, traceback);
  }

 private:
  Ref module_, filters_;
};

}  // namespace framejit::capture
