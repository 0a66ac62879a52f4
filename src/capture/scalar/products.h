// NumPy's own inner loops, as a loop's code runs them.
#pragma once

#include <cstdint>

#include "tensor/ufunc_loops.h"

namespace framejit::capture::scalar {

// A ufunc of all elements of a row. False: it may tell of something.
int64_t OfAll(tensor::UfuncLoop loop, void* data, char* from, int64_t from_next, char* to, int64_t to_next, int64_t n);

}  // namespace framejit::capture::scalar
