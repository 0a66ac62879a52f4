// Where a GPU kernel may compute less exactly: what is rounded to 16 bits anyway, and sums of exponentials. No LLVM
// type here.
#pragma once

#include <vector>

#include "loop/kernel.h"

namespace framejit::codegen {

struct RoughPlaces {
  // For each instruction: is it an f32 in which a relative error of 2^-16 does not show? So it is where nothing but
  // products, quotients and choices is computed from it before the result is rounded to 16 bits, or where it is a term
  // of `falls`.
  std::vector<bool> rough;
  // For each instruction: is it exp(x - max of x), and rough or only summed? Then x log2(e) may be rounded, since the
  // sum is at least 1.
  std::vector<bool> falls;
  // For each instruction: the x, if it is gelu(x) = x/2 * (1 + erf(x/sqrt(2))) and rough; else -1.
  std::vector<int> gelu;
  bool float16 = false;  // some of the 16-bit numbers are float16
};

// `number` gives equal values one number. They are computed once in a stage or, if `kept`, once in the kernel.
RoughPlaces FindRough(const loop::Kernel& k, const std::vector<int>& number, bool kept);

}  // namespace framejit::codegen
