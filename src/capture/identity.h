// Which object a number or string from outside is.
#pragma once

#include <optional>

#include "capture/session.h"

namespace framejit::capture {

// Are two of these one object? They are guarded by value otherwise: two equal ones may be two. Nothing: they are no
// such ones.
std::optional<bool> IsOfValues(Session& s, PyObject* a, PyObject* b);

}  // namespace framejit::capture
