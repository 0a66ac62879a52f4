// This file has the algebra. Sums and products are expanded into canonical polynomials, so equal polynomials meet in
// one pointer. Division keeps what it can prove exact: a // b = q + r // b whenever a = q*b + r, for every integer q.
// Common factors cancel. A symbolic divisor is taken to be nonzero here (whoever divides has asked): (s0*s1) // s1 is
// s0.
#include <algorithm>
#include <numeric>

#include "shape/node.h"

namespace framejit::shape {
namespace {

// Graded lexicographic order of monomials, largest first. It respects multiplication, which long division relies on.
bool Before(const std::vector<Int>& a, const std::vector<Int>& b) {
  if (a.size() != b.size()) return a.size() > b.size();
  for (size_t i = 0; i < a.size(); ++i)
    if (auto c = Compare(a[i], b[i]); c != 0) return c < 0;
  return false;
}

std::vector<Int> Merge(const std::vector<Int>& a, const std::vector<Int>& b) {
  std::vector<Int> out;
  out.reserve(a.size() + b.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out),
             [](Int x, Int y) { return Compare(x, y) < 0; });
  return out;
}

Poly Canonical(Poly p) {
  std::sort(p.begin(), p.end(), [](const Term& a, const Term& b) { return Before(a.factors, b.factors); });
  Poly out;
  for (Term& t : p) {
    if (!out.empty() && out.back().factors == t.factors) {
      out.back().coefficient = WrapAdd(out.back().coefficient, t.coefficient);
    } else {
      out.push_back(std::move(t));
    }
  }
  std::erase_if(out, [](const Term& t) { return t.coefficient == 0; });
  return out;
}

Term Multiply(const Term& a, const Term& b) {
  return {WrapMul(a.coefficient, b.coefficient), Merge(a.factors, b.factors)};
}

Poly Scale(const Poly& p, const Term& t) {
  Poly out;
  for (const Term& x : p) out.push_back(Multiply(x, t));
  return out;
}

Poly DivideEach(const Poly& p, const Term& t) {
  Poly out;
  for (const Term& x : p) out.push_back(*Divide(x, t));
  return out;
}

bool IsConstant(const Term& t) {
  return t.factors.empty();
}
bool IsOne(const Term& t) {
  return t.coefficient == 1 && t.factors.empty();
}

// Splits p into the constant term and the gcd of the other coefficients with c.
int64_t ContentWith(const Poly& p, int64_t c) {
  int64_t g = c;
  for (const Term& t : p)
    if (!IsConstant(t)) g = std::gcd(g, t.coefficient);
  return g;
}

// (p without its constant term) / g + constant // g
Int ShrinkBy(const Poly& p, int64_t g) {
  Poly out;
  for (const Term& t : p) out.push_back({PyFloorDiv(t.coefficient, g), t.factors});
  return FromPoly(std::move(out));
}

int64_t ConstantTerm(const Poly& p) {
  return !p.empty() && IsConstant(p.back()) ? p.back().coefficient : 0;
}

// a // c for a constant c > 1 and a not constant.
Int FloorDivConst(Int a, int64_t c) {
  Poly p = ToPoly(a), q, r;
  for (Term& t : p) {
    if (IsConstant(t)) {
      q.push_back({PyFloorDiv(t.coefficient, c), {}});
      r.push_back({PyMod(t.coefficient, c), {}});
    } else if (t.coefficient % c == 0) {
      q.push_back({t.coefficient / c, t.factors});
    } else {
      r.push_back(t);
    }
  }
  r = Canonical(std::move(r));
  Int quotient = FromPoly(std::move(q));
  if (int64_t g = ContentWith(r, c); g > 1) return quotient + FloorDiv(ShrinkBy(r, g), c / g);
  // (x // d + k) // c = (x + k*d) // (d*c)
  if (!r.empty() && r.size() <= 2 && r[0].coefficient == 1 && r[0].factors.size() == 1) {
    const Node& f = *r[0].factors[0].node();
    if (f.kind == Kind::kFloorDiv && f.args[1].is_const() && f.args[1].value() > 0 &&
        (r.size() == 1 || IsConstant(r[1]))) {
      int64_t d = f.args[1].value();
      return quotient + FloorDiv(f.args[0] + Int(WrapMul(ConstantTerm(r), d)), WrapMul(d, c));
    }
  }
  return quotient + Interner::Make({Kind::kFloorDiv, 0, {FromPoly(std::move(r)), Int(c)}, {}});
}

Int ModConst(Int a, int64_t c) {
  Poly p = ToPoly(a), r;
  bool changed = false;
  Int extra = 0;
  for (Term& t : p) {
    const Node* f = t.factors.size() == 1 ? t.factors[0].node() : nullptr;
    if (f && f->kind == Kind::kMod && f->args[1].is_const() && f->args[1].value() % c == 0) {  // (x % 8) % 4 = x % 4
      extra = extra + Int(t.coefficient) * f->args[0];
      changed = true;
      continue;
    }
    int64_t k = PyMod(t.coefficient, c);
    changed |= k != t.coefficient;
    r.push_back({k, t.factors});
  }
  if (changed) return Mod(FromPoly(std::move(r)) + extra, c);
  if (int64_t g = ContentWith(p, c); g > 1) return Int(g) * Mod(ShrinkBy(p, g), c / g) + Int(PyMod(ConstantTerm(p), g));
  return Interner::Make({Kind::kMod, 0, {a, Int(c)}, {}});
}

Int MinMax(Kind kind, Int a, Int b) {
  std::vector<Int> args;
  for (Int x : {a, b}) {
    if (x.node()->kind == kind) {
      args.insert(args.end(), x.node()->args.begin(), x.node()->args.end());
    } else {
      args.push_back(x);
    }
  }
  std::sort(args.begin(), args.end(), [](Int x, Int y) { return Compare(x, y) < 0; });
  std::vector<Int> kept;  // of two that differ by a constant only one can win
  for (Int x : args) {
    bool drop = false;
    for (Int& k : kept) {
      if (auto d = (x - k).as_const()) {
        if (kind == Kind::kMin ? *d < 0 : *d > 0) k = x;
        drop = true;
        break;
      }
    }
    if (!drop) kept.push_back(x);
  }
  if (kept.size() == 1) return kept[0];
  std::sort(kept.begin(), kept.end(), [](Int x, Int y) { return Compare(x, y) < 0; });
  return Interner::Make({kind, 0, std::move(kept), {}});
}

}  // namespace

Poly ToPoly(Int e) {
  const Node& n = *e.node();
  if (n.kind == Kind::kConst) return n.value == 0 ? Poly{} : Poly{{n.value, {}}};
  if (n.kind == Kind::kSum) return n.terms;
  return {{1, {e}}};
}

Int FromPoly(Poly terms) {
  terms = Canonical(std::move(terms));
  if (terms.empty()) return Int(0);
  if (terms.size() == 1) {
    const Term& t = terms[0];
    if (t.factors.empty()) return Int(t.coefficient);
    if (t.coefficient == 1 && t.factors.size() == 1) return t.factors[0];
  }
  return Interner::Make({Kind::kSum, 0, {}, std::move(terms)});
}

std::optional<Term> Divide(const Term& a, const Term& b) {
  if (b.coefficient == 0 || PyMod(a.coefficient, b.coefficient) != 0) return std::nullopt;
  Term q{PyFloorDiv(a.coefficient, b.coefficient), {}};
  size_t k = 0;  // both lists are sorted: one pass finds b's factors inside a's
  for (Int f : a.factors) {
    if (k < b.factors.size() && b.factors[k] == f) {
      ++k;
    } else {
      q.factors.push_back(f);
    }
  }
  if (k != b.factors.size()) return std::nullopt;
  return q;
}

Term Gcd(const Term& a, const Term& b) {
  Term g{std::gcd(a.coefficient, b.coefficient), {}};
  std::set_intersection(a.factors.begin(), a.factors.end(), b.factors.begin(), b.factors.end(),
                        std::back_inserter(g.factors), [](Int x, Int y) { return Compare(x, y) < 0; });
  return g;
}

Term CommonFactor(const Poly& p) {
  if (p.empty()) return {0, {}};
  Term g = Gcd(p[0], p[0]);
  for (const Term& t : p) g = Gcd(g, t);
  return g;
}

std::optional<Poly> DivideExact(Poly a, const Poly& b) {
  if (b.empty()) return std::nullopt;
  Poly quotient;
  while (!a.empty()) {  // every step removes a's leading monomial and adds only smaller ones
    std::optional<Term> q = Divide(a[0], b[0]);
    if (!q || quotient.size() > 256) return std::nullopt;
    quotient.push_back(*q);
    Poly minus = Scale(b, {WrapMul(q->coefficient, -1), q->factors});
    a.insert(a.end(), minus.begin(), minus.end());
    a = Canonical(std::move(a));
  }
  return quotient;
}

Int operator+(Int a, Int b) {
  if (a.is_const() && b.is_const()) return Int(WrapAdd(a.value(), b.value()));
  if (a == Int(0)) return b;
  if (b == Int(0)) return a;
  Poly p = ToPoly(a), q = ToPoly(b);
  p.insert(p.end(), q.begin(), q.end());
  return FromPoly(std::move(p));
}

Int operator-(Int a, Int b) {
  return a == b ? Int(0) : a + Int(-1) * b;
}

Int operator*(Int a, Int b) {
  if (a.is_const() && b.is_const()) return Int(WrapMul(a.value(), b.value()));
  if (a == Int(1)) return b;
  if (b == Int(1)) return a;
  Poly p = ToPoly(a), out;
  for (const Term& t : ToPoly(b)) {
    Poly scaled = Scale(p, t);
    out.insert(out.end(), scaled.begin(), scaled.end());
  }
  return FromPoly(std::move(out));
}

Int FloorDiv(Int a, Int b) {
  if (a.is_const() && b.is_const()) return Int(PyFloorDiv(a.value(), b.value()));
  if (a == Int(0) || b == Int(0)) return Int(0);
  Poly d = ToPoly(b);
  if (d[0].coefficient < 0 && d[0].coefficient != INT64_MIN) return FloorDiv(-a, -b);
  if (b == Int(1)) return a;
  Poly p = ToPoly(a);
  if (auto q = DivideExact(p, d)) return FromPoly(std::move(*q));
  if (b.is_const()) return FloorDivConst(a, b.value());
  if (d.size() == 1) {  // whole multiples of a monomial come out
    Poly q, r;
    for (const Term& t : p) {
      if (auto x = Divide(t, d[0])) {
        q.push_back(*x);
      } else {
        r.push_back(t);
      }
    }
    if (!q.empty()) return FromPoly(std::move(q)) + FloorDiv(FromPoly(std::move(r)), b);
  }
  if (Term g = Gcd(CommonFactor(p), CommonFactor(d)); !IsOne(g))
    return FloorDiv(FromPoly(DivideEach(p, g)), FromPoly(DivideEach(d, g)));
  return Interner::Make({Kind::kFloorDiv, 0, {a, b}, {}});
}

Int Mod(Int a, Int b) {
  if (a.is_const() && b.is_const()) return Int(PyMod(a.value(), b.value()));
  if (a == Int(0) || b == Int(0) || b == Int(1)) return Int(0);
  Poly d = ToPoly(b);
  if (d[0].coefficient < 0 && d[0].coefficient != INT64_MIN) return -Mod(-a, -b);  // the sign of the divisor wins
  Poly p = ToPoly(a);
  if (DivideExact(p, d)) return Int(0);
  if (b.is_const()) return ModConst(a, b.value());
  if (d.size() == 1) {
    Poly r;
    for (const Term& t : p)
      if (!Divide(t, d[0])) r.push_back(t);
    if (r.size() < p.size()) return Mod(FromPoly(std::move(r)), b);
  }
  if (Term g = Gcd(CommonFactor(p), CommonFactor(d)); !IsOne(g))
    return FromPoly({g}) * Mod(FromPoly(DivideEach(p, g)), FromPoly(DivideEach(d, g)));
  return Interner::Make({Kind::kMod, 0, {a, b}, {}});
}

Int Min(Int a, Int b) {
  return a == b ? a : MinMax(Kind::kMin, a, b);
}
Int Max(Int a, Int b) {
  return a == b ? a : MinMax(Kind::kMax, a, b);
}

}  // namespace framejit::shape
