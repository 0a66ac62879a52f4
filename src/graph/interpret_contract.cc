// This file computes contractions as plain loops. Floats accumulate in double and round once, integers wrap, and bool
// is an or of ands.
#include <algorithm>
#include <array>
#include <cmath>

#include "graph/interpret.h"

namespace framejit::interpret {
namespace {

template <class C>
using Acc = std::conditional_t<std::is_floating_point_v<C>, double,
                               std::conditional_t<std::is_same_v<C, bool>, bool, uint64_t>>;

template <class A>
void MulAdd(A& sum, A a, A b) {
  if constexpr (std::is_same_v<A, bool>) {
    sum = sum || (a && b);
  } else {
    sum += a * b;
  }
}

template <class F>
HostTensor ByDType(DType t, F f) {  // f(A{}) with the accumulation type
  return Visit(t, [&](auto tag) { return f(Acc<ComputeOf<decltype(tag)>>{}); });
}

HostTensor MatMul(const HostTensor& a, const HostTensor& b) {
  size_t rank = a.sizes.size();
  int64_t m = a.sizes[rank - 2], k = a.sizes[rank - 1], n = b.sizes[rank - 1];
  Sizes sizes = a.sizes;
  sizes[rank - 1] = n;
  int64_t batch = Count(Sizes(sizes.begin(), sizes.end() - 2));
  return ByDType(a.dtype, [&](auto tag) {
    using A = decltype(tag);
    auto x = LoadAll<A>(a), y = LoadAll<A>(b);
    Lanes<A> out(Count(sizes));
    for (int64_t g = 0; g < batch; ++g)
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          A sum = 0;
          for (int64_t p = 0; p < k; ++p) MulAdd<A>(sum, x[(g * m + i) * k + p], y[(g * k + p) * n + j]);
          out[(g * m + i) * n + j] = sum;
        }
    return StoreAll(a.dtype, sizes, out);
  });
}

template <class A>
A Then(const std::string& function, A x) {
  if (function == "relu") return x < A(0) ? A(0) : x;
  if (function != "gelu") return x;
  const auto d = static_cast<double>(x);
  return static_cast<A>(0.5 * d * (1 + std::tanh(0.7978845608028654 * (d + 0.044715 * d * d * d))));
}

HostTensor Linear(const Node& node, const std::vector<HostTensor>& in) {
  Sizes sizes = in[0].sizes;
  int64_t k = sizes.back(), n = in[1].sizes[0];
  sizes.back() = n;
  int64_t m = Count(Sizes(sizes.begin(), sizes.end() - 1));
  return ByDType(in[0].dtype, [&](auto tag) {
    using A = decltype(tag);
    auto x = LoadAll<A>(in[0]), w = LoadAll<A>(in[1]);
    auto bias = in.size() > (node.attrs.name == "packed" ? 3 : 2) ? LoadAll<A>(in[2]) : Lanes<A>(n);
    Lanes<A> out(m * n);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        A sum = bias[j];
        for (int64_t p = 0; p < k; ++p) MulAdd<A>(sum, x[i * k + p], w[j * k + p]);
        out[i * n + j] = Then(node.attrs.name, sum);
      }
    return StoreAll(in[0].dtype, sizes, out);
  });
}

// Calls `f` with every spatial position of `sizes`, in row-major order.
template <class F>
void ForEachPosition(const Sizes& sizes, F f) {
  Sizes at(sizes.size());
  for (int64_t k = 0, n = Count(sizes); k < n; ++k) {
    f(at);
    for (int d = static_cast<int>(at.size()) - 1; d >= 0 && ++at[d] == sizes[d]; --d) at[d] = 0;
  }
}

int64_t Flat(const Sizes& at, const Sizes& sizes) {
  int64_t k = 0;
  for (size_t d = 0; d < at.size(); ++d) k = k * sizes[d] + at[d];
  return k;
}

// Convolution scatters every product to where it belongs: out[o] += x[i] * w[k] for the pairs that meet,
//   forward: i = o*stride - padding + k*dilation,   transposed: o = i*stride - padding + k*dilation.
HostTensor Conv(const Node& node, const std::vector<HostTensor>& in) {
  int n = static_cast<int>(in[0].sizes.size()) - 2;
  const std::vector<int64_t>& axes = node.attrs.axes;
  auto stride = [&](int d) { return axes[d]; };
  auto padding = [&](int d) { return axes[n + d]; };
  auto dilation = [&](int d) { return axes[2 * n + d]; };
  bool transposed = node.attrs.flag;
  int64_t groups = axes[4 * n], batch = in[0].sizes[0];
  int64_t in_channels = in[0].sizes[1] / groups, out_channels = in[1].sizes[transposed ? 1 : 0];
  if (!transposed) out_channels /= groups;
  Sizes xs(in[0].sizes.begin() + 2, in[0].sizes.end()), ks(in[1].sizes.begin() + 2, in[1].sizes.end()), os(n);
  for (int d = 0; d < n; ++d) {
    int64_t reach = dilation(d) * (ks[d] - 1);
    os[d] = transposed ? (xs[d] - 1) * stride(d) - 2 * padding(d) + reach + axes[3 * n + d] + 1
                       : (xs[d] + 2 * padding(d) - reach - 1) / stride(d) + 1;
  }
  Sizes sizes{batch, out_channels * groups};
  sizes.insert(sizes.end(), os.begin(), os.end());
  int64_t x_plane = Count(xs), k_plane = Count(ks), o_plane = Count(os);
  return ByDType(in[0].dtype, [&](auto tag) {
    using A = decltype(tag);
    auto x = LoadAll<A>(in[0]), w = LoadAll<A>(in[1]);
    Lanes<A> out(Count(sizes));
    if (in.size() > 2) {
      auto bias = LoadAll<A>(in[2]);
      for (size_t k = 0; k < out.size(); ++k) out[k] = bias[k / o_plane % (out_channels * groups)];
    }
    auto contribute = [&](int64_t ip, int64_t kp, int64_t op) {
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t g = 0; g < groups; ++g)
          for (int64_t o = 0; o < out_channels; ++o)
            for (int64_t i = 0; i < in_channels; ++i) {
              int64_t from = (b * groups + g) * in_channels + i, to = (b * groups + g) * out_channels + o;
              int64_t weight =
                  transposed ? (g * in_channels + i) * out_channels + o : (g * out_channels + o) * in_channels + i;
              A sum = out[to * o_plane + op];
              MulAdd<A>(sum, x[from * x_plane + ip], w[weight * k_plane + kp]);
              out[to * o_plane + op] = sum;
            }
    };
    const Sizes &outer = transposed ? xs : os, &inner = transposed ? os : xs;  // we walk `outer`, meet `inner`
    ForEachPosition(outer, [&](const Sizes& p) {
      ForEachPosition(ks, [&](const Sizes& k) {
        Sizes q(n);
        for (int d = 0; d < n; ++d) {
          q[d] = p[d] * stride(d) - padding(d) + k[d] * dilation(d);
          if (q[d] < 0 || q[d] >= inner[d]) return;
        }
        int64_t pf = Flat(p, outer), qf = Flat(q, inner);
        contribute(transposed ? pf : qf, Flat(k, ks), transposed ? qf : pf);
      });
    });
    return StoreAll(in[0].dtype, sizes, out);
  });
}

HostTensor Attention(const Node& n, const std::vector<HostTensor>& in) {
  int64_t heads = in[0].sizes[0] * in[0].sizes[1], length = in[0].sizes[2], width = in[0].sizes[3];
  int64_t keys = in[1].sizes[2], out_width = in[2].sizes[3];
  Lanes<double> q = LoadAll<double>(in[0]), k = LoadAll<double>(in[1]), v = LoadAll<double>(in[2]), mask;
  Sizes scores{in[0].sizes[0], in[0].sizes[1], length, keys};
  if (in.size() > 3) {
    HostTensor m = in[3];
    for (int d = 0; d < 4; ++d)
      if (m.sizes[d] == 1) m.strides[d] = 0;
    m.sizes = scores;
    mask = LoadAll<double>(m);
  }
  double scale = n.attrs.scalar.AsDouble(), minus_infinity = -std::numeric_limits<double>::infinity();
  std::vector<double> out(heads * length * out_width), row(keys);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < length; ++i) {
      double top = minus_infinity, sum = 0;
      bool visible = false;
      for (int64_t j = 0; j < keys; ++j) {
        double s = 0;
        for (int64_t e = 0; e < width; ++e) s += q[(h * length + i) * width + e] * k[(h * keys + j) * width + e];
        s *= scale;
        if (!mask.empty()) s += mask[(h * length + i) * keys + j];
        if (n.attrs.flag && j > i) s = minus_infinity;
        row[j] = s;
        visible |= s != minus_infinity;
        if (s > top) top = s;
      }
      if (!visible) continue;  // The row sees no key, so its result stays zero.
      for (double& s : row) sum += s = std::exp(s - top);
      for (int64_t j = 0; j < keys; ++j)
        for (int64_t e = 0; e < out_width; ++e)
          out[(h * length + i) * out_width + e] += row[j] / sum * v[(h * keys + j) * out_width + e];
    }
  }
  return StoreAll(in[0].dtype, {in[0].sizes[0], in[0].sizes[1], length, out_width}, out);
}

}  // namespace

HostTensor Contract(const Node& n, const std::vector<HostTensor>& in) {
  switch (n.op) {
    case Op::kMatMul: return MatMul(in[0], in[1]);
    case Op::kLinear: return Linear(n, in);
    case Op::kConv: return Conv(n, in);
    case Op::kPack: return in[0];
    default: return Attention(n, in);
  }
}

}  // namespace framejit::interpret
