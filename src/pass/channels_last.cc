#include "pass/channels_last.h"

#include <algorithm>
#include <map>

#include "graph/rewrite.h"
#include "graph/views.h"
#include "loop/depthwise.h"

namespace framejit::pass {
namespace {

using shape::Int;
using shape::Ints;

constexpr int64_t kFewChannels = 16;

Ints Nhwc(const Ints& n) {
  return {n[1] * n[2] * n[3], Int(1), n[1] * n[3], n[1]};
}

class Pass {
 public:
  Pass(Graph& g, Device device) : g_(g), device_(device), r_(g), fixed_(g.nodes.size(), false) {}

  int Run() {
    bool dense = false;
    for (const Node& n : g_.nodes) {
      if (!IsConv2d(n)) continue;
      const Int channels = g_.nodes[n.operands[1]].type.shape[1];  // of a group
      dense = dense || !channels.is_const() || channels.value() >= kFewChannels;
    }
    if (!dense) return 0;
    for (ValueId v : g_.outputs) fixed_[v] = true;
    for (const Write& w : g_.writes) fixed_[w.value] = true;
    for (const Node& n : g_.nodes) {  // the framework's kernels may look at strides
      if (n.op != Op::kExtern) continue;
      for (ValueId o : n.operands) fixed_[o] = true;
    }
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      Node n = r_.Remapped(v);
      bool last = false;
      if (IsConv2d(n)) {
        n.operands[0] = Ordered(n.operands[0]);
        n.operands[1] = loop::HasDepthwiseKernel(g_, g_.nodes[v])
                            ? Copied(n.operands[1], loop::DepthwiseFilterStrides(r_.node(n.operands[1]).type.shape))
                            : Ordered(n.operands[1]);
        last = true;
      } else if (Info(n.op).kind == 'P' && n.type.rank() == 4) {
        for (ValueId o : n.operands) last = last || (lies_.contains(o) && r_.node(o).type.shape == n.type.shape);
      }
      last = last && !fixed_[v] && n.strides.empty();
      if (last) n.strides = Nhwc(n.type.shape);
      const ValueId now = r_.Append(std::move(n));
      r_.Set(v, now);
      old_[now] = v;
      if (last) Mark(now);
    }
    r_.Finish();
    return count_;
  }

 private:
  bool IsConv2d(const Node& n) const {
    return n.op == Op::kConv && n.type.rank() == 4 && !n.attrs.flag && n.type.device == device_;
  }

  void Mark(ValueId now) {
    lies_[now] = true;
    ++count_;
  }

  // The value as a convolution should read it.
  ValueId Ordered(ValueId now) {
    const Node& n = r_.node(now);
    const Ints& sizes = n.type.shape;
    if (sizes.size() != 4 || lies_.contains(now) || sizes[1] == Int(1) || sizes[2] * sizes[3] == Int(1)) return now;
    const char kind = Info(n.op).kind;
    if (kind == 'P' && n.strides.empty() && !fixed_[old_.at(now)]) {
      r_.SetStrides(now, Nhwc(sizes));
      Mark(now);
      return now;
    }
    const Ints have = n.strides.empty() ? RowMajor(sizes) : n.strides.list();
    if ((n.op != Op::kInput && kind != 'X') || SameStrides(sizes, have, Nhwc(sizes))) return now;
    return Copied(now, Nhwc(sizes));
  }

  ValueId Copied(ValueId now, Ints strides) {
    const Node& n = r_.node(now);
    auto [at, fresh] = copies_.emplace(std::pair(now, strides[0] == Int(1)), kNoValue);
    if (!fresh) return at->second;
    Node copy;
    copy.op = Op::kCast;
    copy.operands = {now};
    copy.type = n.type;
    copy.attrs.dtype = n.type.dtype;
    copy.strides = std::move(strides);
    copy.file = n.file;
    copy.line = n.line;
    at->second = r_.Append(std::move(copy));
    Mark(at->second);
    return at->second;
  }

  Graph& g_;
  const Device device_;
  Rewriter r_;
  std::vector<bool> fixed_;  // by old number: others look at its layout
  std::map<ValueId, ValueId> old_;
  std::map<std::pair<ValueId, bool>, ValueId> copies_;  // by what they copy, and whether as depthwise filters
  std::map<ValueId, bool> lies_;                        // channels-last
  int count_ = 0;
};

}  // namespace

int ChannelsLast(Graph& g, Device device) {
  return Pass(g, device).Run();
}

}  // namespace framejit::pass
