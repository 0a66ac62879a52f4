// See the header.
#include "pass/parts.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "graph/rewrite.h"
#include "graph/views.h"
#include "pass/dce.h"
#include "pass/fold.h"

namespace framejit::pass {
namespace {

using shape::Int;

bool NotAbove(const Int& a, const Int& b) {
  const auto gap = (b - a).as_const();
  return gap && *gap >= 0;
}

class Forwarder {
 public:
  explicit Forwarder(Graph& g) : g_(g), r_(g), known_(g.nodes.size()), joined_(g.nodes.size(), true) {
    for (const Node& n : g.nodes)
      for (ValueId o : n.operands) joined_[o] = joined_[o] && n.op == Op::kCat && n.attrs.axes[0] == AxisOf(o);
    for (ValueId v : g.outputs) joined_[v] = false;
    for (const Write& w : g.writes) joined_[w.value] = false;
  }

  int Run() {
    const auto first = std::find_if(g_.nodes.begin(), g_.nodes.end(), [&](const Node& n) { return ReplacesPart(n); });
    if (first == g_.nodes.end()) return 0;
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      const Node& n = g_.nodes[v];
      if (n.op == Op::kCat && LiesInRows(n) && Join(v, n)) continue;
      if (IsPlainSlice(n) && Cut(v, n)) continue;
      for (ValueId o : n.operands) Whole(o);
      r_.Keep(v);
    }
    for (ValueId v : g_.outputs) Whole(v);
    for (const Write& w : g_.writes) Whole(w.value);
    r_.Finish();
    return changed_;
  }

 private:
  struct Piece {  // these elements of a new value, along the axis
    ValueId of;
    Int start, length;
  };
  // A value that is not there: its parts are.
  struct Parts {
    std::vector<Piece> pieces;
    bool whole = false;  // or it is there as well
  };
  static constexpr size_t kMost = 512;

  static bool IsPlainSlice(const Node& n) {
    return n.op == Op::kSlice && n.strides.empty() && n.attrs.syms[2] == Int(1);
  }
  int64_t AxisOf(ValueId v) const {
    const Node& n = g_.nodes[v];
    return n.op == Op::kSlice || n.op == Op::kCat ? n.attrs.axes[0] : -1;
  }

  static bool LiesInRows(const Node& n) { return n.strides.empty() || IsRowMajor(n.type.shape, n.strides); }

  // Is it another value with some of its elements replaced? What is left of one number everywhere is a constant.
  bool ReplacesPart(const Node& n) const {
    if (n.op != Op::kCat || !LiesInRows(n)) return false;
    Int at = 0;
    for (ValueId o : n.operands) {
      const Node& part = g_.nodes[o];
      if (part.op == Op::kConstant) return true;
      if (IsPlainSlice(part) && part.attrs.axes == n.attrs.axes && part.attrs.syms[0] == at &&
          g_.nodes[part.operands[0]].type.shape == n.type.shape)
        return true;
      at = at + part.type.shape[n.attrs.axes[0]];
    }
    return false;
  }

  bool Join(ValueId v, const Node& n) {
    const int64_t axis = n.attrs.axes[0];
    Parts parts;
    bool any = false;
    for (ValueId o : n.operands) {
      if (known_[o] && AxisOf(o) == axis && !known_[o]->whole) {
        parts.pieces.insert(parts.pieces.end(), known_[o]->pieces.begin(), known_[o]->pieces.end());
        any = true;
      } else {
        Whole(o);
        parts.pieces.push_back({r_[o], Int(0), g_.nodes[o].type.shape[axis]});
      }
    }
    const bool version = ReplacesPart(n);
    if (!version && !any) return false;
    known_[v] = std::move(parts);
    if (!version || known_[v]->pieces.size() > kMost) Whole(v);
    changed_ += any;
    return true;
  }

  // A slice of such a value: one piece of it, or what is only joined to others again. False: it reads the whole.
  bool Cut(ValueId v, const Node& n) {
    const ValueId of = n.operands[0];
    const int64_t axis = n.attrs.axes[0];
    const Int start = n.attrs.syms[0], stop = start + n.attrs.syms[1];
    if (!known_[of] || AxisOf(of) != axis) {
      if (!joined_[v]) return false;
      Whole(of);
      known_[v] = Parts{{{r_[of], start, n.attrs.syms[1]}}};
      return true;
    }
    Parts parts;
    Int at = 0;
    for (const Piece& p : known_[of]->pieces) {
      const Int end = at + p.length;
      if (!NotAbove(end, start) && !NotAbove(stop, at)) {
        const bool from = NotAbove(at, start), to = NotAbove(stop, end);
        if ((!from && !NotAbove(start, at)) || (!to && !NotAbove(end, stop))) return false;
        const Int first = from ? start - at : Int(0);
        parts.pieces.push_back({p.of, p.start + first, (to ? stop - at : p.length) - first});
      }
      at = end;
    }
    if (parts.pieces.empty() || (parts.pieces.size() > 1 && !joined_[v])) return false;
    known_[v] = std::move(parts);
    if (!joined_[v]) Whole(v);
    ++changed_;
    return true;
  }

  // The new value for it, put together if it is not there yet.
  void Whole(ValueId v) {
    if (!known_[v] || known_[v]->whole) return;
    const Node& n = g_.nodes[v];
    const int64_t axis = AxisOf(v);
    known_[v]->whole = true;
    std::vector<ValueId> parts;
    for (const Piece& p : known_[v]->pieces) {
      Node slice = n;
      slice.op = Op::kSlice;
      slice.operands = {p.of};
      slice.attrs = {};
      slice.strides.clear();
      slice.attrs.axes = {axis};
      slice.attrs.syms = {p.start, p.length, 1};
      slice.type = r_.node(p.of).type;
      const bool all = p.start == Int(0) && p.length == slice.type.shape[axis];
      slice.type.shape.Set(axis, p.length);
      slice.derivative.reset();
      parts.push_back(all ? p.of : r_.Append(std::move(slice)));
    }
    Node cat = n;
    cat.op = Op::kCat;
    cat.operands = parts;
    cat.attrs = {};
    cat.attrs.axes = {axis};
    cat.derivative.reset();
    r_.Set(v, parts.size() == 1 ? parts[0] : r_.Append(std::move(cat)));
    if (n.op == Op::kCat && parts.size() > kMost) known_[v]->pieces = {{r_[v], Int(0), n.type.shape[axis]}};
  }

  Graph& g_;
  Rewriter r_;
  std::vector<std::optional<Parts>> known_;  // by old value
  std::vector<bool> joined_;                 // is it only put together with others along its axis?
  int changed_ = 0;
};

}  // namespace

int ForwardParts(Graph& g) {
  constexpr int kRounds = 8;  // a part may be a view of what was written part by part itself
  int changed = 0;
  for (int i = 0; i < kRounds; ++i) {
    const int now = Forwarder(g).Run();
    if (now == 0) break;
    changed += now;
    Fold(g);
    Dce(g);
  }
  return changed;
}

}  // namespace framejit::pass
