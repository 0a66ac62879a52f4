// See the header.
#include "pass/store_regions.h"

#include <algorithm>

#include "graph/rewrite.h"
#include "graph/views.h"
#include "pass/dce.h"
#include "pass/fold.h"

namespace framejit::pass {
namespace {

using loop::Layout;
using shape::Int;

struct Store {
  ValueId value;
  Layout to;
};

class Stores {
 public:
  explicit Stores(const Graph& g) : g_(g) {}

  // Where memory that lies as `to` holds the value `before` (kNoValue: unknown), it is to hold `after`.
  void Replace(ValueId before, ValueId after, const Layout& to) {
    if (after == before) return;
    const Node& n = g_.nodes[after];
    if (before != kNoValue) {
      if (n.op == Op::kCat && ReplaceParts(before, n, to)) return;
      if (n.op == Op::kReshape && ReplaceSeen(before, n, n.operands[0], {}, to)) return;
      if (n.op == Op::kPermute) {
        std::vector<int64_t> back(n.attrs.axes.size());
        for (size_t i = 0; i < back.size(); ++i) back[n.attrs.axes[i]] = static_cast<int64_t>(i);
        if (ReplaceSeen(before, n, n.operands[0], back, to)) return;
      }
    }
    found.push_back({after, to});
  }

  std::vector<Store> found;

 private:
  // Is `v` the part of `of` that begins at `start` along the axis?
  bool IsPart(ValueId v, ValueId of, int64_t axis, const Int& start) const {
    const Node& n = g_.nodes[v];
    return n.op == Op::kSlice && n.operands[0] == of && n.attrs.axes[0] == axis && n.attrs.syms[0] == start &&
           n.attrs.syms[2] == Int(1);
  }

  bool ReplaceParts(ValueId before, const Node& cat, const Layout& to) {
    const int64_t axis = cat.attrs.axes[0];
    std::vector<Int> starts;
    Int at = 0;
    bool any = false;
    for (ValueId part : cat.operands) {
      any = any || IsPart(part, before, axis, at);
      starts.push_back(at);
      at = at + g_.nodes[part].type.shape[axis];
    }
    if (!any) return ReplaceAgain(before, cat, starts, to);
    for (size_t i = 0; i < cat.operands.size(); ++i) {
      const ValueId part = cat.operands[i];
      if (IsPart(part, before, axis, starts[i])) continue;
      Layout region = to;
      region.offset = to.offset + starts[i] * to.strides[axis];
      Replace(Slice(before, axis, starts[i], g_.nodes[part].type.shape), part, region);
    }
    return true;
  }

  // A part is replaced of what has parts replaced already.
  bool ReplaceAgain(ValueId before, const Node& cat, const std::vector<Int>& starts, const Layout& to) {
    for (size_t i = 0; i < cat.operands.size(); ++i) {
      const Node& part = g_.nodes[cat.operands[i]];
      if (part.op != Op::kSlice || !IsPart(cat.operands[i], part.operands[0], cat.attrs.axes[0], starts[i])) continue;
      const ValueId between = part.operands[0];
      if (between == before || g_.nodes[between].type.shape != cat.type.shape) continue;
      const size_t count = found.size();
      Replace(before, between, to);
      if (found.size() == count + 1 && found.back().value == between) {  // it is no part
        found.pop_back();
        return false;
      }
      return ReplaceParts(between, cat, to);
    }
    return false;
  }

  // `after` is another view of `inside`: what is `before`, seen so that its axes are those of `inside`?
  bool ReplaceSeen(ValueId before, const Node& after, ValueId inside, const std::vector<int64_t>& axes,
                   const Layout& to) {
    Node view;
    view.op = after.op;
    view.type = g_.nodes[inside].type;
    view.attrs.axes = axes;
    if (after.op == Op::kReshape) view.attrs.syms = view.type.shape;
    const auto layout = ViewLayout(view, after.type, to);
    if (!layout) return false;
    ValueId seen = kNoValue;
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      const Node& n = g_.nodes[v];
      if (n.op == view.op && n.operands[0] == before && n.type.shape == view.type.shape && n.attrs.axes == axes) {
        seen = v;
        break;
      }
    }
    const Node& b = g_.nodes[before];  // or the other way round
    if (seen == kNoValue && b.op == after.op && b.attrs.axes == after.attrs.axes &&
        g_.nodes[b.operands[0]].type.shape == view.type.shape)
      seen = b.operands[0];
    if (seen == kNoValue) return false;
    Replace(seen, inside, *layout);
    return true;
  }

  ValueId Slice(ValueId of, int64_t axis, const Int& start, const shape::Ints& sizes) const {
    for (ValueId v = 0; v < g_.nodes.size(); ++v)
      if (IsPart(v, of, axis, start) && g_.nodes[v].type.shape == sizes) return v;
    return kNoValue;
  }

  const Graph& g_;
};

// Slices of what was put together of parts are slices of those parts, where nobody needs the whole: a value with a part
// replaced that is only read in places.
class Forwarder {
 public:
  explicit Forwarder(Graph& g) : g_(g), r_(g), whole_(g.nodes.size(), false) {
    for (const Node& n : g.nodes)
      for (ValueId o : n.operands) whole_[o] = whole_[o] || n.op != Op::kSlice;
    for (ValueId v : g.outputs) whole_[v] = true;
    for (const Write& w : g.writes) whole_[w.value] = true;
  }

  bool Run() {
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      const Node n = r_.Remapped(v);
      const bool sliced = n.op == Op::kSlice && n.strides.empty() && n.attrs.syms[2] == Int(1);
      r_.Set(v, sliced ? Cut(n.operands[0], n) : r_.Append(n));
      if (n.op == Op::kCat && !whole_[v] && n.operands.size() <= kParts) open_.push_back(r_[v]);
    }
    r_.Finish();
    return changed_;
  }

 private:
  static constexpr size_t kParts = 16;

  static bool NotAbove(const Int& a, const Int& b) {
    const auto gap = (b - a).as_const();
    return gap && *gap >= 0;
  }

  ValueId Append(ValueId of, const Node& slice, const Int& start, const Int& length) {
    Node n = slice;
    n.operands = {of};
    n.type = r_.node(of).type;
    const int64_t axis = slice.attrs.axes[0];
    if (start == Int(0) && length == n.type.shape[axis]) return of;
    n.type.shape.Set(axis, length);
    n.attrs.syms = {start, length, 1};
    return r_.Append(std::move(n));
  }

  ValueId Cut(ValueId of, const Node& slice) {
    const Int start = slice.attrs.syms[0], length = slice.attrs.syms[1];
    if (std::find(open_.begin(), open_.end(), of) == open_.end()) return r_.Append(slice);
    const Node cat = r_.node(of);
    const int64_t axis = slice.attrs.axes[0];
    std::vector<ValueId> pieces;
    struct Piece {
      ValueId of;
      Int start, length;
    };
    std::vector<Piece> plan;
    Int at = 0;
    for (ValueId part : cat.operands) {
      const shape::Ints& sizes = r_.node(part).type.shape;
      if (cat.attrs.axes[0] != axis) {
        plan.push_back({part, start, length});
        continue;
      }
      const Int end = at + sizes[axis], stop = start + length;
      if (!NotAbove(end, start) && !NotAbove(stop, at)) {
        const bool from = NotAbove(at, start), to = NotAbove(stop, end);
        if ((!from && !NotAbove(start, at)) || (!to && !NotAbove(end, stop))) return r_.Append(slice);
        const Int first = from ? start - at : Int(0);
        plan.push_back({part, first, (to ? stop - at : sizes[axis]) - first});
      }
      at = end;
    }
    if (plan.empty()) return r_.Append(slice);
    changed_ = true;
    for (const Piece& p : plan) pieces.push_back(Append(p.of, slice, p.start, p.length));
    if (pieces.size() == 1) return pieces[0];
    Node joined = cat;
    joined.operands = pieces;
    joined.type = slice.type;
    joined.strides.clear();
    return r_.Append(std::move(joined));
  }

  Graph& g_;
  Rewriter r_;
  std::vector<bool> whole_;    // by old value
  std::vector<ValueId> open_;  // parts put together that are only read in places
  bool changed_ = false;
};

// A loop of which several rounds are one graph stores to the same parts in each of them.
void DropOverwritten(const Graph& g, std::vector<Store>* stores) {
  const auto same = [&](const Store& a, const Store& b) {
    return a.to.offset == b.to.offset && a.to.strides == b.to.strides &&
           g.nodes[a.value].type.shape == g.nodes[b.value].type.shape;
  };
  for (size_t i = stores->size(); i-- > 0;) {
    const auto later = stores->begin() + static_cast<ptrdiff_t>(i) + 1;
    const bool again = std::any_of(later, stores->end(), [&](const Store& s) { return same((*stores)[i], s); });
    if (again) stores->erase(stores->begin() + static_cast<ptrdiff_t>(i));
  }
}

}  // namespace

std::optional<Regions> StoreRegions(const Graph& g) {
  std::vector<Write> writes;
  std::vector<std::optional<Layout>> layouts;
  bool parts = false;
  for (const Write& w : g.writes) {
    const Node& input = g.nodes[g.inputs[w.input]];
    const auto same = std::count_if(g.writes.begin(), g.writes.end(), [&](auto& o) { return o.input == w.input; });
    Stores stores(g);
    if (same == 1 && input.strides.size() == input.type.shape.size())
      stores.Replace(g.inputs[w.input], w.value, {input.strides, 0});
    if (stores.found.empty() || stores.found[0].value == w.value) {
      writes.push_back(w);
      layouts.emplace_back();
      continue;
    }
    parts = true;
    DropOverwritten(g, &stores.found);
    for (Store& s : stores.found) {
      writes.push_back({w.input, s.value});
      layouts.emplace_back(std::move(s.to));
    }
  }
  if (!parts) return std::nullopt;
  Regions regions{g, std::move(layouts)};
  regions.graph.writes = std::move(writes);
  constexpr int kRounds = 8;  // a slice of a part may be one of a part again
  Dce(regions.graph);
  for (int i = 0; i < kRounds && Forwarder(regions.graph).Run(); ++i) {
    Fold(regions.graph);
    Dce(regions.graph);
  }
  return regions;
}

}  // namespace framejit::pass
