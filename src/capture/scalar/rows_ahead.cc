#include "capture/scalar/rows_ahead.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#include <xmmintrin.h>
#endif

#include "runtime/thread_pool.h"
#include "tensor/openblas.h"

namespace framejit::capture::scalar {
namespace {

constexpr int64_t kItem = sizeof(double);
constexpr int kTile = 8, kVectors = 8;  // columns and vectors that are summed at once
constexpr int kTiles = 8;               // that are read at once
constexpr int kTail = 4;                // A BLAS sums the last up to three columns in another way.
constexpr int kMostVain = 2;
constexpr int64_t kFewestTerms = 8, kMostTerms = 1 << 13, kMostColumns = 1 << 14;

#if defined(__x86_64__)
// Of `n` packed terms x of kVectors of kRows vectors, and a of kTile columns. Four terms at a time become one number,
// the second product of which is rounded, and that is added to the sum. Of the others each product is rounded, but for
// two of vectors that are dense.
__attribute__((target("avx512f"))) void SumTile(const double* x, const double* a, int64_t n, bool dense, double* out,
                                                int64_t out_row) {
  const auto column = [&](int64_t k) __attribute__((target("avx512f"))) { return _mm512_loadu_pd(a + k * kTile); };
  const auto term = [&](int64_t k, int r)
                        __attribute__((target("avx512f"))) { return _mm512_set1_pd(x[k * RowsAhead::kRows + r]); };
  const auto product = [&](int64_t k, int r) __attribute__((target("avx512f"))) {
    __m512d p = _mm512_mul_pd(column(k), term(k, r));
    asm("" : "+v"(p));  // may not become part of the sum
    return p;
  };
  __m512d sums[kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kVectors; ++r) sums[r] = _mm512_setzero_pd();
  int64_t k = 0;
  for (; k + 4 <= n; k += 4) {
#pragma GCC unroll 8
    for (int r = 0; r < kVectors; ++r) {
      __m512d s = _mm512_fmadd_pd(column(k), term(k, r), product(k + 1, r));
      s = _mm512_fmadd_pd(column(k + 2), term(k + 2, r), s);
      s = _mm512_fmadd_pd(column(k + 3), term(k + 3, r), s);
      sums[r] = _mm512_add_pd(sums[r], s);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kVectors; ++r) {
    int64_t i = k;
    __m512d s = sums[r];
    if (dense && n - i >= 2) {
      s = _mm512_add_pd(s, _mm512_fmadd_pd(column(i), term(i, r), product(i + 1, r)));
      i += 2;
    }
    for (; i < n; ++i) s = _mm512_add_pd(s, product(i, r));
    _mm512_storeu_pd(out + r * out_row, s);
  }
}

// Of the last columns: one term after the other.
__attribute__((target("avx2,fma"))) void SumTail(const double* x, const double* a, int64_t n, double* out) {
  __m256d sums[kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kVectors; ++r) sums[r] = _mm256_setzero_pd();
  for (int64_t k = 0; k < n; ++k) {
    const __m256d column = _mm256_loadu_pd(a + k * kTail);
#pragma GCC unroll 8
    for (int r = 0; r < kVectors; ++r)
      sums[r] = _mm256_fmadd_pd(column, _mm256_broadcast_sd(x + k * RowsAhead::kRows + r), sums[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kVectors; ++r)  // which is added to 0
    _mm256_storeu_pd(out + r * kTail, _mm256_add_pd(sums[r], _mm256_setzero_pd()));
}
#endif

}  // namespace

bool RowsAhead::Runs() {
#if defined(__x86_64__)
  static const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma");
  return runs;
#else
  return false;
#endif
}

#if defined(__x86_64__)
namespace {

// Says at its end whether NumPy may have something to tell of what was computed in the meantime.
class Watched {
 public:
  Watched() { _mm_setcsr(before_ & ~_MM_EXCEPT_MASK); }
  bool End() const {
    const bool told = _mm_getcsr() & (_MM_EXCEPT_INVALID | _MM_EXCEPT_DIV_ZERO | _MM_EXCEPT_OVERFLOW);
    _mm_setcsr(before_);
    return told;
  }

 private:
  const unsigned before_ = _mm_getcsr();
};

// `count` columns of the matrix from number `from` on, `width` at a time in rows of their own. The rows of the matrix
// lie far apart: what is read next is fetched early.
void Pack(const RowsAhead::Call& call, int64_t from, int64_t count, int64_t width, double* matrix) {
  constexpr int64_t kAhead = 12, kLine = 64;
  for (int64_t k = 0; k < call.n; ++k) {
    const char* row = call.matrix + k * call.matrix_row + from * kItem;
    if (k + kAhead < call.n)
      for (int64_t at = 0; at < count * kItem; at += kLine)
        _mm_prefetch(row + kAhead * call.matrix_row + at, _MM_HINT_T0);
    double* to = matrix + k * width;
    int64_t j = 0;
    for (; j + width <= count; j += width, to += call.n * width)
      for (int64_t i = 0; i < width; i += kTail) memcpy(to + i, row + (j + i) * kItem, kTail * kItem);
    for (int64_t i = 0; j < count && i < width; ++i)
      to[i] = j + i < count ? *reinterpret_cast<const double*>(row + (j + i) * kItem) : 0;
  }
}

struct Panels {  // of kTiles tiles
  static constexpr int64_t kColumns = kTile * kTiles;

  static void Sum(void* context, int64_t begin, int64_t end) {
    const auto& p = *static_cast<const Panels*>(context);
    thread_local std::vector<double> tiles;
    tiles.resize(p.call.n * kColumns);
    const Watched watched;
    for (int64_t i = begin; i < end; ++i) p.SumOne(i * kColumns, tiles.data());
    if (watched.End()) p.told->store(true, std::memory_order_relaxed);
  }
  void SumOne(int64_t from, double* matrix) const {
    const int64_t end = std::min<int64_t>(from + kColumns, call.columns);
    Pack(call, from, end - from, kTile, matrix);
    for (int64_t j = from; j < end; j += kTile, matrix += call.n * kTile) {
      const int64_t count = std::min<int64_t>(kTile, end - j);
      double last[RowsAhead::kRows * kTile];
      double* to = count == kTile ? out + j : last;
      const int64_t row = count == kTile ? call.columns : kTile;
      const bool dense = call.vector_next == kItem;
      for (int r = 0; r < rows; r += kVectors) SumTile(vectors + r, matrix, call.n, dense, to + r * row, row);
      for (int r = 0; to == last && r < rows; ++r) memcpy(out + r * call.columns + j, last + r * kTile, count * kItem);
    }
  }

  const RowsAhead::Call& call;
  const double* vectors;
  int rows;
  double* out;
  std::atomic<bool>* told;
};

}  // namespace
#endif

bool RowsAhead::Several(const Call& call, int64_t step, int lost, int rows, int shares, double* out) {
#if defined(__x86_64__)
  thread_local std::vector<double> packed, tail;
  packed.resize(call.n * kRows);
  for (int64_t k = 0; k < call.n; ++k)
    for (int r = 0; r < rows; ++r)
      packed[k * kRows + r] = *reinterpret_cast<const double*>(call.vector + k * call.vector_next + r * step);
  tail.resize(call.n * kTail);
  const double* const vectors = packed.data();
  std::atomic<bool> told = false;
  Panels panels{call, vectors, rows, out, &told};
  const int64_t count = (call.columns + Panels::kColumns - 1) / Panels::kColumns;
  if (shares > 1)  // as many as the BLAS has
    runtime::ThreadPool::Get().ParallelFor(count, 1, Panels::Sum, &panels);
  else
    Panels::Sum(&panels, 0, count);
  const Watched watched;
  struct Spot {  // the last columns of a share that one vector's product has
    int64_t first;
    int count, row;
  };
  thread_local std::vector<Spot> spots;
  spots.clear();
  for (int r = 0; r < rows; ++r)
    tensor::EachShare(call.columns - r * lost, shares, [&](int64_t end, int64_t width) {
      if (const int count = width % kTail) spots.push_back({r * lost + end - count, count, r});
    });
  std::ranges::sort(spots, {}, &Spot::first);
  double tails[kRows * kTail];
  int64_t from = -kTail;
  for (const Spot& spot : spots) {
    if (spot.first + spot.count > from + kTail) {
      from = spot.first;
      Pack(call, from, std::min<int64_t>(kTail, call.columns - from), kTail, tail.data());
      for (int r = 0; r < rows; r += kVectors) SumTail(vectors + r, tail.data(), call.n, tails + r * kTail);
    }
    memcpy(out + spot.row * call.columns + spot.first, tails + spot.row * kTail + (spot.first - from),
           spot.count * kItem);
  }
  return !watched.End() && !told;
#else
  return false;
#endif
}

// As many as lie in memory before its end are computed.
bool RowsAhead::Begin(const Call& call, const char* end, SharesOf shares_of) {
  if (vain_ >= kMostVain || step_ <= 0 || call.vector_next <= 0) return false;
  const char* last = call.vector + (call.n - 1) * call.vector_next;
  const int64_t room = (end - kItem - last) / step_ + 1;
  int64_t most = std::min<int64_t>(kRows, room);
  if (lost_) most = std::min(most, call.columns - kFewestColumns + 1);
  if (most < kVectors) return false;
  const int rows = static_cast<int>(most / kVectors * kVectors);
  const int64_t fewest = call.columns - (rows - 1) * lost_;
  const int shares = shares_of(call.n, fewest, call.columns);
  if (!shares) return false;
  width_ = call.columns;
  values_.resize(rows * width_);
  if (!Several(call, step_, lost_, rows, shares, values_.data())) return vain_ = kMostVain, false;
  reads_[0] = {call.vector, last + (rows - 1) * step_ + kItem};
  reads_[1] = {call.matrix, call.matrix + (call.n - 1) * call.matrix_row + call.columns * kItem};
  known_ = rows;
  at_ = 0;
  next_ = call;
  return true;
}

void RowsAhead::Take(double* out) {
  memcpy(out, values_.data() + at_ * (width_ + lost_), next_.columns * kItem);
  ++at_;
  last_ = next_;
  next_.vector += step_;
  next_.matrix += lost_ * kItem;
  next_.columns -= lost_;
}

bool RowsAhead::Find(const Call& call, const char* end, SharesOf shares, double* out) {
  if (call.n < kFewestTerms || call.n > kMostTerms || call.columns < kFewestColumns || call.columns > kMostColumns)
    return false;
  // Else no BLAS is asked.
  if (call.vector_next % kItem || call.matrix_row % kItem || call.matrix_row < call.columns * kItem) return false;
  if (lost_ >= 0 && call == next_ && (at_ < known_ || Begin(call, end, shares))) return Take(out), true;
  // Whoever comes otherwise begins anew.
  at_ = known_ = 0;
  Call next = call;
  next.vector = last_.vector, next.matrix = last_.matrix, next.columns = last_.columns;
  const int64_t lost = last_.columns - call.columns;
  const bool follows = next == last_ && (lost == 0 || lost == 1) && call.matrix - last_.matrix == lost * kItem;
  step_ = call.vector - last_.vector;
  lost_ = follows && step_ ? static_cast<int>(lost) : -1;
  last_ = next_ = call;
  next_.vector += step_;
  next_.matrix += std::max(lost_, 0) * kItem;
  next_.columns -= std::max(lost_, 0);
  return false;
}

void RowsAhead::Drop() {
  vain_ += 2 * at_ < known_;
  at_ = known_ = 0;
}

}  // namespace framejit::capture::scalar
