// Element types. One table; the enum, the printer, the parser and the size queries derive from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace framejit {

// X(enumerator, text name, bytes per element, class)   class: b bool, u unsigned, i signed, f float, c complex, p
// packed
#define FRAMEJIT_DTYPES(X)         \
  X(kBool, "bool", 1, 'b')         \
  X(kUInt8, "u8", 1, 'u')          \
  X(kInt8, "i8", 1, 'i')           \
  X(kInt16, "i16", 2, 'i')         \
  X(kInt32, "i32", 4, 'i')         \
  X(kInt64, "i64", 8, 'i')         \
  X(kUInt16, "u16", 2, 'u')        \
  X(kUInt32, "u32", 4, 'u')        \
  X(kUInt64, "u64", 8, 'u')        \
  X(kFloat16, "f16", 2, 'f')       \
  X(kBFloat16, "bf16", 2, 'f')     \
  X(kFloat32, "f32", 4, 'f')       \
  X(kFloat64, "f64", 8, 'f')       \
  X(kComplex64, "c64", 8, 'c')     \
  X(kComplex128, "c128", 16, 'c')  \
  X(kFloat8E4M3, "f8e4m3", 1, 'f') \
  X(kFloat8E5M2, "f8e5m2", 1, 'f') \
  X(kInt4x2, "i4x2", 1, 'p')

enum class DType : uint8_t {
#define X(e, n, s, c) e,
  FRAMEJIT_DTYPES(X)
#undef X
};

inline constexpr int kNumDTypes = 18;

constexpr std::string_view DTypeName(DType t) {
  constexpr std::string_view names[] = {
#define X(e, n, s, c) n,
      FRAMEJIT_DTYPES(X)
#undef X
  };
  return names[static_cast<int>(t)];
}

constexpr int DTypeSize(DType t) {
  constexpr int sizes[] = {
#define X(e, n, s, c) s,
      FRAMEJIT_DTYPES(X)
#undef X
  };
  return sizes[static_cast<int>(t)];
}

constexpr char DTypeClass(DType t) {
  constexpr char classes[] = {
#define X(e, n, s, c) c,
      FRAMEJIT_DTYPES(X)
#undef X
  };
  return classes[static_cast<int>(t)];
}

constexpr bool IsFloat(DType t) {
  return DTypeClass(t) == 'f';
}
constexpr bool IsComplex(DType t) {
  return DTypeClass(t) == 'c';
}
constexpr bool IsSigned(DType t) {
  return DTypeClass(t) == 'i';
}
constexpr bool IsBool(DType t) {
  return t == DType::kBool;
}
constexpr bool IsInteger(DType t) {
  return DTypeClass(t) == 'i' || DTypeClass(t) == 'u';
}  // Bool is none of them.

std::optional<DType> ParseDType(std::string_view name);

// The type arithmetic is carried out in: 16-bit and 8-bit floats compute in f32, everything else in itself.
constexpr DType ComputeType(DType t) {
  return IsFloat(t) && DTypeSize(t) < 4 ? DType::kFloat32 : t;
}

// kPrivate: for the target that a program brings (compiler/target.h, examples/c_target).
enum class DeviceKind : uint8_t { kCpu, kCuda, kMeta, kPrivate };
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int16_t index = -1;
  friend bool operator==(const Device&, const Device&) = default;
};

}  // namespace framejit
