// Two things are asked of a variable: is it never negative, and does it grow slowly? Both are taken for granted at
// first, and taken back where some value that it gets is not so, until nothing changes. So are they asked of all
// elements of the arrays that the code makes, which hold nothing but what the code has put there.
#include "codegen/scalar_ranges.h"

#include <llvm/ADT/STLExtras.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace framejit::codegen {
namespace {

using Wide = __int128;
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();

// `slow`: of bounds that are known exactly, whether they are small is all that counts.
ScalarRange Between(Wide lo, Wide hi, bool slow) {
  if (lo < kLeast || hi > kMost) return {};
  ScalarRange r{static_cast<int64_t>(lo), static_cast<int64_t>(hi), slow};
  if (slow) r.lo = std::max(r.lo, -kSlowNumber), r.hi = std::min(r.hi, kSlowNumber);
  return r;
}
bool Small(const ScalarRange& r, int64_t most) {
  return r.lo >= -most && r.hi <= most;
}
// Small whatever variables hold.
bool Fixed(const ScalarRange& r) {
  return Small(r, kSmallNumber);
}

ScalarRange Union(const ScalarRange& a, const ScalarRange& b) {
  return {std::min(a.lo, b.lo), std::max(a.hi, b.hi), a.slow && b.slow};
}

std::pair<Wide, Wide> Bounds(ScalarOp op, const ScalarRange& a, const ScalarRange& b) {
  const Wide al = a.lo, ah = a.hi, bl = b.lo, bh = b.hi;
  if (op == ScalarOp::kAdd || op == ScalarOp::kAddOver) return {al + bl, ah + bh};
  if (op == ScalarOp::kSub || op == ScalarOp::kSubOver) return {al - bh, ah - bl};
  return std::minmax({al * bl, al * bh, ah * bl, ah * bh});
}

ScalarRange OfType(DType t) {
  static constexpr char kClasses[] = {
#define X(e, n, s, c) c,
      FRAMEJIT_DTYPES(X)
#undef X
  };
  const char type = kClasses[static_cast<int>(t)];
  const int bits = 8 * DTypeSize(t);
  if (bits >= 64 || (type != 'i' && type != 'u')) return {};
  if (type == 'u') return {0, (int64_t{1} << bits) - 1, true};
  return {-(int64_t{1} << (bits - 1)), (int64_t{1} << (bits - 1)) - 1, true};
}

class Ranges {
 public:
  explicit Ranges(const ScalarCode& code)
      : code_(code), low_bits_(LowBitsOf(code)), known(code.num_values), variables_(code.variables.size()) {
    for (const auto& block : code_.blocks)
      for (const ScalarInst& i : block)
        if (i.op == ScalarOp::kStore) stored_.insert(i.array);
    FindSame();
    constexpr int kMostHulls = 4;
    for (int k = 0; k < kMostHulls && Hulls(); ++k) {
    }
    slow_step_ = kSmallNumber / code_.most_rounds / std::max<int64_t>(Steps(), 1);
    const bool slow = slow_step_ >= kLeastSlowStep;
    for (Variable& v : variables_) v.natural = true, v.slow = slow;
    elements_before_ = {true, slow};
    elements_.clear();
    while (Pass()) {
    }
  }

 private:
  struct Variable {
    bool natural = false, slow = false;
    std::optional<ScalarRange> hull = {};  // of all that is ever put there
  };

  // What a variable holds is one number until it is set again, however often a block reads it.
  void FindSame() {
    same_.resize(code_.num_values);
    for (int v = 0; v < code_.num_values; ++v) same_[v] = v;
    for (const auto& block : code_.blocks) {
      std::map<int64_t, int> held;
      for (const ScalarInst& i : block) {
        if (i.op == ScalarOp::kSet) held[i.imm] = same_[i.a];
        if (i.op == ScalarOp::kGet) same_[i.id] = held.try_emplace(i.imm, i.id).first->second;
      }
    }
  }

  // Finds variables that get small numbers alone, whatever others hold.
  bool Hulls() {
    std::vector<ScalarRange> all(variables_.size(), {0, 0, true});
    std::vector<int64_t> variable(code_.num_values, -1);  // of which a value is what it holds
    for (const auto& block : code_.blocks)
      for (const ScalarInst& i : block) {
        if (i.id >= 0) known[i.id] = i.type == ScalarType::kInt ? Of(i) : ScalarRange();
        if (i.op == ScalarOp::kGet) variable[i.id] = i.imm;
        if (i.op == ScalarOp::kSet && variable[i.a] != i.imm) all[i.imm] = Union(all[i.imm], known[i.a]);
      }
    bool changed = false;
    for (size_t v = 0; v < all.size(); ++v) {
      if (variables_[v].hull || !Fixed(all[v]) || code_.variables[v] != ScalarType::kInt) continue;
      variables_[v].hull = {all[v].lo, all[v].hi, true};
      changed = true;
    }
    return changed;
  }

  int64_t Steps() const {
    int64_t steps = 0;
    for (const auto& block : code_.blocks)
      steps += std::count_if(block.begin(), block.end(), [](const ScalarInst& i) {
        return i.op == ScalarOp::kNext || i.op == ScalarOp::kAdd || i.op == ScalarOp::kSub ||
               i.op == ScalarOp::kAddOver || i.op == ScalarOp::kSubOver;
      });
    return steps;
  }

  bool Pass() {
    bool changed = false;
    const auto becomes = [&](Variable& v, const ScalarRange& r) {
      const Variable was = v;
      v.natural &= r.lo >= 0;
      v.slow &= r.slow;
      changed |= v.natural != was.natural || v.slow != was.slow;
    };
    for (const auto& block : code_.blocks)
      for (const ScalarInst& i : block) {
        if (i.id >= 0) known[i.id] = i.type == ScalarType::kInt ? Of(i) : ScalarRange();
        if (i.op == ScalarOp::kSet && code_.variables[i.imm] == ScalarType::kInt)
          becomes(variables_[i.imm], known[i.a]);
        else if (i.op == ScalarOp::kStore && i.dtype == DType::kInt64)
          becomes(ElementsOf(i), known[i.c]);
      }
    return changed;
  }
  // Of 64 bits, of one array or of all that the code makes. As a variable, such an element holds what was put there.
  Variable& ElementsOf(const ScalarInst& i) {
    const auto [it, made] = elements_.try_emplace(i.array, elements_before_);
    const auto seen = code_.seen.find(i.array);
    if (made && seen != code_.seen.end()) it->second.natural &= seen->second;
    return it->second;
  }
  static ScalarRange RangeOf(const Variable& v) {
    if (v.hull) return *v.hull;
    const int64_t most = v.slow ? kSlowNumber : kMost;
    return {v.natural ? 0 : v.slow ? -most : kLeast, most, v.slow};
  }

  ScalarRange Sum(const ScalarInst& i) {
    const ScalarRange &a = known[i.a], &b = known[i.b];
    const auto [lo, hi] = Bounds(i.op, a, b);
    const bool fixed = Fixed(a) && Fixed(b) && lo >= -kSmallNumber && hi <= kSmallNumber;
    const bool step = (a.slow && Small(b, slow_step_)) || (b.slow && Small(a, slow_step_));
    const bool checked = (i.op == ScalarOp::kAddOver || i.op == ScalarOp::kSubOver) && !low_bits_[i.id];
    if (checked && (lo < kLeast || hi > kMost))
      return {static_cast<int64_t>(std::max<Wide>(lo, kLeast)), static_cast<int64_t>(std::min<Wide>(hi, kMost)), false};
    return Between(lo, hi, fixed || step);
  }
  ScalarRange Product(const ScalarInst& i) {
    auto [lo, hi] = Bounds(i.op, known[i.a], known[i.b]);
    if (same_[i.a] == same_[i.b]) lo = std::max<Wide>(lo, 0);
    const bool left = MostFactor(known[i.a]).has_value(), checked = i.op == ScalarOp::kMulOver && !low_bits_[i.id];
    if (checked && (lo < kLeast || hi > kMost) && (left || MostFactor(known[i.b])))
      return {known[left ? i.b : i.a].lo < 0 ? -kLookedAt : 0, kLookedAt, false};
    if (checked && (lo < kLeast || hi > kMost))
      return {static_cast<int64_t>(std::max<Wide>(lo, kLeast)), static_cast<int64_t>(std::min<Wide>(hi, kMost)), false};
    return Between(lo, hi, Fixed(known[i.a]) && Fixed(known[i.b]) && lo >= -kSmallNumber && hi <= kSmallNumber);
  }
  // Of which the divisor is positive: it is never zero.
  ScalarRange Divided(const ScalarInst& i) {
    const ScalarRange &a = known[i.a], &b = known[i.b];
    if (b.lo < 0) return {};
    if (i.op == ScalarOp::kFloorMod) {
      const int64_t most = std::max<int64_t>(b.hi - 1, 0);
      return {0, a.lo < 0 ? most : std::min(a.hi, most), b.slow || (a.lo >= 0 && a.slow)};
    }
    const int64_t least = std::max<int64_t>(b.lo, 1);
    return Smaller(a.lo < 0 ? (a.lo + 1) / least - 1 : 0, std::max<int64_t>(a.hi, 0) / least, a.slow);
  }
  // What lies nearer to 0 than a number does.
  static ScalarRange Smaller(int64_t lo, int64_t hi, bool slow) { return {lo, hi, slow || Fixed({lo, hi})}; }

  ScalarRange Of(const ScalarInst& i) {
    switch (i.op) {
      case ScalarOp::kConst: return {i.imm, i.imm, i.imm >= -kSmallNumber && i.imm <= kSmallNumber};
      case ScalarOp::kInput:
      case ScalarOp::kCell:
        if (i.small) return {i.natural ? 0 : -kSmallNumber, kSmallNumber, true};
        return i.natural ? ScalarRange{0, kMost, false} : ScalarRange();
      case ScalarOp::kGet: return RangeOf(variables_[i.imm]);
      case ScalarOp::kAdd:
      case ScalarOp::kAddOver:
      case ScalarOp::kSub:
      case ScalarOp::kSubOver: return Sum(i);
      case ScalarOp::kMul:
      case ScalarOp::kMulOver: return Product(i);
      case ScalarOp::kNext: {
        const ScalarRange& a = known[i.a];
        return {a.lo == kMost ? kMost : a.lo + 1, a.hi >= (a.slow ? kSlowNumber : kMost) ? a.hi : a.hi + 1, a.slow};
      }
      case ScalarOp::kWithin: {
        const ScalarRange &a = known[i.a], &b = known[i.b];
        return {std::max<int64_t>(a.lo, 0), std::min(a.hi, std::max<int64_t>(b.hi - 1, 0)), a.slow || b.slow};
      }
      case ScalarOp::kIndex: return {0, known[i.b].hi, known[i.b].slow};
      case ScalarOp::kFloorDiv:
      case ScalarOp::kFloorMod: return Divided(i);
      case ScalarOp::kAnd: {
        const ScalarRange &a = known[i.a], &b = known[i.b];
        if (a.lo < 0 && b.lo < 0) return {};
        if (a.lo < 0 || b.lo < 0) return a.lo < 0 ? ScalarRange{0, b.hi, b.slow} : ScalarRange{0, a.hi, a.slow};
        return {0, std::min(a.hi, b.hi), a.slow || b.slow};
      }
      case ScalarOp::kOr:
      case ScalarOp::kXor: {
        const ScalarRange &a = known[i.a], &b = known[i.b];
        if (a.lo < 0 || b.lo < 0) return {};
        const int bits = 64 - __builtin_clzll(static_cast<uint64_t>(a.hi) | static_cast<uint64_t>(b.hi) | 1);
        return {0, bits >= 63 ? kMost : (int64_t{1} << bits) - 1, bits <= 60 && Fixed(a) && Fixed(b)};
      }
      case ScalarOp::kShr: {
        const ScalarRange& a = known[i.a];
        const int64_t by = std::clamp<int64_t>(known[i.b].lo, 0, 63);
        return Smaller(std::min<int64_t>(a.lo, 0) >> by, std::max<int64_t>(a.hi, 0) >> by, a.slow);
      }
      case ScalarOp::kNeg: {
        const ScalarRange& a = known[i.a];
        return Between(-Wide{a.hi}, -Wide{a.lo}, a.slow);
      }
      case ScalarOp::kAbs: {
        const ScalarRange& a = known[i.a];
        return Between(0, std::max(-Wide{a.lo}, Wide{a.hi}), a.slow);
      }
      case ScalarOp::kSelect: return Union(known[i.b], known[i.c]);
      case ScalarOp::kBoolToInt: return {0, 1, true};
      case ScalarOp::kLoad:
        if (i.small && i.dtype == DType::kInt64) {
          const auto seen = code_.seen.find(i.array);
          if (seen == code_.seen.end() || stored_.contains(i.array)) return RangeOf(ElementsOf(i));
          return {seen->second ? 0 : -kSeenNumber - 1, kSeenNumber, true};
        }
        [[fallthrough]];
      case ScalarOp::kWrap: return OfType(i.dtype);
      default: return {};
    }
  }

  const ScalarCode& code_;
  const std::vector<bool> low_bits_;

 public:
  std::vector<ScalarRange> known;

 private:
  std::vector<Variable> variables_;
  std::map<int, Variable> elements_;  // by ScalarInst::array
  Variable elements_before_;          // as what they are taken at first
  std::vector<int> same_;             // Of every value: one that is the same number.
  std::set<int> stored_;              // arrays that are written
  int64_t slow_step_ = 0;
};

}  // namespace

std::vector<ScalarRange> RangesOf(const ScalarCode& code) {
  return std::move(Ranges(code).known);
}

// All are taken to be so at first, and taken back where more is asked of one, in whatever block that is, until nothing
// changes.
std::vector<bool> LowBitsOf(const ScalarCode& code) {
  std::vector<bool> low(code.num_values, true);
  std::vector<int64_t> constant(code.num_values, -1);
  for (const auto& block : code.blocks)
    for (const ScalarInst& i : block)
      if (i.op == ScalarOp::kConst && i.type == ScalarType::kInt) constant[i.id] = i.imm;
  const auto over = [](const ScalarInst& i) {
    return i.op == ScalarOp::kAddOver || i.op == ScalarOp::kSubOver || i.op == ScalarOp::kMulOver ||
           i.op == ScalarOp::kShlOver;
  };
  const auto bits = [](const ScalarInst& i) {
    return i.op == ScalarOp::kAnd || i.op == ScalarOp::kOr || i.op == ScalarOp::kXor;
  };
  for (bool changed = true; changed;) {
    std::vector<bool> asked(code.num_values), whole(code.num_values), now(code.num_values);
    for (const auto& block : code.blocks)
      for (const ScalarInst& i : block) {
        const bool passes = i.id >= 0 && low[i.id] && (over(i) || bits(i)) && i.type == ScalarType::kInt;
        for (const int operand : {i.a, i.b, i.c}) {
          if (operand < 0) continue;
          const int other = operand == i.a ? i.b : i.a;
          const bool masked = i.op == ScalarOp::kAnd && i.type == ScalarType::kInt && constant[other] >= 0;
          const bool part = passes && !(i.op == ScalarOp::kShlOver && operand == i.b);
          (part || masked ? asked : whole)[operand] = true;
        }
        for (const int v : i.args) whole[v] = true;
        if (i.exit >= 0 && !(passes && over(i)))
          for (const auto& [cell, v] : code.exits[i.exit].cells) whole[v] = true;
      }
    for (const auto& block : code.blocks)
      for (const ScalarInst& i : block)
        if (i.id >= 0)
          now[i.id] = (over(i) || bits(i)) && !i.told && i.type == ScalarType::kInt && asked[i.id] && !whole[i.id];
    changed = now != low;
    low = std::move(now);
  }
  for (const auto& block : code.blocks)
    for (const ScalarInst& i : block)
      if (bits(i)) low[i.id] = false;
  return low;
}

std::vector<bool> OnlyCompared(const ScalarCode& code) {
  std::vector<bool> compared(code.num_values), other(code.num_values);
  for (const auto& block : code.blocks)
    for (const ScalarInst& i : block) {
      if (i.op == ScalarOp::kHypot) compared[i.id] = true;
      if (i.op == ScalarOp::kFinite || (i.op >= ScalarOp::kEq && i.op <= ScalarOp::kGe)) continue;
      for (const int v : {i.a, i.b, i.c})
        if (v >= 0) other[v] = true;
      for (const int v : i.args) other[v] = true;
    }
  for (const ScalarExit& exit : code.exits)
    for (const auto& [cell, v] : exit.cells) other[v] = true;
  for (const ScalarSpecials& made : code.specials) {
    for (const int v : made.last) other[v] = true;
    for (const ScalarSpecials::Made& one : made.all)
      for (const int v : {one.value, one.a, one.b})
        if (v >= 0) other[v] = true;
  }
  for (size_t v = 0; v < compared.size(); ++v) compared[v] = compared[v] && !other[v];
  return compared;
}

std::optional<bool> Decided(ScalarOp op, const ScalarRange& a, const ScalarRange& b) {
  const bool below = a.hi<b.lo, above = a.lo> b.hi;
  const std::optional<bool> unknown;
  switch (op) {
    case ScalarOp::kEq: return below || above ? false : unknown;
    case ScalarOp::kNe: return below || above ? true : unknown;
    case ScalarOp::kLt: return below ? true : a.lo >= b.hi ? false : unknown;
    case ScalarOp::kLe: return a.hi <= b.lo ? true : above ? false : unknown;
    case ScalarOp::kGt: return above ? true : a.hi <= b.lo ? false : unknown;
    case ScalarOp::kGe: return a.lo >= b.hi ? true : below ? false : unknown;
    default: return unknown;
  }
}

bool MayOverflow(ScalarOp op, const ScalarRange& a, const ScalarRange& b) {
  const auto [lo, hi] = Bounds(op, a, b);
  return lo < kLeast || hi > kMost;
}

std::optional<int64_t> MostFactor(const ScalarRange& b) {
  if (b.lo != b.hi || b.lo < 2 || b.lo > kSlowNumber) return {};
  const bool power = (b.lo & (b.lo - 1)) == 0;
  if (!power && b.lo != 3 && b.lo != 5 && b.lo != 9) return {};
  return kLookedAt / b.lo;
}

}  // namespace framejit::codegen
