// One task takes a few channels, side by side in the lanes of a vector. It lays a band of rows of both operands down
// with those channels innermost (so that layouts and borders cost once), then adds up the products of a row of the
// gradient with the rows of x that its taps see: as many sums as taps of one row of the window, in registers. Each
// row's sums are added to those of all rows before, so that errors grow with the sides of a picture, not with its area.
#include "runtime/depthwise.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace framejit::runtime {
namespace {

constexpr int kMostTaps = 8;                      // of one pass over a row
constexpr int64_t kBandBytes = 64 << 10;          // of the gradient: fits the caches with what x needs
constexpr int64_t kOperationsPerPiece = 1 << 18;  // of one thread

struct Pass {
  const float *grad, *x;     // rows of vectors
  int64_t width;             // positions
  int64_t step, tap_stride;  // in x, of the next position and tap: floats
  float* sums;               // by tap
};

// sums[tap][lane] += the sum over a row of grad[position][lane] * x[position * step + tap * tap_stride][lane]
#define FRAMEJIT_TAPS(NAME, BYTES, TARGET)                                                                   \
  template <int kTaps>                                                                                       \
  TARGET void NAME(const Pass& p) {                                                                          \
    typedef float Vector __attribute__((vector_size(BYTES), aligned(4), may_alias));                         \
    constexpr int n = BYTES / 4;                                                                             \
    Vector sums[kTaps] = {};                                                                                 \
    const float* x = p.x;                                                                                    \
    for (int64_t i = 0; i < p.width; ++i, x += p.step) {                                                     \
      const Vector g = *reinterpret_cast<const Vector*>(p.grad + i * n);                                     \
      _Pragma("GCC unroll 8") for (int t = 0; t < kTaps; ++t) sums[t] +=                                     \
          g * *reinterpret_cast<const Vector*>(x + t * p.tap_stride);                                        \
    }                                                                                                        \
    for (int t = 0; t < kTaps; ++t) *reinterpret_cast<Vector*>(p.sums + t * n) += sums[t];                   \
  }                                                                                                          \
  constexpr void (*NAME##ByTaps[kMostTaps + 1])(const Pass&) = {nullptr, NAME<1>, NAME<2>, NAME<3>, NAME<4>, \
                                                                NAME<5>, NAME<6>, NAME<7>, NAME<8>};
FRAMEJIT_TAPS(Taps16, 16, )
#if defined(__x86_64__)
FRAMEJIT_TAPS(Taps32, 32, __attribute__((target("avx2,fma"))))
FRAMEJIT_TAPS(Taps64, 64, __attribute__((target("avx512f"))))
#endif
#undef FRAMEJIT_TAPS

struct Width {
  int lanes = 4;
  void (*const* taps)(const Pass&) = Taps16ByTaps;
};

const Width& ForThisMachine() {
  static const Width width = [] {
    Width w;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
      w = {16, Taps64ByTaps};
    } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      w = {8, Taps32ByTaps};
    }
#endif
    return w;
  }();
  return width;
}

struct Work {
  const Buffer *grad, *x;
  DepthwiseWindow window;
  int64_t kernel[2];
  float *weight, *bias;
  int lanes;
  void (*const* taps)(const Pass&);
};

// Row `y` of picture `n`, channels [c, c + lanes), from column `from` on: `columns` vectors. What lies outside is zero.
void LayRow(const Buffer& b, int lanes, int64_t n, int64_t c, int64_t y, int64_t from, int64_t columns, float* to) {
  const int64_t channels = std::min<int64_t>(lanes, b.sizes[1] - c);
  const int64_t first = std::max<int64_t>(0, -from), last = std::min(columns, b.sizes[3] - from);
  if (y < 0 || y >= b.sizes[2] || first >= last) {
    std::memset(to, 0, columns * lanes * sizeof(float));
    return;
  }
  std::memset(to, 0, first * lanes * sizeof(float));
  std::memset(to + last * lanes, 0, (columns - last) * lanes * sizeof(float));
  const float* p = static_cast<const float*>(b.data) + n * b.strides[0] + c * b.strides[1] + y * b.strides[2] +
                   (from + first) * b.strides[3];
  to += first * lanes;
  if (b.strides[1] == 1 && channels == lanes) {
    for (int64_t i = first; i < last; ++i, p += b.strides[3], to += lanes) std::memcpy(to, p, lanes * sizeof(float));
    return;
  }
  if (channels < lanes) std::memset(to, 0, (last - first) * lanes * sizeof(float));
  for (int64_t k = 0; k < channels; ++k) {
    const float* q = p + k * b.strides[1];
    for (int64_t i = 0; i < last - first; ++i) to[i * lanes + k] = q[i * b.strides[3]];
  }
}

void RunChannels(const Work& w, int64_t c) {
  const int lanes = w.lanes;
  const auto& [stride, padding, dilation] = w.window;
  const int64_t oh = w.grad->sizes[2], ow = w.grad->sizes[3], taps = w.kernel[0] * w.kernel[1];
  const int64_t columns = (ow - 1) * stride[1] + (w.kernel[1] - 1) * dilation[1] + 1;
  const int64_t reach = (w.kernel[0] - 1) * dilation[0] + 1;
  const int64_t band = std::clamp<int64_t>(kBandBytes / (ow * lanes * 4), 1, oh);
  std::vector<float> sums(taps * lanes), total(lanes), grad(band * ow * lanes);
  std::vector<float> x(((band - 1) * stride[0] + reach) * columns * lanes);
  const std::vector<float> one(lanes, 1.0f);
  for (int64_t n = 0; n < w.grad->sizes[0]; ++n) {
    for (int64_t y0 = 0; y0 < oh; y0 += band) {
      const int64_t rows = std::min(band, oh - y0), top = y0 * stride[0] - padding[0];
      for (int64_t y = 0; y < rows; ++y) LayRow(*w.grad, lanes, n, c, y0 + y, 0, ow, grad.data() + y * ow * lanes);
      for (int64_t y = 0; y < (rows - 1) * stride[0] + reach; ++y)
        LayRow(*w.x, lanes, n, c, top + y, -padding[1], columns, x.data() + y * columns * lanes);
      for (int64_t y = 0; y < rows; ++y) {
        Pass p{grad.data() + y * ow * lanes, nullptr, ow, stride[1] * lanes, dilation[1] * lanes, nullptr};
        for (int64_t ky = 0; ky < w.kernel[0]; ++ky) {
          const int64_t seen = top + y * stride[0] + ky * dilation[0];
          if (seen < 0 || seen >= w.x->sizes[2]) continue;  // nothing but zeros
          const float* row = x.data() + (y * stride[0] + ky * dilation[0]) * columns * lanes;
          for (int64_t kx = 0; kx < w.kernel[1]; kx += kMostTaps) {
            p.x = row + kx * dilation[1] * lanes;
            p.sums = sums.data() + (ky * w.kernel[1] + kx) * lanes;
            w.taps[std::min<int64_t>(kMostTaps, w.kernel[1] - kx)](p);
          }
        }
        if (!w.bias) continue;
        p.x = one.data();
        p.step = 0;
        p.sums = total.data();
        w.taps[1](p);
      }
    }
  }
  const int64_t channels = std::min<int64_t>(lanes, w.grad->sizes[1] - c);
  for (int64_t k = 0; k < channels; ++k) {
    for (int64_t t = 0; t < taps; ++t) w.weight[(c + k) * taps + t] = sums[t * lanes + k];
    if (w.bias) w.bias[c + k] = total[k];
  }
}

}  // namespace

void DepthwiseWeightGradient(Host& host, const Buffer& grad, const Buffer& x, const DepthwiseWindow& window,
                             const Buffer& weight, float* bias) {
  const Width& width = ForThisMachine();
  Work w{&grad, &x,          window,    {weight.sizes[2], weight.sizes[3]}, static_cast<float*>(weight.data),
         bias,  width.lanes, width.taps};
  const int64_t blocks = (grad.sizes[1] + width.lanes - 1) / width.lanes;
  const int64_t each =
      grad.sizes[0] * grad.sizes[2] * grad.sizes[3] * w.kernel[0] * w.kernel[1] * width.lanes;  // operations of a block
  auto run = [](void* context, int64_t begin, int64_t end) {
    const Work& w = *static_cast<const Work*>(context);
    for (int64_t b = begin; b < end; ++b) RunChannels(w, b * w.lanes);
  };
  const int64_t grain = std::max<int64_t>(1, kOperationsPerPiece / std::max<int64_t>(1, each));
  if (grain < blocks && host.NumThreads() > 1)
    host.ParallelFor(blocks, grain, run, &w);
  else
    run(&w, 0, blocks);
}

}  // namespace framejit::runtime
