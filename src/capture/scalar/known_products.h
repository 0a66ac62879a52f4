// Code that looks at what is known of products (KnownDots) before it calls a function for that.
#pragma once

#include <vector>

#include "capture/scalar/values.h"

namespace framejit::capture::scalar {

// Is nothing that is known made of so many bytes at this address?
int LiesApart(Builder& b, int known, int at, int bytes);
// A product that may be known: where it is, the call, whose arguments these are, is not made, and the one behind it is
// what is known then. Gives whether the product is good.
int AskKnown(Builder& b, const void* product, const std::vector<int>& args, int known, int* value);

}  // namespace framejit::capture::scalar
