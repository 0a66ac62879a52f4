// One task computes a block of columns of one product: it packs the block of B (so that strides and transposition cost
// once), then runs a register tile of 6 rows by 2 vectors down the rows of A: 12 accumulators, which fit 16 vector
// registers with what else is needed. The tile exists for three vector widths; the machine picks one.

#include "runtime/fallback_gemm.h"

#include <algorithm>
#include <vector>

namespace framejit::runtime {
namespace {

constexpr int kRows = 6;
constexpr int64_t kDepth = 512;  // of a packed block: 512 x 128 bytes fit the L2 cache

template <typename T>
struct Product {
  const T* a;
  const T* b;
  T* c;
  const T* bias;
  int64_t m, n, k;
  int64_t a_row, a_col, b_row, b_col, c_row, c_col, bias_stride;
  // `batch` has the offsets by flattened batch index.
  std::vector<int64_t> batch_sizes, a_batch, b_batch, c_batch;
  int64_t column_blocks;
};

// acc[kRows][2 vectors] += rows[r][p * a_col] * packed[p][2 vectors], p < depth.
#define FRAMEJIT_TILE(NAME, BYTES, TARGET)                                                        \
  template <typename T>                                                                           \
  TARGET void NAME(const T* const* rows, int64_t a_col, const T* packed, int64_t depth, T* acc) { \
    typedef T Vector __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));          \
    constexpr int n = BYTES / sizeof(T);                                                          \
    Vector c[kRows][2];                                                                           \
    for (int r = 0; r < kRows; ++r) {                                                             \
      c[r][0] = *reinterpret_cast<const Vector*>(acc + r * 2 * n);                                \
      c[r][1] = *reinterpret_cast<const Vector*>(acc + r * 2 * n + n);                            \
    }                                                                                             \
    for (int64_t p = 0; p < depth; ++p) {                                                         \
      const Vector b0 = *reinterpret_cast<const Vector*>(packed + p * 2 * n);                     \
      const Vector b1 = *reinterpret_cast<const Vector*>(packed + p * 2 * n + n);                 \
      _Pragma("GCC unroll 6") for (int r = 0; r < kRows; ++r) {                                   \
        c[r][0] += rows[r][p * a_col] * b0;                                                       \
        c[r][1] += rows[r][p * a_col] * b1;                                                       \
      }                                                                                           \
    }                                                                                             \
    for (int r = 0; r < kRows; ++r) {                                                             \
      *reinterpret_cast<Vector*>(acc + r * 2 * n) = c[r][0];                                      \
      *reinterpret_cast<Vector*>(acc + r * 2 * n + n) = c[r][1];                                  \
    }                                                                                             \
  }
FRAMEJIT_TILE(Tile16, 16, )
#if defined(__x86_64__)
FRAMEJIT_TILE(Tile32, 32, __attribute__((target("avx2,fma"))))
FRAMEJIT_TILE(Tile64, 64, __attribute__((target("avx512f"))))
#endif
#undef FRAMEJIT_TILE

template <typename T>
struct Tile {
  void (*run)(const T* const*, int64_t, const T*, int64_t, T*) = Tile16<T>;
  int columns = 32 / sizeof(T);

  static const Tile& Get() {
    static const Tile tile = [] {
      Tile t;
#if defined(__x86_64__)
      if (__builtin_cpu_supports("avx512f")) {
        t = {Tile64<T>, 128 / sizeof(T)};
      } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        t = {Tile32<T>, 64 / sizeof(T)};
      }
#endif
      return t;
    }();
    return tile;
  }
};

// Gives the way from the first elements of the operands to those of product number `batch`.
template <typename T>
void MoveToBatch(const Product<T>& p, int64_t batch, const T** a, const T** b, T** c) {
  for (size_t i = p.batch_sizes.size(); i-- > 0;) {
    const int64_t at = batch % p.batch_sizes[i];
    batch /= p.batch_sizes[i];
    *a += at * p.a_batch[i];
    *b += at * p.b_batch[i];
    *c += at * p.c_batch[i];
  }
}

template <typename T>
void Block(const Product<T>& p, int64_t task, std::vector<T>& packed, std::vector<T>& sums) {
  const Tile<T>& tile = Tile<T>::Get();
  const int n = tile.columns;
  const int64_t column = (task % p.column_blocks) * n;
  const T* a = p.a;
  const T* b = p.b;
  T* c = p.c;
  MoveToBatch(p, task / p.column_blocks, &a, &b, &c);
  const int64_t width = std::min<int64_t>(n, p.n - column);
  packed.assign(kDepth * n, T(0));
  const int64_t padded_rows = (p.m + kRows - 1) / kRows * kRows;
  sums.assign(padded_rows * n, T(0));
  for (int64_t k0 = 0; k0 < p.k; k0 += kDepth) {
    const int64_t depth = std::min(kDepth, p.k - k0);
    if (p.b_row == 1) {  // transposed: read along the columns
      for (int64_t j = 0; j < width; ++j) {
        for (int64_t k = 0; k < depth; ++k) packed[k * n + j] = b[k0 + k + (column + j) * p.b_col];
      }
    }
    for (int64_t k = 0; k < depth && p.b_row != 1; ++k) {
      for (int64_t j = 0; j < width; ++j) packed[k * n + j] = b[(k0 + k) * p.b_row + (column + j) * p.b_col];
    }
    for (int64_t i = 0; i < p.m; i += kRows) {
      const T* rows[kRows];
      for (int r = 0; r < kRows; ++r) rows[r] = a + std::min(i + r, p.m - 1) * p.a_row + k0 * p.a_col;
      tile.run(rows, p.a_col, packed.data(), depth, sums.data() + i * n);
    }
  }
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      T v = sums[i * n + j];
      if (p.bias) v += p.bias[(column + j) * p.bias_stride];
      c[i * p.c_row + (column + j) * p.c_col] = v;
    }
  }
}

template <typename T>
void RunSmall(const Product<T>& p) {
  int64_t batches = 1;
  for (int64_t s : p.batch_sizes) batches *= s;
  for (int64_t t = 0; t < batches; ++t) {
    const T* a = p.a;
    const T* b = p.b;
    T* c = p.c;
    MoveToBatch(p, t, &a, &b, &c);
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        const T* x = a + i * p.a_row;
        const T* y = b + j * p.b_col;
        T sum = 0;
        for (int64_t k = 0; k < p.k; ++k) sum += x[k * p.a_col] * y[k * p.b_row];
        c[i * p.c_row + j * p.c_col] = p.bias ? sum + p.bias[j * p.bias_stride] : sum;
      }
    }
  }
}

template <typename T>
void Run(Host& host, Product<T> p, bool small) {
  if (small) return RunSmall(p);
  const int columns = Tile<T>::Get().columns;
  p.column_blocks = (p.n + columns - 1) / columns;
  int64_t batches = 1;
  for (int64_t s : p.batch_sizes) batches *= s;
  const int64_t tasks = batches * p.column_blocks;
  if (tasks == 0 || p.m == 0) return;
  auto run = [](void* context, int64_t begin, int64_t end) {
    std::vector<T> packed, sums;
    for (int64_t t = begin; t < end; ++t) Block(*static_cast<const Product<T>*>(context), t, packed, sums);
  };
  const double flops = 2.0 * static_cast<double>(batches) * static_cast<double>(p.m) * static_cast<double>(p.n) *
                       static_cast<double>(p.k);
  if (tasks > 1 && flops > 1e6 && host.NumThreads() > 1)
    host.ParallelFor(tasks, 1, run, &p);
  else
    run(&p, 0, tasks);
}

template <typename T>
void MatMul(Host& host, const Buffer& a, const Buffer& b, const Buffer& out, bool small) {
  Product<T> p;
  const int r = out.rank;
  p.a = static_cast<const T*>(a.data);
  p.b = static_cast<const T*>(b.data);
  p.c = static_cast<T*>(out.data);
  p.bias = nullptr;
  p.bias_stride = 0;
  p.m = out.sizes[r - 2];
  p.n = out.sizes[r - 1];
  p.k = a.sizes[r - 1];
  p.a_row = a.strides[r - 2], p.a_col = a.strides[r - 1];
  p.b_row = b.strides[r - 2], p.b_col = b.strides[r - 1];
  p.c_row = out.strides[r - 2], p.c_col = out.strides[r - 1];
  p.batch_sizes.assign(out.sizes, out.sizes + r - 2);
  p.a_batch.assign(a.strides, a.strides + r - 2);
  p.b_batch.assign(b.strides, b.strides + r - 2);
  p.c_batch.assign(out.strides, out.strides + r - 2);
  Run(host, std::move(p), small);
}

template <typename T>
void Linear(Host& host, const Buffer& x, const Buffer& w, const Buffer* bias, const Buffer& out, bool small) {
  Product<T> p;
  const int r = out.rank;
  p.a = static_cast<const T*>(x.data);
  p.b = static_cast<const T*>(w.data);
  p.c = static_cast<T*>(out.data);
  p.bias = bias ? static_cast<const T*>(bias->data) : nullptr;
  p.bias_stride = bias ? bias->strides[0] : 0;
  p.n = w.sizes[0];
  p.k = w.sizes[1];
  p.b_row = w.strides[1], p.b_col = w.strides[0];
  p.a_col = x.strides[r - 1], p.c_col = out.strides[r - 1];
  // Rows of x are the last leading dimension; the others are batches that share w.
  p.m = r >= 2 ? out.sizes[r - 2] : 1;
  p.a_row = r >= 2 ? x.strides[r - 2] : 0;
  p.c_row = r >= 2 ? out.strides[r - 2] : 0;
  for (int i = r - 3; i >= 0; --i) {
    if (p.batch_sizes.empty() && x.strides[i] == p.m * p.a_row && out.strides[i] == p.m * p.c_row) {
      p.m *= out.sizes[i];
      continue;
    }
    p.batch_sizes.insert(p.batch_sizes.begin(), out.sizes[i]);
    p.a_batch.insert(p.a_batch.begin(), x.strides[i]);
    p.b_batch.insert(p.b_batch.begin(), 0);
    p.c_batch.insert(p.c_batch.begin(), out.strides[i]);
  }
  Run(host, std::move(p), small);
}

}  // namespace

bool FallbackMatMul(Host& host, const Buffer& a, const Buffer& b, const Buffer& out, bool small) {
  if (out.rank < 2) return false;
  if (out.dtype == DType::kFloat32)
    MatMul<float>(host, a, b, out, small);
  else if (out.dtype == DType::kFloat64)
    MatMul<double>(host, a, b, out, small);
  else
    return false;
  return true;
}

bool FallbackLinear(Host& host, const Buffer& x, const Buffer& w, const Buffer* bias, const Buffer& out, bool small) {
  if (w.rank != 2 || out.rank < 1) return false;
  if (out.dtype == DType::kFloat32)
    Linear<float>(host, x, w, bias, out, small);
  else if (out.dtype == DType::kFloat64)
    Linear<double>(host, x, w, bias, out, small);
  else
    return false;
  return true;
}

}  // namespace framejit::runtime
