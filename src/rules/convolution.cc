#include "rules/convolution.h"

#include <algorithm>

namespace framejit::rules {
namespace {

using shape::Int;
using shape::Ints;

bool RowMajor(const Node& n) {
  Int s = 1;
  for (size_t d = n.strides.size(); d-- > 0; s = s * n.type.shape[d]) {
    if (!(n.type.shape[d] == Int(1)) && !(n.strides[d] == s)) return false;
  }
  return true;
}

ValueId Padded(Builder& b, ValueId v, Ints around) {
  if (std::all_of(around.begin(), around.end(), [](Int i) { return i == Int(0); })) return v;
  Attrs attrs;
  attrs.scalar = 0;
  attrs.syms = std::move(around);
  return b.Add(Op::kPad, {v}, attrs);
}

// Two-dimensional, of float32 that lies row by row on a CPU, with a plain weight.
bool Plain(const Graph& g, const Node& conv) {
  if (conv.op != Op::kConv || conv.type.rank() != 4 || conv.type.dtype != DType::kFloat32) return false;
  const Node& w = g.nodes[conv.operands[1]];
  return conv.type.device.kind == DeviceKind::kCpu && w.op != Op::kPack && RowMajor(g.nodes[conv.operands[0]]) &&
         RowMajor(conv);
}

}  // namespace

bool IsDepthwise(const Graph& g, const Node& conv) {
  if (conv.op != Op::kConv || conv.type.rank() != 4) return false;
  const Ints &x = g.nodes[conv.operands[0]].type.shape, &w = g.nodes[conv.operands[1]].type.shape;
  const Int channels(conv.attrs.axes[8]);
  return channels.value() > 1 && x[1] == channels && w[0] == channels && w[1] == Int(1) && w[2].is_const() &&
         w[3].is_const();
}

bool IsHostDepthwise(const Graph& g, const Node& conv) {
  return IsDepthwise(g, conv) && Plain(g, conv);
}

bool IsProduct(const Graph& g, const Node& conv) {
  if (!Plain(g, conv) || conv.attrs.flag || conv.attrs.axes[8] != 1) return false;
  const Node &x = g.nodes[conv.operands[0]], &w = g.nodes[conv.operands[1]];
  if (!(x.type.shape[0] == Int(1))) return false;
  for (const Node* n : {&x, &w, &conv}) {
    if (std::any_of(n->type.shape.begin(), n->type.shape.end(), [](Int d) { return !d.is_const(); })) return false;
  }
  const Ints &out = conv.type.shape, &filter = w.type.shape;
  if (filter[2] == Int(1) && filter[3] == Int(1)) return conv.attrs.axes[2] == 0 && conv.attrs.axes[3] == 0;
  return filter[0].value() >= out[2].value() * out[3].value();
}

ValueId Patches(Builder& b, ValueId x, const Ints& w, const Ints& out, const Attrs& attrs) {
  const int64_t *stride = attrs.axes.data(), *padding = stride + 2, *dilation = stride + 4;
  const Int channels = w[1], h = out[2], wide = out[3];
  const ValueId padded = Padded(b, x, {0, 0, 0, 0, padding[0], padding[0], padding[1], padding[1]});
  if (!(w[2] * w[3] == Int(1)) && w[2] == Int(stride[0]) && w[3] == Int(stride[1]) && dilation[0] == 1 &&
      dilation[1] == 1) {  // windows side by side
    const ValueId seen = b.Slice(b.Slice(padded, 2, 0, h * w[2], 1), 3, 0, wide * w[3], 1);
    const ValueId windows = b.Permute(b.Reshape(seen, {channels, h, w[2], wide, w[3]}), {0, 2, 4, 1, 3});
    return b.Reshape(windows, {channels * w[2] * w[3], h * wide});
  }
  std::vector<ValueId> taps;
  for (int64_t i = 0; i < w[2].value(); ++i) {
    const ValueId rows = b.Slice(padded, 2, i * dilation[0], h, stride[0]);
    for (int64_t j = 0; j < w[3].value(); ++j)
      taps.push_back(b.Reshape(b.Slice(rows, 3, j * dilation[1], wide, stride[1]), {channels, 1, h * wide}));
  }
  Attrs along;
  along.axes = {1};
  const ValueId all = taps.size() == 1 ? taps[0] : b.Add(Op::kCat, taps, along);
  return b.Reshape(all, {channels * w[2] * w[3], h * wide});
}

ValueId FromPatches(Builder& b, ValueId patches, const Ints& x, const Ints& w, const Ints& out, const Attrs& attrs) {
  const int64_t *stride = attrs.axes.data(), *padding = stride + 2, *dilation = stride + 4;
  const Int channels = w[1], h = out[2], wide = out[3];
  if (w[2] * w[3] == Int(1) && stride[0] * stride[1] > 1) {  // zeros between the positions: a kernel of ours
    Attrs apart;
    apart.flag = true;
    apart.axes = {stride[0], stride[1], 0, 0, 1, 1, 0, 0, channels.value()};
    for (int d = 0; d < 2; ++d) apart.axes[6 + d] = x[2 + d].value() - 1 - (out[2 + d].value() - 1) * stride[d];
    const ValueId one = b.Constant(1.0, b.type(patches).dtype, {channels, 1, 1, 1});
    return b.Add(Op::kConv, {b.Reshape(patches, {1, channels, h, wide}), one}, apart);
  }
  const ValueId taps = b.Reshape(patches, {channels, w[2], w[3], h, wide});
  ValueId sum = kNoValue;
  for (int64_t i = 0; i < w[2].value(); ++i) {
    for (int64_t j = 0; j < w[3].value(); ++j) {
      ValueId tap = b.Slice(b.Slice(taps, 1, i, 1), 2, j, 1);
      // Zeros between the positions, then to where the tap looked.
      tap =
          Padded(b, b.Reshape(tap, {channels, h, 1, wide, 1}), {0, 0, 0, 0, 0, stride[0] - 1, 0, 0, 0, stride[1] - 1});
      const Int rows = h * Int(stride[0]), columns = wide * Int(stride[1]);
      const Int top = i * dilation[0] - padding[0], left = j * dilation[1] - padding[1];
      tap = Padded(b, b.Reshape(tap, {channels, rows, columns}),
                   {0, 0, top, x[2] - top - rows, left, x[3] - left - columns});
      sum = sum == kNoValue ? tap : b.Binary(Op::kAdd, sum, tap);
    }
  }
  return b.Reshape(sum, x);
}

}  // namespace framejit::rules
