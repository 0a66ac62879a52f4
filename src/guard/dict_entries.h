// The entries of a dict one by one, each with the hash of its key.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace framejit::guard {

// PyDict_Next that tells the hash, too; -1 where CPython does not (3.13).
bool NextEntry(PyObject* dict, Py_ssize_t* at, PyObject** key, PyObject** value, Py_hash_t* hash);

}  // namespace framejit::guard
