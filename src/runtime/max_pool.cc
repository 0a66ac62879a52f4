// Window by window would be a branch an element. Here each row of x is taken whole: first what the columns of a window
// see along it, for all windows at once, then what its rows see of that: in the order in which the framework looks.
#include "runtime/max_pool.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/share.h"

namespace framejit::runtime {
namespace {

constexpr int64_t kOperationsPerPiece = 1 << 16;  // of one thread

// These are the inner loops, compiled for one set of vector instructions. ThisIsa() has those for the best set of this
// machine.
struct IsaFunctions {
  void (*strided)(const float*, int64_t, int64_t, int32_t, int32_t, float*, int32_t*);
  void (*pairs)(const float*, int64_t, int32_t, float*, int32_t*);
  void (*join)(const float*, const int32_t*, int64_t, float*, int32_t*);
};
// best[e], where[e] <- p[e * step] and its place, at + e * apart, where that is better.
#define FRAMEJIT_TAKE(NAME, TARGET)                                                                            \
  TARGET void NAME##Strided(const float* __restrict p, int64_t step, int64_t count, int32_t at, int32_t apart, \
                            float* __restrict best, int32_t* __restrict where) {                               \
    for (int64_t e = 0; e < count; ++e) {                                                                      \
      const float v = p[e * step];                                                                             \
      const bool better = (v > best[e]) | (v != v);                                                            \
      best[e] = better ? v : best[e];                                                                          \
      where[e] = better ? at + static_cast<int32_t>(e) * apart : where[e];                                     \
    }                                                                                                          \
  }                                                                                                            \
  TARGET void NAME##Pairs(const float* __restrict p, int64_t count, int32_t at, float* __restrict best,        \
                          int32_t* __restrict where) {                                                         \
    for (int64_t e = 0; e < count; ++e) {                                                                      \
      const float v = p[2 * e];                                                                                \
      const bool better = (v > best[e]) | (v != v);                                                            \
      best[e] = better ? v : best[e];                                                                          \
      where[e] = better ? at + static_cast<int32_t>(e) * 2 : where[e];                                         \
    }                                                                                                          \
  }                                                                                                            \
  TARGET void NAME##Join(const float* __restrict v, const int32_t* __restrict place, int64_t count,            \
                         float* __restrict best, int32_t* __restrict where) {                                  \
    for (int64_t e = 0; e < count; ++e) {                                                                      \
      const bool better = (v[e] > best[e]) | (v[e] != v[e]);                                                   \
      best[e] = better ? v[e] : best[e];                                                                       \
      where[e] = better ? place[e] : where[e];                                                                 \
    }                                                                                                          \
  }                                                                                                            \
  constexpr IsaFunctions k##NAME = {NAME##Strided, NAME##Pairs, NAME##Join};

#pragma GCC push_options
#pragma GCC optimize("O3")
FRAMEJIT_TAKE(Baseline, )
#if defined(__x86_64__)
FRAMEJIT_TAKE(Avx2, __attribute__((target("avx2"))))
FRAMEJIT_TAKE(Avx512, __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,prefer-vector-width=512"))))
#endif
#pragma GCC pop_options
#undef FRAMEJIT_TAKE

const IsaFunctions& ThisIsa() {
  static const IsaFunctions* functions = [] {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw"))
      return &kAvx512;
    if (__builtin_cpu_supports("avx2")) return &kAvx2;
#endif
    return &kBaseline;
  }();
  return *functions;
}

struct Pool {
  const Buffer* x;
  PoolWindow window;
  const Buffer *grad, *out;  // out: the maxima where grad is null, else the gradient of x
  int64_t oh, ow;

  // Along row y of a plane: by window, the best that it sees and where that is.
  void Across(const float* row, int64_t y, float* best, int32_t* where) const {
    const int64_t width = x->sizes[3], stride = window.stride[1];
    for (int64_t k = 0; k < ow; ++k) {
      int64_t first = k * stride - window.padding[1];
      if (first < 0) first += (-first + window.dilation[1] - 1) / window.dilation[1] * window.dilation[1];
      best[k] = -std::numeric_limits<float>::infinity();
      where[k] = static_cast<int32_t>(y * width + first);
    }
    for (int64_t j = 0; j < window.kernel[1]; ++j) {
      const int64_t right = j * window.dilation[1] - window.padding[1];
      const int64_t from = right < 0 ? (-right + stride - 1) / stride : 0;
      const int64_t to = right < width ? std::min(ow, (width - 1 - right) / stride + 1) : 0;
      const int64_t column = from * stride + right;
      if (to <= from) continue;
      const auto at = static_cast<int32_t>(y * width + column);
      if (stride == 2 && x->strides[3] == 1)
        ThisIsa().pairs(row + column, to - from, at, best + from, where + from);
      else
        ThisIsa().strided(row + column * x->strides[3], stride * x->strides[3], to - from, at,
                          static_cast<int32_t>(stride), best + from, where + from);
    }
  }

  void Run(int64_t begin, int64_t end) const {
    const int64_t height = x->sizes[2], width = x->sizes[3];
    std::vector<float> across(height * ow), best(ow);
    std::vector<int32_t> places(height * ow), where(ow);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t n = task / x->sizes[1], c = task % x->sizes[1];
      const auto* plane = static_cast<const float*>(x->data) + n * x->strides[0] + c * x->strides[1];
      for (int64_t y = 0; y < height; ++y)
        Across(plane + y * x->strides[2], y, across.data() + y * ow, places.data() + y * ow);
      auto* to = static_cast<float*>(out->data) + task * (grad ? height * width : oh * ow);
      if (grad) std::fill_n(to, height * width, 0.0f);
      for (int64_t k = 0; k < oh; ++k) {
        bool any = false;
        for (int64_t i = 0; i < window.kernel[0]; ++i) {
          const int64_t y = k * window.stride[0] - window.padding[0] + i * window.dilation[0];
          if (y < 0 || y >= height) continue;
          if (any) {
            ThisIsa().join(across.data() + y * ow, places.data() + y * ow, ow, best.data(), where.data());
          } else {
            std::memcpy(best.data(), across.data() + y * ow, ow * sizeof(float));
            std::memcpy(where.data(), places.data() + y * ow, ow * sizeof(int32_t));
          }
          any = true;
        }
        if (!grad) {
          std::memcpy(to + k * ow, best.data(), ow * sizeof(float));
          continue;
        }
        const auto* g =
            static_cast<const float*>(grad->data) + n * grad->strides[0] + c * grad->strides[1] + k * grad->strides[2];
        for (int64_t e = 0; e < ow; ++e) to[where[e]] += g[e * grad->strides[3]];
      }
    }
  }
};

void ShareOut(Host& host, const Pool& pool) {
  const int64_t each = pool.x->sizes[2] * pool.ow * pool.window.kernel[1] + pool.oh * pool.ow * pool.window.kernel[0];
  Share(host, pool, pool.x->sizes[0] * pool.x->sizes[1], each, kOperationsPerPiece);
}

}  // namespace

void MaxPool(Host& host, const Buffer& x, const PoolWindow& window, const Buffer& out) {
  Pool pool{&x, window, nullptr, &out, out.sizes[2], out.sizes[3]};
  ShareOut(host, pool);
}

void MaxPoolGradient(Host& host, const Buffer& grad, const Buffer& x, const PoolWindow& window, const Buffer& dx) {
  Pool pool{&x, window, &grad, &dx, grad.sizes[2], grad.sizes[3]};
  ShareOut(host, pool);
}

}  // namespace framejit::runtime
