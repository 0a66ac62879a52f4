// Attributes that lie in the object itself. CPython makes a dict of them for who asks for `__dict__`, and then runs all
// code that reads or writes the object slower for good. So what only looks does so here.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __cplusplus
#include <utility>
#include <vector>

#include "tensor/ref.h"

extern "C" {
#endif

int fj_own_values(PyObject* o);  // Do o's attributes lie in it, and in no dict?

// Where they lie, as long as no code runs: the table of names that objects of the class share, and the values.
typedef struct FjOwn {
  const int8_t* places;
  size_t mask;
  PyObject* const* entries;  // a name and nothing each
  PyObject* const* values;
} FjOwn;
int fj_own_view(PyObject* o, FjOwn* own);  // 0: fj_own_values says no

// Borrowed, null: none. The name is exactly a str. Runs no code.
static inline PyObject* fj_own_value(const FjOwn* own, PyObject* name) {
  const Py_hash_t known = ((PyASCIIObject*)name)->hash, hash = known != -1 ? known : PyObject_Hash(name);
  size_t at = (size_t)hash & own->mask, perturb = (size_t)hash;
  for (;; perturb >>= 5, at = (at * 5 + perturb + 1) & own->mask) {
    const int place = own->places[at];
    if (place == -1) return NULL;
    if (place < 0) continue;
    PyObject* key = own->entries[2 * place];
    if (key == name || (((PyASCIIObject*)key)->hash == hash && PyUnicode_Compare(key, name) == 0))
      return own->values[place];
  }
}

// Are all keys of the dict exactly strs?
int fj_keys_are_texts(PyObject* dict);

// The entries of a dict of other keys, too, whose keys have one hash, in the order in which CPython would compare them:
// 0 where there are no more. The first call is given zeros.
typedef struct FjOfHash {
  size_t at, perturb;
  int begun;
} FjOfHash;
int fj_next_of_hash(PyObject* dict, Py_hash_t hash, FjOfHash* of, PyObject** key, PyObject** value);

// The attributes go back from the dict into the object where nobody else holds the dict and it has not changed too
// much.
void fj_give_back(PyObject* o);

#ifdef __cplusplus
}

namespace framejit::guard {

tensor::Ref OwnDict(PyObject* o);            // o.__dict__, made where there is none
bool SetOwn(PyObject* o, PyObject* values);  // what a dict holds become attributes; false: an exception

// While this one lives, the dicts that InstanceDict makes of this thread's looks are lent: they are given back at the
// end.
class LentDicts {
 public:
  LentDicts() : outer_(now) { now = this; }
  ~LentDicts();
  LentDicts(const LentDicts&) = delete;
  LentDicts& operator=(const LentDicts&) = delete;
  // o's attributes have just moved into the dict, which stays as long as this one does.
  static void Note(PyObject* o, PyObject* dict) {
    if (now && dict) now->lent_.emplace_back(tensor::Ref::Borrow(o), tensor::Ref::Borrow(dict));
  }

 private:
  static thread_local LentDicts* now;
  LentDicts* outer_;
  std::vector<std::pair<tensor::Ref, tensor::Ref>> lent_;
};

}  // namespace framejit::guard
#endif
