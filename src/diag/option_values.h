// Options that are lists; values of them that a later stage knows: the names of passes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace framejit::diag {

std::vector<std::string> OptionList(std::string_view field);      // its current items
void AllowValue(std::string_view field, std::string_view value);  // one more that is valid

}  // namespace framejit::diag
