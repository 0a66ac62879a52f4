// Which of two ways to run a call is faster? It is said by what some calls took, in seconds: compiled, and as written.
#pragma once

#include <algorithm>
#include <vector>

namespace framejit::capture {

struct Samples {
  std::vector<double> compiled, plain;
};

enum class Verdict { kMore /* samples are needed */, kKeep, kLeave };

constexpr int kMostSamples = 12, kSomeSamples = 4;
constexpr double kShortCall = 20e-6;  // seconds
// By best and by median. Measured with series of one and the same function by turns (x * x + 1 on 16 floats, beside
// other programs): of 5,000 pairs of four samples 0.1% differ by so much, of 3,123 pairs of seven none.
constexpr double kWorse = 1.05;
// A few samples say so much of what is faster compiled: as written, first runs are slower than later ones.
constexpr double kClear = 0.85;
// Likewise, at the end, when the first samples are left out: what does not show a gain may lose. Of pairs of the same
// above 99% are left to Python.
constexpr double kGain = 0.98;

inline double Best(const std::vector<double>& v) {
  return *std::min_element(v.begin(), v.end());
}

inline double Median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
  return v[v.size() / 2];
}

// Is a call as written no sample? The interpreter adapts instructions to what they meet in their first ten or so runs,
// and reads all that they need for the first time: of a call that is short once it is compiled, that is most of it.
// runs: as written, of this code before.
inline bool IsCold(const Samples& s, int runs) {
  constexpr int kCold = 8;
  return runs < kCold && Best(s.compiled) < kShortCall;
}

inline Verdict Judge(const Samples& s) {
  const size_t n = s.plain.size();
  if (n < 2) return Verdict::kMore;
  if (n >= kMostSamples) {
    const auto later = [](const std::vector<double>& v) { return std::vector(v.begin() + v.size() / 3, v.end()); };
    const auto compiled = later(s.compiled), plain = later(s.plain);
    const bool gains = Best(compiled) <= kGain * Best(plain) && Median(compiled) <= kGain * Median(plain);
    return gains ? Verdict::kKeep : Verdict::kLeave;
  }
  const double best = Best(s.compiled) / Best(s.plain), median = Median(s.compiled) / Median(s.plain);
  const bool is_short = Best(s.compiled) < kShortCall;  // then a few samples say little, and more cost little
  if (best < 0.7 && median < 0.7 && (n >= kSomeSamples || !is_short)) return Verdict::kKeep;
  if (best > (n < 3 ? 4.0 : 1.5)) return Verdict::kLeave;  // two calls may both have been disturbed
  if (n < kSomeSamples) return Verdict::kMore;
  if (best < kClear && median < kClear) return Verdict::kKeep;
  return best > kWorse && median > kWorse ? Verdict::kLeave : Verdict::kMore;
}

}  // namespace framejit::capture
