// Where an int of Python keeps its number, if that has one digit at most (src/guard/versions.cc knows of every
// version).
#pragma once

#include <cstdint>

namespace framejit::guard {

struct IntLayout {
  int64_t sign, digit;  // offsets in bytes: of 8 bytes, and of the digit's 4
  // The sign's bytes: 0 for 1, 1 for 0, 2 for -1 and 8 more for each digit; else the sign itself times the digits.
  bool tagged;
};
IntLayout LayoutOfInts();

}  // namespace framejit::guard
