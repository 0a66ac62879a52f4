// Where a GPU kernel may take a short way: what is rounded to 16 bits anyway, sums of exponentials. No LLVM here.
#pragma once

#include <vector>

#include "loop/kernel.h"

namespace framejit::codegen {

struct RoughPlaces {
  // By instruction. rough: an f32 whose results meet nothing but products, quotients and choices before they are
  // rounded to 16 bits, or a term of `falls`: a relative error of 2^-16 does not show.
  std::vector<bool> rough;
  // exp(x - max of x): where it is rough, or only summed, x log2(e) may be rounded. The sum is 1 and more, so that each
  // term is as good as if it were exact.
  std::vector<bool> falls;
  // The x of gelu(x) = x/2 * (1 + erf(x/sqrt(2))) that is rough; else -1.
  std::vector<int> gelu;
  bool float16 = false;  // some 16-bit numbers are those
};

// number: of values (equal ones are computed once in a stage, or, `kept`, in a kernel).
RoughPlaces FindRough(const loop::Kernel& k, const std::vector<int>& number, bool kept);

}  // namespace framejit::codegen
