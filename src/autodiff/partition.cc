// Where to cut: a minimum cut of the graph of values. Every value is an edge (in -> out) as wide as its bytes; the
// source feeds what only the forward part can make (inputs; results of contractions, reductions, calls), the sink
// drinks from what the gradients use. The edges of a minimum cut are saved: all that the backward part computes again
// follows from them. Of equal cuts the one nearest to the gradients is taken, which computes least again.
#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <span>

#include "autodiff/autodiff.h"
#include "autodiff/flow.h"
#include "diag/diag.h"
#include "graph/device.h"
#include "graph/effects.h"
#include "graph/hints.h"
#include "graph/kept.h"
#include "graph/raises.h"
#include "graph/views.h"

namespace framejit::autodiff {
namespace {

using Marks = std::vector<char>;  // of values; read more often than bits are worth
// Values of the backward pass: the tangents and all that derivatives made, also of tangents that are zeros. Which
// values these are depends on the set of tangents, so none of them is kept by the forward pass.
Marks OfBackward(const Joint& j) {
  Marks of(j.graph.nodes.size());
  std::fill(of.begin() + j.primal, of.end(), true);
  for (ValueId t : j.tangents)
    if (t != kNoValue) of[t] = true;
  return of;
}

Marks NeededFor(const Graph& g, const std::vector<ValueId>& roots) {
  Marks needed(g.nodes.size());
  for (ValueId v : roots)
    if (v != kNoValue) needed[v] = true;
  for (ValueId v = static_cast<ValueId>(needed.size()); v-- > 0;)
    if (needed[v])
      for (ValueId o : g.node(v).operands) needed[o] = true;
  return needed;
}

int RegionOf(const std::vector<int>& region, ValueId v) {
  return v < region.size() ? std::abs(region[v]) : 0;
}
int RegionOf(const Joint& j, ValueId v) {
  return RegionOf(j.region, v);
}

// Values of regions that others use, or the program: these are kept, what is inside is made again from them.
std::vector<bool> Leaving(const Graph& g, ValueId primal, const std::vector<int>& region) {
  std::vector<bool> leaving(g.nodes.size());
  if (region.empty()) return leaving;
  for (ValueId v = 0; v < primal; ++v)
    for (ValueId o : g.node(v).operands)
      leaving[o] = leaving[o] || (RegionOf(region, o) && RegionOf(region, o) != RegionOf(region, v));
  for (ValueId v : g.outputs) leaving[v] = RegionOf(region, v);
  for (const Write& w : g.writes) leaving[w.value] = RegionOf(region, w.value);
  return leaving;
}

// What a call made of its operands alone, and makes again. Places that were chosen are not chosen twice: they might be
// others where values differ in their last bits.
bool RepeatableCall(const Graph& g, const std::vector<int>& region, ValueId v) {
  const Node& n = g.node(v);
  if (n.op == Op::kResult) return RepeatableCall(g, region, n.operands[0]);
  if (n.attrs.call->callee == kTangent || region[v] < 0) return false;
  const auto real = [](const TensorType& t) { return IsFloat(t.dtype); };
  return n.attrs.result_types.size() > 1 ? std::all_of(n.attrs.result_types.begin(), n.attrs.result_types.end(), real)
                                         : real(n.type);
}

bool Recomputable(const Graph& g, ValueId primal, const std::vector<int>& region, ValueId v) {
  const Node& n = g.node(v);
  if (RegionOf(region, v)) {
    if (n.op == Op::kArgMax || n.op == Op::kArgMin) return false;
    return Info(n.op).kind != 'X' || RepeatableCall(g, region, v);
  }
  switch (Info(n.op).kind) {
    case 'P':
    case 'V': return true;
    case 'C': return n.op != Op::kInput;
    case 'I': return n.op == Op::kTake || n.op == Op::kGather;
    case 'R':
    case 'M': return v >= primal;  // wanted by the gradients alone
    default: return false;
  }
}

// The region whose derivative this value of the backward pass is part of; 0: none's. It reads what is there when it
// runs.
int RegionOfDerivative(const Joint& j, ValueId v) {
  const ValueId of = v < j.primal ? kNoValue : j.origin[v - j.primal];
  return of == kNoValue ? 0 : RegionOf(j, of);
}

// Does the derivative of this region make the value again? What others read of the same value is what it was.
bool IsRemade(const Joint& j, ValueId v, int region) {
  return region && v < j.primal && RegionOf(j, v) == region && Recomputable(j.graph, j.primal, j.region, v);
}

// What the values are made of that derivatives of regions make again.
std::vector<ValueId> ReadByRegions(const Joint& j, const Marks& needed) {
  std::vector<ValueId> read;
  std::vector<bool> remade(j.primal);
  for (auto v = static_cast<ValueId>(j.graph.nodes.size()); v-- > 0;) {
    const bool own = v < j.primal;
    if (own ? !remade[v] : !needed[v]) continue;
    for (ValueId o : j.graph.node(v).operands)
      if (IsRemade(j, o, own ? RegionOf(j, v) : RegionOfDerivative(j, v)))
        remade[o] = true;
      else if (own)
        read.push_back(o);
  }
  return read;
}

// Where memory is read fast: pointwise values that the forward part needs again behind a contraction or a call (a
// residual stream). They are in memory anyway; computed again, each would be made of all before it.
std::vector<bool> Lasting(const Joint& j) {
  const Graph& g = j.graph;
  std::vector<bool> lasting(g.nodes.size());
  std::vector<int> layer(g.nodes.size());
  for (ValueId v = 0; v < j.primal; ++v) {
    const Node& n = g.node(v);
    for (ValueId o : n.operands) layer[v] = std::max(layer[v], layer[o]);
    if (Info(n.op).kind == 'M' || n.op == Op::kExtern) ++layer[v];
    if (Info(n.op).kind != 'P' || !TraitsOf(n.type.device).rereads) continue;
    for (ValueId o : n.operands) lasting[o] = lasting[o] || (Info(g.node(o).op).kind == 'P' && layer[o] < layer[v]);
  }
  return lasting;
}

// Copies nodes of one graph into another.
class Copier {
 public:
  Copier(const Graph& from, Graph* to) : from_(from), to_(*to), map_(3 * from.nodes.size(), kNoValue) {}
  bool has(ValueId v) const { return map_[v] != kNoValue; }
  ValueId operator[](ValueId v) const { return map_[v]; }
  void Copy(ValueId v) { Copy(v, v, from_.node(v).operands); }
  void Copy(ValueId node, ValueId as, std::span<const ValueId> operands) {
    Node n = from_.node(node);
    for (size_t i = 0; i < operands.size(); ++i) n.operands[i] = map_.at(operands[i]);
    n.derivative.reset();
    if (n.op == Op::kExtern) {  // what its derivative asks for
      n.attrs.axes.clear();
      n.attrs.name.clear();
    }
    if (n.op == Op::kExtern && n.attrs.call->mode.grad) {  // the framework must not track what is tracked here
      auto call = std::make_shared<Call>(*n.attrs.call);
      call->mode.grad = false;
      n.attrs.call = std::move(call);
    }
    Append(as, std::move(n));
  }
  ValueId Append(ValueId v, Node n) {
    to_.nodes.push_back(std::move(n));
    return map_[v] = static_cast<ValueId>(to_.nodes.size() - 1);
  }

 private:
  const Graph& from_;
  Graph& to_;
  std::vector<ValueId> map_;
};

}  // namespace

namespace {

// Of a view that is kept for nobody but the gradients: the value that it shows. To look at that again costs nothing, to
// lay the view out in memory of its own is a copy.
ValueId WhatItShows(const Graph& g, ValueId v) {
  for (;;) {
    const Node& n = g.node(v);
    if (n.op != Op::kPermute && n.op != Op::kReshape && n.op != Op::kBroadcast) return v;
    if (std::find(g.outputs.begin(), g.outputs.end(), v) != g.outputs.end()) return v;
    const Op below = g.node(n.operands[0]).op;
    if (below != Op::kInput && Info(below).kind == 'C') return v;
    v = n.operands[0];
  }
}

// The same memory without its gradients.
bool IsStop(const Node& n) {
  return n.op == Op::kCast && n.derivative && n.derivative->rule == "stop";
}

// What a tensor has behind `x.data = u`: the memory of u. The function whose derivative leads to x hands it on.
bool IsGiven(const Graph& g, const Node& n) {
  if (n.op != Op::kCast || !n.derivative) return false;
  return n.derivative->rule == "data" || (n.derivative->rule == "custom" && IsGiven(g, g.node(n.operands[0])));
}

// By value: the one of which it is a view for the program, or itself. Who keeps the one keeps the memory of the other.
std::vector<ValueId> Memories(const Graph& g) {
  std::vector<ValueId> memory(g.nodes.size());
  std::vector<std::optional<Layout>> layout(g.nodes.size());  // of views, and of what is seen through views
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    const Node& n = g.node(v);
    memory[v] = v;
    if (n.operands.empty()) continue;
    const ValueId of = n.operands[0];
    bool view = (n.op == Op::kExtern || n.op == Op::kResult) &&
                g.node(n.op == Op::kExtern ? v : of).attrs.name == kViews;  // a call that returns views
    const bool same = IsStop(n) || IsGiven(g, n);
    if (same || n.op == Op::kPermute || n.op == Op::kBroadcast || n.op == Op::kSlice || n.op == Op::kReshape) {
      if (!layout[of]) {
        const Node& viewed = g.node(of);
        layout[of] = Layout{viewed.strides.empty() ? RowMajor(viewed.type.shape) : viewed.strides.list(), 0};
      }
      layout[v] = same ? layout[of] : ViewLayout(n, g.node(of).type, *layout[of]);
      view = layout[v].has_value();
    }
    if (view) memory[v] = memory[of];
  }
  return memory;
}

// Of the function's values: what the program may write to, and what is made of that.
struct Written {
  std::vector<ValueId> memory;  // Memories
  Marks seen;                   // by memory: the program has it, as an input or a result
  Marks through;                // is computed from such memory, and the framework does not have it in memory
  // The framework reads it from memory that may be written, or makes it again from such.
  bool Moves(ValueId v) const { return v < through.size() && (through[v] || seen[memory[v]]); }
};

Written WhatIsWritten(const Graph& g, ValueId primal, const std::vector<int>& region,
                      const std::vector<ValueId>& held) {
  Written w{Memories(g), Marks(g.nodes.size()), Marks(g.nodes.size())};
  if (held.empty()) return w;
  Marks holds(g.nodes.size());
  for (ValueId v : held) holds[v] = holds[w.memory[v]] = true;
  for (ValueId v : g.inputs) w.seen[v] = holds[v];
  for (ValueId v : g.outputs) w.seen[w.memory[v]] = true;
  for (const Write& write : g.writes) w.seen[g.inputs[write.input]] = false;  // by the graph: that is known
  const std::vector<bool> leaving = Leaving(g, primal, region);
  std::vector<bool> leaves(g.nodes.size());
  for (ValueId v = 0; v < primal; ++v)
    if (leaving[v]) leaves[w.memory[v]] = true;
  for (ValueId v = 0; v < primal; ++v) {
    if (g.node(v).op == Op::kInput || (w.memory[v] == v && !Recomputable(g, primal, region, v))) continue;
    const bool own = w.memory[v] == v && (RegionOf(region, v) ? leaves[v] : holds[v]);
    const auto& operands = g.node(v).operands;
    w.through[v] = !own && std::any_of(operands.begin(), operands.end(), [&](ValueId o) { return w.Moves(o); });
  }
  return w;
}

// Values that the program may write to and the framework would not keep.
Marks OthersMayWrite(const Joint& j, const std::vector<bool>& passing, const Marks& needed, const Written& written) {
  const Graph& g = j.graph;
  Marks own(g.nodes.size()), read(g.nodes.size());
  for (ValueId v : g.outputs) own[v] = !passing.empty();
  for (size_t i = 0; i < passing.size(); ++i) own[g.inputs[i]] = passing[i];
  for (ValueId v = j.primal; v < g.nodes.size(); ++v)
    for (ValueId o : g.node(v).operands) read[o] = read[o] || (needed[v] && !ReadsBefore(g, v));
  for (ValueId v = static_cast<ValueId>(g.nodes.size()); v-- > 0;) {
    if (!read[v]) continue;
    own[v] = own[written.memory[v]] = false;
    for (ValueId o : g.node(v).operands) read[o] = read[o] || written.through[v];
  }
  return own;
}

Node Identity(const Graph& g, ValueId v) {
  Node n;
  n.op = Op::kCast;
  n.operands = {v};
  n.type = g.node(v).type;
  n.attrs.dtype = n.type.dtype;
  return n;
}

}  // namespace

bool ReadsBefore(const Graph& g, ValueId v) {
  const Node& n = g.node(v);
  return n.op == Op::kCast && n.derivative && n.derivative->rule == kBefore;
}

std::vector<bool> ReadOutputs(const Joint& j, const std::vector<std::vector<ValueId>>& kept) {
  const Graph& g = j.graph;
  const Marks needed = NeededFor(g, j.grads);
  const std::vector<ValueId> memory = Memories(g);
  std::vector<bool> read(g.nodes.size());
  // What a checkpoint made is made again for its own derivatives.
  const auto remade = [&](ValueId o, ValueId by) { return RegionOf(j, o) && RegionOf(j, o) == RegionOf(j, by); };
  for (ValueId v = j.primal; v < g.nodes.size(); ++v) {
    const ValueId of = j.origin[v - j.primal];
    if (!needed[v] || of == kNoValue) continue;
    const Node& n = g.node(v);
    if (ReadsBefore(g, v)) continue;
    const Node& made = g.node(of);
    if (made.op == Op::kExtern && made.attrs.call->callee.Has(kKeepsNoOperand)) continue;  // it is run again
    for (ValueId o : n.operands)
      if (o < j.primal && !remade(o, of)) read[o] = read[memory[o]] = true;
  }
  std::vector<bool> found;
  for (const std::vector<ValueId>& made : kept) {
    const ValueId own = found.size() < g.outputs.size() ? g.outputs[found.size()] : kNoValue;
    found.push_back(std::any_of(made.begin(), made.end(), [&](ValueId v) { return j.passed[v] && !remade(own, v); }));
  }
  const auto reads = [&](ValueId v) {
    for (;;) {
      const Node& n = g.node(v);  // another shape, an identity for the layout, or to be a value of its own
      if (read[v] || read[memory[v]]) return true;
      const bool same = n.op == Op::kCast && !n.derivative && g.node(n.operands[0]).type.dtype == n.type.dtype;
      if (!same && n.op != Op::kReshape) return false;
      v = n.operands[0];
    }
  };
  for (size_t i = 0; i < g.outputs.size(); ++i) found[i] = found[i] || reads(g.outputs[i]);
  for (const Write& w : g.writes) {  // what the input holds from then on
    const size_t i = g.outputs.size() + w.input;
    found[i] = found[i] || reads(w.value);
  }
  return found;
}

std::vector<bool> Moving(const Graph& g, const std::vector<int>& region, const std::vector<ValueId>& held) {
  const auto end = static_cast<ValueId>(g.nodes.size());
  const Written written = WhatIsWritten(g, end, region, held);
  std::vector<bool> moves(g.nodes.size());
  for (ValueId v = 0; v < end; ++v) moves[v] = written.Moves(v);
  return moves;
}

// What derivatives read as it is when they run, and may have been written since: the memory to begin with, which is
// added to `saved`, and values beside it, which do not change.
static std::vector<ValueId> ReadNow(const Graph& g, const Written& written, std::vector<ValueId> todo,
                                    std::vector<ValueId>* saved) {
  std::vector<ValueId> fixed;
  std::vector<bool> done(g.nodes.size());
  while (!todo.empty()) {
    const ValueId v = todo.back();
    todo.pop_back();
    if (done[v]) continue;
    done[v] = true;
    if (!written.Moves(v)) {
      fixed.push_back(v);
    } else if (written.seen[written.memory[v]]) {
      saved->push_back(written.memory[v]);
    } else {
      todo.insert(todo.end(), g.node(v).operands.begin(), g.node(v).operands.end());
    }
  }
  return fixed;
}

std::vector<ValueId> ChooseSaved(const Joint& j, const std::vector<bool>& passing, const std::vector<ValueId>& held) {
  const Graph& g = j.graph;
  std::vector<ValueId> roots =
      j.grads;  // a result's gradient may lead to zeros, and is asked for by itself all the same
  roots.insert(roots.end(), j.arriving.begin(), j.arriving.end());
  const Written written = WhatIsWritten(g, j.primal, j.region, held);
  const Marks back = OfBackward(j), needed = NeededFor(g, roots);
  Marks own = OthersMayWrite(j, passing, needed, written);
  std::vector<ValueId> saved, read = ReadByRegions(j, needed);
  const std::vector<int64_t> hints = Hints(g);
  const int source = 2 * static_cast<int>(g.nodes.size()), sink = source + 1;
  Flow flow(sink + 1);
  const std::vector<bool> lasting = Lasting(j), leaving = Leaving(g, j.primal, j.region);
  // As it was: the program may write to it, or the graph does. What regions are made again of is refused then.
  const auto copied = [&](ValueId v) {
    const bool lost = g.node(v).op == Op::kInput && !held.empty() && !written.seen[v];
    return written.Moves(v) || (lost && j.region.empty());
  };
  for (ValueId v = 0; v < j.primal; ++v) {  // the framework keeps what goes into a region
    if (!RegionOf(j, v)) continue;
    if (!Recomputable(g, j.primal, j.region, v)) own[v] = false;
    for (ValueId o : g.node(v).operands)
      if (RegionOf(j, o) != RegionOf(j, v)) own[o] = false;
  }
  const auto drink = [&](ValueId v) { flow.Edge(2 * static_cast<int>(v) + 1, sink, kInfinite); };
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    const Node& n = g.node(v);
    if (!needed[v]) continue;
    const int region = RegionOfDerivative(j, v);
    for (ValueId o : n.operands) {
      if (back[o] || IsRemade(j, o, region)) continue;
      if (!back[v]) {
        flow.Edge(2 * static_cast<int>(o) + 1, 2 * static_cast<int>(v), kInfinite);
      } else if (!region && ReadsBefore(g, v)) {
        drink(o);
      } else {
        read.push_back(o);
      }
    }
    if (back[v]) continue;
    int64_t bytes = n.type.numel().Eval(hints) * DTypeSize(n.type.dtype) + 1;
    if (n.op == Op::kInput && !copied(v)) bytes = bytes / 64 + 1;  // most are kept by somebody anyway
    bool several = n.op == Op::kExtern && n.attrs.result_types.size() > 1;
    if (several || (own[v] && !copied(v))) bytes = kInfinite;
    flow.Edge(2 * static_cast<int>(v), 2 * static_cast<int>(v) + 1, bytes);
    if (!Recomputable(g, j.primal, j.region, v) || leaving[v] || lasting[v])
      flow.Edge(source, 2 * static_cast<int>(v), kInfinite);
  }
  for (ValueId v : roots)
    if (v != kNoValue && !back[v]) read.push_back(v);
  for (ValueId v : ReadNow(g, written, std::move(read), &saved)) drink(v);
  flow.Maximize(source, sink);
  std::vector<bool> reach = flow.ReachSink(sink);
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    if (!needed[v] || back[v] || reach[2 * v] || !reach[2 * v + 1]) continue;
    const ValueId shown = WhatItShows(g, v);
    saved.push_back(copied(shown) ? j.primal + shown : shown);
  }
  std::sort(saved.begin(), saved.end());
  saved.erase(std::unique(saved.begin(), saved.end()), saved.end());
  return saved;
}

Graph ForwardGraph(const Joint& j, const std::vector<ValueId>& saved, std::vector<SavedValue>* where) {
  const Graph& g = j.graph;
  std::vector<ValueId> roots = g.outputs;
  for (ValueId v : saved) roots.push_back(v < j.primal ? v : v - j.primal);
  for (const Write& w : g.writes) roots.push_back(w.value);
  const std::vector<bool> stand_ins = StandIns(g);
  for (ValueId v = 0; v < j.primal; ++v)
    if (!stand_ins[v] && (g.node(v).op == Op::kInput || g.node(v).op == Op::kExtern)) roots.push_back(v);
  const Marks needed = NeededFor(g, roots);
  Graph out;
  out.name = g.name + " forward";
  out.symbols = g.symbols;
  out.symbol_sources = g.symbol_sources;
  out.nodes.reserve(std::count(needed.begin(), needed.end(), 1));
  Copier copy(g, &out);
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    if (!needed[v]) continue;
    copy.Copy(v);
    if (g.node(v).op == Op::kInput) out.inputs.push_back(copy[v]);
  }
  for (ValueId v : g.outputs) out.outputs.push_back(copy[v]);
  for (ValueId v : g.ordered)
    if (copy.has(v)) out.ordered.push_back(copy[v]);
  out.conditions = g.conditions;
  for (const Write& w : g.writes) out.writes.push_back({w.input, copy[w.value]});
  where->clear();
  // By value: which input it is, and which output has it, the first ones. The program may have it without gradients.
  std::vector<int> input_of(g.nodes.size(), -1), output_of(out.nodes.size(), -1), shown_by(g.nodes.size(), -1);
  for (size_t i = g.inputs.size(); i-- > 0;) input_of[g.inputs[i]] = static_cast<int>(i);
  for (size_t k = out.outputs.size(); k-- > 0;) output_of[out.outputs[k]] = static_cast<int>(k);
  for (size_t k = g.outputs.size(); k-- > 0;) {
    ValueId shown = g.outputs[k];
    for (; IsStop(g.node(shown)); shown = g.node(shown).operands[0]) shown_by[shown] = static_cast<int>(k);
    shown_by[shown] = static_cast<int>(k);
  }
  for (ValueId v : saved) {
    SavedValue s;
    if (v >= j.primal) {  // in memory of its own
      s.output = static_cast<int>(out.outputs.size());
      out.nodes.push_back(Identity(out, copy[v - j.primal]));
      out.outputs.push_back(static_cast<ValueId>(out.nodes.size() - 1));
      where->push_back(s);
      continue;
    }
    if (input_of[v] >= 0) {
      s.input = input_of[v];
    } else {
      int& output = output_of[copy[v]];
      if (output < 0) output = shown_by[v];
      if (output < 0) {
        output = static_cast<int>(out.outputs.size());
        out.outputs.push_back(copy[v]);
      }
      s.output = output;
    }
    where->push_back(s);
  }
  return out;
}

// Is every element in a place of its own, row by row but for dimensions of size 1?
static bool IsDense(const TensorType& type, const shape::Ints& laid) {
  return IsRowMajor(type.shape, laid) && std::find(laid.begin(), laid.end(), shape::Int(0)) == laid.end();
}

// How the framework's formulas would leave this gradient in memory, as far as views and sums go: what is computed
// otherwise lies row by row. A sum is added up in what came first, if that has memory for all of its elements, and no
// other.
static shape::Ints LeftBy(const Graph& g, ValueId v, int sums = 8) {  // sums: of sums, that are looked into
  const Node& n = g.node(v);
  if (!n.strides.empty()) return n.strides;
  for (size_t i = 0; n.op == Op::kAdd && sums && i < n.operands.size(); ++i) {
    ValueId whole = n.operands[i];  // whose memory it is
    while (Info(g.node(whole).op).kind == 'V') whole = g.node(whole).operands[0];
    if (g.node(whole).type.numel() != n.type.numel()) continue;
    shape::Ints laid = LeftBy(g, n.operands[i], sums - 1);
    if (laid.size() == n.type.shape.size() && IsDense(n.type, laid)) return laid;
  }
  if (Info(n.op).kind == 'V') {
    const TensorType& from = g.node(n.operands[0]).type;
    if (auto layout = ViewLayout(n, from, {LeftBy(g, n.operands[0], sums)})) return layout->strides;
  }
  return RowMajor(n.type.shape);
}

// Strides for the gradient of a leaf that lies row by row: a framework's formula may leave any on dimensions of size 1,
// and the leaf keeps what it left unless one is 0. Empty: there is nothing to say.
static shape::Ints OnesOf(const Graph& g, ValueId leaf, ValueId gradient) {
  const TensorType& type = g.node(leaf).type;
  if (type.rank() < 2 || std::find(type.shape.begin(), type.shape.end(), shape::Int(1)) == type.shape.end()) return {};
  const shape::Ints& own = g.node(leaf).strides;
  shape::Ints laid = LeftBy(g, gradient);
  if (!own.empty() && !IsRowMajor(type.shape, own)) return {};
  return IsDense(type, laid) ? laid : own;
}

Graph BackwardGraph(const Joint& j, const std::vector<ValueId>& saved, std::vector<GradSource>* grads) {
  const Graph& g = j.graph;
  // Values have numbers as they are when the gradients are computed. What may have been written since has a second one
  // as it was, behind all others, and what a region makes again a third.
  const auto size = static_cast<ValueId>(g.nodes.size());
  const auto moves = [&](ValueId v) { return v < j.moves.size() && j.moves[v]; };
  const auto node_of = [&](ValueId v) { return v % size; };
  const auto operands_of = [&](ValueId v) {
    const ValueId node = node_of(v);
    const int region = v < size ? RegionOfDerivative(j, v) : v < 2 * size ? 0 : RegionOf(j, node);
    const bool before = !region && (v >= size || (node < j.primal ? !moves(node) : ReadsBefore(g, node)));
    const std::vector<ValueId>& from = g.node(node).operands;
    absl::InlinedVector<ValueId, 4> operands(from.begin(), from.end());
    for (ValueId& o : operands) o = IsRemade(j, o, region) ? o + 2 * size : before && moves(o) ? o + size : o;
    return operands;
  };
  Marks needed(3 * g.nodes.size()), cut(3 * g.nodes.size());
  const auto number = [&](ValueId s) { return s < j.primal ? s : s - j.primal + (moves(s - j.primal) ? size : 0); };
  for (ValueId s : saved) cut[number(s)] = true;
  for (ValueId v : j.grads)
    if (v != kNoValue) needed[v] = true;
  for (ValueId node = size; node-- > 0;)
    for (ValueId v : {node + 2 * size, node + size, node})
      if (needed[v] && !cut[v])
        for (ValueId o : operands_of(v)) needed[o] = true;
  Graph out;
  out.name = g.name + " backward";
  out.symbols = g.symbols;  // all are known by now
  for (shape::SymbolInfo& s : out.symbols) s.kind = shape::SymbolKind::kInput;
  for (size_t i = 0; i < g.symbols.size(); ++i) out.symbol_sources.push_back({static_cast<int>(i), -1});
  out.nodes.reserve(saved.size() + j.tangents.size() + std::count(needed.begin(), needed.end(), 1));
  Copier copy(g, &out);
  auto input = [&](ValueId v, ValueId name) {
    Node n;
    n.op = Op::kInput;
    n.type = g.node(node_of(v)).type;
    if (v < size) n.strides = g.node(v).strides;
    n.attrs.name = "saved %" + std::to_string(name);
    if (n.strides.empty()) n.strides = RowMajor(n.type.shape);
    out.inputs.push_back(copy.Append(v, std::move(n)));
  };
  for (ValueId v : saved) input(number(v), v < j.primal ? v : v - j.primal);
  for (ValueId v : j.tangents)
    if (v != kNoValue) input(v, v);
  std::vector<ValueId> todo;
  auto make = [&](ValueId v) {
    if (copy.has(v)) return;
    todo.assign(1, v);
    while (!todo.empty()) {
      const ValueId at = todo.back();
      const size_t before = todo.size();
      const auto operands = operands_of(at);
      for (ValueId o : operands)
        if (!copy.has(o) && !copy.has(at)) todo.push_back(o);
      if (todo.size() > before) continue;
      todo.pop_back();
      if (copy.has(at)) continue;
      FRAMEJIT_CHECK(g.node(node_of(at)).op != Op::kInput);
      copy.Copy(node_of(at), at, operands);
    }
  };
  // What is made again is made where it is first needed, so that one region after the other takes memory.
  for (ValueId node = 0; node < size; ++node)
    for (ValueId v : {node + size, node})
      if (needed[v] && !RegionOf(j, node)) make(v);
  for (ValueId v : j.grads)
    if (v != kNoValue) make(v);
  std::vector<int> made(3 * g.nodes.size(), -1);  // the outputs of `out`
  grads->clear();
  for (size_t i = 0; i < j.grads.size(); ++i) {
    const ValueId v = j.grads[i];
    GradSource source;
    if (v != kNoValue) {
      auto tangent = std::find(j.tangents.begin(), j.tangents.end(), v);
      if (tangent != j.tangents.end()) {
        int n = 0;  // numbered among those there are
        for (auto t = j.tangents.begin(); t != tangent; ++t) n += *t != kNoValue;
        source = {GradSource::kTangent, n};
      } else {
        if (made[v] < 0) {
          made[v] = static_cast<int>(out.outputs.size());
          ValueId result = copy[v];
          if (out.node(result).op == Op::kInput) {  // a saved value: results never share memory with inputs
            out.nodes.push_back(Identity(out, result));
            result = static_cast<ValueId>(out.nodes.size() - 1);
          }
          if (i < g.inputs.size() && g.inputs[i] < j.primal && out.node(result).strides.empty())
            out.nodes[result].strides = OnesOf(g, g.inputs[i], v);
          out.outputs.push_back(result);
        }
        source = {GradSource::kOutput, made[v]};
      }
    }
    grads->push_back(source);
  }
  return out;
}

BackwardParts SplitBackward(Graph g, const std::vector<GradSource>& grads, const std::vector<int>& part,
                            int num_saved) {
  BackwardParts all;
  const int num_parts = part.empty() ? 1 : *std::max_element(part.begin(), part.end()) + 1;
  // Who makes a value: the first part that needs it. What only shows or spreads another value is made by each.
  constexpr int kNobody = -1;
  std::vector<int> owner(g.nodes.size(), kNobody), number(g.nodes.size(), -1), first(g.outputs.size(), num_parts - 1);
  for (size_t i = 0; i < g.inputs.size(); ++i) number[g.inputs[i]] = all.count++;
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i].kind == GradSource::kOutput) first[grads[i].index] = std::min(first[grads[i].index], part[i]);
  std::vector<std::vector<bool>> needs(num_parts, std::vector<bool>(g.nodes.size()));
  std::vector<bool> output(g.nodes.size());
  for (ValueId v : g.outputs) output[v] = true;
  auto shown = [&](ValueId v) { return Info(g.node(v).op).kind == 'V' || Info(g.node(v).op).kind == 'C'; };
  for (int p = 0; p < num_parts; ++p) {
    for (size_t o = 0; o < g.outputs.size(); ++o)
      if (first[o] == p) needs[p][g.outputs[o]] = true;
    for (ValueId v = static_cast<ValueId>(g.nodes.size()); v-- > 0;) {
      if (!needs[p][v]) continue;
      if (g.node(v).op == Op::kResult && owner[v] == kNobody && owner[g.node(v).operands[0]] != kNobody) {
        owner[v] = owner[g.node(v).operands[0]];  // of a call that an earlier part makes
        needs[owner[v]][v] = true;
        continue;
      }
      if (owner[v] != kNobody && !shown(v)) continue;
      if (owner[v] == kNobody) owner[v] = p;
      for (ValueId o : g.node(v).operands) needs[p][o] = true;
    }
  }
  const auto number_grads = [&] {
    for (const GradSource& s : grads)
      all.grads.push_back(s.kind == GradSource::kOutput    ? number[g.outputs[s.index]]
                          : s.kind == GradSource::kTangent ? num_saved + s.index
                                                           : -1);
  };
  // The only part is the graph itself, where all of it is needed. Inputs are in front.
  const auto inputs = static_cast<ptrdiff_t>(g.inputs.size());
  if (num_parts == 1 && std::find(needs[0].begin(), needs[0].end(), false) == needs[0].end() &&
      std::none_of(g.nodes.begin() + inputs, g.nodes.end(), [](const Node& n) { return n.op == Op::kInput; })) {
    BackwardPart whole;
    for (ptrdiff_t i = 0; i < inputs; ++i) whole.inputs.push_back(static_cast<int>(i));
    std::vector<ValueId> outputs;
    for (ValueId v = inputs; v < g.nodes.size(); ++v) {
      if (!output[v]) continue;
      outputs.push_back(v);
      whole.outputs.push_back(number[v] = all.count++);
    }
    number_grads();
    g.outputs = std::move(outputs);
    whole.graph = std::move(g);
    all.parts.push_back(std::move(whole));
    return all;
  }
  for (int p = 0; p < num_parts; ++p) {
    BackwardPart out;
    out.graph.name = g.name + (num_parts > 1 ? " " + std::to_string(p + 1) : "");
    out.graph.symbols = g.symbols;
    out.graph.symbol_sources = g.symbol_sources;
    out.graph.nodes.reserve(std::count(needs[p].begin(), needs[p].end(), true));
    Copier copy(g, &out.graph);
    for (ValueId v = 0; v < g.nodes.size(); ++v) {  // what comes from outside
      const bool input = g.node(v).op == Op::kInput;
      if (!needs[p][v] || (!input && (owner[v] == p || shown(v)))) continue;
      Node n;
      n.op = Op::kInput;
      n.type = g.node(v).type;
      n.strides = g.node(v).strides;
      n.attrs.name = input ? g.node(v).attrs.name : "passed %" + std::to_string(v);
      if (n.strides.empty()) n.strides = RowMajor(n.type.shape);
      FRAMEJIT_CHECK(number[v] >= 0);
      out.inputs.push_back(number[v]);
      out.graph.inputs.push_back(copy.Append(v, std::move(n)));
    }
    for (ValueId v = 0; v < g.nodes.size(); ++v)
      if (needs[p][v] && !copy.has(v)) copy.Copy(v);
    for (ValueId v = 0; v < g.nodes.size(); ++v) {
      if (owner[v] != p || g.node(v).op == Op::kInput || !copy.has(v)) continue;
      bool result = output[v];
      for (int q = p + 1; q < num_parts && !shown(v); ++q) result |= needs[q][v];
      if (!result) continue;
      number[v] = all.count++;
      out.outputs.push_back(number[v]);
      out.graph.outputs.push_back(copy[v]);
    }
    all.parts.push_back(std::move(out));
  }
  number_grads();
  return all;
}

}  // namespace framejit::autodiff
