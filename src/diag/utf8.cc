#include "diag/utf8.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "diag/diag.h"

namespace framejit::diag {

CodePoint DecodeAt(std::string_view text, size_t at) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(at + i < text.size() ? text[at + i] : 0); };
  unsigned b = byte(0);
  if (b < 0x80) return {b, 1};
  int n = b >= 0xF0 && b < 0xF5 ? 4 : b >= 0xE0 && b < 0xF0 ? 3 : b >= 0xC2 && b < 0xE0 ? 2 : 0;
  if (!n) return {0xFFFD, 1};
  uint32_t v = b & (0xFF >> (n + 1));
  for (int i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {0xFFFD, 1};
    v = v << 6 | (byte(i) & 0x3F);
  }
  bool overlong = (n == 3 && v < 0x800) || (n == 4 && v < 0x10000);
  if (overlong || v > 0x10FFFF || (v >= 0xD800 && v < 0xE000)) return {0xFFFD, 1};
  return {v, n};
}

void AppendUtf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
  } else if (c < 0x10000) {
    out += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
            static_cast<char>(0x80 | (c & 0x3F))};
  } else {
    out += {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3F)),
            static_cast<char>(0x80 | (c >> 6 & 0x3F)), static_cast<char>(0x80 | (c & 0x3F))};
  }
}

int DisplayWidth(uint32_t c) {
  struct Range {
    uint32_t low, high;
  };
  // The blocks that matter in source text, not all of Unicode's tables: a caret one column off in Tibetan is no harm.
  static constexpr Range kZero[] = {{0x300, 0x36F},   {0x483, 0x489},   {0x591, 0x5BD},    {0x610, 0x61A},
                                    {0x64B, 0x65F},   {0x93C, 0x93C},   {0x94D, 0x94D},    {0xE31, 0xE31},
                                    {0xE34, 0xE3A},   {0xE47, 0xE4E},   {0x1AB0, 0x1AFF},  {0x1DC0, 0x1DFF},
                                    {0x200B, 0x200F}, {0x202A, 0x202E}, {0x20D0, 0x20FF},  {0xFE00, 0xFE0F},
                                    {0xFE20, 0xFE2F}, {0xFEFF, 0xFEFF}, {0xE0100, 0xE01EF}};
  static constexpr Range kWide[] = {{0x1100, 0x115F},   {0x231A, 0x231B},   {0x23E9, 0x23F3},   {0x2614, 0x2615},
                                    {0x26A1, 0x26A1},   {0x2705, 0x2705},   {0x274C, 0x274C},   {0x2753, 0x2757},
                                    {0x2E80, 0x303E},   {0x3041, 0x33FF},   {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},
                                    {0xA000, 0xA4CF},   {0xA960, 0xA97F},   {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},
                                    {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},   {0x1F300, 0x1F64F},
                                    {0x1F680, 0x1F6FF}, {0x1F900, 0x1F9FF}, {0x1FA70, 0x1FAFF}, {0x20000, 0x3FFFD}};
  auto in = [c](const auto& table) {
    return std::any_of(std::begin(table), std::end(table), [c](Range r) { return r.low <= c && c <= r.high; });
  };
  return in(kZero) ? 0 : in(kWide) ? 2 : 1;
}

std::string Quote(std::string_view s) {
  std::string out = "\"";
  for (size_t i = 0; i < s.size();) {
    auto [c, length] = DecodeAt(s, i);
    i += length;
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c < 0x20 || c == 0x7F || c == 0x2028 || c == 0x2029) {
      char text[8];
      std::snprintf(text, sizeof text, "\\u%04x", c);
      out += text;
    } else {
      AppendUtf8(out, c);
    }
  }
  return out + "\"";
}

}  // namespace framejit::diag
