// Pieces of the reference interpreter. A value is a HostTensor, possibly a strided view of another one's storage; no
// piece changes its operands. "Lanes" are the elements in row-major order, widened to the type arithmetic happens in.
#pragma once

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "framejit/graph.h"
#include "graph/half.h"

namespace framejit::interpret {

using Sizes = std::vector<int64_t>;

struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

HostTensor Pointwise(const Node& n, const std::vector<HostTensor>& in);
HostTensor Cast(const HostTensor& x, DType to);
HostTensor Reduce(const Node& n, const HostTensor& x);
HostTensor CumSum(const Node& n, const HostTensor& x);
HostTensor Take(const Node& n, const HostTensor& data, const HostTensor& index);
HostTensor Gather(const Node& n, const HostTensor& data, const HostTensor& index);
HostTensor Scatter(const Node& n, const HostTensor& data, const HostTensor& index, const HostTensor& source);
HostTensor Contract(const Node& n, const std::vector<HostTensor>& in);
// `syms` are attrs.syms as numbers.
HostTensor View(const Node& n, const std::vector<HostTensor>& in, const Sizes& syms);
HostTensor Filled(DType t, const Sizes& sizes, const Scalar& value);

int64_t Count(const Sizes& sizes);
Sizes RowMajor(const Sizes& sizes);
HostTensor Contiguous(const HostTensor& x);  // x itself if it is row-major already

// Calls f with the offset of every element, in row-major order.
template <class F>
void ForEachOffset(const HostTensor& x, F f) {
  int64_t n = Count(x.sizes), offset = x.offset;
  Sizes at(x.sizes.size());
  for (int64_t k = 0; k < n; ++k) {
    f(offset);
    for (int d = static_cast<int>(at.size()) - 1; d >= 0; --d) {
      offset += x.strides[d];
      if (++at[d] < x.sizes[d]) break;
      offset -= at[d] * x.strides[d];
      at[d] = 0;
    }
  }
}

// Calls f(T{}) with the type in which an element of dtype t is stored.
template <class F>
decltype(auto) Visit(DType t, F f) {
  switch (t) {
    case DType::kBool: return f(bool{});
    case DType::kUInt8: return f(uint8_t{});
    case DType::kInt8: return f(int8_t{});
    case DType::kInt16: return f(int16_t{});
    case DType::kInt32: return f(int32_t{});
    case DType::kInt64: return f(int64_t{});
    case DType::kUInt16: return f(uint16_t{});
    case DType::kUInt32: return f(uint32_t{});
    case DType::kUInt64: return f(uint64_t{});
    case DType::kFloat16: return f(Half{});
    case DType::kBFloat16: return f(BFloat16{});
    case DType::kFloat32: return f(float{});
    case DType::kFloat64: return f(double{});
    default: throw Unsupported("the interpreter does not compute " + std::string(DTypeName(t)));
  }
}

template <class T>
inline constexpr bool kIs16BitFloat = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;
template <class T>
using ComputeOf = std::conditional_t<kIs16BitFloat<T>, float, T>;
template <class C>
using Lanes = std::vector<std::conditional_t<std::is_same_v<C, bool>, uint8_t, C>>;

template <class T>
ComputeOf<T> Load(const HostTensor& x, int64_t offset) {
  const T* p = reinterpret_cast<const T*>(x.storage->data()) + offset;
  if constexpr (kIs16BitFloat<T>) {
    return Widen(*p);
  } else {
    return *p;
  }
}

// A number as an element, by the framework's conversion rules: to bool is x != 0; float to integer truncates, and what
// does not fit becomes the smallest integer of the register width (32 bits for narrow types), as on x86.
template <class T, class C>
T Convert(C x) {
  if constexpr (std::is_same_v<T, bool>) {
    return x != C(0);
  } else if constexpr (std::is_same_v<T, Half>) {
    return NarrowHalf(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return NarrowBFloat16(static_cast<float>(x));
  } else if constexpr (std::is_integral_v<T> && std::is_floating_point_v<C>) {
    if constexpr (std::is_same_v<T, uint64_t>) {
      if (x >= C(0x1p63) && x < C(0x1p64)) return static_cast<uint64_t>(x);
    }
    if constexpr (sizeof(T) == 8 || std::is_same_v<T, uint32_t>) {
      return static_cast<T>(x >= C(-0x1p63) && x < C(0x1p63) ? static_cast<int64_t>(x) : INT64_MIN);
    } else {
      double v = std::trunc(static_cast<double>(x));
      return static_cast<T>(v >= -0x1p31 && v < 0x1p31 ? static_cast<int32_t>(v) : INT32_MIN);
    }
  } else {
    return static_cast<T>(x);
  }
}

template <class C>
Lanes<C> LoadAll(const HostTensor& x) {
  Lanes<C> out;
  out.reserve(Count(x.sizes));
  Visit(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    ForEachOffset(x, [&](int64_t offset) { out.push_back(Convert<C>(Load<T>(x, offset))); });
  });
  return out;
}

template <class V>
HostTensor StoreAll(DType t, Sizes sizes, const V& lanes) {
  HostTensor out = HostTensor::Empty(t, std::move(sizes));
  Visit(t, [&](auto tag) {
    using T = decltype(tag);
    T* p = reinterpret_cast<T*>(out.storage->data());
    for (size_t i = 0; i < lanes.size(); ++i) p[i] = Convert<T>(lanes[i]);
  });
  return out;
}

// One element of a binary operation; contiguous with Pointwise so that reductions mean the same as their operation.
template <class C>
C Binary(Op op, C a, C b);

}  // namespace framejit::interpret
