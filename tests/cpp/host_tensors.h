// Host tensors from numbers, and their comparison; for tests.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "framejit/graph.h"

namespace framejit::test {

inline HostTensor Make(DType t, std::vector<int64_t> sizes, const std::vector<double>& values) {
  HostTensor x = HostTensor::Empty(t, std::move(sizes));
  for (size_t k = 0; k < values.size(); ++k) SetElement(x, static_cast<int64_t>(k), values[k]);
  return x;
}
inline HostTensor F(std::vector<double> v) {
  return Make(DType::kFloat32, {std::ssize(v)}, v);
}
inline HostTensor F(std::vector<int64_t> sizes, std::vector<double> v) {
  return Make(DType::kFloat32, sizes, v);
}
inline HostTensor D(std::vector<double> v) {
  return Make(DType::kFloat64, {std::ssize(v)}, v);
}
inline HostTensor I(std::vector<double> v) {
  return Make(DType::kInt64, {std::ssize(v)}, v);
}
inline HostTensor I(std::vector<int64_t> sizes, std::vector<double> v) {
  return Make(DType::kInt64, sizes, v);
}
inline HostTensor B(std::vector<double> v) {
  return Make(DType::kBool, {std::ssize(v)}, v);
}

inline int64_t Elements(const HostTensor& t) {
  int64_t n = 1;
  for (int64_t s : t.sizes) n *= s;
  return n;
}
inline std::vector<double> Values(const HostTensor& t) {
  std::vector<double> v;
  for (int64_t k = 0; k < Elements(t); ++k) v.push_back(GetElement(t, k));
  return v;
}
inline TensorType TypeOf(const HostTensor& t) {
  return {t.dtype, shape::Ints(t.sizes.begin(), t.sizes.end()), {}};
}

// Empty if both are the same: dtype, sizes, every element up to `tolerance` relative to max(1, |expected|); zeros with
// their sign, nan equals nan.
inline std::string Difference(const HostTensor& got, const HostTensor& expected, double tolerance = 0) {
  if (got.dtype != expected.dtype || got.sizes != expected.sizes)
    return "type " + TypeOf(got).str() + " instead of " + TypeOf(expected).str();
  std::vector<double> a = Values(got), b = Values(expected);
  for (size_t k = 0; k < a.size(); ++k) {
    bool same = std::isnan(a[k]) ? std::isnan(b[k])
                                 : a[k] == b[k] || std::fabs(a[k] - b[k]) <= tolerance * std::fmax(1, std::fabs(b[k]));
    if (a[k] == 0 && b[k] == 0 && std::signbit(a[k]) != std::signbit(b[k])) same = false;
    if (!same)
      return "element " + std::to_string(k) + " is " + std::to_string(a[k]) + " instead of " + std::to_string(b[k]);
  }
  return "";
}

}  // namespace framejit::test
