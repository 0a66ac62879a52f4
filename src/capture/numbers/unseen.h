// Objects of the framework that are there and of which little is known: proxy.h has NewUnseen.
#pragma once

#include "capture/session.h"

namespace framejit::capture {

// What data_ptr() of a tensor gives. The program may ask whether two of these are equal.
PyObject* NewAddress(Session& s, TraceId tensor);
// What id() gives of an object that is made here, by which the program may look up what it has noted of it. Null
// without an error: that cannot be told, since the object may have the number of one that is gone.
PyObject* NewIdentity(Session& s, PyObject* o);
// Whose number it is; borrowed. Null: it is none, or the object is gone.
PyObject* IdentifiedBy(PyObject* unseen);

}  // namespace framejit::capture
