// Reductions and scans. Floats are accumulated in double: the oracle is meant to be closer to the truth than what it
// judges. Integers wrap in the result's width.
#include <algorithm>

#include "graph/interpret.h"

namespace framejit::interpret {
namespace {

struct Fold {                   // It says where element k of the operand goes.
  Sizes sizes;                  // of the result
  std::vector<int64_t> target;  // result element of operand element k
  std::vector<int64_t> along;   // coordinate of k on the (single) reduced axis
};

Fold MakeFold(const Node& n, const HostTensor& x) {
  Fold f;
  int rank = static_cast<int>(x.sizes.size());
  HostTensor map;  // a fake tensor whose "offset" is the result's element number
  map.sizes = x.sizes;
  map.strides.assign(rank, 0);
  HostTensor coordinate = map;
  int64_t stride = 1;
  for (int d = rank - 1; d >= 0; --d) {
    if (std::find(n.attrs.axes.begin(), n.attrs.axes.end(), d) == n.attrs.axes.end()) {
      f.sizes.insert(f.sizes.begin(), x.sizes[d]);
      map.strides[d] = stride;
      stride *= x.sizes[d];
    } else {
      if (n.attrs.flag) f.sizes.insert(f.sizes.begin(), 1);
      coordinate.strides[d] = 1;
    }
  }
  ForEachOffset(map, [&](int64_t offset) { f.target.push_back(offset); });
  ForEachOffset(coordinate, [&](int64_t offset) { f.along.push_back(offset); });
  return f;
}

template <class A, class Combine>
std::vector<A> Accumulate(const Fold& f, A init, Combine combine) {
  std::vector<A> acc(Count(f.sizes), init);
  for (size_t k = 0; k < f.target.size(); ++k) combine(acc[f.target[k]], k);
  return acc;
}

HostTensor SumOrProd(const Node& n, const HostTensor& operand, const Fold& f) {
  bool sum = n.op == Op::kSum;
  HostTensor x = Cast(operand, n.attrs.dtype);
  return Visit(x.dtype, [&](auto tag) {
    using C = ComputeOf<decltype(tag)>;
    using A = std::conditional_t<std::is_floating_point_v<C>, double, uint64_t>;
    Lanes<C> v = LoadAll<C>(x);
    auto acc = Accumulate<A>(f, A(sum ? 0 : 1),
                             [&](A& a, size_t k) { a = sum ? a + static_cast<A>(v[k]) : a * static_cast<A>(v[k]); });
    return StoreAll(x.dtype, f.sizes, acc);
  });
}

HostTensor Extremum(const Node& n, const HostTensor& x, const Fold& f) {
  bool max = n.op == Op::kMax || n.op == Op::kArgMax, index = n.op == Op::kArgMax || n.op == Op::kArgMin;
  return Visit(x.dtype, [&](auto tag) {
    using C = ComputeOf<decltype(tag)>;
    Lanes<C> v = LoadAll<C>(x);
    std::vector<int64_t> best = Accumulate<int64_t>(f, -1, [&](int64_t& b, size_t k) {
      if (b < 0) {
        b = static_cast<int64_t>(k);
        return;
      }
      C now = v[k], old = v[b];
      if constexpr (std::is_floating_point_v<C>) {
        if (std::isnan(old)) return;  // The first not-a-number stays the result.
        if (std::isnan(now)) b = static_cast<int64_t>(k);
      }
      if (max ? old < now : now < old) b = static_cast<int64_t>(k);
    });
    Lanes<C> values;
    std::vector<int64_t> indices;
    for (int64_t b : best) {
      if (b < 0) throw std::runtime_error(std::string(Info(n.op).name) + ": an empty axis has no extremum");
      values.push_back(v[b]);
      indices.push_back(f.along[b]);
    }
    return index ? StoreAll(DType::kInt64, f.sizes, indices) : StoreAll(x.dtype, f.sizes, values);
  });
}

HostTensor AnyOrAll(const Node& n, const HostTensor& operand, const Fold& f) {
  bool any = n.op == Op::kAny;
  Lanes<bool> v = LoadAll<bool>(operand);
  auto acc = Accumulate<uint8_t>(f, !any, [&](uint8_t& a, size_t k) { a = any ? a | v[k] : a & v[k]; });
  return StoreAll(DType::kBool, f.sizes, acc);
}

}  // namespace

HostTensor Reduce(const Node& n, const HostTensor& x) {
  Fold f = MakeFold(n, x);
  switch (n.op) {
    case Op::kSum:
    case Op::kProd: return SumOrProd(n, x, f);
    case Op::kAny:
    case Op::kAll: return AnyOrAll(n, x, f);
    default: return Extremum(n, x, f);
  }
}

HostTensor CumSum(const Node& n, const HostTensor& operand) {
  HostTensor x = Cast(operand, n.attrs.dtype);
  int64_t axis = n.attrs.axes.at(0), length = x.sizes.at(axis), step = 1;
  for (size_t d = axis + 1; d < x.sizes.size(); ++d) step *= x.sizes[d];
  return Visit(x.dtype, [&](auto tag) {
    using C = ComputeOf<decltype(tag)>;
    using A = std::conditional_t<std::is_floating_point_v<C>, double, uint64_t>;
    Lanes<C> v = LoadAll<C>(x);
    std::vector<A> out(v.size());
    for (int64_t k = 0; k < std::ssize(v); ++k) {
      bool first = (k / step) % length == 0;
      out[k] = static_cast<A>(v[k]) + (first ? A(0) : out[k - step]);
    }
    return StoreAll(x.dtype, x.sizes, out);
  });
}

}  // namespace framejit::interpret
