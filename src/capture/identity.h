// Which object a number or string from outside is.
#pragma once

#include <optional>

#include "capture/session.h"

namespace framejit::capture {

// Are two of these one object? They are guarded by value otherwise: two equal ones may be two. Nothing: they are no
// such ones.
std::optional<bool> IsOfValues(Session& s, PyObject* a, PyObject* b);

// Does a key run nothing of the program's when it is looked up? It is a primitive, a text, a type, or a tuple of such.
bool ComparesAsItIs(PyObject* key);

}  // namespace framejit::capture
