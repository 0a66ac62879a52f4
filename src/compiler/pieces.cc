// A call whose result has a size that is a new symbol is run by the host between two parts. What such a call needs is
// computed in the part before it, everything else as late as those who read it allow: little is done before the sizes
// are known, and little passes from part to part. Views and constants do not pass, they are made again. On the CPU the
// calls of one part are given no more than fits in a cache, and reductions run as soon as they can: of the rounds of a
// loop that were captured together, each one's arrays are gone before the next one's are made.
#include "compiler/pieces.h"

#include <algorithm>
#include <map>

#include "diag/diag.h"
#include "graph/arguments.h"
#include "graph/hints.h"
#include "runtime/pieces.h"

namespace framejit::compiler {
namespace {

using shape::Int;
using shape::Ints;

class Cutter {
 public:
  Cutter(const Graph& g, const std::vector<bool>& weights) : g_(g), weights_(weights) {}

  std::shared_ptr<Executable> Run(const MakePart& make) {
    FindLive();
    FindCuts();
    Earliest();
    Latest();
    plan_.num_inputs = g_.inputs.size();
    plan_.sources = g_.symbol_sources;
    plan_.parts.resize(last_ + 1);
    drafts_.resize(last_ + 1);
    for (Draft& d : drafts_) {
      d.graph.symbols = g_.symbols;
      for (size_t i = 0; i < g_.symbols.size(); ++i) {
        d.graph.symbols[i].kind = shape::SymbolKind::kInput;
        d.graph.symbol_sources.push_back({static_cast<int>(i), -1});
      }
    }
    for (size_t i = 0; i < g_.inputs.size(); ++i) ValueOf(g_.inputs[i]);
    for (ValueId v = 0; v < g_.nodes.size(); ++v)
      if (live_[v] && g_.nodes[v].op != Op::kInput && CutOf(v) == kNoValue && !Remade(v)) Get(v, stage_[v]);
    for (int k = 0; k < last_; ++k)
      for (const Cut& c : cuts_)
        if (c.stage == k) AddCall(c);
    for (ValueId v : g_.outputs) {
      if (CutOf(v) == kNoValue) Pass(v);
      plan_.outputs.push_back(ValueOf(v));
    }
    for (const Write& w : g_.writes) {
      const int input = InputOf(last_, g_.inputs[w.input]);
      drafts_[last_].graph.writes.push_back({input, Get(w.value, last_)});
    }
    AddConditions();
    for (int k = 0; k <= last_; ++k) Finish(k, make);
    for (int v : plan_.outputs) plan_.values[v].last = -1;
    return runtime::MakePieces(std::move(plan_));
  }

 private:
  struct Cut {
    ValueId node;
    int stage = 0;
  };
  struct Draft {
    Graph graph;
    std::map<ValueId, ValueId> made;  // by old number
    std::vector<int> inputs;          // values
    std::vector<bool> weights;
  };

  // The call that data decides the size of, if v is (one of) its results.
  ValueId CutOf(ValueId v) const {
    const Node& n = g_.nodes[v];
    const ValueId call = n.op == Op::kResult ? n.operands[0] : v;
    return cut_of_.contains(call) ? call : kNoValue;
  }

  void FindLive() {
    live_.assign(g_.nodes.size(), false);
    for (ValueId v : g_.outputs) live_[v] = true;
    for (const Write& w : g_.writes) live_[w.value] = true;
    for (ValueId v = static_cast<ValueId>(g_.nodes.size()); v-- > 0;) {
      if (g_.nodes[v].op == Op::kExtern) live_[v] = true;
      for (ValueId o : g_.nodes[v].operands) live_[o] = live_[o] || live_[v];
    }
  }

  void FindCuts() {
    symbol_ready_.assign(g_.symbols.size(), 0);
    std::vector<bool> known(g_.symbols.size());
    for (size_t i = 0; i < known.size(); ++i) known[i] = g_.symbols[i].kind != shape::SymbolKind::kRuntime;
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      const Node& n = g_.nodes[v];
      if (n.op != Op::kExtern) continue;
      bool cuts = false;
      for (size_t r = 0; r < n.attrs.result_types.size(); ++r)
        for (size_t d = 0; d < n.attrs.result_types[r].shape.size(); ++d) {
          auto id = n.attrs.result_types[r].shape[d].as_symbol();
          if (!id || *id >= known.size() || known[*id]) continue;
          known[*id] = cuts = true;
          bound_.push_back({*id, v, static_cast<int>(r), static_cast<int>(d)});
        }
      if (!cuts) continue;
      cut_of_[v] = static_cast<int>(cuts_.size());
      cuts_.push_back({v});
    }
  }

  int ReadyAt(Int e) const {
    int at = 0;
    e.ForEachSymbol([&](uint32_t id) {
      if (id < symbol_ready_.size()) at = std::max(at, symbol_ready_[id]);
    });
    return at;
  }
  int ReadyAt(const Ints& v) const {
    int at = 0;
    for (Int e : v) at = std::max(at, ReadyAt(e));
    return at;
  }

  // The first part in which a value can be made (of a cut's results: be read).
  void Earliest() {
    stage_.assign(g_.nodes.size(), 0);
    int drawn = 0;
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      const Node& n = g_.nodes[v];
      int at = 0;
      for (ValueId o : n.operands) at = std::max(at, stage_[o]);
      if (n.op == Op::kExtern) {
        EachArg(std::as_const(*n.attrs.call), [&](const Arg& a) {
          if (a.is(Arg::Kind::kInt)) at = std::max(at, ReadyAt(a.i));
        });
      }
      const ValueId call = CutOf(v);
      if (call == v) {
        cuts_[cut_of_[v]].stage = at = WithRoom(v, at);
        ++at;
        for (const Bound& b : bound_)
          if (b.call == v) symbol_ready_[b.symbol] = at;
        last_ = std::max(last_, at);
      } else if (call == kNoValue && n.op != Op::kInput) {
        at = std::max({at, ReadyAt(n.type.shape), ReadyAt(n.attrs.syms), ReadyAt(n.strides)});
        if (n.attrs.sym_scalar) at = std::max(at, ReadyAt(*n.attrs.sym_scalar));
        if (std::find(g_.ordered.begin(), g_.ordered.end(), v) != g_.ordered.end()) at = drawn = std::max(at, drawn);
      }
      stage_[v] = at;
    }
    for (int at : stage_) last_ = std::max(last_, at);
  }

  // The first part from this one on behind which the call may run, by the bytes that the calls there are given already.
  int WithRoom(ValueId call, int at) {
    if (std::find(g_.ordered.begin(), g_.ordered.end(), call) != g_.ordered.end()) return at;
    constexpr int64_t kMost = 1 << 20;
    const std::vector<int64_t> hints = Hints(g_);
    for (;; ++at) {
      std::map<ValueId, int64_t> given = given_[at];
      for (ValueId o : g_.nodes[call].operands) {
        const TensorType& t = g_.nodes[o].type;
        if (g_.nodes[o].op != Op::kInput && t.device.kind == DeviceKind::kCpu)
          given[o] = t.numel().Eval(hints) * DTypeSize(t.dtype);
      }
      int64_t sum = 0;
      for (const auto& [v, bytes] : given) sum += bytes;
      if (!given_[at].empty() && sum > kMost) continue;
      given_[at] = std::move(given);
      return at;
    }
  }

  void Latest() {
    std::vector<int> users(g_.nodes.size(), last_);
    int draws = last_;
    for (ValueId v = static_cast<ValueId>(g_.nodes.size()); v-- > 0;) {
      const Node& n = g_.nodes[v];
      if (n.op == Op::kInput || !live_[v]) continue;
      const ValueId call = CutOf(v);
      int at = users[v];
      if (call == v) {
        at = cuts_[cut_of_[v]].stage;
      } else if (call != kNoValue) {
        continue;
      } else {
        if (std::find(g_.ordered.begin(), g_.ordered.end(), v) != g_.ordered.end()) at = draws = std::min(at, draws);
        FRAMEJIT_CHECK(at >= stage_[v]);
        if (stage_[v] && IsReduction(n.op) && n.type.device.kind == DeviceKind::kCpu) at = stage_[v];
        stage_[v] = at;
      }
      for (ValueId o : n.operands) users[o] = std::min(users[o], at);
    }
    for (ValueId v = 0; v < g_.nodes.size(); ++v)  // a call's results are picked where it runs
      if (g_.nodes[v].op == Op::kResult && CutOf(v) == kNoValue) stage_[v] = stage_[g_.nodes[v].operands[0]];
  }

  // Cheaper to make again than to pass on: reads nothing, or is another view of what passes.
  bool Remade(ValueId v) const {
    const Node& n = g_.nodes[v];
    if (std::find(g_.outputs.begin(), g_.outputs.end(), v) != g_.outputs.end()) return false;
    return n.op == Op::kConstant || n.op == Op::kIota || n.op == Op::kReshape || n.op == Op::kPermute ||
           n.op == Op::kSlice || n.op == Op::kBroadcast || n.op == Op::kFlip;
  }

  int ValueOf(ValueId v) {
    auto [at, fresh] = value_of_.emplace(v, static_cast<int>(plan_.values.size()));
    if (fresh) {
      const Node& n = g_.nodes[v];
      const Ints& strides = n.strides.empty() ? RowMajor(n.type.shape) : n.strides.list();
      plan_.values.push_back({n.type.dtype, n.type.device, n.type.shape, strides});
    }
    return at->second;
  }

  int InputOf(int part, ValueId v) {
    Draft& d = drafts_[part];
    const int value = ValueOf(v);
    auto at = std::find(d.inputs.begin(), d.inputs.end(), value);
    if (at != d.inputs.end()) return static_cast<int>(at - d.inputs.begin());
    Node n;
    n.op = Op::kInput;
    n.type = g_.nodes[v].type;
    n.strides = plan_.values[value].strides;
    n.attrs.name = g_.nodes[v].op == Op::kInput ? g_.nodes[v].attrs.name : "%" + std::to_string(v);
    d.graph.nodes.push_back(std::move(n));
    const auto node = static_cast<ValueId>(d.graph.nodes.size() - 1);
    d.graph.inputs.push_back(node);
    d.made[v] = node;
    d.inputs.push_back(value);
    const bool weight = value < static_cast<int>(weights_.size()) && weights_[value];
    d.weights.push_back(weight);
    return static_cast<int>(d.inputs.size() - 1);
  }

  void Pass(ValueId v) {  // out of the part that makes it
    Draft& d = drafts_[stage_[v]];
    const ValueId node = Get(v, stage_[v]);
    if (std::find(d.graph.outputs.begin(), d.graph.outputs.end(), node) != d.graph.outputs.end()) return;
    d.graph.outputs.push_back(node);
    Node& n = d.graph.nodes[node];
    if (n.strides.empty()) n.strides = RowMajor(n.type.shape);
    plan_.parts[stage_[v]].outputs.push_back(ValueOf(v));
  }

  // The value in a part's own numbers.
  ValueId Get(ValueId v, int part) {
    Draft& d = drafts_[part];
    if (auto known = d.made.find(v); known != d.made.end()) return known->second;
    const Node& old = g_.nodes[v];
    const bool passes = old.op == Op::kInput || CutOf(v) != kNoValue || (stage_[v] != part && !Remade(v));
    if (passes) {
      if (old.op != Op::kInput && CutOf(v) == kNoValue) Pass(v);
      return d.graph.inputs[InputOf(part, v)];
    }
    Node n = old;
    for (ValueId& o : n.operands) o = Get(o, part);
    n.derivative.reset();
    d.graph.nodes.push_back(std::move(n));
    return d.made[v] = static_cast<ValueId>(d.graph.nodes.size() - 1);
  }

  void AddCall(const Cut& c) {
    const Node& n = g_.nodes[c.node];
    runtime::Pieces::Call call{n.attrs.call, {}, {}};
    for (ValueId o : n.operands) {
      if (g_.nodes[o].op != Op::kInput && CutOf(o) == kNoValue) o = Operand(o, c.stage);
      call.operands.push_back(ValueOf(o));
      ReadsAt(ValueOf(o), 2 * c.stage + 1);
    }
    // By result, it says what stands for it, whether or not anything picks it.
    std::vector<int> results;
    for (size_t r = 0; r < n.attrs.result_types.size(); ++r) {
      int value = -1;
      for (ValueId v = c.node; v < g_.nodes.size() && value < 0; ++v) {
        const Node& pick = g_.nodes[v];
        const bool same = n.attrs.result_types.size() == 1
                              ? v == c.node
                              : pick.op == Op::kResult && pick.operands[0] == c.node && pick.attrs.axes[0] == int(r);
        if (same) value = ValueOf(v);
      }
      if (value < 0) {  // nothing picks it (any more)
        const TensorType& t = n.attrs.result_types[r];
        value = static_cast<int>(plan_.values.size());
        plan_.values.push_back({t.dtype, t.device, t.shape, RowMajor(t.shape)});
      }
      results.push_back(value);
      ReadsAt(value, 2 * c.stage + 1);
    }
    call.results = results;
    runtime::Pieces::Part& part = plan_.parts[c.stage];
    for (const Bound& b : bound_)
      if (b.call == c.node) part.symbols.push_back({b.symbol, results[b.result], b.dim});
    part.calls.push_back(std::move(call));
  }

  // An operand of a call between parts is a tensor in memory, made by this part or one before it.
  ValueId Operand(ValueId v, int part) {
    if (!Remade(v)) {
      Pass(v);
      return v;
    }
    const int value = ValueOf(v);
    for (const runtime::Pieces::Part& p : plan_.parts)
      if (std::find(p.outputs.begin(), p.outputs.end(), value) != p.outputs.end()) return v;
    // A view has no memory of its own: a copy in the layout that was promised.
    Draft& d = drafts_[part];
    const ValueId node = Get(v, part);
    Node copy;
    copy.op = Op::kCast;
    copy.operands = {node};
    copy.type = d.graph.nodes[node].type;
    copy.attrs.dtype = copy.type.dtype;
    copy.strides = g_.nodes[v].strides.empty() ? RowMajor(copy.type.shape) : g_.nodes[v].strides.list();
    d.graph.nodes.push_back(std::move(copy));
    d.graph.outputs.push_back(static_cast<ValueId>(d.graph.nodes.size() - 1));
    plan_.parts[part].outputs.push_back(value);
    return v;
  }

  void ReadsAt(int value, int time) { plan_.values[value].last = std::max(plan_.values[value].last, time); }

  void AddConditions() {
    for (const shape::Guard& c : g_.conditions) {
      const int ready = std::max(ReadyAt(c.lhs), ReadyAt(c.rhs));
      if (ready > 0) plan_.parts[ready - 1].conditions.push_back(c);
    }
  }

  void Finish(int k, const MakePart& make) {
    Draft& d = drafts_[k];
    runtime::Pieces::Part& part = plan_.parts[k];
    part.inputs = d.inputs;
    for (int v : d.inputs) ReadsAt(v, 2 * k);
    for (int v : part.outputs) ReadsAt(v, 2 * k);
    d.graph.name = g_.name + " part " + std::to_string(k);
    const bool calls =
        std::any_of(d.graph.nodes.begin(), d.graph.nodes.end(), [](const Node& n) { return n.op == Op::kExtern; });
    if (d.graph.outputs.empty() && d.graph.writes.empty() && !calls) {
      part.inputs.clear();
      return;
    }
    part.run = make(d.graph, d.weights);
  }

  struct Bound {
    uint32_t symbol;
    ValueId call;
    int result, dim;
  };
  const Graph& g_;
  const std::vector<bool>& weights_;
  std::vector<bool> live_;
  std::vector<Cut> cuts_;
  std::map<ValueId, int> cut_of_;
  std::vector<Bound> bound_;
  std::vector<int> symbol_ready_;  // by symbol: the first part that may use it
  std::vector<int> stage_;         // by node
  int last_ = 0;
  std::map<int, std::map<ValueId, int64_t>> given_;  // by part: what its calls are given, and how many bytes
  std::vector<Draft> drafts_;
  std::map<ValueId, int> value_of_;
  runtime::Pieces plan_;
};

}  // namespace

bool HasDataSizes(const Graph& g) {
  const auto at_run = [&](uint32_t id) {
    return id < g.symbols.size() && g.symbols[id].kind == shape::SymbolKind::kRuntime;
  };
  bool any = false;
  for (const Node& n : g.nodes)
    if (n.op == Op::kExtern)
      for (const TensorType& t : n.attrs.result_types)
        for (const Int& i : t.shape) i.ForEachSymbol([&](uint32_t id) { any |= at_run(id); });
  return any;
}

std::shared_ptr<Executable> CompilePieces(const Graph& graph, const std::vector<bool>& weights, const MakePart& make) {
  return Cutter(graph, weights).Run(make);
}

}  // namespace framejit::compiler
