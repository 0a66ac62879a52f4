// Options that are lists; values of them that a later stage knows: the names of passes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace framejit::diag {

std::vector<std::string> OptionList(std::string_view field);      // The items that it has now.
void AllowValue(std::string_view field, std::string_view value);  // One more value is valid.

}  // namespace framejit::diag
