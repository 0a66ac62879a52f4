// What differs between the libraries that a framework has, or between its releases. Each is asked when it is needed;
// where nobody answers, the newest release without special cases is meant.
#pragma once

#include "framejit/dtype.h"

namespace framejit::surface {

// The framework's gelu on CPUs is a library's (oneDNN's), whose code differs from CPU to CPU at special values.
struct LibraryGelu {
  bool infinity_is_nan = false;   // Is gelu(inf) not a number?
  bool no_negative_zero = false;  // Is gelu(-0.0) 0.0, without the sign?
};
void AskLibraryGelu(LibraryGelu (*ask)(DType));

// Do NumPy's floor, ceil and trunc leave integers as they are? Before 2.1 their results are floats.
void AskNumpyKeepsIntegers(bool (*ask)());

// Are NumPy's products of complex128 arrays a.re * b.re - a.im * b.im and a.re * b.im + a.im * b.re, of which the
// second product is rounded and the first one is not?
void AskNumpyFusesProducts(bool (*ask)());

// Do clamp, fmax and fmin share a gradient where values are equal, as maximum and minimum do, and does clamp let none
// through at a bound that is a number? From torch 2.14 on.
void AskTorchSharesTies(bool (*ask)());

}  // namespace framejit::surface
