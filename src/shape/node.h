// Representation of shape::Int, private to this folder. Every value is a polynomial with integer coefficients over
// *atoms*: symbols, floordiv, mod, min and max nodes. A polynomial that is a number or a single atom is that node
// itself, so that equal values have one representation and interning makes them one pointer.
#pragma once

#include <compare>
#include <vector>

#include "framejit/shape.h"
#include "shape/steps.h"

namespace framejit::shape {

enum class Kind : uint8_t { kConst, kSymbol, kFloorDiv, kMod, kMin, kMax, kSum };

struct Term {  // coefficient * product of factors; no factors: the constant term
  int64_t coefficient;
  std::vector<Int> factors;  // atoms in Compare order; a power is a repeated factor
  friend bool operator==(const Term&, const Term&) = default;
};

// Terms in descending order (degree, then factors), no zero coefficient, no two with equal factors. Empty: zero.
using Poly = std::vector<Term>;

struct Node {
  Kind kind;
  int64_t value = 0;      // kConst: the number; kSymbol: its id
  std::vector<Int> args;  // kFloorDiv, kMod: {a, b}; kMin, kMax: two or more in Compare order
  Poly terms;             // kSum
  size_t hash = 0;        // set by the interner, like the next
  uint32_t steps = 0;     // What Steps() says.
};

struct Interner {
  static Int Constant(int64_t value);
  static Int Make(Node node);
};

// A total order that does not depend on the order of creation, so that text and hashes are the same in every process.
std::strong_ordering Compare(Int a, Int b);

Poly ToPoly(Int e);
Int FromPoly(Poly terms);  // any order, duplicates and zeros allowed
// a / b if b divides a as a polynomial.
std::optional<Poly> DivideExact(Poly a, const Poly& b);
// The monomial that divides every term of `p`, positive coefficient. {0, {}} for the zero polynomial.
Term CommonFactor(const Poly& p);
Term Gcd(const Term& a, const Term& b);
std::optional<Term> Divide(const Term& a, const Term& b);

// Arithmetic that wraps instead of being undefined. Division by zero yields 0.
inline int64_t WrapAdd(int64_t a, int64_t b) {
  return static_cast<int64_t>(uint64_t(a) + uint64_t(b));
}
inline int64_t WrapMul(int64_t a, int64_t b) {
  return static_cast<int64_t>(uint64_t(a) * uint64_t(b));
}
inline int64_t PyFloorDiv(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return WrapMul(a, -1);
  int64_t q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}
inline int64_t PyMod(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

}  // namespace framejit::shape
