// Formulas over builder values: Expr has the arithmetic operators, numbers take the dtype of their neighbour. For the
// folders that write formulas: this one and autodiff.
#pragma once

#include <type_traits>

#include "rules/decompose.h"

namespace framejit::rules {

struct Expr {
  Builder& b;
  ValueId id;
  Expr(Builder& b, ValueId id) : b(b), id(id) {}
  Expr(const Expr&) = default;
  Expr& operator=(const Expr& other) {
    id = other.id;
    return *this;
  }
  operator ValueId() const { return id; }  // NOLINT: an Expr is a value
  Expr Number(double v) const { return {b, b.Constant(v, b.type(id).dtype, b.type(id).shape)}; }
};

inline Expr Apply(Op op, Expr x) {
  return {x.b, x.b.Unary(op, x.id)};
}
inline Expr Apply(Op op, Expr x, Expr y) {
  return {x.b, x.b.Binary(op, x.id, y.id)};
}
inline Expr Where(Expr c, Expr x, Expr y) {
  return {x.b, x.b.Where(c.id, x.id, y.id)};
}

inline Expr operator-(Expr x) {
  return Apply(Op::kNeg, x);
}
inline Expr operator+(Expr x, Expr y) {
  return Apply(Op::kAdd, x, y);
}
inline Expr operator-(Expr x, Expr y) {
  return Apply(Op::kSub, x, y);
}
inline Expr operator*(Expr x, Expr y) {
  return Apply(Op::kMul, x, y);
}
inline Expr operator/(Expr x, Expr y) {
  return Apply(Op::kDiv, x, y);
}
// A number beside an Expr is one of its dtype. A bare ValueId is an unsigned number too: that would be a mistake.
template <class N>
concept NumberOnly = std::is_arithmetic_v<N> && !std::is_same_v<N, ValueId>;
template <NumberOnly N>
Expr operator+(Expr x, N y) {
  return x + x.Number(y);
}
template <NumberOnly N>
Expr operator*(Expr x, N y) {
  return x * x.Number(y);
}
template <NumberOnly N>
Expr operator/(Expr x, N y) {
  return x / x.Number(y);
}
template <NumberOnly N>
Expr operator<(N x, Expr y) {
  return Apply(Op::kLt, y.Number(x), y);
}
Expr operator+(Expr, ValueId) = delete;
Expr operator-(Expr, ValueId) = delete;
Expr operator*(Expr, ValueId) = delete;
Expr operator/(Expr, ValueId) = delete;

// y, with the rule by which it is differentiated with respect to the operands.
inline Expr Ruled(Expr y, const char* rule, std::vector<ValueId> operands, std::vector<double> numbers = {},
                  std::vector<int64_t> axes = {}) {
  y.b.SetDerivative(y, {rule, std::move(operands), std::move(numbers), std::move(axes)});
  return y;
}

// x ** n, where n is -0.5 or 1.5: its derivative is another such power.
inline Expr Power(Expr x, double n) {
  return Ruled(n < 0 ? Apply(Op::kRsqrt, x) : Apply(Op::kPow, x, x.Number(n)), "half_power", {x}, {n});
}

// f on x in the type arithmetic happens in, rounded back to x's dtype.
template <class F>
ValueId InComputeType(Builder& b, ValueId x, F f) {
  DType dtype = b.type(x).dtype;
  return b.Cast(f(Expr{b, Widen(b, x)}), dtype);
}

inline std::vector<int64_t> NonNegative(Axes axes, int rank) {
  for (int64_t& a : axes) a += a < 0 ? rank : 0;
  return axes;
}

}  // namespace framejit::rules
