// The order in which a set goes through its items depends on the order in which they came, and on how many places it
// has for them: a copy of a set or of a dict's keys has fewer than one that was filled item by item.
#pragma once

#include "capture/ref.h"

namespace framejit::capture {

// The items of a set or frozenset as a list from which a new set is made that goes through them in the same order, as
// far as their hashes stay, or as the keys of a dict, where that is what it is to be made of. Null with an exception.
Ref WhatMakesSet(PyObject* set);

}  // namespace framejit::capture
