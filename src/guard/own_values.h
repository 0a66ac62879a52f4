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
// Borrowed, null: none. Of an object whose attributes lie in it, by a name that is exactly a str. Runs no code.
PyObject* fj_own_value(PyObject* o, PyObject* name);
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
