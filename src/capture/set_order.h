// The order in which a set goes through its items depends on what was put in and taken out before, and so does the
// order that it will have after further changes. So a set is made again with the very table that the captured one has.
#pragma once

#include <cstddef>
#include <vector>

#include "capture/ref.h"

namespace framejit::capture {

class SetTable {
 public:
  explicit SetTable(PyObject* set);
  // A new set or frozenset of `items`, a list, in the order in which the captured one went through them. Where one of
  // them has another hash than there (it is another object, and hashes as that), they are put in one after the other.
  // Methods of the program's are asked for no hash that is known. Null with an exception.
  PyObject* Make(PyObject* items, bool frozen) const;

 private:
  struct Entry {
    size_t place;
    Py_hash_t hash;
    PyObject* item;  // compared, never looked at
  };
  size_t mask_;
  Py_ssize_t finger_;
  std::vector<Entry> items_;
  std::vector<size_t> removed_;  // places of what was taken out
  PyObject* dummy_ = nullptr;    // what CPython marks these with
  Py_hash_t hash_;               // of a frozenset that was asked for it, else -1
};

}  // namespace framejit::capture
