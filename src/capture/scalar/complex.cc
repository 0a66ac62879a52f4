// This file has the arithmetic of complex numbers, of Python's and of numpy.complex128. They are two floats each.
#include <opcode.h>

#include <cmath>

#include "capture/scalar/values.h"

namespace framejit::capture::scalar {

namespace {

bool IsNumpy(const Val& x) {
  return x.is == Is::kComplex && x.dtype == DType::kComplex128;
}

double Hypotenuse(double a, double b) {
  return ::hypot(a, b);
}

Element PartsOf(Builder& b, const Val& x) {
  return {b.Value(x.items[0]), b.Value(x.items[1])};
}

int Op2(Builder& b, ScalarOp op, int x, int y) {
  return b.Op(op, ScalarType::kF64, x, y);
}

Element Product(Builder& b, Element x, Element y) {
  return {Op2(b, ScalarOp::kSub, Op2(b, ScalarOp::kMul, x.value, y.value), Op2(b, ScalarOp::kMul, x.imag, y.imag)),
          Op2(b, ScalarOp::kAdd, Op2(b, ScalarOp::kMul, x.value, y.imag), Op2(b, ScalarOp::kMul, x.imag, y.value))};
}

// This is c_powu of Objects/complexobject.c.
Element Power(Builder& b, Element x, int64_t n) {
  Element result{b.Number(1), b.Number(0)};
  for (int64_t mask = 1; mask <= n; mask <<= 1) {
    if (n & mask) result = Product(b, result, x);
    if (mask << 1 <= n) x = Product(b, x, x);
  }
  return result;
}

// As NumPy multiplies arrays where the processor can.
Element FusedProduct(Builder& b, Element x, Element y) {
  const auto fused = [&](int a, int c, int d) { return b.Op(ScalarOp::kFma, ScalarType::kF64, a, c, d); };
  const int real = b.Op(ScalarOp::kNeg, ScalarType::kF64, Op2(b, ScalarOp::kMul, x.imag, y.imag));
  return {fused(x.value, y.value, real), fused(x.value, y.imag, Op2(b, ScalarOp::kMul, x.imag, y.value))};
}

Element Sum(Builder& b, ScalarOp op, Element x, Element y) {
  return {Op2(b, op, x.value, y.value), Op2(b, op, x.imag, y.imag)};
}

// Both divide by the part of the divisor that lies further from 0: Python's _Py_c_quot and NumPy's scalarmath, which
// multiplies by 1 / scale. *good: the divisor is not 0, and NumPy has nothing to warn of.
Element Quotient(Builder& b, bool numpy, Element x, Element y, int* good) {
  const auto size = [&](int v) { return b.Op(ScalarOp::kAbs, ScalarType::kF64, v); };
  const int real = b.Compare(ScalarOp::kGe, size(y.value), size(y.imag));
  const auto pick = [&](int yes, int no) { return b.Op(ScalarOp::kSelect, ScalarType::kF64, real, yes, no); };
  const int most = pick(y.value, y.imag), ratio = Op2(b, ScalarOp::kDiv, pick(y.imag, y.value), most);
  const int first = pick(x.value, x.imag), second = pick(x.imag, x.value);
  const int scale = Op2(b, ScalarOp::kAdd, most, Op2(b, ScalarOp::kMul, pick(y.imag, y.value), ratio));
  const int turned = Op2(b, ScalarOp::kMul, first, ratio);
  Element r{Op2(b, ScalarOp::kAdd, first, Op2(b, ScalarOp::kMul, second, ratio)),
            Op2(b, ScalarOp::kSub, pick(second, turned), pick(turned, second))};
  const int factor = numpy ? Op2(b, ScalarOp::kDiv, b.Number(1), scale) : scale;
  *good = b.Compare(ScalarOp::kNe, most, b.Number(0));
  const auto finite = [&](int v) {
    *good = b.Op(ScalarOp::kAnd, ScalarType::kBool, *good, b.Op(ScalarOp::kFinite, ScalarType::kBool, v));
  };
  if (numpy) finite(scale);  // 1 over one that is too large is 0, and so is what is multiplied by it
  for (int* part : {&r.value, &r.imag}) {
    *part = Op2(b, numpy ? ScalarOp::kMul : ScalarOp::kDiv, *part, factor);
    if (numpy) finite(*part);
  }
  return r;
}

void ExitUnlessFinite(Builder& b, Element p) {
  for (int v : {p.value, p.imag})
    b.ExitIf(b.Op(ScalarOp::kNot, ScalarType::kBool, b.Op(ScalarOp::kFinite, ScalarType::kBool, v)));
}

}  // namespace

Val Complex(const Val& re, const Val& im, bool numpy) {
  Val v;
  v.is = Is::kComplex;
  if (numpy) v.dtype = DType::kComplex128;
  v.items = {re, im};
  return v;
}

Val ToComplex(Builder& b, const Val& x, bool numpy) {
  if (x.is == Is::kComplex) return Complex(x.items[0], x.items[1], numpy);
  if (!x.scalar()) throw Unsupported{"a complex number of something else than a number"};
  return Complex(New(Is::kFloat, Double(b, x)), New(Is::kFloat, b.Number(0)), numpy);
}

Val ComplexBinary(Builder& b, int op, const Val& x, const Val& y) {
  const bool numpy = IsNumpy(x) || IsNumpy(y);
  // A numpy.float64 is a float to what is Python's and stands before it. Else NumPy's others take part through its
  // ufuncs.
  const bool weak = !numpy && x.is == Is::kComplex && y.is == Is::kNumpy && y.dtype == DType::kFloat64;
  for (const Val* v : {&x, &y})
    if (v->is != Is::kComplex && (!v->scalar() || !(v->python() || weak)))
      throw Unsupported{"a complex number and another one"};
  const Element p = PartsOf(b, ToComplex(b, x, numpy));
  Element r{};
  if (op == NB_POWER) {
    if (numpy || y.is != Is::kInt || !y.constant || *y.constant < 1 || *y.constant > 8)
      throw Unsupported{"a power of a complex number"};
    r = Power(b, p, *y.constant);
    ExitUnlessFinite(b, r);
    return Complex(New(Is::kFloat, r.value), New(Is::kFloat, r.imag), false);
  }
  const Element q = PartsOf(b, ToComplex(b, y, numpy));
  switch (op) {
    case NB_ADD: r = Sum(b, ScalarOp::kAdd, p, q); break;
    case NB_SUBTRACT: r = Sum(b, ScalarOp::kSub, p, q); break;
    case NB_MULTIPLY: r = Product(b, p, q); break;
    case NB_TRUE_DIVIDE: {
      int good;
      r = Quotient(b, numpy, p, q, &good);
      b.ExitIf(b.Op(ScalarOp::kNot, ScalarType::kBool, good));
      break;
    }
    default: throw Unsupported{"an operator of complex numbers"};
  }
  if (numpy) ExitUnlessFinite(b, r);
  return Complex(New(Is::kFloat, r.value), New(Is::kFloat, r.imag), numpy);
}

Val ComplexCompare(Builder& b, int py_op, const Val& x, const Val& y) {
  if (py_op != Py_EQ && py_op != Py_NE) throw Unsupported{"an order of complex numbers"};
  const Val& other = x.is == Is::kComplex ? y : x;
  if (other.is != Is::kComplex && !IsNumpy(x) && !IsNumpy(y) && other.scalar() && other.python()) {
    const Val& z = x.is == Is::kComplex ? x : y;
    const Val real = Compare(b, Py_EQ, z.items[0], other),
              none = Compare(b, Py_EQ, z.items[1], New(Is::kFloat, b.Number(0)));
    const int equal = b.Op(ScalarOp::kAnd, ScalarType::kBool, b.Value(real), b.Value(none));
    return New(Is::kBool, py_op == Py_EQ ? equal : b.Op(ScalarOp::kNot, ScalarType::kBool, equal));
  }
  if (IsNumpy(x) != IsNumpy(y) || x.is != Is::kComplex || y.is != Is::kComplex)
    throw Unsupported{"a comparison of a complex number and another one"};
  const Element p = PartsOf(b, x), q = PartsOf(b, y);
  int same = b.Op(ScalarOp::kAnd, ScalarType::kBool, b.Compare(ScalarOp::kEq, p.value, q.value),
                  b.Compare(ScalarOp::kEq, p.imag, q.imag));
  if (py_op == Py_NE) same = b.Op(ScalarOp::kNot, ScalarType::kBool, same);
  return IsNumpy(x) ? NewNumpy(DType::kBool, same) : New(Is::kBool, same);
}

Element ComplexArithmetic(Builder& b, ScalarOp op, Element x, Element y, int* good) {
  *good = -1;
  static const bool fused = __builtin_cpu_supports("fma");
  if (op == ScalarOp::kMul) return fused ? FusedProduct(b, x, y) : Product(b, x, y);
  return op == ScalarOp::kDiv ? Quotient(b, true, x, y, good) : Sum(b, op, x, y);
}

Val ComplexAbsolute(Builder& b, const Val& x) {
  const Element p = PartsOf(b, x);
  const int r = b.Emit({.op = ScalarOp::kHypot,
                        .type = ScalarType::kF64,
                        .a = p.value,
                        .b = p.imag,
                        .imm = reinterpret_cast<int64_t>(&Hypotenuse),
                        .id = -2});
  b.ExitIf(b.Op(ScalarOp::kNot, ScalarType::kBool, b.Op(ScalarOp::kFinite, ScalarType::kBool, r)));
  return IsNumpy(x) ? NewNumpy(DType::kFloat64, r) : New(Is::kFloat, r);
}

}  // namespace framejit::capture::scalar
