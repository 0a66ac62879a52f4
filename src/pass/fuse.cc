// Fusion as a greedy priority queue over (producer group, consumer group) pairs. The gain of a merge is the memory
// traffic it saves: values that need no buffer any more, operands read once instead of twice. The launch that it saves
// is the same for all. Merging needs
//   - no path from producer to consumer through a third group (the merged step could not be ordered), and
//   - loop::CanFuse: one kernel can compute the union.
// Groups are kept in a topological order all the time, so that the path search only looks at the groups between the
// two, and a merge only reorders those. Nothing is ever computed twice by a merge: a value with readers in several
// groups is stored by the group that makes it.

#include "pass/fuse.h"

#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <queue>
#include <span>

#include "diag/diag.h"
#include "graph/effects.h"
#include "graph/hints.h"
#include "graph/raises.h"
#include "loop/alike.h"
#include "loop/order.h"
#include "pass/alias.h"

namespace framejit::pass {
namespace {

// Parts of arrays of so many bytes cost a kernel of their own if more than so many operations compute them.
constexpr double kLargeParts = 8192;
constexpr int kCheapPart = 4;
// A kernel looks among the parts for that of each element. Of so many, each is stored in its place instead.
constexpr size_t kManyParts = 8;
// A matrix of so many bytes is made by a kernel of its own where a product reads it as it is made.
constexpr double kLargeFed = 1 << 18;

class Fuser {
 public:
  Fuser(const Graph& g, const FuseOptions& options, loop::Fusing& fusing, Grouping& out)
      : g_(g), options_(options), fusing_(fusing), out_(out) {}

  void Run() {
    MarkLive();
    out_.aliases = HardAliases(g_, live_);
    StoreWhatIsSummed();
    MarkFree();
    MakeUnits();
    if (options_.fuse) Merge();
    if (options_.boundaries) Explain();
    Emit();
  }

 private:
  using Nodes = absl::InlinedVector<ValueId, 6>;  // a model has thousands of small groups
  using Members = std::span<const ValueId>;
  struct Unit {
    Group::Kind kind = Group::Kind::kKernel;
    Nodes nodes;            // sorted; without free nodes
    int position = 0;       // in order_
    int stamp = 0;          // changes when the unit does
    int next_extern = -1;   // externs run in program order: they may read the generator or print
    int next_foreign = -1;  // of what may raise: the operator of the user's that is called behind it
    bool dead = false;
    bool elementwise = false;  // all nodes are, and what they read that is free is a plain constant
  };
  struct Candidate {
    double gain;
    int producer, consumer, producer_stamp, consumer_stamp;
    bool operator<(const Candidate& o) const {  // ties: program order, so that results do not depend on the queue
      if (gain != o.gain) return gain < o.gain;
      if (producer != o.producer) return producer > o.producer;
      return consumer > o.consumer;
    }
  };

  void MarkLive() {
    live_.assign(g_.nodes.size(), false);
    must_store_.assign(g_.nodes.size(), false);
    for (ValueId v : g_.outputs) live_[v] = must_store_[v] = true;
    for (const Write& w : g_.writes) live_[w.value] = must_store_[w.value] = true;
    for (ValueId v = g_.nodes.size(); v-- > 0;) {
      if (g_.nodes[v].op == Op::kExtern || g_.nodes[v].op == Op::kInput) live_[v] = true;
      if (!live_[v]) continue;
      for (ValueId o : g_.nodes[v].operands) live_[o] = true;
    }
  }

  // What NumPy sums it has made before. A view is that only where a sum of what is viewed has the same order.
  void StoreWhatIsSummed() {
    const auto numpys = [](const Node& n) { return loop::IsNumpys(n); };
    if (std::none_of(g_.nodes.begin(), g_.nodes.end(), numpys)) return;
    for (ValueId v = 0; v < g_.nodes.size(); ++v)
      layouts_.push_back(is_alias(v) ? out_.aliases[v]->layout : StoredLayout(g_, v));
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      if (!live_[v] || !numpys(g_.nodes[v]) || loop::SumsInOrder(g_, {v}, {v}, layouts_)) continue;
      const ValueId o = g_.nodes[v].operands[0];
      out_.aliases[o].reset();
      layouts_[o] = StoredLayout(g_, o);
    }
  }

  bool is_alias(ValueId v) const { return out_.aliases[v].has_value(); }
  ValueId Base(ValueId v) const { return is_alias(v) ? out_.aliases[v]->base : v; }
  double Bytes(ValueId v) const { return bytes_[v]; }

  bool Joins(ValueId v) const {
    const Node& n = g_.nodes[v];
    return options_.parts_apart && n.op == Op::kCat && n.operands.size() >= kManyParts && Bytes(v) >= kLargeParts;
  }

  void MarkFree() {
    const size_t n = g_.nodes.size();
    const std::vector<int64_t> hints = Hints(g_);
    free_.assign(n, false);
    bytes_.assign(n, 0);
    readers_.assign(n, {});
    for (ValueId v = 0; v < n; ++v) {
      const Node& node = g_.nodes[v];
      if (!live_[v]) continue;
      bytes_[v] = DTypeSize(node.type.dtype);
      for (shape::Int d : node.type.shape) bytes_[v] *= static_cast<double>(d.Eval(hints));
      if (node.op == Op::kConstant || node.op == Op::kIota) free_[v] = true;
      if (Info(node.op).kind == 'V' || node.op == Op::kCast) {
        free_[v] = !node.operands.empty() &&
                   std::all_of(node.operands.begin(), node.operands.end(), [&](ValueId o) { return free_[o]; });
      }
      if (is_alias(v)) continue;
      for (ValueId o : node.operands) {
        // A free value that a step other than a kernel reads needs a buffer.
        if (IsHard(g_, v) || Joins(v)) must_store_[o] = must_store_[o] || free_[o];
        readers_[Base(o)].push_back(v);
      }
    }
    fed_.assign(n, false);
    for (ValueId v = 0; v < n && options_.feeds; ++v) {
      const Node& product = g_.nodes[v];
      if (!live_[v] || product.op != Op::kMatMul) continue;
      const ValueId o = product.operands[0];
      fed_[o] = !must_store_[o] && !is_alias(o) && readers_[o].size() == 1 && Bytes(o) >= kLargeFed &&
                FeedsProduct(product.type.dtype, g_.nodes[o].type.shape, g_.nodes[product.operands[1]].type.shape);
    }
  }

  // Would something be stored beside a matrix that need not be?
  bool StoresFed(Members merged) const {
    return std::any_of(merged.begin(), merged.end(), [&](ValueId v) { return fed_[v]; }) &&
           std::count_if(merged.begin(), merged.end(), [&](ValueId v) { return ReadOutside(v, merged); }) > 1;
  }

  bool IsPlainConstant(ValueId v) const {
    const Node& n = g_.nodes[v];
    return n.op == Op::kConstant || (n.op == Op::kBroadcast && g_.nodes[n.operands[0]].op == Op::kConstant);
  }

  void MakeUnits() {
    unit_of_.assign(g_.nodes.size(), -1);
    int last_extern = -1;
    std::vector<int> raising;
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      const Node& node = g_.nodes[v];
      if (!live_[v] || node.op == Op::kInput || is_alias(v) || (free_[v] && !must_store_[v])) continue;
      if (node.op == Op::kResult) {
        unit_of_[v] = unit_of_[node.operands[0]];
        units_[unit_of_[v]].nodes.push_back(v);
        continue;
      }
      const int u = static_cast<int>(units_.size());
      Unit unit;
      unit.position = u;
      unit.nodes = {v};
      unit.elementwise = loop::IsElementwise(g_, v) && !free_[v] &&
                         std::all_of(node.operands.begin(), node.operands.end(),
                                     [&](ValueId o) { return !free_[o] || IsPlainConstant(o); });
      if (Info(node.op).kind == 'M') unit.kind = Group::Kind::kLibrary;
      if (Joins(v) && !free_[v]) unit.kind = Group::Kind::kJoin;
      if (node.op == Op::kExtern) {
        unit.kind = Group::Kind::kExtern;
        if (last_extern >= 0) units_[last_extern].next_extern = u;
        last_extern = u;
      }
      const DType operand = node.operands.empty() ? DType::kBool : g_.nodes[node.operands[0]].type.dtype;
      if (node.op == Op::kExtern && node.attrs.call && node.attrs.call->callee.Has(kForeign)) {
        for (int p : raising) units_[p].next_foreign = u;
        raising.clear();
      } else if (IsNoticed(node, operand, false)) {
        raising.push_back(u);
      }
      unit_of_[v] = u;
      units_.push_back(std::move(unit));
      order_.push_back(u);
    }
  }

  template <typename F>
  void ForEachSuccessor(int u, F f) const {
    for (ValueId v : units_[u].nodes) {
      for (ValueId r : readers_[v]) {
        if (int s = unit_of_[r]; s >= 0 && s != u) f(s);
      }
    }
    if (units_[u].next_extern >= 0) f(units_[u].next_extern);
    if (units_[u].next_foreign >= 0) f(units_[u].next_foreign);
  }

  template <typename F>
  void ForEachProducer(int u, F f) const {
    for (ValueId v : units_[u].nodes) {
      for (ValueId o : g_.nodes[v].operands) {
        if (int p = unit_of_[Base(o)]; p >= 0 && p != u) f(p);
      }
    }
  }

  bool ReadOutside(ValueId v, Members members) const {
    if (must_store_[v]) return true;
    return std::any_of(readers_[v].begin(), readers_[v].end(),
                       [&](ValueId r) { return !std::binary_search(members.begin(), members.end(), r); });
  }

  // The members with the free values they read, and those that need a buffer.
  void Complete(Members nodes, Group* made) const {
    Group& group = *made;
    group.nodes.assign(nodes.begin(), nodes.end());
    group.stored.clear();
    for (size_t i = 0; i < group.nodes.size(); ++i) {
      for (ValueId o : g_.nodes[group.nodes[i]].operands) {
        if (free_[o] && std::find(group.nodes.begin(), group.nodes.end(), o) == group.nodes.end())
          group.nodes.push_back(o);
      }
    }
    std::sort(group.nodes.begin(), group.nodes.end());
    for (ValueId v : nodes) {
      if (ReadOutside(v, nodes) || (free_[v] && must_store_[v])) group.stored.push_back(v);
    }
  }

  // Thousands may read one value, as a weight or a mask; a unit has few nodes.
  bool ReadBy(ValueId v, Members nodes) const {
    const Members readers = readers_[v];  // sorted, like `nodes`
    const bool fewer = readers.size() < nodes.size();
    const Members few = fewer ? readers : nodes, many = fewer ? nodes : readers;
    return std::any_of(few.begin(), few.end(),
                       [&](ValueId x) { return std::binary_search(many.begin(), many.end(), x); });
  }

  double Gain(const Unit& a, const Unit& b, Members merged) const {
    double gain = 0;
    for (ValueId v : a.nodes) {
      if (!ReadBy(v, b.nodes)) continue;
      gain += Bytes(v);
      if (!ReadOutside(v, merged)) gain += Bytes(v);
    }
    for (ValueId v : a.nodes) {
      for (ValueId o : g_.nodes[v].operands) {
        ValueId base = Base(o);
        if (free_[base] || std::binary_search(merged.begin(), merged.end(), base)) continue;
        if (ReadBy(base, b.nodes)) gain += Bytes(base);
      }
    }
    return gain;
  }

  // Would the kernel compute something expensive once for every row? That is so for a value that is repeated along
  // leading dimensions; repeated along trailing ones it is computed once a row.
  bool RepeatsAlongLeadingDims(const Node& n) const {
    if (n.op != Op::kBroadcast) return false;
    const auto& from = g_.nodes[n.operands[0]].type.shape;
    std::vector<bool> old(n.type.rank(), false);
    for (size_t i = 0; i < n.attrs.axes.size(); ++i) {
      if (from[i] != shape::Int(1)) old[n.attrs.axes[i]] = true;
    }
    int first_new = n.type.rank(), last_old = -1;
    for (int i = 0; i < n.type.rank(); ++i) {
      if (old[i])
        last_old = i;
      else if (n.type.shape[i] != shape::Int(1))
        first_new = std::min(first_new, i);
    }
    return first_new < last_old;
  }

  bool RepeatsExpensiveWork(Members nodes) const {
    if (std::none_of(nodes.begin(), nodes.end(), [&](ValueId v) { return IsExpensive(g_.nodes[v]); })) return false;
    std::vector<bool> costly(nodes.size(), false);
    for (size_t i = 0; i < nodes.size(); ++i) {
      const Node& n = g_.nodes[nodes[i]];
      for (ValueId o : n.operands) {
        auto it = std::lower_bound(nodes.begin(), nodes.end(), o);
        if (it != nodes.end() && *it == o && costly[it - nodes.begin()]) costly[i] = true;
      }
      if (costly[i] && RepeatsAlongLeadingDims(n)) return true;
      costly[i] = costly[i] || IsExpensive(n);
    }
    return false;
  }

  // Says why the two can never be one, whatever they compute. It is null where they may be.
  const char* KeepsApart(const Unit& p, const Unit& c) const {
    for (const Unit* u : {&p, &c}) {
      if (u->kind == Group::Kind::kLibrary) return "a product is a library's call";
      if (u->kind == Group::Kind::kJoin) return "many parts are stored where they belong";
      if (u->kind == Group::Kind::kExtern) return "it is the framework's own call";
    }
    if (p.nodes.size() + c.nodes.size() > options_.max_nodes) return "the kernel would be too long";
    if (!(g_.nodes[p.nodes[0]].type.device == g_.nodes[c.nodes[0]].type.device)) return "they are on different devices";
    return nullptr;
  }

  // A kernel computes each part of what is put together for all of its elements, and chooses. Would it compute much
  // more so than the parts have elements?
  bool ComputesPartsForAll(Members nodes) const {
    const auto within = [&](ValueId v) { return std::binary_search(nodes.begin(), nodes.end(), v); };
    for (ValueId v : nodes) {
      const Node& cat = g_.nodes[v];
      if (cat.op != Op::kCat || Bytes(v) < kLargeParts) continue;
      for (ValueId part : cat.operands) {
        if (2 * Bytes(part) >= Bytes(v)) continue;
        std::vector<ValueId> seen = {part};
        int cost = 0;
        for (size_t i = 0; i < seen.size() && cost <= kCheapPart; ++i) {
          if (!within(seen[i])) continue;
          const Node& n = g_.nodes[seen[i]];
          if (Info(n.op).kind != 'V') cost += std::max<int>(1, Info(n.op).cost);
          for (ValueId o : n.operands)
            if (!free_[o] && std::find(seen.begin(), seen.end(), o) == seen.end()) seen.push_back(o);
        }
        if (cost > kCheapPart) return true;
      }
    }
    return false;
  }

  // Connected units that are surely one kernel: to ask that of a chain, again for each merge, is most of what it costs.
  bool SurelyOneKernel(const Unit& a, const Unit& b) const {
    return a.elementwise && b.elementwise && g_.nodes[a.nodes[0]].type.shape == g_.nodes[b.nodes[0]].type.shape;
  }

  // Does one kernel compute all of `merged`? why: where it does not, the reason.
  bool IsOneKernel(Members merged, std::string* why = nullptr) const {
    if (RepeatsExpensiveWork(merged)) {
      if (why) *why = "expensive values would be computed again for every row";
      return false;
    }
    if (options_.parts_apart && ComputesPartsForAll(merged)) {
      if (why) *why = "small parts of an array would be computed for all of its elements";
      return false;
    }
    if (StoresFed(merged)) {
      if (why) *why = "a product reads a matrix as it is made";
      return false;
    }
    Group& group = asked_;
    Complete(merged, &group);
    if (!(why ? loop::CanFuse(g_, group.nodes, group.stored, why) : fusing_.Can(group.nodes, group.stored)))
      return false;
    if (loop::SumsInOrder(g_, group.nodes, group.stored, layouts_)) return true;
    if (why) *why = "NumPy adds up in another order than one kernel would";
    return false;
  }

  void Push(int a, int b) {
    const Unit& p = units_[a];
    const Unit& c = units_[b];
    if (KeepsApart(p, c)) return;
    queue_.push({Gain(p, c, Union(p.nodes, c.nodes)), a, b, p.stamp, c.stamp});
  }

  static Nodes Union(Members a, Members b) {
    Nodes u(a.size() + b.size());
    std::merge(a.begin(), a.end(), b.begin(), b.end(), u.begin());
    return u;
  }

  void PushNeighbours(int u) {
    absl::InlinedVector<int, 8> seen;
    ForEachSuccessor(u, [&](int s) { seen.push_back(s); });
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    for (int s : seen) Push(u, s);
  }

  void Merge() {
    for (int u = 0; u < units_.size(); ++u) PushNeighbours(u);
    while (!queue_.empty()) {
      const Candidate c = queue_.top();
      queue_.pop();
      Unit& a = units_[c.producer];
      Unit& b = units_[c.consumer];
      if (a.dead || b.dead || a.stamp != c.producer_stamp || b.stamp != c.consumer_stamp) continue;
      Nodes merged = Union(a.nodes, b.nodes);
      const bool surely = SurelyOneKernel(a, b) && !StoresFed(merged);
      if (!surely && !IsOneKernel(merged)) continue;
      if (!Reorder(c.producer, c.consumer)) continue;
      for (ValueId v : b.nodes) unit_of_[v] = c.producer;
      a.nodes = std::move(merged);
      if (a.next_foreign < 0 || (b.next_foreign >= 0 && b.next_foreign < a.next_foreign))
        a.next_foreign = b.next_foreign;  // the first of them: operators are called in program order
      a.elementwise = surely;
      ++a.stamp;
      b.dead = true;
      b.nodes.clear();
      PushNeighbours(c.producer);
      absl::InlinedVector<int, 8> producers;
      ForEachProducer(c.producer, [&](int p) { producers.push_back(p); });
      std::sort(producers.begin(), producers.end());
      producers.erase(std::unique(producers.begin(), producers.end()), producers.end());
      for (int p : producers) Push(p, c.producer);
    }
  }

  // Moves a and b next to each other in the order, and what depends on `a` behind them. It is false if b depends on
  // such a group.
  bool Reorder(int a, int b) {
    const int begin = units_[a].position, end = units_[b].position;
    FRAMEJIT_CHECK(begin < end);
    ++visit_;
    visited_.resize(units_.size(), 0);
    absl::InlinedVector<int, 16> stack = {a};
    bool cycle = false;
    while (!stack.empty() && !cycle) {
      const int u = stack.back();
      stack.pop_back();
      ForEachSuccessor(u, [&](int s) {
        if (s == b)
          cycle = cycle || u != a;
        else if (units_[s].position < end && visited_[s] != visit_) {
          visited_[s] = visit_;
          stack.push_back(s);
        }
      });
    }
    if (cycle) return false;
    absl::InlinedVector<int, 16> before, after;
    for (int i = begin + 1; i < end; ++i) (visited_[order_[i]] == visit_ ? after : before).push_back(order_[i]);
    int position = begin;
    auto place = [&](int u) {
      order_[position] = u;
      units_[u].position = position++;
    };
    for (int u : before) place(u);
    place(a);
    place(b);
    for (int u : after) place(u);
    return true;
  }

  // Each pair of neighbours that is left, in the order of the groups. A pair with nothing else against it has a third
  // step between them.
  void Explain() {
    std::vector<int> index(units_.size(), -1);
    int next = 0;
    for (int u : order_) {
      if (!units_[u].dead) index[u] = next++;
    }
    for (int u : order_) {
      if (units_[u].dead) continue;
      std::vector<int> readers;
      for (ValueId v : units_[u].nodes) {
        for (ValueId r : readers_[v]) {
          if (int s = unit_of_[r]; s >= 0 && s != u) readers.push_back(s);
        }
      }
      std::sort(readers.begin(), readers.end(), [&](int a, int b) { return index[a] < index[b]; });
      readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
      for (int r : readers) {
        const char* apart = options_.fuse ? KeepsApart(units_[u], units_[r]) : "fusion is off";
        std::string why = apart ? apart : "a third step must run between them";
        if (!apart) IsOneKernel(Union(units_[u].nodes, units_[r].nodes), &why);
        out_.boundaries.push_back({index[u], index[r], std::move(why)});
      }
    }
  }

  void Emit() {
    for (int u : order_) {
      if (units_[u].dead) continue;
      Group group;
      if (units_[u].kind == Group::Kind::kKernel) {
        Complete(units_[u].nodes, &group);
      } else {
        group.nodes.assign(units_[u].nodes.begin(), units_[u].nodes.end());
        group.stored = group.nodes;
      }
      group.kind = units_[u].kind;
      out_.groups.push_back(std::move(group));
    }
  }

  const Graph& g_;
  const FuseOptions& options_;
  loop::Fusing& fusing_;
  Grouping& out_;
  std::vector<bool> live_, must_store_, free_, fed_;
  std::vector<loop::Layout> layouts_;  // by value, where it is stored; empty if nothing is a sum of NumPy
  std::vector<double> bytes_;
  std::vector<absl::InlinedVector<ValueId, 4>> readers_;  // by base: live nodes that read it, aliases seen through
  std::vector<int> unit_of_;
  std::vector<Unit> units_;
  std::vector<int> order_;
  std::vector<int> visited_;
  int visit_ = 0;
  std::priority_queue<Candidate> queue_;
  mutable Group asked_;  // of IsOneKernel: its memory
};

}  // namespace

bool IsExpensive(const Node& n) {
  return IsReduction(n.op) || Info(n.op).kind == 'I' || Info(n.op).cost >= 16;
}

bool FeedsProduct(DType dtype, const shape::Ints& matrix, const shape::Ints& vector) {
  return dtype == DType::kFloat64 && matrix.size() == 2 && vector.size() == 2 && vector[1] == shape::Int(1);
}

Grouping Fuse(const Graph& g, const FuseOptions& options) {
  Grouping out;
  loop::Fusing fusing(g);
  Fuser(g, options, fusing, out).Run();
  AliasStoredViews(g, fusing, out);
  SetLayouts(g, out);
  return out;
}

std::vector<Group> Split(const Graph& g, const Group& group) {
  // Everything that is made here and read by another member needs a buffer now.
  std::vector<Group> parts;
  auto stored = [&](ValueId v) { return std::find(group.stored.begin(), group.stored.end(), v) != group.stored.end(); };
  for (ValueId v : group.nodes) {
    bool read = stored(v);
    for (ValueId u : group.nodes) {
      for (ValueId o : g.nodes[u].operands) read = read || (o == v);
    }
    if (!read) continue;
    Group part;
    part.nodes = {v};
    part.stored = {v};
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace framejit::pass
