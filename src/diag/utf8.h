// Decodes UTF-8 leniently: what is not valid comes out as U+FFFD, one per byte. Used by the renderer and by Quote().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace framejit::diag {

// The code point at text[at] and its length in bytes (at < text.size()).
struct CodePoint {
  uint32_t value;
  int length;
};
CodePoint DecodeAt(std::string_view text, size_t at);
void AppendUtf8(std::string& out, uint32_t code_point);
int DisplayWidth(uint32_t code_point);  // terminal columns: 0 combining, 2 wide (East Asian, emoji), else 1

}  // namespace framejit::diag
