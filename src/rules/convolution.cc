#include "rules/convolution.h"

#include <algorithm>

#include "graph/device.h"

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

// Two-dimensional, of float32 that lies row by row where our own code runs, with a plain weight.
bool Plain(const Graph& g, const Node& conv) {
  if (conv.op != Op::kConv || conv.type.rank() != 4 || conv.type.dtype != DType::kFloat32) return false;
  const Node& w = g.nodes[conv.operands[1]];
  return TraitsOf(conv.type.device).host_code && w.op != Op::kPack && RowMajor(g.nodes[conv.operands[0]]) &&
         RowMajor(conv);
}

}  // namespace

bool IsDepthwise(const Graph& g, const Node& conv) {
  if (conv.op != Op::kConv || conv.type.rank() != 4) return false;
  const shape::IntList x = g.nodes[conv.operands[0]].type.shape, w = g.nodes[conv.operands[1]].type.shape;
  const Int channels(conv.attrs.axes[8]);
  return channels.value() > 1 && x[1] == channels && w[0] == channels && w[1] == Int(1) && w[2].is_const() &&
         w[3].is_const();
}

bool IsHostDepthwise(const Graph& g, const Node& conv) {
  return IsDepthwise(g, conv) && Plain(g, conv);
}

bool IsProduct(const Graph& g, const Node& conv) {
  const int64_t* p = conv.attrs.axes.data();
  if (!Plain(g, conv) || conv.attrs.flag || p[8] != 1 || p[2] != 0 || p[3] != 0) return false;
  const shape::IntList x = g.nodes[conv.operands[0]].type.shape, w = g.nodes[conv.operands[1]].type.shape;
  for (const shape::IntList sizes : {x, w, conv.type.shape}) {
    if (std::any_of(sizes.begin(), sizes.end(), [](Int d) { return !d.is_const(); })) return false;
  }
  return x[0] == Int(1) && w[2] == Int(1) && w[3] == Int(1);
}

ValueId Pixels(Builder& b, ValueId x, const Ints& out, const Attrs& attrs) {
  for (int d = 0; d < 2; ++d) x = b.Slice(x, 2 + d, 0, out[2 + d], attrs.axes[d]);
  return b.Reshape(x, {b.type(x).shape[1], out[2] * out[3]});
}

ValueId FromPixels(Builder& b, ValueId pixels, const Ints& x, const Ints& out, const Attrs& attrs) {
  const int64_t* stride = attrs.axes.data();
  if (stride[0] * stride[1] == 1) return b.Reshape(pixels, x);
  Attrs apart;  // zeros between the positions: a kernel of ours
  apart.flag = true;
  apart.axes = {stride[0], stride[1], 0, 0, 1, 1, 0, 0, x[1].value()};
  for (int d = 0; d < 2; ++d) apart.axes[6 + d] = x[2 + d].value() - 1 - (out[2 + d].value() - 1) * stride[d];
  const ValueId one = b.Constant(1.0, b.type(pixels).dtype, {x[1], 1, 1, 1});
  return b.Add(Op::kConv, {b.Reshape(pixels, {1, x[1], out[2], out[3]}), one}, apart);
}

}  // namespace framejit::rules
