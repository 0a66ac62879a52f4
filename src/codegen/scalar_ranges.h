// Between which bounds the ints of scalar code lie: where a sum or a product cannot overflow, and which indices are
// not negative.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "codegen/scalar_code.h"

namespace framejit::codegen {

struct ScalarRange {
  int64_t lo = std::numeric_limits<int64_t>::min(), hi = std::numeric_limits<int64_t>::max();
  // Grows by small steps alone, if at all: from below kSmallNumber, it does not reach kSlowNumber within one run.
  bool slow = false;
};

// Each instruction that adds a step runs at most once in a round, and a run is left after ScalarCode::most_rounds
// rounds. Steps are so small that nothing grows by more than kSmallNumber, also where LLVM computes what many rounds
// come to without going through them. Code in which that would be less than kLeastSlowStep has no slow numbers.
inline constexpr int64_t kLeastSlowStep = 16;
inline constexpr int64_t kSlowNumber = 2 * kSmallNumber;

// Of every value; those that are no ints have any.
std::vector<ScalarRange> RangesOf(const ScalarCode& code);
// Can the sum, difference or product (kAddOver and so on) leave 64 bits?
bool MayOverflow(ScalarOp op, const ScalarRange& a, const ScalarRange& b);
// Of a product with such a constant `b`: the machine makes it by a shift or a sum, which tell of no overflow, so `a` is
// looked at instead. This gives how far it may lie from 0; the product is at most kLookedAt then. Nothing of others.
inline constexpr int64_t kLookedAt = int64_t{1} << 62;
std::optional<int64_t> MostFactor(const ScalarRange& b);
// Of every value: is it a sum, a difference, a product or a shift to the left of which nothing but the lowest bits is
// asked, as (a * b + c) & 0xFFFF asks? Then it may go round.
std::vector<bool> LowBitsOf(const ScalarCode& code);
// Of every value: is it a kHypot of which nothing is asked but how it compares, and whether it is finite?
std::vector<bool> OnlyCompared(const ScalarCode& code);
// What a comparison (kEq to kGe) of ints says whatever they are; nothing if it says now this, now that.
std::optional<bool> Decided(ScalarOp op, const ScalarRange& a, const ScalarRange& b);

}  // namespace framejit::codegen
