// Text that is kept long and seldom read, compressed with zstd or zlib, whichever LLVM was built with. No LLVM type
// here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace framejit::codegen {

class [[gnu::visibility("default")]] PackedText {
 public:
  PackedText() = default;
  explicit PackedText(std::string_view text);
  std::string str() const;

 private:
  size_t size_ = 0;  // The size of the text; `bytes_` has as many where it is not compressed.
  std::vector<uint8_t> bytes_;
};

}  // namespace framejit::codegen
