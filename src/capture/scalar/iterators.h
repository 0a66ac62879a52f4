// The structs of iterators whose place a loop's code reads and sets: the same ones in all CPythons that are known.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "capture/ref.h"

namespace framejit::capture::scalar {

struct SeqIter {  // Objects/iterobject.c and listobject.c, there also backwards; enumobject.c: reversed
  PyObject_HEAD Py_ssize_t index;
  PyObject* seq;
};
struct EnumerateIter {  // Objects/enumobject.c
  PyObject_HEAD Py_ssize_t index;
  PyObject *iterator, *result, *longindex;
};
struct ZipIter {  // Python/bltinmodule.c
  PyObject_HEAD Py_ssize_t size;
  PyObject *iterators, *result;
  int strict;
};

// Lets an iterator over a range of C longs that nobody else has go on elsewhere.
void SetRange(PyObject* iterator, long next, long step, long left);

// Do the iterators of this interpreter have these layouts?
bool IteratorsAreKnown();
PyTypeObject* ListReverseIterator();
// Does it go forwards, with the layout of SeqIter, through a list, an array, bytes or a text?
bool IsSequenceIterator(PyObject* o);

}  // namespace framejit::capture::scalar
