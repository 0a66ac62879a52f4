#include "tensor/product_pairs.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/copy.h"
#include "tensor/openblas.h"
#include "tensor/ufunc_loops.h"

namespace framejit::tensor {

namespace {

constexpr int64_t kMost = 400'000;                               // What one thread of a BLAS surely multiplies.
constexpr int kByColumns = 102, kAsItLies = 111, kTurned = 112;  // CBLAS's numbers
using Gemv = void (*)(int order, int turned, int64_t m, int64_t n, double alpha, const double* a, int64_t lda,
                      const double* x, int64_t incx, double beta, double* y, int64_t incy);

Gemv BlasGemv() {
  static const std::vector<void*> found = OfBlas({"scipy_cblas_dgemv64_", "cblas_dgemv64_"}, "numpy");
  return found.size() == 1 ? reinterpret_cast<Gemv>(found[0]) : nullptr;
}

// A matrix whose rows lie each in one piece.
struct Matrix {
  const double* data;
  int64_t rows, columns, next;  // next: elements from row to row
  bool operator==(const Matrix&) const = default;
};

struct Vector {
  double* data;
  int64_t next;
};

struct Sided {
  Matrix of;
  Vector vector, result;
  bool right;  // is the vector on the right of the matrix?
};

// Nothing where it is no product of such a matrix and a vector.
std::optional<Sided> SidedOf(const runtime::RowProducts::Product& p) {
  for (const Buffer* b : {&p.a, &p.b, &p.out})
    if (b->dtype != DType::kFloat64 || b->rank != 2 || !b->data ||
        reinterpret_cast<uintptr_t>(b->data) % sizeof(double))
      return {};
  const bool right = p.b.sizes[1] == 1;
  if (right == (p.a.sizes[0] == 1)) return {};
  const Buffer &m = right ? p.a : p.b, &v = right ? p.b : p.a;
  const bool turned = m.strides[1] != 1;
  const auto vector = [&](const Buffer& b) { return Vector{static_cast<double*>(b.data), b.strides[!right]}; };
  const Sided s{{static_cast<const double*>(m.data), m.sizes[turned], m.sizes[!turned], m.strides[turned]},
                vector(v),
                vector(p.out),
                right != turned};
  if (m.strides[!turned] != 1 || s.of.next < s.of.columns || s.vector.next <= 0 || s.result.next != 1) return {};
  return s;
}

// The matrix goes through the caches once, some rows at a time: first their products with the vector on the right, then
// what they add to the other result. That is added up from the first row to the last, so threads that have one block of
// rows each take turns in each part of the columns.
class Pass {
 public:
  static constexpr int64_t kRows = 4;  // A BLAS takes as many at once.

  Pass(Gemv gemv, const Sided& right, const Sided& left, int shares, int64_t elements)
      : gemv_(gemv), a_(right.of), right_(right), left_(left) {
    const int64_t step = std::max<int64_t>(1, elements / a_.columns / kRows) * kRows;
    EachShare(a_.rows, shares, [&](int64_t end, int64_t width) {
      for (int64_t begin = end - width; begin < end; begin += step) blocks_.push_back(begin);
    });
    blocks_.push_back(a_.rows);
    EachShare(a_.columns, shares, [&](int64_t end, int64_t width) {
      const int64_t whole = end - width % 4;
      for (int64_t begin = end - width; begin < whole; begin += kColumns)
        parts_.emplace_back(begin, std::min(whole, begin + kColumns));
      if (whole < end) rests_.emplace_back(whole, end);
    });
    turns_ = std::make_unique<Turn[]>(parts_.size());
  }

  // False: a call would be shared between the BLAS's threads, or there is something to tell of.
  bool Run(framejit::Host& host) {
    if (a_.columns * kRows > kMost || (!rests_.empty() && a_.rows * kRows > kMost)) return false;
    std::memset(left_.result.data, 0, a_.columns * sizeof(double));
    const auto run = [](void* pass, int64_t begin, int64_t end) {
      if (begin < end) static_cast<Pass*>(pass)->Work();
    };
    host.ParallelFor(host.NumThreads(), 1, run, this);
    if (told_) return false;
    return Silently([&] {
      for (const auto& [begin, end] : rests_) Add(0, a_.rows, begin, end);
    });
  }

 private:
  static constexpr int64_t kColumns = 1024;
  static constexpr unsigned kTold =
      _MM_EXCEPT_INVALID | _MM_EXCEPT_DIV_ZERO | _MM_EXCEPT_OVERFLOW | _MM_EXCEPT_UNDERFLOW;

  struct alignas(64) Turn {
    std::atomic<int64_t> block = 0;
  };

  static bool Silently(auto f) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before & ~_MM_EXCEPT_MASK);
    f();
    const bool raised = _mm_getcsr() & kTold;
    _mm_setcsr(before);
    return !raised;
  }

  // A block whose rows are multiplied, and in how many parts of the columns they are added.
  struct Waiting {
    int64_t block;
    size_t part = 0;
  };

  // Blocks are taken in order, so that the first that is not done waits for nobody. A thread whose turn does not come
  // soon, as another one may have been put aside by the system, goes on with the rows of the next block.
  void Work() {
    constexpr size_t kAhead = 64;
    constexpr int kSoon = 200;
    const int64_t count = static_cast<int64_t>(blocks_.size()) - 1;
    std::deque<Waiting> waiting;
    const bool silent = Silently([&] {
      for (int tries = 0; !told_.load(std::memory_order_relaxed);) {
        if (!waiting.empty() && AddWhereItsTurn(&waiting.front())) {
          tries = 0;
          if (waiting.front().part == parts_.size()) waiting.pop_front();
          continue;
        }
        if (!waiting.empty() && ++tries < kSoon) {
          _mm_pause();
          continue;
        }
        tries = 0;
        const int64_t k = waiting.size() < kAhead ? next_.fetch_add(1) : count;
        if (k < count) {
          MultiplyRows(k);
          if ((_mm_getcsr() & kTold) != 0) return;
          waiting.push_back({k});
        } else if (waiting.empty()) {
          return;
        } else {
          sched_yield();
        }
      }
    });
    if (!silent) told_ = true;
  }

  void MultiplyRows(int64_t k) const {
    const int64_t begin = blocks_[k], end = blocks_[k + 1];
    const Vector &x = right_.vector, &out = right_.result;
    gemv_(kByColumns, kTurned, a_.columns, end - begin, 1.0, a_.data + begin * a_.next, a_.next, x.data, x.next, 0.0,
          out.data + begin * out.next, out.next);
  }

  // Adds one part more of a block. False: the block before it has not been added there.
  bool AddWhereItsTurn(Waiting* of) {
    std::atomic<int64_t>& turn = turns_[of->part].block;
    if (turn.load(std::memory_order_acquire) != of->block) return false;
    const bool last = of->block + 2 == static_cast<int64_t>(blocks_.size());
    const int64_t begin = blocks_[of->block], end = blocks_[of->block + 1];
    const int64_t from = begin / kRows * kRows, to = last ? end : end / kRows * kRows;
    const auto& [left, right] = parts_[of->part++];
    if (from < to) Add(from, to, left, right);
    turn.store(of->block + 1, std::memory_order_release);
    return true;
  }

  // Adds what these rows give for these columns.
  void Add(int64_t from, int64_t to, int64_t begin, int64_t end) const {
    const Vector& y = left_.vector;
    gemv_(kByColumns, kAsItLies, end - begin, to - from, 1.0, a_.data + from * a_.next + begin, a_.next,
          y.data + from * y.next, y.next, 1.0, left_.result.data + begin, 1);
  }

  const Gemv gemv_;
  const Matrix a_;
  const Sided &right_, &left_;
  std::vector<int64_t> blocks_;                     // where they begin, and the end
  std::vector<std::pair<int64_t, int64_t>> parts_;  // of the columns
  std::vector<std::pair<int64_t, int64_t>> rests_;  // columns at the ends of shares, which are added up otherwise
  std::unique_ptr<Turn[]> turns_;                   // by part: the block that is next
  std::atomic<int64_t> next_ = 0;
  std::atomic<bool> told_ = false;
};

// Are both, to the last bit, what the BLAS gives that shares its products so?
bool BothLikeBlas(Gemv gemv, UfuncLoop loop, int shares) {
  static std::mutex mu;
  static std::map<int, bool> known;
  std::lock_guard lock(mu);
  const auto [at, is_new] = known.emplace(shares, false);
  if (!is_new) return at->second;
  struct OneThread : framejit::Host {
    void AllocateOutput(DType, std::span<const int64_t>, std::span<const int64_t>, Device, Buffer*) override {}
    void FreeOutput(Buffer*) override {}
    void RunExtern(const Call&, std::span<const Buffer>, std::span<Buffer>) override {}
    void Release(Buffer*) override {}
  } host;
  constexpr std::pair<int64_t, int64_t> kOfOne[] = {{131, 1031}, {517, 259}, {94, 4099}},
                                        kOfMore[] = {{1031, 537}, {519, 1103}, {133, 4099}};
  for (const auto& [rows, columns] : shares == 1 ? kOfOne : kOfMore) {
    constexpr intptr_t kItem = sizeof(double);
    std::vector<double> a(rows * columns), x(columns), y(rows), ax(rows), ya(columns), right(rows), left(columns);
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i * i % 10007) / 3 - 1000;
    for (int64_t i = 0; i < columns; ++i) x[i] = static_cast<double>(i * i % 1009) / 7 - 50;
    for (int64_t i = 0; i < rows; ++i) y[i] = static_cast<double>(i * i % 997) / 7 - 60;
    const auto multiply = [&](auto& p, auto& q, auto& out, intptr_t m, intptr_t n, intptr_t k) {
      char* args[] = {reinterpret_cast<char*>(p.data()), reinterpret_cast<char*>(q.data()),
                      reinterpret_cast<char*>(out.data())};
      const auto side = [](intptr_t size, intptr_t stride) { return size == 1 ? 0 : stride * kItem; };
      const intptr_t sizes[] = {1, m, n, k};
      const intptr_t strides[] = {0, 0, 0, side(m, n), side(n, 1), side(n, k), side(k, 1), side(m, k), side(k, 1)};
      loop(args, sizes, strides, nullptr);
    };
    multiply(a, x, ax, rows, columns, 1);
    multiply(y, a, ya, 1, rows, columns);
    const Matrix of{a.data(), rows, columns, columns};
    const Sided on_right{of, {x.data(), 1}, {right.data(), 1}, true},
        on_left{of, {y.data(), 1}, {left.data(), 1}, false};
    if (!Pass(gemv, on_right, on_left, shares, 1).Run(host) || right != ax || left != ya) return false;
  }
  return at->second = true;
}

}  // namespace

bool MultiplyBoth(framejit::Host& host, const runtime::RowProducts::Product& first,
                  const runtime::RowProducts::Product& second) {
  constexpr int64_t kFewest = 1 << 18, kElements = 1 << 16;  // what caches hold anyhow, and what a core's own one does
  const std::optional<Sided> one = SidedOf(first), other = SidedOf(second);
  if (!one || !other || one->right == other->right || one->of != other->of) return false;
  const Sided &right = one->right ? *one : *other, &left = one->right ? *other : *one;
  const Matrix& a = one->of;
  const int shares = SharesOfBlas(a.rows * a.columns, a.rows * a.columns);
  if (!shares || a.rows * a.columns < kFewest || std::min(a.rows, a.columns) < 16 * shares) return false;
  const auto range = [](const double* data, int64_t length) {
    return std::pair(reinterpret_cast<uintptr_t>(data), reinterpret_cast<uintptr_t>(data + length));
  };
  const auto vector = [&](const Vector& v, int64_t n) { return range(v.data, (n - 1) * v.next + 1); };
  const auto meet = [](auto p, auto q) { return p.first < q.second && q.first < p.second; };
  const auto ax = vector(right.result, a.rows), ya = vector(left.result, a.columns), y = vector(left.vector, a.rows),
             x = vector(right.vector, a.columns), all = range(a.data, (a.rows - 1) * a.next + a.columns);
  const bool chained = &right == &*one && y == ax && left.vector.next == right.result.next;
  if (meet(ax, ya) || meet(ax, x) || meet(ax, all) || meet(ya, x) || meet(ya, y) || meet(ya, all)) return false;
  if (!chained && meet(ax, y)) return false;
  const Gemv gemv = BlasGemv();
  const UfuncLoop loop = ProductOf(DType::kFloat64);
  if (!gemv || !loop || !BothLikeBlas(gemv, loop, shares)) return false;
  return Pass(gemv, right, left, shares, kElements).Run(host);
}

}  // namespace framejit::tensor
