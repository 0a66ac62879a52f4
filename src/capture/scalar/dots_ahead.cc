#include "capture/scalar/dots_ahead.h"

#include <algorithm>
#include <iterator>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace framejit::capture::scalar {
namespace {

constexpr int kMostVain = 4;
constexpr int kPastRow = 8;           // more at once, where the row before had ended
constexpr int64_t kMostTerms = 4096;  // A BLAS may have threads for more.
bool fuse_last = true;

#if defined(__x86_64__)
// The loops over vectors are unrolled, or the sums would lie in memory. Four terms at a time go to two sums. The
// products of these are rounded, those of the last few terms are not, or are, as the BLAS was compiled.
template <int kVectors>
__attribute__((target("avx2,fma"))) void Sums(const char* still, int64_t still_next, const char* moving,
                                              int64_t moving_next, int64_t n, double* out) {
  const auto term = [&](int64_t i) __attribute__((target("avx2,fma"))) {
    return _mm256_broadcast_sd(reinterpret_cast<const double*>(still + i * still_next));
  };
  const auto load = [&](int64_t i, int v) __attribute__((target("avx2,fma"))) {
    return _mm256_loadu_pd(reinterpret_cast<const double*>(moving + i * moving_next) + 4 * v);
  };
  __m256d even[kVectors], odd[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) even[v] = odd[v] = _mm256_setzero_pd();
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    __m256d x[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) x[k] = term(i + k);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      __m256d p[4];
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        p[k] = _mm256_mul_pd(load(i + k, v), x[k]);
        asm("" : "+x"(p[k]));  // no product may become part of the sum
      }
      even[v] = _mm256_add_pd(even[v], _mm256_add_pd(p[0], p[2]));
      odd[v] = _mm256_add_pd(odd[v], _mm256_add_pd(p[1], p[3]));
    }
  }
  for (const bool fuse = fuse_last; i < n; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      __m256d p = _mm256_mul_pd(load(i, v), term(i));
      asm("" : "+x"(p));
      even[v] = fuse ? _mm256_fmadd_pd(load(i, v), term(i), even[v]) : _mm256_add_pd(p, even[v]);
    }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v)  // NumPy adds this to 0
    _mm256_storeu_pd(out + 4 * v, _mm256_add_pd(_mm256_setzero_pd(), _mm256_add_pd(even[v], odd[v])));
}

// The same with eight in a vector, of which the last one may have fewer.
template <int kVectors, bool kWhole>
__attribute__((target("avx512f"))) void WideSums(const char* still, int64_t still_next, const char* moving,
                                                 int64_t moving_next, int64_t n, int lanes, double* out) {
  const auto last = static_cast<__mmask8>(0xff >> (8 * kVectors - lanes));
  const auto term = [&](int64_t i) __attribute__((target("avx512f"))) {
    return _mm512_set1_pd(*reinterpret_cast<const double*>(still + i * still_next));
  };
  const auto load = [&](int64_t i, int v) __attribute__((target("avx512f"))) {
    const double* at = reinterpret_cast<const double*>(moving + i * moving_next) + 8 * v;
    return !kWhole && v == kVectors - 1 ? _mm512_maskz_loadu_pd(last, at) : _mm512_loadu_pd(at);
  };
  __m512d even[kVectors], odd[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) even[v] = odd[v] = _mm512_setzero_pd();
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    __m512d x[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) x[k] = term(i + k);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      __m512d p[4];
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        p[k] = _mm512_mul_pd(load(i + k, v), x[k]);
        asm("" : "+v"(p[k]));
      }
      even[v] = _mm512_add_pd(even[v], _mm512_add_pd(p[0], p[2]));
      odd[v] = _mm512_add_pd(odd[v], _mm512_add_pd(p[1], p[3]));
    }
  }
  for (const bool fuse = fuse_last; i < n; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      __m512d p = _mm512_mul_pd(load(i, v), term(i));
      asm("" : "+v"(p));
      even[v] = fuse ? _mm512_fmadd_pd(load(i, v), term(i), even[v]) : _mm512_add_pd(p, even[v]);
    }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v)
    _mm512_mask_storeu_pd(out + 8 * v, v == kVectors - 1 ? last : 0xff,
                          _mm512_add_pd(_mm512_setzero_pd(), _mm512_add_pd(even[v], odd[v])));
}

bool HasWide() {
  static const bool has = __builtin_cpu_supports("avx512f");
  return has;
}
#else
bool HasWide() {
  return false;
}
#endif

}  // namespace

bool DotsAhead::Runs() {
#if defined(__x86_64__)
  static const bool runs = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return runs;
#else
  return false;
#endif
}

void DotsAhead::FuseLast(bool fuse) {
  fuse_last = fuse;
}

void DotsAhead::Several(const char* still, int64_t still_next, const char* moving, int64_t moving_next, int64_t n,
                        int lanes, double* out) {
#if defined(__x86_64__)
  if (HasWide()) {
    static constexpr decltype(&WideSums<1, true>) kWide[][4] = {
        {WideSums<1, false>, WideSums<2, false>, WideSums<3, false>, WideSums<4, false>},
        {WideSums<1, true>, WideSums<2, true>, WideSums<3, true>, WideSums<4, true>}};
    return kWide[lanes % 8 == 0][(lanes - 1) / 8](still, still_next, moving, moving_next, n, lanes, out);
  }
  (lanes == 16 ? Sums<4> : lanes == 8 ? Sums<2> : Sums<1>)(still, still_next, moving, moving_next, n, out);
#endif
}

int DotsAhead::LanesUpTo(int64_t most, int64_t wanted) {
  if (HasWide()) return static_cast<int>(std::clamp<int64_t>(wanted, 1, std::min<int64_t>(most, kLanes)));
  int lanes = kLanes / 2;
  while (lanes > most || (lanes > kFewestLanes && lanes / 2 >= wanted)) lanes /= 2;
  return lanes;
}

// As many as are `wanted`, if they lie in memory before its end, are computed.
bool DotsAhead::Begin(const Call& call, bool b_moves, const char* end, int64_t wanted) {
  const bool dense = call.still_next == kItem && call.moving_next == kItem;
  if (dense || call.still_next <= 0 || call.moving_next <= 0 || call.still_next % kItem || call.moving_next % kItem)
    return false;
  if (call.n < 2 || call.n > kMostTerms || vain_ > kMostVain) return false;
  const char* last = call.moving + (call.n - 1) * call.moving_next;
  const int64_t room = (end - last) / kItem;
  if (room < (HasWide() ? 1 : kFewestLanes)) return false;
  KnownDots& k = known_;
  k.at = 0, k.count = LanesUpTo(room, wanted);
  Several(call.still, call.still_next, call.moving, call.moving_next, call.n, static_cast<int>(k.count), k.values);
  k.reads[0] = {call.moving, last + k.count * kItem};
  k.reads[1] = {call.still, call.still + (call.n - 1) * call.still_next + kItem};
  k.a = call.still, k.a_next = call.still_next, k.a_step = 0;
  k.b = call.moving, k.b_next = call.moving_next, k.b_step = kItem;
  if (!b_moves) std::swap(k.a, k.b), std::swap(k.a_next, k.b_next), std::swap(k.a_step, k.b_step);
  k.n = call.n;
  first_ = call, b_moves_ = b_moves;
  return true;
}

DotsAhead::Call DotsAhead::Next() const {
  Call next = first_;
  next.moving += known_.at * kItem;
  return next;
}

bool DotsAhead::Find(const Operand& a, const Operand& b, int64_t n, double* out) {
  const Call ways[] = {{b.at, a.at, b.next, a.next, n}, {a.at, b.at, a.next, b.next, n}};
  const char* const ends[] = {a.end, b.end};
  const Call next = Next();
  const int64_t in_row = in_row_ + known_.at;
  for (int k = 0; k < 2; ++k) {
    const Call& call = ways[k];
    Call before = call;
    before.moving -= kItem;
    // Either that was the last call, or the last one that was known, or another row begins as the last one did.
    const bool as_known = known_.count && b_moves_ == (k == 1), goes_on = as_known && call == next,
               again = as_known && in_row >= kFewestLanes && call.moving_next == next.moving_next &&
                       call.still_next == next.still_next;
    if (!goes_on && !again && before != last_[k]) continue;
    const int64_t length = goes_on || !again ? row_ : in_row, done = goes_on ? in_row : again ? 0 : 1;
    if (!Begin(call, k == 1, ends[k], !length ? kLanes : length > done ? length - done : kPastRow)) continue;
    row_ = length, in_row_ = done;
    *out = known_.values[known_.at++];
    return true;
  }
  Forget();
  std::copy(std::begin(ways), std::end(ways), last_);
  return false;
}

void DotsAhead::Forget() {
  known_.at = known_.count = 0;
  row_ = in_row_ = 0;
}

void DotsAhead::Drop() {
  vain_ += 2 * known_.at < known_.count;
  Forget();
}

}  // namespace framejit::capture::scalar
