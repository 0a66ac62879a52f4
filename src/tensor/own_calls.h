// Calls of NumPy that are computed here, where their arguments are of the usual kinds, with NumPy's results to the last
// bit. What is Python code over arrays in NumPy reads and writes each array many times.
#pragma once

#include <string_view>

#include "tensor/ref.h"

namespace framejit::tensor {

// Arguments as in a vectorcall. A new reference; null with an exception; or null without one: NumPy is to make the
// call.
using OwnCall = PyObject* (*)(PyObject* const* args, size_t positional, PyObject* kwnames);

// How the callable of this name is called here, or null.
OwnCall FindOwnCall(std::string_view name);

}  // namespace framejit::tensor
