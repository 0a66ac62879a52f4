// The 16-bit floats on the host: exact widening to float, rounding to nearest even back.
#pragma once

#include <bit>
#include <cstdint>

namespace framejit {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

inline float Widen(BFloat16 x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}

inline BFloat16 NarrowBFloat16(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  if (x != x) return {static_cast<uint16_t>((u >> 16) | 0x40)};  // It stays a not-a-number and keeps its sign.
  return {static_cast<uint16_t>((u + 0x7FFF + ((u >> 16) & 1)) >> 16)};
}

inline float Widen(Half x) {
  uint32_t sign = uint32_t{x.bits & 0x8000u} << 16, exponent = (x.bits >> 10) & 31, mantissa = x.bits & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  float value = static_cast<float>(mantissa) * 0x1p-24f;  // This is a subnormal number, and exact.
  return sign ? -value : value;
}

inline Half NarrowHalf(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  uint16_t sign = static_cast<uint16_t>(u >> 16 & 0x8000);
  uint32_t magnitude = u & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return {static_cast<uint16_t>(sign | 0x7E00)};
  if (magnitude >= 0x477FF000) return {static_cast<uint16_t>(sign | 0x7C00)};  // 65520 and above: infinity
  if (magnitude < 0x38800000) {  // below 2^-14: subnormal; adding 0.5 leaves the rounded bits at the low end
    float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000))};
  }
  uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13))};
}

}  // namespace framejit
