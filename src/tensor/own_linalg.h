// Functions of numpy.linalg that are called here (tensor/own_calls.h).
#pragma once

#include "tensor/ref.h"

namespace framejit::tensor {

// numpy.linalg.cholesky of one float64 matrix whose rows lie side by side.
PyObject* OwnCholesky(PyObject* const* args, size_t positional, PyObject* kwnames);

}  // namespace framejit::tensor
