#include "surface/masked_update.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "graph/arguments.h"
#include "graph/raises.h"

namespace framejit::surface {
namespace {

using shape::Int;

constexpr int kMostCost = 64, kMostDepth = 8;
// Floats where an element is not wanted. No function is special near it. Integers may be what they are there: what is
// done with them raises nothing until they are floats.
constexpr double kHarmless = 0.7310585786300049;

// Is it an array's elements under a mask?
bool IsMasked(const Graph& g, ValueId v) {
  const Node& n = g.nodes[v];
  if (n.op != Op::kExtern || n.derivative || n.operands.size() != 2 || n.attrs.result_types.size() > 1) return false;
  const auto takes = [](const Arg& a, size_t operand) { return a.is(Arg::Kind::kTensor) && !a.b && a.t == operand; };
  const Call& call = *n.attrs.call;
  const TensorType &of = g.nodes[n.operands[0]].type, &mask = g.nodes[n.operands[1]].type;
  return call.callee.name() == "numpy.ndarray.__getitem__" && call.args.size() == 2 && call.kwargs.empty() &&
         takes(call.args[0], 0) && takes(call.args[1], 1) && IsBool(mask.dtype) && mask.shape == of.shape &&
         n.type.rank() == 1;
}

class Update {
 public:
  Update(Builder& builder, ValueId base, ValueId mask) : b_(builder), g_(builder.graph()), mask_(mask) {
    sizes_ = g_.nodes[base].type.shape;
  }

  // Can it be computed in place of what is under the mask?
  bool Fits(ValueId v) {
    if (!made_.emplace(v, kNoValue).second) return true;
    const Node& n = g_.nodes[v];
    if (IsMasked(g_, v) && SameValue(g_, n.operands[1], mask_)) {
      any_ = true;
      return (IsFloat(n.type.dtype) || IsInteger(n.type.dtype)) && g_.nodes[n.operands[0]].type.shape == sizes_;
    }
    if (n.type.rank() != 1 || n.derivative) return false;
    if (n.op == Op::kConstant) return true;
    if (n.op == Op::kBroadcast) return g_.nodes[n.operands[0]].type.rank() == 0 || Fits(n.operands[0]);
    cost_ += Info(n.op).cost;
    if (BecomesFloat(n) && MayRaise(g_, v)) return false;
    const bool cheap = Info(n.op).cost <= 1;  // then integers cannot raise anything
    const auto known = [&](DType t) { return IsFloat(t) || IsBool(t) || (cheap && IsInteger(t)); };
    return Info(n.op).kind == 'P' && cost_ <= kMostCost && known(n.type.dtype) &&
           std::ranges::all_of(n.operands, [&](ValueId o) { return known(g_.nodes[o].type.dtype) && Fits(o); });
  }
  bool any() const { return any_; }
  void Replaced(std::set<ValueId>& all) const {
    for (const auto& [v, made] : made_) all.insert(v);
  }

  ValueId Make(ValueId v) {
    if (ValueId made = made_.at(v); made != kNoValue) return made;
    Node n = g_.nodes[v];
    ValueId now;
    if (IsMasked(g_, v)) {
      now = IsFloat(n.type.dtype) ? Harmless(n.operands[0]) : n.operands[0];
    } else if (n.op == Op::kBroadcast && g_.nodes[n.operands[0]].type.rank() == 1) {
      now = Make(n.operands[0]);  // the number of elements is the same, by another name
    } else {
      if (n.op == Op::kConstant || n.op == Op::kBroadcast)
        n.attrs.syms = sizes_;
      else
        for (ValueId& o : n.operands) o = Make(o);
      if (n.op == Op::kBroadcast) n.attrs.axes.clear();
      const bool floats = BecomesFloat(n);
      now = b_.Add(n.op, std::move(n.operands), std::move(n.attrs));
      if (floats) now = Harmless(now);
    }
    return made_[v] = now;
  }

 private:
  // Is it integers or truth values that become floats?
  bool BecomesFloat(const Node& n) const {
    return n.op == Op::kCast && IsFloat(n.type.dtype) && !IsFloat(g_.nodes[n.operands[0]].type.dtype);
  }
  ValueId Harmless(ValueId floats) {
    return b_.Where(mask_, floats, b_.Constant(kHarmless, g_.nodes[floats].type.dtype, sizes_));
  }

  Builder& b_;
  const Graph& g_;
  const ValueId mask_;
  shape::Ints sizes_;
  std::map<ValueId, ValueId> made_;  // what was asked of, and what became of it
  int cost_ = 0;
  bool any_ = false;
};

// Calls f with each symbol that a node speaks of.
void EachSymbol(const Node& n, const std::function<void(uint32_t)>& f) {
  const auto each = [&](const shape::Ints& all) {
    for (const Int& i : all) i.ForEachSymbol(f);
  };
  each(n.type.shape), each(n.attrs.syms), each(n.strides);
  if (n.attrs.sym_scalar) n.attrs.sym_scalar->ForEachSymbol(f);
  for (const TensorType& t : n.attrs.result_types) each(t.shape);
  if (n.attrs.call)
    EachArg(*n.attrs.call, [&](const Arg& a) {
      if (a.is(Arg::Kind::kInt) || a.is(Arg::Kind::kSymFloat)) a.i.ForEachSymbol(f);
    });
}

}  // namespace

bool SameValue(const Graph& g, ValueId a, ValueId b, int depth) {
  if (a == b) return true;
  const Node &x = g.nodes[a], &y = g.nodes[b];
  const bool alike = depth < kMostDepth && x.op == y.op && x.op != Op::kInput && Info(x.op).kind != 'X' &&
                     Info(x.op).kind != 'W' && x.type == y.type && x.operands.size() == y.operands.size() &&
                     x.attrs.axes == y.attrs.axes && x.attrs.syms == y.attrs.syms && x.attrs.scalar == y.attrs.scalar &&
                     x.attrs.sym_scalar == y.attrs.sym_scalar && x.attrs.dtype == y.attrs.dtype &&
                     x.attrs.flag == y.attrs.flag && x.attrs.name == y.attrs.name;
  for (size_t i = 0; alike && i < x.operands.size(); ++i)
    if (!SameValue(g, x.operands[i], y.operands[i], depth + 1)) return false;
  return alike;
}

std::optional<ValueId> MaskedUpdate(Builder& builder, ValueId base, ValueId mask, ValueId value,
                                    std::set<ValueId>& replaced) {
  const Graph& g = builder.graph();
  const TensorType &whole = g.nodes[base].type, &by = g.nodes[mask].type, &of = g.nodes[value].type;
  if (!IsBool(by.dtype) || by.shape != whole.shape || !whole.rank() || of.dtype != whole.dtype || of.rank() != 1)
    return std::nullopt;
  Update update(builder, base, mask);
  if (!update.Fits(value) || !update.any()) return std::nullopt;
  update.Replaced(replaced);
  return builder.Where(mask, update.Make(value), base);
}

void DropMasked(Graph& g, std::span<const shape::Guard> asked, const std::set<ValueId>& replaced, bool ieee) {
  if (replaced.empty()) return;
  std::map<uint32_t, ValueId> first;  // by symbol: what says it
  const auto symbol_of = [&](ValueId v) {
    const Node& n = g.nodes[v];
    const TensorType& type = n.attrs.result_types.empty() ? n.type : n.attrs.result_types[0];
    return IsMasked(g, v) ? type.shape[0].as_symbol() : std::nullopt;
  };
  for (ValueId v = 0; v < g.nodes.size(); ++v)
    if (const auto id = symbol_of(v)) first.emplace(*id, v);
  std::vector<bool> live(g.nodes.size()), spoken(g.symbols.size());
  const auto say = [&](uint32_t id) {
    const bool news = id < spoken.size() && !spoken[id];
    if (news) spoken[id] = true;
    return news;
  };
  const auto same_mask = [&](const shape::Guard& c) {  // then that is so, whatever data says
    const auto a = c.lhs.as_symbol(), b = c.rhs.as_symbol();
    const auto mask = [&](uint32_t id) { return g.nodes[first.at(id)].operands[1]; };
    return c.cmp == shape::Cmp::kEq && a && b && first.contains(*a) && first.contains(*b) &&
           SameValue(g, mask(*a), mask(*b));
  };
  for (const std::vector<ValueId>* list : {&g.outputs, &g.inputs})
    for (ValueId v : *list) live[v] = true;
  for (const Write& w : g.writes) live[w.value] = true;
  for (bool more = true; std::exchange(more, false);) {
    for (const shape::Guard& c : asked) {
      bool all = !same_mask(c);
      for (const Int& side : {c.lhs, c.rhs})
        side.ForEachSymbol([&](uint32_t id) { all |= id < spoken.size() && spoken[id] && first.contains(id); });
      for (const Int& side : {c.lhs, c.rhs})
        if (all) side.ForEachSymbol([&](uint32_t id) { more |= say(id); });
    }
    for (ValueId v = static_cast<ValueId>(g.nodes.size()); v-- > 0;) {
      const Node& n = g.nodes[v];
      const auto id = symbol_of(v);
      const DType operand = n.operands.empty() ? DType::kBool : g.nodes[n.operands[0]].type.dtype;
      const bool noticed =
          id ? spoken[*id] && first.at(*id) == v : !replaced.contains(v) && IsNoticed(n, operand, ieee);
      if (!live[v] && noticed) live[v] = more = true;
      if (!live[v]) continue;
      for (ValueId o : n.operands)
        if (!live[o]) live[o] = more = true;
      EachSymbol(n, [&](uint32_t of) { more |= say(of); });
    }
  }
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    if (live[v] || !(symbol_of(v) || replaced.contains(v))) continue;
    Node& n = g.nodes[v];  // Nobody reads it: what cannot raise anything is not computed.
    n.op = Op::kConstant;
    n.operands.clear();
    n.attrs = {};
    n.attrs.dtype = n.type.dtype;
    n.attrs.syms = n.type.shape;
  }
}

}  // namespace framejit::surface
