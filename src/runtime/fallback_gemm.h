// The runtime's own matrix products, used when the host has no library for them, and where calling it would take longer
// than the product. Blocked and vectorised C++, f32 and f64.
#pragma once

#include "framejit/compile.h"

namespace framejit::runtime {

// small: plain loops instead of packed blocks.
// out = a @ b with batch dimensions; false if the dtype is not handled here.
bool FallbackMatMul(Host& host, const Buffer& a, const Buffer& b, const Buffer& out, bool small = false);

// out = x @ w^T + bias; false if the dtype is not handled here.
bool FallbackLinear(Host& host, const Buffer& x, const Buffer& w, const Buffer* bias, const Buffer& out,
                    bool small = false);

}  // namespace framejit::runtime
