// The framework's gelu on CPUs is a library's (oneDNN's), whose code differs from CPU to CPU at special values.
#pragma once

#include "framejit/dtype.h"

namespace framejit::surface {

struct LibraryGelu {
  bool infinity_is_nan = false;   // Is gelu(inf) not a number?
  bool no_negative_zero = false;  // Is gelu(-0.0) 0.0, without the sign?
};
// How it is asked; nothing is special before this is called.
void AskLibraryGelu(LibraryGelu (*ask)(DType));

}  // namespace framejit::surface
