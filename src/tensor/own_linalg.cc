#include "tensor/own_linalg.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensor/numpy_api.h"
#include "tensor/openblas.h"
#include "tensor/tensor.h"

namespace framejit::tensor {
namespace {

using Potrf = void (*)(const char* part, const int64_t* n, double* a, const int64_t* lda, int64_t* info, size_t);

// That of NumPy's own LAPACK, which its function calls.
Potrf FindPotrf() {
  static const std::vector<void*> found = OfBlas({"scipy_dpotrf_64_", "dpotrf_64_"}, "numpy");
  return found.size() == 1 ? reinterpret_cast<Potrf>(found[0]) : nullptr;
}

// So many rows and columns have lines that a cache holds side by side, however long a row is, and pages.
constexpr int64_t kLines = 8, kPages = 64;

// Calls f(i, j) for each i >= j, tile by tile.
template <typename F>
void EachBelow(int64_t n, const F& f) {
  const auto each = [](int64_t begin, int64_t end, int64_t step, const auto& g) {
    for (int64_t at = begin; at < end; at += step) g(at, std::min(end, at + step));
  };
  each(0, n, kPages, [&](int64_t top, int64_t bottom) {
    each(0, bottom, kPages, [&](int64_t left, int64_t right) {
      each(top, bottom, kLines, [&](int64_t r, int64_t r_end) {
        each(left, std::min(right, r_end), kLines, [&](int64_t c, int64_t c_end) {
          for (int64_t i = r; i < r_end; ++i)
            for (int64_t j = c; j < std::min(i + 1, c_end); ++j) f(i, j);
        });
      });
    });
  });
}

}  // namespace

// NumPy copies the matrix column by column, across its rows, and the result back. Here the result's own memory holds
// the half that the LAPACK reads and writes.
PyObject* OwnCholesky(PyObject* const* args, size_t positional, PyObject* kwnames) {
  const NumpyApi* api = Numpy();
  const Potrf potrf = FindPotrf();
  Meta m;
  if (!api || !potrf || positional != 1 || kwnames) return nullptr;
  if (Py_TYPE(args[0]) != api->array || !ReadMeta(args[0], &m) || m.dtype != DType::kFloat64 || m.rank != 2)
    return nullptr;
  const int64_t n = m.sizes[0], sizes[] = {n, n};
  if (n < 2 || m.sizes[1] != n || m.strides[1] != 1 || m.strides[0] < n) return nullptr;
  if (reinterpret_cast<uintptr_t>(m.data) % sizeof(double)) return nullptr;
  Ref made(NewArray(*api, DType::kFloat64, 2, sizes, nullptr));
  if (!made) return nullptr;
  auto* const out = reinterpret_cast<double*>(AsArray(made.get())->data);
  const auto* const a = static_cast<const double*>(m.data);
  const int64_t next = m.strides[0];
  int64_t info = 0;
  Py_BEGIN_ALLOW_THREADS;
  EachBelow(n, [&](int64_t i, int64_t j) { out[j * n + i] = a[i * next + j]; });
  potrf("L", &n, out, &n, &info, 1);
  EachBelow(n, [&](int64_t i, int64_t j) {
    if (i == j) return;
    out[i * n + j] = out[j * n + i];
    out[j * n + i] = 0;
  });
  Py_END_ALLOW_THREADS;
  return info ? nullptr : made.release();
}

}  // namespace framejit::tensor
