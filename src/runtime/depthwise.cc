// One task takes one channel, or a few that lie side by side. It lays their planes down row by row with zeros at both
// ends, columns that a stride visits in turn side by side (a phase each), so that what a tap sees along a row of the
// result is one contiguous row. A row of the result is then the sum of as many rows as there are taps; the gradient of
// a weight's element is the product of two planes, added up.
#include "runtime/depthwise.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/share.h"

namespace framejit::runtime {
namespace {

constexpr int kMostTaps = 8;                      // of one pass over a plane
constexpr int kMostLanes = 16;                    // of any vector; so many channels at most are taken together
constexpr int64_t kOperationsPerPiece = 1 << 18;  // of one thread

// Computes out[k] = start + the sum of weights[t] * from[t][k] for k < width and a few more, for all rows.
struct Sums {
  const float* const* from;
  const float* weights;
  int taps;
  float start;
  int64_t width, rows, from_step, out_step;
  float* out;
};
struct Products {  // sums[t][lane] += the sum over all k < width of all rows of grad[k] * from[t][k]
  const float* grad;
  const float* const* from;
  int64_t width, rows, grad_step, from_step;
  float* sums;
};

// These are the inner loops, compiled for one set of vector instructions. ThisIsa() has those for the best set of this
// machine.
struct IsaFunctions {
  void (*sum)(const Sums&);
  void (*split)(const float*, int64_t, float*, float*);
  void (*weave)(const float*, const float*, int64_t, float*);
  void (*products[kMostTaps + 1])(const Products&);
};
constexpr float kPlaces[kMostLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

#define FRAMEJIT_AT(p) (*reinterpret_cast<const V*>(p))
#define FRAMEJIT_ROWS(BYTES, TARGET)                                                                                \
  typedef float Vector##BYTES __attribute__((vector_size(BYTES), aligned(4), may_alias));                           \
  TARGET void Sum##BYTES(const Sums& s) {                                                                           \
    typedef Vector##BYTES V;                                                                                        \
    constexpr int64_t n = BYTES / 4;                                                                                \
    for (int64_t y = 0; y < s.rows; ++y) {                                                                          \
      const int64_t row = y * s.from_step;                                                                          \
      float* out = s.out + y * s.out_step;                                                                          \
      int64_t k = 0;                                                                                                \
      for (; k + 3 * n < s.width; k += 4 * n) {                                                                     \
        V a = V{} + s.start, b = a, c = a, d = a;                                                                   \
        for (int t = 0; t < s.taps; ++t) {                                                                          \
          const float* p = s.from[t] + row + k;                                                                     \
          const V w = V{} + s.weights[t];                                                                           \
          a += w * FRAMEJIT_AT(p);                                                                                  \
          b += w * FRAMEJIT_AT(p + n);                                                                              \
          c += w * FRAMEJIT_AT(p + 2 * n);                                                                          \
          d += w * FRAMEJIT_AT(p + 3 * n);                                                                          \
        }                                                                                                           \
        V* to = reinterpret_cast<V*>(out + k);                                                                      \
        to[0] = a, to[1] = b, to[2] = c, to[3] = d;                                                                 \
      }                                                                                                             \
      for (; k < s.width; k += n) {                                                                                 \
        V a = V{} + s.start, b = {};                                                                                \
        int t = 0;                                                                                                  \
        for (; t + 1 < s.taps; t += 2) {                                                                            \
          a += s.weights[t] * FRAMEJIT_AT(s.from[t] + row + k);                                                     \
          b += s.weights[t + 1] * FRAMEJIT_AT(s.from[t + 1] + row + k);                                             \
        }                                                                                                           \
        if (t < s.taps) a += s.weights[t] * FRAMEJIT_AT(s.from[t] + row + k);                                       \
        *reinterpret_cast<V*>(out + k) = a + b;                                                                     \
      }                                                                                                             \
    }                                                                                                               \
  }                                                                                                                 \
  template <int kTaps>                                                                                              \
  TARGET void Products##BYTES(const Products& p) {                                                                  \
    typedef Vector##BYTES V;                                                                                        \
    constexpr int n = BYTES / 4;                                                                                    \
    V sums[kTaps] = {};                                                                                             \
    const int64_t whole = p.width / n * n;                                                                          \
    const auto inside = FRAMEJIT_AT(kPlaces) < V{} + static_cast<float>(p.width - whole);                           \
    for (int64_t y = 0; y < p.rows; ++y) {                                                                          \
      const float* grad = p.grad + y * p.grad_step;                                                                 \
      const int64_t row = y * p.from_step;                                                                          \
      for (int64_t k = 0; k < whole; k += n) {                                                                      \
        const V g = FRAMEJIT_AT(grad + k);                                                                          \
        _Pragma("GCC unroll 8") for (int t = 0; t < kTaps; ++t) sums[t] += g * FRAMEJIT_AT(p.from[t] + row + k);    \
      }                                                                                                             \
      if (whole == p.width) continue;                                                                               \
      const V g = FRAMEJIT_AT(grad + whole);                                                                        \
      _Pragma("GCC unroll 8") for (int t = 0; t < kTaps; ++t) sums[t] +=                                            \
          inside ? g * FRAMEJIT_AT(p.from[t] + row + whole) : V{};                                                  \
    }                                                                                                               \
    for (int t = 0; t < kTaps; ++t) *reinterpret_cast<V*>(p.sums + t * kMostLanes) += sums[t];                      \
  }                                                                                                                 \
  TARGET void Split##BYTES(const float* p, int64_t count, float* even, float* odd) {                                \
    for (int64_t e = 0; e < count; ++e) even[e] = p[2 * e], odd[e] = p[2 * e + 1];                                  \
  }                                                                                                                 \
  TARGET void Weave##BYTES(const float* even, const float* odd, int64_t count, float* p) {                          \
    for (int64_t e = 0; e < count; ++e) p[2 * e] = even[e], p[2 * e + 1] = odd[e];                                  \
  }                                                                                                                 \
  constexpr IsaFunctions kFunctions##BYTES = {                                                                      \
      Sum##BYTES,                                                                                                   \
      Split##BYTES,                                                                                                 \
      Weave##BYTES,                                                                                                 \
      {nullptr, Products##BYTES<1>, Products##BYTES<2>, Products##BYTES<3>, Products##BYTES<4>, Products##BYTES<5>, \
       Products##BYTES<6>, Products##BYTES<7>, Products##BYTES<8>}};

#pragma GCC push_options
#pragma GCC optimize("O3")
FRAMEJIT_ROWS(16, )
#if defined(__x86_64__)
FRAMEJIT_ROWS(32, __attribute__((target("avx2,fma"))))
FRAMEJIT_ROWS(64, __attribute__((target("avx512f,avx512vl,prefer-vector-width=512"))))
#endif
#pragma GCC pop_options
#undef FRAMEJIT_ROWS
#undef FRAMEJIT_AT

const IsaFunctions& ThisIsa() {
  static const IsaFunctions* functions = [] {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) return &kFunctions64;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &kFunctions32;
#endif
    return &kFunctions16;
  }();
  return *functions;
}

int64_t FloorDiv(int64_t a, int64_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

// Channels that one task takes: where they lie side by side, their rows are read together.
int64_t Together(const Buffer& b) {
  return b.strides[3] != 1 && b.strides[1] == 1 ? kMostLanes : 1;
}

// Lays out the planes of some channels. Entry e of a row of phase p is column `step` * (e + first) + p, and what lies
// outside is 0.
class Planes {
 public:
  Planes(const Buffer& b, int64_t step, int64_t first, int64_t entries, int64_t channels)
      : b_(b),
        step_(step),
        first_(first),
        entries_(entries),
        length_((entries + 2 * kMostLanes - 1) / kMostLanes * kMostLanes),
        data_(channels * step * b.sizes[2] * length_) {}

  int64_t length() const { return length_; }
  const float* Row(int64_t channel, int64_t y) const {  // of phase 0
    return data_.data() + (channel * step_ * b_.sizes[2] + y) * length_;
  }
  // What lies `columns` to the right of a row's column `step` * k, for all k, seen from Row.
  int64_t Right(int64_t columns) const {
    const int64_t at = FloorDiv(columns, step_);
    return (columns - at * step_) * b_.sizes[2] * length_ + at - first_;
  }

  void Lay(int64_t n, int64_t c, int64_t channels) {
    const auto* plane = static_cast<const float*>(b_.data) + n * b_.strides[0] + c * b_.strides[1];
    const int64_t apart = step_ * b_.sizes[2] * length_, across = b_.strides[3];
    if (Together(b_) > 1) {  // a line of memory holds all channels, and stays in the cache for one row of all
      for (int64_t y = 0; y < b_.sizes[2]; ++y) {
        for (int64_t k = 0; k < channels; ++k)
          LayRow(plane + y * b_.strides[2] + k, across, y, data_.data() + k * apart);
      }
      return;
    }
    for (int64_t k = 0; k < channels; ++k) {
      for (int64_t y = 0; y < b_.sizes[2]; ++y)
        LayRow(plane + k * b_.strides[1] + y * b_.strides[2], across, y, data_.data() + k * apart);
    }
  }

 private:
  void LayRow(const float* p, int64_t across, int64_t y, float* to) {
    const int64_t columns = b_.sizes[3], from = std::max<int64_t>(0, -first_), phase = b_.sizes[2] * length_;
    const int64_t column = (from + first_) * step_;
    to += y * length_ + from;
    p += column * across;
    auto count = [&](int64_t q) {
      return std::max<int64_t>(0, std::min(entries_ - from, FloorDiv(columns - column - q + step_ - 1, step_)));
    };
    if (step_ == 1 && across == 1) {
      std::memcpy(to, p, count(0) * sizeof(float));
    } else if (step_ == 2 && across == 1) {
      ThisIsa().split(p, count(1), to, to + phase);
      if (count(1) < count(0)) to[count(1)] = p[2 * count(1)];
    } else {
      for (int64_t q = 0; q < step_; ++q) {
        const int64_t entries = count(q), each = step_ * across;
        for (int64_t e = 0; e < entries; ++e) to[q * phase + e] = p[e * each + q * across];
      }
    }
  }

  const Buffer& b_;
  const int64_t step_, first_, entries_, length_;
  std::vector<float> data_;
};

struct Conv {
  const Buffer *x, *w, *bias;
  DepthwiseWindow window;
  bool transposed;
  Buffer* out;
  int64_t together;

  int64_t Phases() const { return transposed ? window.stride[1] : 1; }  // of the result
  // The row of x that the window's row i sees from the result's row y, or -1.
  int64_t Seen(int64_t y, int64_t i) const {
    int64_t at = y * window.stride[0] - window.padding[0] + i * window.dilation[0];
    if (transposed) {
      at = y + window.padding[0] - i * window.dilation[0];
      if (at % window.stride[0]) return -1;
      at /= window.stride[0];
    }
    return at >= 0 && at < x->sizes[2] ? at : -1;
  }

  void Run(int64_t begin, int64_t end) const {
    const int64_t kh = w->sizes[2], kw = w->sizes[3], blocks = (out->sizes[1] + together - 1) / together;
    const int64_t oh = out->sizes[2], phases = Phases(), width = (out->sizes[3] + phases - 1) / phases;
    const int64_t step = transposed ? 1 : window.stride[1], repeat = transposed ? window.stride[0] : 1;
    const int64_t down = transposed ? 1 : window.stride[0];  // in x, for `repeat` rows of the result
    // By phase of the result: which of a window's columns see something there, and how far to the right.
    std::vector<std::vector<std::pair<int64_t, int64_t>>> seen_by(phases);
    int64_t least = 0, most = 0;
    for (int64_t q = 0; q < phases; ++q) {
      for (int64_t j = 0; j < kw; ++j) {
        int64_t right = j * window.dilation[1] - window.padding[1];
        if (transposed) {
          right = q - right;
          if (right % phases) continue;
          right /= phases;
        }
        seen_by[q].emplace_back(j, right);
        least = std::min(least, FloorDiv(right, step));
        most = std::max(most, FloorDiv(right, step));
      }
    }
    Planes planes(*x, step, least, width + most - least, together);
    for (auto& seen : seen_by)
      for (auto& [j, right] : seen) right = planes.Right(right);
    // Rows of the result, `repeat` apart, that the same rows of the window see.
    struct Run {
      int64_t y, rows;
      std::vector<std::pair<int64_t, int64_t>> seen;  // row of the window, of x
    };
    std::vector<Run> runs;
    for (int64_t y0 = 0; y0 < std::min(repeat, oh); ++y0) {
      for (int64_t y = y0; y < oh; y += repeat) {
        std::vector<std::pair<int64_t, int64_t>> seen;
        for (int64_t i = 0; i < kh; ++i)
          if (const int64_t at = Seen(y, i); at >= 0) seen.emplace_back(i, at);
        bool same = y > y0 && seen.size() == runs.back().seen.size();
        for (size_t i = 0; same && i < seen.size(); ++i) same = seen[i].first == runs.back().seen[i].first;
        if (same)
          ++runs.back().rows;
        else
          runs.push_back({y, 1, std::move(seen)});
      }
    }
    const int64_t out_length = (width + 2 * kMostLanes - 1) / kMostLanes * kMostLanes;
    std::vector<float> rows(phases * oh * out_length), filter(kh * kw), weights(kh * kw);
    std::vector<const float*> from(kh * kw);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t n = task / blocks, c = task % blocks * together, channels = std::min(together, out->sizes[1] - c);
      planes.Lay(n, c, channels);
      for (int64_t k = 0; k < channels; ++k) {
        const float* f = static_cast<const float*>(w->data) + (c + k) * w->strides[0];
        for (int64_t i = 0; i < kh; ++i)
          for (int64_t j = 0; j < kw; ++j) filter[i * kw + j] = f[i * w->strides[2] + j * w->strides[3]];
        const float start = bias ? static_cast<const float*>(bias->data)[(c + k) * bias->strides[0]] : 0.0f;
        for (const Run& run : runs) {
          for (int64_t q = 0; q < phases; ++q) {
            int taps = 0;
            for (const auto& [i, y] : run.seen) {
              for (const auto& [j, right] : seen_by[q]) {
                from[taps] = planes.Row(k, y) + right;
                weights[taps++] = filter[i * kw + j];
              }
            }
            ThisIsa().sum({from.data(), weights.data(), taps, start, width, run.rows, down * planes.length(),
                           repeat * out_length, rows.data() + (q * oh + run.y) * out_length});
          }
        }
        float* plane = static_cast<float*>(out->data) + n * out->strides[0] + (c + k) * out->strides[1];
        for (int64_t y = 0; y < oh; ++y)
          Store(rows.data() + y * out_length, oh * out_length, plane + y * out->strides[2]);
      }
    }
  }

  void Store(const float* row, int64_t phase, float* to) const {
    const int64_t ow = out->sizes[3], step = Phases(), across = out->strides[3];
    if (step == 1 && across == 1) {
      std::memcpy(to, row, ow * sizeof(float));
    } else if (step == 2 && across == 1) {
      ThisIsa().weave(row, row + phase, ow / 2, to);
      if (ow % 2) to[ow - 1] = row[ow / 2];
    } else {
      for (int64_t q = 0; q < step; ++q) {
        for (int64_t k = 0; k * step + q < ow; ++k) to[(k * step + q) * across] = row[q * phase + k];
      }
    }
  }
};

struct WeightGradient {
  const Buffer *grad, *x;
  DepthwiseWindow window;
  int64_t kernel[2];
  float *weight, *bias;
  int64_t together;

  void Run(int64_t begin, int64_t end) const {
    const int64_t kh = kernel[0], kw = kernel[1], oh = grad->sizes[2], ow = grad->sizes[3], stride = window.stride[1];
    const int64_t least = FloorDiv(-window.padding[1], stride);
    const int64_t most = FloorDiv((kw - 1) * window.dilation[1] - window.padding[1], stride);
    Planes xs(*x, stride, least, ow + std::max<int64_t>(0, most) - least, together), grads(*grad, 1, 0, ow, together);
    const int64_t size = (kh * kw + 1) * kMostLanes;
    std::vector<float> sums(together * size);
    const std::vector<float> one(ow + kMostLanes, 1.0f);
    std::vector<int64_t> right(kw);
    for (int64_t j = 0; j < kw; ++j) right[j] = xs.Right(j * window.dilation[1] - window.padding[1]);
    const float* from[kMostTaps];
    for (int64_t block = begin; block < end; ++block) {
      const int64_t c = block * together, channels = std::min(together, grad->sizes[1] - c);
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (int64_t n = 0; n < grad->sizes[0]; ++n) {
        xs.Lay(n, c, channels);
        grads.Lay(n, c, channels);
        for (int64_t k = 0; k < channels; ++k) {
          float* sum = sums.data() + k * size;
          const int64_t length = grads.length();
          for (int64_t i = 0; i < kh; ++i) {
            // Rows of the gradient from which this row of the window sees more than zeros.
            const int64_t up = window.padding[0] - i * window.dilation[0], step = window.stride[0];
            const int64_t y = std::max<int64_t>(0, FloorDiv(up + step - 1, step));
            const int64_t rows = std::min(oh, FloorDiv(x->sizes[2] - 1 + up, step) + 1) - y;
            if (rows <= 0) continue;
            for (int64_t j = 0; j < kw; j += kMostTaps) {
              const int64_t taps = std::min<int64_t>(kMostTaps, kw - j);
              for (int64_t t = 0; t < taps; ++t) from[t] = xs.Row(k, y * step - up) + right[j + t];
              ThisIsa().products[taps](
                  {grads.Row(k, y), from, ow, rows, length, step * xs.length(), sum + (i * kw + j) * kMostLanes});
            }
          }
          if (!bias) continue;
          from[0] = one.data();
          ThisIsa().products[1]({grads.Row(k, 0), from, ow, oh, length, 0, sum + kh * kw * kMostLanes});
        }
      }
      for (int64_t k = 0; k < channels; ++k) {
        float* sum = sums.data() + k * size;
        for (int64_t t = 0; t <= kh * kw; ++t, sum += kMostLanes) {
          for (int half = kMostLanes / 2; half > 0; half /= 2)
            for (int lane = 0; lane < half; ++lane) sum[lane] += sum[lane + half];
          if (t < kh * kw)
            weight[(c + k) * kh * kw + t] = sum[0];
          else if (bias)
            bias[c + k] = sum[0];
        }
      }
    }
  }
};

}  // namespace

bool DepthwiseConv(Host& host, const Buffer& x, const Buffer& w, const Buffer* bias, const Attrs& attrs, Buffer& out) {
  if (x.rank != 4 || !w.data || !out.data) return false;
  if (x.dtype != DType::kFloat32 || w.dtype != x.dtype || out.dtype != x.dtype) return false;
  const int64_t channels = x.sizes[1], *p = attrs.axes.data();
  if (p[8] != channels || channels < 2 || w.sizes[0] != channels || w.sizes[1] != 1 || out.sizes[1] != channels)
    return false;
  Conv c{&x, &w, bias, {{p[0], p[1]}, {p[2], p[3]}, {p[4], p[5]}}, attrs.flag, &out, Together(x)};
  const int64_t blocks = (channels + c.together - 1) / c.together;
  const int64_t each = out.sizes[2] * out.sizes[3] * w.sizes[2] * w.sizes[3] * c.together;
  Share(host, c, out.sizes[0] * blocks, each, kOperationsPerPiece);
  return true;
}

void DepthwiseWeightGradient(Host& host, const Buffer& grad, const Buffer& x, const DepthwiseWindow& window,
                             const Buffer& weight, float* bias) {
  WeightGradient w{&grad,
                   &x,
                   window,
                   {weight.sizes[2], weight.sizes[3]},
                   static_cast<float*>(weight.data),
                   bias,
                   std::max(Together(grad), Together(x))};
  const int64_t blocks = (grad.sizes[1] + w.together - 1) / w.together;
  Share(host, w, blocks, grad.sizes[0] * grad.sizes[2] * grad.sizes[3] * w.kernel[0] * w.kernel[1] * w.together,
        kOperationsPerPiece);
}

}  // namespace framejit::runtime
