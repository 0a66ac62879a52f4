#include "pass/sink_gather.h"

#include <algorithm>

#include "graph/rewrite.h"

namespace framejit::pass {
namespace {

using shape::Int;

constexpr int kMostNodes = 24, kMostGathers = 3;

class Pass {
 public:
  explicit Pass(Graph& g) : g_(g), r_(g) {}

  int Run() {
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      const Node& n = g_.nodes[v];
      nodes_ = gathers_ = 0;
      if (n.op != Op::kGather || n.type.shape[n.attrs.axes[0]] != Int(1) || !Sinks(n.operands[0], n) ||
          !CanSink(n.operands[0], n) || gathers_ == 0 || gathers_ > kMostGathers) {
        r_.Keep(v);
        continue;
      }
      const ValueId now = Sink(n.operands[0], n);
      if (!n.strides.empty()) r_.SetStrides(now, n.strides);
      r_.Set(v, now);
      ++count_;
    }
    r_.Finish();
    return count_;
  }

 private:
  // Is it a broadcast of one value to all elements along the gathered axis?
  bool IsRowValue(const Node& n, int64_t axis) const {
    if (n.op != Op::kBroadcast) return false;
    const auto& from = g_.nodes[n.operands[0]].type.shape;
    for (size_t i = 0; i < from.size(); ++i) {
      if (n.attrs.axes[i] == axis && from[i] != Int(1)) return false;
    }
    return true;
  }
  bool Sinks(ValueId v, const Node& gather) const {
    const Node& n = g_.nodes[v];
    return Info(n.op).kind == 'P' && n.type.shape == g_.nodes[gather.operands[0]].type.shape;
  }
  bool CanSink(ValueId v, const Node& gather) {
    if (++nodes_ > kMostNodes) return false;
    const Node& n = g_.nodes[v];
    if (n.type.shape != g_.nodes[gather.operands[0]].type.shape) return false;
    if (n.op == Op::kConstant || IsRowValue(n, gather.attrs.axes[0])) return true;
    if (!Sinks(v, gather)) return ++gathers_, true;
    return std::all_of(n.operands.begin(), n.operands.end(), [&](ValueId o) { return CanSink(o, gather); });
  }
  ValueId Sink(ValueId v, const Node& gather) {
    const Node& n = g_.nodes[v];
    Node made = r_.Remapped(v);
    made.strides.clear();
    made.type.shape = gather.type.shape;
    if (n.op == Op::kConstant || IsRowValue(n, gather.attrs.axes[0])) {
      made.attrs.syms = gather.type.shape;
    } else if (Sinks(v, gather)) {
      for (size_t i = 0; i < n.operands.size(); ++i) made.operands[i] = Sink(n.operands[i], gather);
    } else {
      made.op = Op::kGather;
      made.attrs = gather.attrs;
      made.operands = {r_[v], r_[gather.operands[1]]};
      made.file = gather.file;
      made.line = gather.line;
    }
    return r_.Append(std::move(made));
  }

  Graph& g_;
  Rewriter r_;
  int nodes_ = 0, gathers_ = 0, count_ = 0;
};

}  // namespace

int SinkGather(Graph& g) {
  return Pass(g).Run();
}

}  // namespace framejit::pass
