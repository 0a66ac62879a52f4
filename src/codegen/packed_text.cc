#include "codegen/packed_text.h"

#include <llvm/ADT/SmallVector.h>
#include <llvm/Support/Compression.h>
#include <llvm/Support/Error.h>

#include <optional>

#include "diag/diag.h"

namespace framejit::codegen {
namespace {

using llvm::compression::Format;

constexpr size_t kWorthPacking = 512;  // The header of a compressed text alone has tens of bytes.

std::optional<Format> Available() {
  if (llvm::compression::zstd::isAvailable()) return Format::Zstd;
  if (llvm::compression::zlib::isAvailable()) return Format::Zlib;
  return std::nullopt;
}

}  // namespace

PackedText::PackedText(std::string_view text) : size_(text.size()) {
  const llvm::ArrayRef<uint8_t> plain(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  llvm::SmallVector<uint8_t, 0> packed;
  if (const auto format = Available(); format && size_ >= kWorthPacking)
    llvm::compression::compress({*format, 1}, plain, packed);
  const bool smaller = !packed.empty() && packed.size() < size_;
  const llvm::ArrayRef<uint8_t> kept = smaller ? llvm::ArrayRef<uint8_t>(packed) : plain;
  bytes_.assign(kept.begin(), kept.end());
}

std::string PackedText::str() const {
  if (bytes_.size() == size_) return {bytes_.begin(), bytes_.end()};
  llvm::SmallVector<uint8_t, 0> text;
  llvm::Error error = llvm::compression::decompress(*Available(), bytes_, text, size_);
  const bool failed = static_cast<bool>(error);
  llvm::consumeError(std::move(error));
  FRAMEJIT_CHECK(!failed && text.size() == size_);
  return {text.begin(), text.end()};
}

}  // namespace framejit::codegen
