// Values of options that a later stage knows: the names of passes.
#pragma once

#include <string_view>

namespace framejit::diag {

void AllowValue(std::string_view field, std::string_view value);  // one more that is valid

}  // namespace framejit::diag
