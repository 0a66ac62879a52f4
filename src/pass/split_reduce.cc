#include "pass/split_reduce.h"

#include <algorithm>

#include "graph/hints.h"
#include "graph/rewrite.h"
#include "loop/order.h"

namespace framejit::pass {
namespace {

using shape::Int;
using shape::Ints;

constexpr int64_t kMinElements = 1 << 15;  // of one result: below, one thread is as fast
constexpr int64_t kMinRow = 256;  // elements of a row, each one thread's or one block's: fewer do not fill a block

// Of a sum over leading axes, where columns are too few to keep the device busy.
constexpr int64_t kMinColumns = 32;  // a warp reads so many side by side
constexpr int64_t kMostPieces = 64;  // that a column is cut into: the second sum, over these, stays short
constexpr int64_t kMinDepth = 64;    // rows of a piece: a shorter one takes less time than the launch of the second sum

bool Splittable(Op op) {
  return op == Op::kSum || op == Op::kProd || op == Op::kMax || op == Op::kMin || op == Op::kAny || op == Op::kAll;
}

// Sums of 16-bit results would round in between.
bool KeepsPrecision(const Node& n) {
  return !IsFloat(n.type.dtype) || DTypeSize(n.type.dtype) >= 4 || n.op == Op::kMax || n.op == Op::kMin;
}

int64_t Hint(Int e, const std::vector<int64_t>& hints) {
  return e.Eval(hints);
}

// NumPy's order of a sum in pairs halves what it sums at multiples of eight, so that of a multiple of 64 the eighths
// are summed apart, and their sums in pairs.
constexpr int64_t kEighths = 8;
bool InEighths(const Node& n, int64_t elements) {
  return loop::IsNumpysSum(n) && elements % (kEighths * kEighths) == 0;
}

struct Cut {
  Ints rows_shape;             // operand reshaped to this first, if not empty
  std::vector<int64_t> first;  // axes of the first reduction, of the (reshaped) operand
  bool ordered = false;        // the order of NumPy's sum is kept
};

std::optional<Cut> FindCut(const Graph& g, const Node& n, const std::vector<int64_t>& hints, const Parallel& wanted) {
  const int64_t enough = wanted.rows;
  const TensorType& from = g.nodes[n.operands[0]].type;
  std::vector<int64_t> axes = n.attrs.axes;
  std::sort(axes.begin(), axes.end());
  int64_t reduced = 1, kept = 1;
  for (int d = 0; d < from.rank(); ++d) {
    (std::binary_search(axes.begin(), axes.end(), d) ? reduced : kept) *= Hint(from.shape[d], hints);
  }
  if (axes == std::vector<int64_t>{0} && from.rank() > 1 && kept >= kMinColumns && kept < wanted.columns &&
      from.shape[0].is_const()) {
    const int64_t rows = from.shape[0].value();
    for (int64_t pieces = kMostPieces; pieces >= 4; pieces /= 2) {
      if (rows % pieces || rows / pieces < kMinDepth || kept * pieces > 4 * wanted.columns) continue;
      Ints shape = from.shape;
      shape[0] = Int(rows / pieces);
      shape.insert(shape.begin(), Int(pieces));
      return Cut{shape, {1}};
    }
  }
  if (kept >= enough || reduced < kMinElements || axes.empty()) return std::nullopt;
  const bool all = from.rank() == static_cast<int>(axes.size());
  const auto numel = from.numel().as_const();
  if (all && numel && InEighths(n, *numel)) return Cut{{Int(kEighths), Int(*numel / kEighths)}, {1}, true};
  if (axes.size() > 1) {
    // The outermost reduced axes become rows until there are enough. At least one axis is left for the first step.
    int64_t rows = kept;
    size_t cut = 0;
    while (cut + 1 < axes.size() && rows < enough) rows *= Hint(from.shape[axes[cut++]], hints);
    if (rows >= enough && reduced * kept / rows >= kMinRow) return Cut{{}, {axes.begin() + cut, axes.end()}};
  }
  if (!all || !numel) return std::nullopt;
  for (int64_t rows = 4 * enough; rows >= enough / 2; --rows)
    if (*numel % rows == 0 && *numel / rows >= kMinRow) return Cut{{Int(rows), Int(*numel / rows)}, {1}};
  return std::nullopt;
}

}  // namespace

int SplitReduce(Graph& g, const Parallel& wanted) {
  const std::vector<int64_t> hints = Hints(g);
  int count = 0;
  Rewriter r(g);
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    const Node& old = g.nodes[v];
    std::optional<Cut> cut;
    if (Splittable(old.op) && KeepsPrecision(old)) cut = FindCut(g, old, hints, wanted);
    if (!cut) {
      r.Keep(v);
      continue;
    }
    ++count;
    Node n = r.Remapped(v);
    if (!cut->ordered) n.attrs.name.clear();
    Node first = n;
    first.strides.clear();
    std::vector<int64_t> second_axes;
    if (!cut->rows_shape.empty()) {
      Node rows = n;
      rows.op = Op::kReshape;
      rows.attrs = {};
      rows.attrs.syms = cut->rows_shape;
      rows.strides.clear();
      rows.type = r.node(n.operands[0]).type;
      rows.type.shape = cut->rows_shape;
      first.operands = {r.Append(rows)};
      second_axes = {0, 1};
    } else {
      second_axes = n.attrs.axes;
    }
    // The first keeps its dims, so that axes of the second are those of the operand.
    first.attrs.axes = cut->first;
    first.attrs.flag = true;
    first.type.shape = r.node(first.operands[0]).type.shape;
    for (int64_t a : cut->first) first.type.shape.Set(a, 1);
    Node second = n;
    second.operands = {r.Append(first)};
    second.attrs.axes = second_axes;
    if (!cut->rows_shape.empty() && n.attrs.flag) {  // [1, 1] -> the rank that was asked for
      second.attrs.flag = false;
      second.type.shape = shape::IntList(std::span(cut->rows_shape).subspan(2));
      second.strides.clear();
      Node back = n;
      back.op = Op::kReshape;
      back.attrs = {};
      back.attrs.syms = n.type.shape;
      back.operands = {r.Append(second)};
      r.Set(v, r.Append(back));
    } else {
      r.Set(v, r.Append(second));
    }
  }
  r.Finish();
  return count;
}

}  // namespace framejit::pass
