// The framework's gelu on CPUs is a library's (oneDNN's), whose code differs from CPU to CPU at special values.
#pragma once

#include "framejit/dtype.h"

namespace framejit::surface {

struct LibraryGelu {
  bool infinity_is_nan = false;   // gelu(inf)
  bool no_negative_zero = false;  // gelu(-0.0) is 0.0
};
// How it is asked; nothing is special before this is called.
void AskLibraryGelu(LibraryGelu (*ask)(DType));

}  // namespace framejit::surface
