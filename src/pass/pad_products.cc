#include "pass/pad_products.h"

#include <map>

#include "graph/hints.h"
#include "graph/rewrite.h"

namespace framejit::pass {
namespace {

using shape::Int;

constexpr int64_t kStep = 8;  // So many elements of 16 bits are 16 bytes.

int64_t MissingOf(
    const TensorType& t) {  // elements until its rows are aligned; 0: none, or their length is no constant
  const Int last = t.shape.back();
  return last.is_const() ? (kStep - last.value() % kStep) % kStep : 0;
}

ValueId Pad(Rewriter& r, ValueId v, int axis, int64_t by) {
  Node n;
  n.op = Op::kPad;
  n.operands = {v};
  n.type = r.node(v).type;
  n.type.shape.Set(axis, n.type.shape[axis] + Int(by));
  n.attrs.scalar = 0;
  n.attrs.syms = shape::Ints(2 * n.type.rank());
  n.attrs.syms.Set(2 * axis + 1, by);
  return r.Append(std::move(n));
}

}  // namespace

int PadProducts(Graph& g, Device device, double min_flops) {
  Rewriter r(g);
  const std::vector<int64_t> hints = Hints(g);
  std::map<ValueId, ValueId> padded;  // rows, by old numbers
  auto rows = [&](ValueId old, int64_t by) {
    auto [at, fresh] = padded.emplace(old, kNoValue);
    if (fresh) at->second = Pad(r, r[old], 1, by);
    return at->second;
  };
  int count = 0;
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    const Node& n = g.nodes[v];
    const auto flops = [&] {
      const double each = 2.0 * static_cast<double>(g.nodes[n.operands[0]].type.shape[1].Eval(hints));
      return each * static_cast<double>(n.type.numel().Eval(hints));
    };
    const bool product = n.op == Op::kMatMul && n.type.rank() == 2 && n.type.device == device &&
                         IsFloat(n.type.dtype) && DTypeSize(n.type.dtype) == 2 && flops() >= min_flops;
    const ValueId left = product ? n.operands[0] : kNoValue;
    const bool turned = product && g.nodes[left].op == Op::kPermute;
    const int64_t by = product ? MissingOf(g.nodes[turned ? g.nodes[left].operands[0] : left].type) : 0;
    if (by == 0) {
      r.Keep(v);
      continue;
    }
    ++count;
    Node made = r.Remapped(v);
    if (!turned) {
      made.operands = {rows(left, by), Pad(r, r[n.operands[1]], 0, by)};
      r.Set(v, r.Append(std::move(made)));
      continue;
    }
    Node turn = r.Remapped(left);
    turn.operands = {rows(g.nodes[left].operands[0], by)};
    turn.type.shape.Set(0, turn.type.shape[0] + Int(by));
    Node cut;
    cut.op = Op::kSlice;
    cut.type = made.type;
    cut.strides = std::exchange(made.strides, {});
    cut.attrs.axes = {0};
    cut.attrs.syms = {Int(0), made.type.shape[0], Int(1)};
    made.type.shape.Set(0, turn.type.shape[0]);
    made.operands[0] = r.Append(std::move(turn));
    cut.operands = {r.Append(std::move(made))};
    r.Set(v, r.Append(std::move(cut)));
  }
  r.Finish();
  return count;
}

}  // namespace framejit::pass
