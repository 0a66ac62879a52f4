// NumPy's arrays of objects (dtype=object). They are no tensors: such an array is a container as a list is, and NumPy's
// own code works on the real array, whose elements are what the capture has, proxies among them. One from outside is
// read as a copy with such elements, all of them guarded.
#pragma once

#include "capture/session.h"

namespace framejit::capture {

Ref BodyOf(
    PyObject* callable);  // the Python function behind one of NumPy's that dispatches (numpy_calls.cc); null: none
bool AnyObjectArray(PyObject* const* args, Py_ssize_t n);
bool NamesObjects(PyObject* dtype);  // Would NumPy take it for the type of such arrays?
// Items as the program reads and sets them. Null, or -1: a Break or an exception.
PyObject* ObjectsItem(Session& s, PyObject* array, PyObject* key);
int SetObjectsItem(Session& s, PyObject* array, PyObject* key, PyObject* value);
// May C code read all that is in it?
bool ObjectsForC(Session& s, PyObject* array);
// How one made here is made again: arguments of ObjectsMaker(). Null without an error: it is not.
PyObject* ObjectsMaker();
Ref PartsOfObjects(Session& s, PyObject* array);

}  // namespace framejit::capture
