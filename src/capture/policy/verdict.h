// Which of two ways to run a call is faster? It is said by what some calls took, in seconds: compiled, and as written.
#pragma once

#include <algorithm>
#include <vector>

namespace framejit::capture {

struct Samples {
  std::vector<double> compiled, plain;
};

enum class Verdict { kMore /* samples are needed */, kKeep, kLeave };

constexpr int kMostSamples = 7, kSomeSamples = 4;
constexpr double kShortCall = 20e-6;  // seconds
// By best and by median. Measured with series of one and the same function by turns (x * x + 1 on 16 floats, beside
// other programs): of 5,000 pairs of four samples 0.1% differ by so much, of 3,123 pairs of seven none.
constexpr double kWorse = 1.05;
// Likewise, at the end: what does not show a gain in all samples may lose. Of the pairs above 99% are left to Python.
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
  const double best = Best(s.compiled) / Best(s.plain), median = Median(s.compiled) / Median(s.plain);
  const bool is_short = Best(s.compiled) < kShortCall;  // then a few samples say little, and more cost little
  if (best < 0.7 && median < 0.7 && (n >= kSomeSamples || !is_short)) return Verdict::kKeep;
  if (best > (n < 3 ? 4.0 : 1.5)) return Verdict::kLeave;  // two calls may both have been disturbed
  if (n < kSomeSamples) return Verdict::kMore;
  if (best < 0.95 && median < 0.95) return Verdict::kKeep;
  if (best > kWorse && median > kWorse) return Verdict::kLeave;
  if (n < kMostSamples) return Verdict::kMore;
  return best > kGain || median > kGain ? Verdict::kLeave : Verdict::kKeep;
}

}  // namespace framejit::capture
