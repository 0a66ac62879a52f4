// Two products of one matrix with vectors from its two sides (`r @ a, a @ p`, `(a @ x) @ a`), as the matrix is read
// once.
#pragma once

#include "runtime/row_products.h"

namespace framejit::tensor {

// runtime::RowProducts for float64, with the sums of NumPy's BLAS for each. `host` has the threads.
bool MultiplyBoth(framejit::Host& host, const runtime::RowProducts::Product& first,
                  const runtime::RowProducts::Product& second);

}  // namespace framejit::tensor
