// The inner loops of NumPy's ufuncs. What they compute is what NumPy computes, to the last bit, without the arrays and
// the checks of a call of the ufunc. They need no GIL.
#pragma once

#include <xmmintrin.h>

#include <optional>

#include "runtime/row_products.h"

namespace framejit::tensor {

using UfuncLoop = void (*)(char** args, const intptr_t* sizes, const intptr_t* strides, void* data);

struct LoopOf {
  UfuncLoop run = nullptr;
  void* data = nullptr;
};

// Gives the loop of the ufunc numpy.`name` for operands that all are `t`, and a result of that type or `to`. With the
// GIL.
LoopOf FindLoop(const char* name, int operands, DType t, std::optional<DType> to = {});

// Runs the loop. False: it raised one of the exceptions in `told` (_MM_EXCEPT_...), and NumPy may have something to
// tell of.
inline bool RunsSilently(UfuncLoop loop, void* data, char** args, const intptr_t* sizes, const intptr_t* strides,
                         unsigned told) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before & ~_MM_EXCEPT_MASK);
  loop(args, sizes, strides, data);
  const bool raised = _mm_getcsr() & told;
  _mm_setcsr(before);
  return !raised;
}

// Multiplies small matrices, or as many pairs of them as `out` has, as np.matmul does. False: that is for np.matmul to
// do, which may also tell of something.
bool MultiplySmall(const Buffer& a, const Buffer& b, const Buffer& out);

// The loop of np.matmul for float64 or float32, which is looked for once; null: there is none.
UfuncLoop ProductOf(DType t);

// runtime::RowProducts for float64. `host` has the threads.
bool MultiplyRows(framejit::Host& host, const Buffer& a, const Buffer& b, const Buffer& out, runtime::MakeRows rows,
                  void* ctx);

}  // namespace framejit::tensor
