// This file has the arithmetic of complex numbers, of Python's and of numpy.complex128. They are two floats each.
#include <opcode.h>

#include <cerrno>
#include <cmath>

#include "capture/scalar/values.h"

namespace framejit::capture::scalar {

namespace {

bool IsNumpy(const Val& x) {
  return x.is == Is::kComplex && x.dtype == DType::kComplex128;
}

// True: *re and *im have what Python answers.
int64_t PythonQuotient(double a, double b, double c, double d, double* re, double* im) {
  errno = 0;
  const Py_complex q = _Py_c_quot({a, b}, {c, d});
  *re = q.real, *im = q.imag;
  return errno == 0;
}
// This divides as NumPy's scalarmath does, and leaves to NumPy whatever it may warn of.
int64_t NumpyQuotient(double a, double b, double c, double d, double* re, double* im) {
  if (c == 0 && d == 0) return 0;
  if (std::fabs(c) >= std::fabs(d)) {
    const double ratio = d / c, scale = 1.0 / (c + d * ratio);
    *re = (a + b * ratio) * scale, *im = (b - a * ratio) * scale;
  } else {
    const double ratio = c / d, scale = 1.0 / (d + c * ratio);
    *re = (a * ratio + b) * scale, *im = (b * ratio - a) * scale;
  }
  return std::isfinite(*re) && std::isfinite(*im);
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

Element Quotient(Builder& b, bool numpy, Element x, Element y, int* good) {
  const auto address = [&](int cell) {
    return b.Emit({.op = ScalarOp::kAddress, .type = ScalarType::kPtr, .imm = cell, .id = -2});
  };
  const auto cell = [&](int at) {
    return b.Emit({.op = ScalarOp::kCell, .type = ScalarType::kF64, .imm = at, .id = -2});
  };
  const void* f = numpy ? reinterpret_cast<void*>(NumpyQuotient) : reinterpret_cast<void*>(PythonQuotient);
  *good = b.Call(f, ScalarType::kBool, {x.value, x.imag, y.value, y.imag, address(b.scratch), address(b.scratch2)});
  return {cell(b.scratch), cell(b.scratch2)};
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
  const int r = b.Call(reinterpret_cast<void*>(Hypotenuse), ScalarType::kF64, {p.value, p.imag});
  b.ExitIf(b.Op(ScalarOp::kNot, ScalarType::kBool, b.Op(ScalarOp::kFinite, ScalarType::kBool, r)));
  return IsNumpy(x) ? NewNumpy(DType::kFloat64, r) : New(Is::kFloat, r);
}

}  // namespace framejit::capture::scalar
