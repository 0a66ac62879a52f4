// Calls of NumPy that are computed here, where their arguments are of the usual kinds, with NumPy's results to the last
// bit. What is Python code over arrays in NumPy reads and writes each array many times.
#pragma once

#include <cstdint>
#include <string_view>

#include "tensor/ref.h"

namespace framejit::tensor {

// Arguments as in a vectorcall. A new reference; null with an exception; or null without one: NumPy is to make the
// call.
using OwnCall = PyObject* (*)(PyObject* const* args, size_t positional, PyObject* kwnames);

// How the callable of this name is called here, or null.
OwnCall FindOwnCall(std::string_view name);

// How many of so many truth values hold, and the items of `a` where they do, in a row of `chosen`. False: not of this
// size.
int64_t CountChosen(const uint8_t* mask, int64_t count);
bool ChooseItems(const void* a, const uint8_t* mask, int64_t count, int64_t item, void* out, int64_t chosen);

}  // namespace framejit::tensor
