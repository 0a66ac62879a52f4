// What is known about the symbols of one capture. A relation between a and b is a statement about d = a - b, which is
// brought to the form  scale * key + constant  (key: content 1, leading coefficient positive), so that s0 < s1,
// 2*s1 > 2*s0 and s0 - s1 <= -1 are the same fact about one key.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "diag/diag.h"
#include "shape/node.h"
#include "shape/typical.h"

namespace framejit::shape {
namespace {

constexpr int64_t kInf = INT64_MAX, kNegInf = INT64_MIN;
using Range = Env::Range;

thread_local Ints large;  // while AskTypically looks for an answer: what is at least 2
thread_local Ints taken;  // see typical.h
thread_local bool trial = false, guessed = false;
thread_local bool ones_as_any = false, ones_shown = false;  // see typical.h

int64_t Saturate(__int128 v) {
  return v >= kInf ? kInf : v <= kNegInf ? kNegInf : static_cast<int64_t>(v);
}
bool Finite(int64_t v) {
  return v != kInf && v != kNegInf;
}

Range Add(Range a, Range b) {  // an unknown end stays unknown
  return {a.lo == kNegInf || b.lo == kNegInf ? kNegInf : Saturate(__int128{a.lo} + b.lo),
          a.hi == kInf || b.hi == kInf ? kInf : Saturate(__int128{a.hi} + b.hi)};
}

int64_t MulEnd(int64_t a, int64_t b) {
  if (a == 0 || b == 0) return 0;
  if (Finite(a) && Finite(b)) return Saturate(__int128{a} * b);
  return (a < 0) == (b < 0) ? kInf : kNegInf;
}

Range Mul(Range a, Range b) {
  int64_t v[] = {MulEnd(a.lo, b.lo), MulEnd(a.lo, b.hi), MulEnd(a.hi, b.lo), MulEnd(a.hi, b.hi)};
  return {*std::min_element(v, v + 4), *std::max_element(v, v + 4)};
}

int64_t DivEnd(int64_t a, int64_t b) {  // b > 0
  if (!Finite(a)) return b == kInf ? (a < 0 ? -1 : 0) : a;
  return b == kInf ? (a < 0 ? -1 : 0) : PyFloorDiv(a, b);
}

Range FloorDivRange(Range a, Range b) {
  if (b.lo < 1) return {kNegInf, kInf};
  // b.hi unknown: the quotient tends to 0 or -1, an unknown dividend over a known divisor stays unknown
  int64_t lo = std::min(DivEnd(a.lo, b.lo), DivEnd(a.lo, b.hi)), hi = std::max(DivEnd(a.hi, b.lo), DivEnd(a.hi, b.hi));
  return {lo, hi};
}

struct Form {  // d = scale * key + constant
  Int key;
  int64_t scale, constant;
};

Form Normalize(Int d) {
  Poly p = ToPoly(d);
  int64_t constant = 0, g = 0;
  if (!p.empty() && p.back().factors.empty()) {
    constant = p.back().coefficient;
    p.pop_back();
  }
  for (const Term& t : p) g = std::gcd(g, t.coefficient);
  if (p.empty() || g == 0) return {Int(0), 0, constant};
  if (p[0].coefficient < 0) g = -g;
  for (Term& t : p) t.coefficient /= g;
  return {FromPoly(std::move(p)), g, constant};
}

// d times a positive number, with c*(x // c) written as x - x % c: then floor divisions cancel against their dividends
// (s0 // 2 <= s0 needs it). Nothing if there is no such division.
std::optional<Int> WithoutFloorDiv(Int d) {
  int64_t scale = 1;
  bool found = false;
  auto divisor = [](const Term& t) -> int64_t {
    if (t.factors.size() != 1) return 0;
    const Node& n = *t.factors[0].node();
    bool usable = n.kind == Kind::kFloorDiv && n.args[1].is_const() && n.args[1].value() > 0;
    return usable ? n.args[1].value() : 0;
  };
  Poly p = ToPoly(d);
  for (const Term& t : p) {
    if (int64_t c = divisor(t)) {
      found = true;
      scale = std::lcm(scale, c / std::gcd(c, t.coefficient));
      if (scale > 1 << 20) return std::nullopt;
    }
  }
  if (!found) return std::nullopt;
  Int sum = 0;
  for (const Term& t : p) {
    int64_t k = WrapMul(t.coefficient, scale);
    if (int64_t c = divisor(t)) {
      Int x = t.factors[0].node()->args[0];
      sum = sum + Int(k / c) * (x - Mod(x, c));
    } else {
      sum = sum + FromPoly({{k, t.factors}});
    }
  }
  return sum;
}

std::optional<bool> Decide(Cmp cmp, Range d) {  // is d cmp 0?
  switch (cmp) {
    case Cmp::kEq:
      if (d.lo == 0 && d.hi == 0) return true;
      if (d.lo > 0 || d.hi < 0) return false;
      break;
    case Cmp::kNe:
      if (d.lo == 0 && d.hi == 0) return false;
      if (d.lo > 0 || d.hi < 0) return true;
      break;
    case Cmp::kLt:
      if (d.hi < 0) return true;
      if (d.lo >= 0) return false;
      break;
    case Cmp::kLe:
      if (d.hi <= 0) return true;
      if (d.lo > 0) return false;
      break;
  }
  return std::nullopt;
}

bool Compare(Cmp cmp, int64_t a, int64_t b) {
  switch (cmp) {
    case Cmp::kEq: return a == b;
    case Cmp::kNe: return a != b;
    case Cmp::kLt: return a < b;
    case Cmp::kLe: return a <= b;
  }
  return false;
}

constexpr double kMaxSize = 1ll << 47, kMaxNumber = 1ll << 62, kMaxCoefficient = 1ll << 31;

// How far from zero e can be, roughly.
double Magnitude(const Env& env, Int e) {
  const Node& n = *e.node();
  switch (n.kind) {
    case Kind::kConst: return std::abs(static_cast<double>(n.value));
    case Kind::kSymbol: {
      const SymbolInfo& s = env.symbol(static_cast<uint32_t>(n.value));
      const double most = std::max(std::abs(static_cast<double>(s.min)), std::abs(static_cast<double>(s.max)));
      return s.number ? most : std::min(most, kMaxSize);
    }
    case Kind::kSum: {
      double sum = 0;
      for (const Term& t : n.terms) {
        const double c = std::abs(static_cast<double>(t.coefficient));
        double product = c > kMaxCoefficient && !t.factors.empty() ? HUGE_VAL : c;
        for (Int f : t.factors) product *= Magnitude(env, f);
        sum += product;
      }
      return sum;
    }
    default: {
      double most = 0;
      for (Int a : n.args) most = std::max(most, Magnitude(env, a));
      return most;
    }
  }
}

bool Contains(Int e, uint32_t symbol) {
  bool found = false;
  e.ForEachSymbol([&](uint32_t id) { found |= id == symbol; });
  return found;
}

}  // namespace

bool Guard::Holds(std::span<const int64_t> values) const {
  int64_t l, r;
  return lhs.EvalExact(values, &l) && rhs.EvalExact(values, &r) && Compare(cmp, l, r);
}

std::string Guard::str() const {
  constexpr const char* names[] = {" == ", " != ", " < ", " <= "};
  return lhs.str() + names[static_cast<int>(cmp)] + rhs.str();
}

Int Env::NewSymbol(SymbolInfo info) {
  uint32_t id = static_cast<uint32_t>(symbols_.size());
  hints_.push_back(info.hint);
  symbols_.push_back(std::move(info));
  replacement_.push_back(Int::Symbol(id));
  return replacement_.back();
}

bool Env::AtRun(Int e) const {
  bool found = false;
  e.ForEachSymbol([&](uint32_t id) { found |= id < symbols_.size() && symbols_[id].kind == SymbolKind::kRuntime; });
  return found;
}

// What guards said about e itself (or about the key e is a multiple of).
Env::Range Env::Intersect(Range r, Int e) const {
  if (std::find(large.begin(), large.end(), e) != large.end()) r.lo = std::max<int64_t>(r.lo, 2);
  Form f = Normalize(e);
  if (f.scale == 0) return r;
  if (auto it = facts_.find(f.key); it != facts_.end()) {
    Range k = Add(Mul(it->second, {f.scale, f.scale}), {f.constant, f.constant});
    r = {std::max(r.lo, k.lo), std::min(r.hi, k.hi)};
  }
  if (auto it = holes_.find(f.key); it != holes_.end()) {
    bool again = true;
    while (again && r.lo <= r.hi) {  // s0 >= 0 and s0 != 0 and s0 != 1: s0 >= 2
      again = false;
      for (int64_t hole : it->second) {
        int64_t v = WrapAdd(WrapMul(hole, f.scale), f.constant);
        if (Finite(r.lo) && v == r.lo) ++r.lo, again = true;
        if (Finite(r.hi) && v == r.hi) --r.hi, again = true;
      }
    }
  }
  return r;
}

Env::Range Env::Bounds(Int e) const {
  const Node& n = *e.node();
  Range r{kNegInf, kInf};
  switch (n.kind) {
    case Kind::kConst: return {n.value, n.value};
    case Kind::kSymbol:
      if (n.value < std::ssize(symbols_)) r = {symbols_[n.value].min, symbols_[n.value].max};
      if (typical_ && n.value < std::ssize(symbols_) && symbols_[n.value].kind == SymbolKind::kRuntime && r.hi >= 2)
        r.lo = std::max<int64_t>(r.lo, 2);
      break;
    case Kind::kFloorDiv: r = FloorDivRange(Bounds(n.args[0]), Bounds(n.args[1])); break;
    case Kind::kMod: {
      Range a = Bounds(n.args[0]), b = Bounds(n.args[1]);
      if (b.lo > 0) r = {0, b.hi == kInf ? kInf : b.hi - 1};
      if (b.lo > 0 && a.lo >= 0) r.hi = std::min(r.hi, a.hi);
      break;
    }
    case Kind::kMin:
    case Kind::kMax:
      r = Bounds(n.args[0]);
      for (Int a : n.args) {
        Range b = Bounds(a);
        r = n.kind == Kind::kMin ? Range{std::min(r.lo, b.lo), std::min(r.hi, b.hi)}
                                 : Range{std::max(r.lo, b.lo), std::max(r.hi, b.hi)};
      }
      break;
    case Kind::kSum: {
      r = {0, 0};
      for (const Term& t : n.terms) {
        Range product{t.coefficient, t.coefficient};
        for (Int f : t.factors) product = Mul(product, Bounds(f));
        r = Add(r, product);
      }
      Term g = CommonFactor(n.terms);
      if (n.terms.size() > 1 && !g.factors.empty()) {  // s0*s1 - s0 = s0*(s1 - 1)
        Range a = Mul(Bounds(FromPoly({g})), Bounds(FromPoly(*DivideExact(n.terms, {g}))));
        r = {std::max(r.lo, a.lo), std::min(r.hi, a.hi)};
      }
      break;
    }
  }
  return Intersect(r, e);
}

// d without the factors that all its terms have and that are at least 1: s0*s1 - 4*s0 compares with 0 as s1 - 4 does.
static Int WithoutPositiveFactors(const Env& env, Int d) {
  Poly p = ToPoly(d);
  if (p.empty()) return d;
  Term common{1, {}};
  for (Int f : CommonFactor(p).factors)
    if (!env.AtRun(f) && env.Bounds(f).lo >= 1) common.factors.push_back(f);
  if (common.factors.empty()) return d;
  const auto rest = DivideExact(std::move(p), {common});
  return rest ? FromPoly(*rest) : d;
}

// e with the numbers that guards say of what it is made of.
static Int WithKnownAtoms(const Env& env, Int e) {
  Int sum = 0;
  for (const Term& t : ToPoly(e)) {
    Int product = t.coefficient;
    for (Int f : t.factors) {
      const Range r = env.Bounds(f);
      product = product * (r.lo == r.hi ? Int(r.lo) : f);
    }
    sum = sum + product;
  }
  return sum;
}

// Is one of the two a constant so great (n - 1 <= sys.maxsize) that their difference may not be an Int?
static bool FarApart(Int a, Int b) {
  constexpr int64_t kMost = int64_t{1} << 62;
  const auto great = [](Int x) { return x.is_const() && (x.value() > kMost || x.value() < -kMost); };
  return great(a) || great(b);
}

std::optional<bool> Env::Prove(Cmp cmp, Int a, Int b) const {
  if (a == b) return cmp == Cmp::kEq || cmp == Cmp::kLe;
  if (a.is_const() && b.is_const()) return Compare(cmp, a.value(), b.value());
  if (FarApart(a, b)) return std::nullopt;
  const Int d = WithoutPositiveFactors(*this, Simplify(a) - Simplify(b));
  if (auto v = Decide(cmp, Bounds(d))) return v;
  bool equality = cmp == Cmp::kEq || cmp == Cmp::kNe;
  if (equality) {
    Form f = Normalize(d);  // 4*s0 + 2 is never 0
    if (f.scale != 0 && f.constant % f.scale != 0) return cmp == Cmp::kNe;
    auto it = holes_.find(f.key);
    if (it != holes_.end() &&
        std::find(it->second.begin(), it->second.end(), -f.constant / f.scale) != it->second.end())
      return cmp == Cmp::kNe;
  }
  if (auto other = WithoutFloorDiv(d)) return Decide(cmp, Bounds(*other));
  return std::nullopt;
}

// Remembers lhs cmp rhs: an equality that a symbol can be solved from replaces the symbol, everything else bounds a
// key.
void Env::Learn(Cmp cmp, Int lhs, Int rhs) {
  if (FarApart(lhs, rhs)) return;
  const Int d = WithoutPositiveFactors(*this, Simplify(lhs) - Simplify(rhs));
  Form f = Normalize(d);
  if (f.scale == 0) return;
  if (cmp == Cmp::kNe) {
    if (f.constant % f.scale == 0) holes_[f.key].push_back(-f.constant / f.scale);
    return;
  }
  auto [it, fresh] = facts_.try_emplace(f.key, Range{kNegInf, kInf});
  Range& fact = it->second;
  int64_t limit = cmp == Cmp::kLt ? -1 : 0;  // scale*key + constant <= limit
  int64_t room = WrapAdd(limit, -f.constant);
  if (f.scale > 0) fact.hi = std::min(fact.hi, PyFloorDiv(room, f.scale));
  if (f.scale < 0) fact.lo = std::max(fact.lo, -PyFloorDiv(room, -f.scale));
  int64_t value;  // that the key has
  if (cmp == Cmp::kEq && f.constant % f.scale == 0) {
    value = -f.constant / f.scale;
  } else if (const Range known = Bounds(f.key); cmp != Cmp::kEq && known.lo == known.hi) {  // s0 <= 1 says s0 == 1
    value = known.lo;
  } else {
    return;
  }
  fact = {value, value};
  Poly p = ToPoly(f.key);
  std::optional<uint32_t> best;  // of several, the youngest gives way
  Term chosen;
  for (const Term& t : p) {
    if (t.factors.size() != 1 || (t.coefficient != 1 && t.coefficient != -1)) continue;
    auto id = t.factors[0].as_symbol();
    if (!id || *id >= symbols_.size()) continue;
    // What appears while the graph runs gives way first, and nothing that is known at entry is made of it.
    const bool appears = symbols_[*id].kind == SymbolKind::kRuntime;
    if (best && *best > *id && !(appears && symbols_[*best].kind != SymbolKind::kRuntime)) continue;
    if (best && !appears && symbols_[*best].kind == SymbolKind::kRuntime) continue;
    Int rest = f.key - FromPoly({t});
    if (Contains(rest, *id) || (!appears && AtRun(rest))) continue;
    best = id;
    chosen = t;
  }
  if (!best) {  // 32 * s0 == 32 * (s0*s1 // 32) says s1 == 32 where the division is known to leave nothing
    if (auto other = AtRun(d) ? std::nullopt : WithoutFloorDiv(d)) Learn(cmp, WithKnownAtoms(*this, *other), 0);
    return;
  }
  Int rest = f.key - FromPoly({chosen});
  Int solution = chosen.coefficient == 1 ? Int(value) - rest : rest - Int(value);
  if (solution.as_symbol()) {  // what was known about the replaced symbol holds for its stand-in
    Range known = Bounds(Int::Symbol(*best));
    Range& r = facts_.try_emplace(solution, Range{kNegInf, kInf}).first->second;
    r = {std::max(r.lo, known.lo), std::min(r.hi, known.hi)};
  }
  Ints one;
  for (uint32_t i = 0; i <= *best; ++i) one.push_back(i == *best ? solution : Int::Symbol(i));
  for (Int& r : replacement_) r = r.Substitute(one);
}

Ints TakenForGranted() {
  return std::exchange(taken, {});
}

void TakeForGranted(Int size) {
  if (std::find(taken.begin(), taken.end(), size) == taken.end()) taken.push_back(size);
}

void NoteShown(Env& env, Int size) {
  if (ones_as_any && env.Hint(size) == 1)
    ones_shown = true;
  else
    env.Lt(1, size);
}

OnesAsAny::OnesAsAny(bool on) : on_(std::exchange(ones_as_any, on)), shown_(std::exchange(ones_shown, false)) {}
OnesAsAny::~OnesAsAny() {
  ones_as_any = on_;
  ones_shown = shown_;
}
bool OnesAsAny::On() {
  return ones_as_any;
}
bool OnesAsAny::Shown() {
  return ones_shown;
}

Trial::Trial() {
  trial = true;
  guessed = false;
}
Trial::~Trial() {
  trial = false;
}
bool Trial::proven() const {
  return !guessed;
}

// The answer if some sizes that are at least 2 now always are, as few as possible.
static std::optional<bool> AskTypically(Env& env, Cmp cmp, Int a, Int b) {
  a = env.Simplify(a);
  b = env.Simplify(b);
  Ints sizes;
  const auto add = [&](Int e) {
    if (e.is_const() || env.AtRun(e) || env.Bounds(e).lo >= 2) return;
    if (env.Hint(e) < 2 && !(ones_as_any && env.Hint(e) == 1 && e.as_symbol() && env.Bounds(e).hi > 1)) return;
    if (std::find(sizes.begin(), sizes.end(), e) == sizes.end()) sizes.push_back(e);
  };
  if (b.is_const() && b.value() <= 1) add(a);
  if (a.is_const() && a.value() <= 1) add(b);
  for (Int e : {a, b})
    for (const Term& t : ToPoly(e)) std::for_each(t.factors.begin(), t.factors.end(), add);
  large = sizes;
  const std::optional<bool> answer = env.Prove(cmp, a, b);
  for (Int e : sizes) {  // does it hold without this one?
    if (!answer) break;
    std::erase(large, e);
    if (env.Prove(cmp, a, b) != answer) large.push_back(e);
  }
  for (Int e : std::exchange(large, {}))
    if (answer) TakeForGranted(e);
  return answer;
}

bool Env::Ask(Cmp cmp, Int a, Int b) {
  if (auto known = Prove(cmp, a, b)) return *known;
  if (auto likely = typical_ ? AskTypically(*this, cmp, a, b) : std::nullopt) return *likely;
  bool holds = Compare(cmp, Hint(a), Hint(b));
  if (trial) return guessed = true, holds;
  Guard g{cmp, a, b, where_ ? where_() : ""};
  if (!holds) {
    if (cmp == Cmp::kEq) {
      g.cmp = Cmp::kNe;
    } else if (cmp == Cmp::kNe) {
      g.cmp = Cmp::kEq;
    } else {  // not a < b: b <= a
      g.cmp = cmp == Cmp::kLt ? Cmp::kLe : Cmp::kLt;
      std::swap(g.lhs, g.rhs);
    }
  }
  Learn(g.cmp, g.lhs, g.rhs);
  guards_.push_back(std::move(g));
  return holds;
}

bool Env::Fits(Int e, __int128 exact) {
  int64_t value;
  if (!e.EvalExact(hints_, &value) || value != exact) return false;
  const double most = Magnitude(*this, e);
  if (most < kMaxNumber) return true;
  if (std::isinf(most)) return false;
  Guard g{Cmp::kLe, e, INT64_MAX, where_ ? where_() : ""};
  for (const Guard& known : guards_)
    if (known.cmp == g.cmp && known.lhs == g.lhs && known.rhs == g.rhs) return true;
  guards_.push_back(std::move(g));
  return true;
}

int64_t Env::Specialize(Int e) {
  if (auto v = Simplify(e).as_const()) return *v;
  int64_t hint = Hint(e);
  Ask(Cmp::kEq, e, hint);
  return hint;
}

}  // namespace framejit::shape
