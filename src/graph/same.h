// Do two nodes compute the same, but for their operands?
#pragma once

#include <bit>

#include "framejit/graph.h"

namespace framejit {

inline bool SameBits(const Scalar& a, const Scalar& b) {
  const double *x = std::get_if<double>(&a.v), *y = std::get_if<double>(&b.v);
  return x && y ? std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(*y) : a == b;
}

// Do two operations, of which none is a call, compute the same of the same operands?
inline bool SameOperation(Op op, const Attrs& a, const TensorType& type, const Node& n) {
  const Attrs& b = n.attrs;
  return op == n.op && type == n.type && a.axes == b.axes && a.syms == b.syms && SameBits(a.scalar, b.scalar) &&
         a.sym_scalar == b.sym_scalar && a.dtype == b.dtype && a.flag == b.flag && a.name == b.name && !a.call &&
         !b.call && a.result_types == b.result_types;
}

}  // namespace framejit
