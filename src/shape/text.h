// Reads an expression from the front of a longer text; for the parsers of texts that contain sizes.
#pragma once

#include <string_view>

#include "shape/node.h"

namespace framejit::shape {

// The longest expression `text` begins with; *length: characters read (also on failure: where it went wrong).
std::optional<Int> ParsePrefix(std::string_view text, size_t* length);

}  // namespace framejit::shape
