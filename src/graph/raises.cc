#include "graph/raises.h"

#include <algorithm>

namespace framejit {

bool MayRaise(Op op, DType operand, DType result) {
  switch (Info(op).raises) {
    case 'f': return IsFloat(operand) || IsComplex(operand);
    case 'n': return !IsBool(operand);
    case 'c':
      if (IsBool(result) || !IsFloat(result)) return IsFloat(operand) && !IsBool(result);
      return result == DType::kFloat16 ? operand != DType::kFloat16 && DTypeSize(operand) > 1
                                       : IsFloat(operand) && DTypeSize(result) < DTypeSize(operand);
    default: return false;
  }
}

bool IsNoticed(const Node& n, DType operand, bool ieee) {
  const bool checks = (n.op == Op::kTake || n.op == Op::kGather) && n.attrs.flag;
  return checks || n.op == Op::kExtern || (ieee && !n.operands.empty() && MayRaise(n.op, operand, n.type.dtype));
}

namespace {

// Does `n` read every element of its operand?
bool ReadsAll(const Graph& g, const Node& n) {
  switch (n.op) {
    case Op::kSlice: return n.type.numel() == g.nodes[n.operands[0]].type.numel();
    case Op::kPad:
      return std::all_of(n.attrs.syms.begin(), n.attrs.syms.end(),
                         [](shape::Int i) { return i.is_const() && i.value() >= 0; });
    case Op::kTake:
    case Op::kGather: return false;
    case Op::kBroadcast: return n.type.numel() != shape::Int(0);
    default: return true;
  }
}

bool Fixed(const Graph& g, ValueId v) {
  const shape::Ints& sizes = g.nodes[v].type.shape;
  return std::all_of(sizes.begin(), sizes.end(), [](shape::Int i) { return i.is_const(); });
}

// Elements of a value: for each axis the first one, and the one behind the last.
using Box = std::vector<std::pair<int64_t, int64_t>>;

// Appends what of `box` is in none of `boxes` from number `from` on, until there are `most` of such pieces.
void Rest(Box box, const std::vector<Box>& boxes, size_t from, size_t most, std::vector<Box>& rest) {
  if (rest.size() >= most || std::ranges::any_of(box, [](const auto& side) { return side.first >= side.second; }))
    return;
  if (from == boxes.size()) return rest.push_back(std::move(box));
  const Box& by = boxes[from];
  for (size_t axis = 0; axis < box.size(); ++axis) {  // what lies before and behind it there
    Box before = box, behind = box;
    before[axis].second = std::min(box[axis].second, by[axis].first);
    behind[axis].first = std::max(box[axis].first, by[axis].second);
    Rest(std::move(before), boxes, from + 1, most, rest);
    Rest(std::move(behind), boxes, from + 1, most, rest);
    box[axis] = {std::max(box[axis].first, by[axis].first), std::min(box[axis].second, by[axis].second)};
    if (box[axis].first >= box[axis].second) return;
  }
}

// Which elements of each value are computed, as far as that is known: all, or those in some boxes.
class Computed {
 public:
  explicit Computed(const Graph& g, std::vector<bool> all) : g_(g), all_(std::move(all)), parts_(g.nodes.size()) {}

  void All(ValueId v) { all_[v] = true; }
  bool Is(ValueId v) {
    if (all_[v] || parts_[v].empty()) return all_[v];
    return all_[v] = Missing(v, 1).empty();
  }
  // What of it is not computed, as far as that is known: `most` pieces at most.
  std::vector<Box> Missing(ValueId v, size_t most) const {
    std::vector<Box> rest;
    if (!all_[v] && !parts_[v].empty()) Rest(Whole(v), parts_[v], 0, most, rest);
    return rest;
  }

  // What the node reads of its operands to compute what is computed of it.
  void Reads(ValueId v) {
    const Node& n = g_.nodes[v];
    const bool all = Is(v), indexes = n.op == Op::kTake || n.op == Op::kGather;
    for (size_t k = 0; k < n.operands.size(); ++k) {
      const ValueId o = n.operands[k];
      if (all && (ReadsAll(g_, n) || (indexes && k == 1))) {
        All(o);
      } else if (!Fixed(o) || !Fixed(v)) {
        continue;
      } else if (n.op == Op::kSlice && n.attrs.syms[0].is_const() && n.attrs.syms[2] == shape::Int(1)) {
        for (Box box : all ? std::vector<Box>{Whole(v)} : parts_[v]) {
          auto& side = box[n.attrs.axes[0]];
          side.first += n.attrs.syms[0].value(), side.second += n.attrs.syms[0].value();
          Add(o, std::move(box));
        }
      } else if (!all && Info(n.op).kind == 'P' && n.type.shape == g_.nodes[o].type.shape) {
        for (const Box& box : parts_[v]) Add(o, box);
      } else if (!all && n.op == Op::kCat) {
        ReadsPiece(v, k);
      } else if (!all && n.op == Op::kReshape) {
        ReadsShaped(v, o);
      }
    }
  }

 private:
  static constexpr size_t kMostParts = 8;

  bool Fixed(ValueId v) const { return framejit::Fixed(g_, v); }
  Box Whole(ValueId v) const {
    Box box;
    for (shape::Int size : g_.nodes[v].type.shape) box.emplace_back(0, size.value());
    return box;
  }
  void Add(ValueId v, Box box) {
    const auto within = [&](const Box& other) {
      for (size_t axis = 0; axis < box.size(); ++axis)
        if (box[axis].first < other[axis].first || box[axis].second > other[axis].second) return false;
      return true;
    };
    if (!all_[v] && parts_[v].size() < kMostParts && std::none_of(parts_[v].begin(), parts_[v].end(), within))
      parts_[v].push_back(std::move(box));
  }
  // What is read of operand k of what is put together.
  void ReadsPiece(ValueId v, size_t k) {
    const Node& n = g_.nodes[v];
    const int64_t axis = n.attrs.axes[0];
    int64_t start = 0;
    for (size_t i = 0; i < k; ++i) {
      const shape::Int before = g_.nodes[n.operands[i]].type.shape[axis];
      if (!before.is_const()) return;  // the whole is fixed, but not where it is put together
      start += before.value();
    }
    const int64_t length = g_.nodes[n.operands[k]].type.shape[axis].value();
    for (Box box : parts_[v]) {
      auto& side = box[axis];
      side = {std::max<int64_t>(side.first - start, 0), std::min(side.second - start, length)};
      if (side.first < side.second) Add(n.operands[k], std::move(box));
    }
  }
  // Of what is seen with more or fewer axes of size 1.
  void ReadsShaped(ValueId v, ValueId operand) {
    const auto more = [](const shape::Ints& sizes) {
      std::vector<size_t> axes;
      for (size_t axis = 0; axis < sizes.size(); ++axis)
        if (!(sizes[axis] == shape::Int(1))) axes.push_back(axis);
      return axes;
    };
    const shape::Ints &sizes = g_.nodes[v].type.shape, &from = g_.nodes[operand].type.shape;
    const auto here = more(sizes), there = more(from);
    if (!std::ranges::equal(here, there, [&](size_t a, size_t b) { return sizes[a] == from[b]; })) return;
    for (const Box& box : parts_[v]) {
      Box seen = Whole(operand);
      for (size_t i = 0; i < here.size(); ++i) seen[there[i]] = box[here[i]];
      Add(operand, std::move(seen));
    }
  }

  const Graph& g_;
  std::vector<bool> all_;
  std::vector<std::vector<Box>> parts_;
};

// A piece of a large value, and which value that is.
struct Piece {
  ValueId of;
  Box box;
};

constexpr int64_t kLargePiece = 4096;  // So many elements that are not made an output are worth one more.
constexpr size_t kMostPieces = 8;

// What has to be computed of a value besides: nothing where that is all of it.
std::vector<Piece> PiecesOf(const Graph& g, ValueId v, const Computed& computed) {
  const Node& n = g.nodes[v];
  if (Info(n.op).kind != 'P' || !n.type.numel().is_const()) return {};
  std::vector<Piece> pieces;
  int64_t elements = 0;
  for (Box& box : computed.Missing(v, kMostPieces + 1)) {
    int64_t of_box = 1;
    for (auto [first, last] : box) of_box *= last - first;
    elements += of_box;
    pieces.push_back({v, std::move(box)});
  }
  const auto count = static_cast<int64_t>(pieces.size());
  if (pieces.size() > kMostPieces || n.type.numel().value() - elements < kLargePiece * count) return {};
  return pieces;
}

// Makes a piece of a value: computed of pieces of its operands, where that is few operations, so that nothing has to
// hold the whole. What is no such operation is cut.
class Shown {
 public:
  explicit Shown(Graph& g) : g_(g) {}

  ValueId Make(ValueId v, const Box& box) {
    for (const auto& [of, there, made] : made_)
      if (of == v && there == box) return made;
    const ValueId made = Again(v, box) ? Compute(v, box) : Cut(v, box);
    made_.push_back({v, box, made});
    return made;
  }

 private:
  static constexpr int64_t kSmall = 16;  // times a piece is smaller than the whole
  static constexpr int kMostAgain = 32;  // operations

  bool Again(ValueId v, const Box& box) {
    const Node& n = g_.nodes[v];
    int64_t elements = 1;
    for (auto [first, last] : box) elements *= last - first;
    if (n.op == Op::kConstant) return true;
    const auto fits = [&](ValueId o) { return g_.nodes[o].type.shape == n.type.shape; };
    return Info(n.op).kind == 'P' && std::all_of(n.operands.begin(), n.operands.end(), fits) &&
           elements * kSmall <= n.type.numel().value() && ++computed_ <= kMostAgain;
  }
  ValueId Compute(ValueId v, const Box& box) {
    Node n = g_.nodes[v];
    n.strides = {};
    for (size_t axis = 0; axis < box.size(); ++axis)
      n.type.shape.Set(axis, shape::Int(box[axis].second - box[axis].first));
    if (n.op == Op::kConstant) n.attrs.syms = n.type.shape;
    for (size_t k = 0; k < n.operands.size(); ++k) n.operands[k] = Make(n.operands[k], box);
    return Append(std::move(n));
  }
  ValueId Cut(ValueId v, Box box) {
    const Node& whole = g_.nodes[v];
    // What is cut out of a part is cut out of the whole.
    if (whole.op == Op::kSlice && whole.attrs.syms[0].is_const() && whole.attrs.syms[2] == shape::Int(1) &&
        Fixed(g_, whole.operands[0])) {
      auto& side = box[whole.attrs.axes[0]];
      side.first += whole.attrs.syms[0].value(), side.second += whole.attrs.syms[0].value();
      return Make(whole.operands[0], box);
    }
    for (size_t axis = 0; axis < box.size(); ++axis) {
      const auto [first, last] = box[axis];
      const Node& from = g_.nodes[v];
      if (first == 0 && shape::Int(last) == from.type.shape[axis]) continue;
      Node slice;
      slice.op = Op::kSlice;
      slice.operands = {v};
      slice.type = from.type;
      slice.type.shape.Set(axis, shape::Int(last - first));
      slice.attrs.axes = {static_cast<int64_t>(axis)};
      slice.attrs.syms = {shape::Int(first), shape::Int(last - first), shape::Int(1)};
      slice.file = from.file;
      slice.line = from.line;
      v = Append(std::move(slice));
    }
    return v;
  }
  ValueId Append(Node n) {
    g_.nodes.push_back(std::move(n));
    return static_cast<ValueId>(g_.nodes.size() - 1);
  }

  struct Made {
    ValueId of;
    Box box;
    ValueId made;
  };
  Graph& g_;
  std::vector<Made> made_;
  int computed_ = 0;
};

}  // namespace

std::vector<bool> StandIns(const Graph& g) {
  std::vector<bool> depends(g.nodes.size());
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    const Node& n = g.node(v);
    depends[v] = n.op == Op::kExtern && n.attrs.call && n.attrs.call->callee == kTangent;
    for (ValueId o : n.operands) depends[v] = depends[v] || depends[o];
  }
  return depends;
}

void KeepRaising(Graph& g, bool ieee) {
  const std::vector<bool> stand_ins = StandIns(g);
  Computed computed(g, stand_ins);
  for (ValueId v : g.outputs) computed.All(v);
  for (const Write& w : g.writes) computed.All(w.value);
  std::vector<Piece> shown_pieces;
  for (size_t i = g.nodes.size(); i-- > 0;) {
    const auto v = static_cast<ValueId>(i);
    const Node& n = g.nodes[v];
    const DType operand = n.operands.empty() ? DType::kBool : g.nodes[n.operands[0]].type.dtype;
    if (!computed.Is(v) && IsNoticed(n, operand, ieee)) {
      const std::vector<Piece> pieces = PiecesOf(g, v, computed);
      shown_pieces.insert(shown_pieces.end(), pieces.begin(), pieces.end());
      computed.All(v);
      ValueId shown = v;
      if (n.op == Op::kExtern && n.attrs.result_types.size() > 1)
        ++shown;  // The node behind it picks its first result.
      if (pieces.empty() && (n.op != Op::kExtern || !n.attrs.result_types.empty())) g.outputs.push_back(shown);
    }
    if (!stand_ins[v]) computed.Reads(v);
  }
  for (const Piece& piece : shown_pieces) g.outputs.push_back(Shown(g).Make(piece.of, piece.box));
}

}  // namespace framejit
