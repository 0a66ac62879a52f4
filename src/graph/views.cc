#include "graph/views.h"

namespace framejit {
namespace {

using shape::Int;
using shape::Ints;

bool IsOne(Int v) {
  return v == Int(1);
}

// Strides of `to` over the storage of (from, strides), both in row-major order. The old dimensions are merged into
// maximal chunks that lie densely (a dimension whose stride is the next one's stride times its size), and every chunk
// must be the product of consecutive new dimensions. Products are compared as canonical expressions, so symbolic sizes
// work.
std::optional<Ints> ReshapeStrides(const Ints& from, const Ints& strides, const Ints& to) {
  struct Chunk {
    Int numel, stride;
  };
  std::vector<Chunk> chunks;  // The innermost one stands first.
  for (size_t i = from.size(); i-- > 0;) {
    if (IsOne(from[i])) continue;
    if (!chunks.empty() && strides[i] == chunks.back().stride * chunks.back().numel) {
      chunks.back().numel = chunks.back().numel * from[i];
    } else {
      chunks.push_back({from[i], strides[i]});
    }
  }
  Ints out(to.size(), Int(1));
  size_t next = to.size();
  for (const Chunk& chunk : chunks) {
    Int covered = 1;
    while (covered != chunk.numel) {
      if (next == 0) return std::nullopt;
      --next;
      out[next] = covered * chunk.stride;
      covered = covered * to[next];
      if (auto c = covered.as_const(), n = chunk.numel.as_const(); c && n && *c > *n) return std::nullopt;
    }
    while (next > 0 && IsOne(to[next - 1]))
      out[--next] = covered * chunk.stride;  // These are the strides that torch's views have.
  }
  while (next > 0)
    if (!IsOne(to[--next])) return std::nullopt;
  return out;
}

}  // namespace

bool SameStrides(std::span<const Int> sizes, std::span<const Int> a, std::span<const Int> b) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!IsOne(sizes[i]) && a[i] != b[i]) return false;
  }
  return true;
}

bool IsRowMajor(std::span<const Int> sizes, std::span<const Int> strides) {
  return SameStrides(sizes, strides, RowMajor(sizes));
}

std::optional<Layout> ViewLayout(const Node& n, const TensorType& operand, const Layout& from) {
  const auto& axes = n.attrs.axes;
  const auto& syms = n.attrs.syms;
  Layout to;
  to.offset = from.offset;
  switch (n.op) {
    case Op::kPermute:
      for (int64_t a : axes) to.strides.push_back(from.strides[a]);
      return to;
    case Op::kBroadcast:
      to.strides.assign(n.type.shape.size(), Int(0));
      for (size_t i = 0; i < axes.size(); ++i) {
        if (operand.shape[i] == n.type.shape[axes[i]])
          to.strides[axes[i]] = from.strides[i];
        else if (!IsOne(operand.shape[i]))
          return std::nullopt;  // They are equal only under a guard, so a kernel decides.
      }
      return to;
    case Op::kSlice: {
      if (auto step = syms[2].as_const(); !step || *step < 0) return std::nullopt;
      to.strides = from.strides;
      to.offset = from.offset + syms[0] * from.strides[axes[0]];
      to.strides[axes[0]] = from.strides[axes[0]] * syms[2];
      return to;
    }
    case Op::kReshape: {
      auto strides = ReshapeStrides(operand.shape, from.strides, n.type.shape);
      if (!strides) return std::nullopt;
      to.strides = std::move(*strides);
      return to;
    }
    default: return std::nullopt;
  }
}

Layout LaidBy(const Graph& g, ValueId v) {
  const Node& n = g.node(v);
  if (Info(n.op).kind == 'V') {
    if (auto layout = ViewLayout(n, g.node(n.operands[0]).type, LaidBy(g, n.operands[0]))) return *std::move(layout);
    return {RowMajor(n.type.shape), 0};
  }
  return {n.strides.empty() ? RowMajor(n.type.shape) : n.strides.list(), 0};
}

}  // namespace framejit
