// Objects of the framework that are there and of which little is known: proxy.h has NewUnseen.
#pragma once

#include "capture/session.h"

namespace framejit::capture {

// What data_ptr() of a tensor gives. The program may ask whether two of these are equal.
PyObject* NewAddress(Session& s, TraceId tensor);

}  // namespace framejit::capture
