// The order in which a set goes through its items depends on the order in which they came.
#pragma once

#include "capture/ref.h"

namespace framejit::capture {

// The items of a set or frozenset as a list from which a new set is made that goes through them in the same order, as
// far as their hashes stay. Null with an exception.
Ref ItemsToMakeSetOf(PyObject* set);

}  // namespace framejit::capture
