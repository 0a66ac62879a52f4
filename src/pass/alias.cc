#include "pass/alias.h"

#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <set>

#include "graph/device.h"
#include "graph/views.h"
#include "loop/order.h"

namespace framejit::pass {
namespace {

using loop::Layout;
using shape::Int;
using shape::Ints;

// Attention's natural result is [batch, length, head, e]. When every reader wants it that way (the usual transpose
// before the output projection), it is stored that way and the transpose costs nothing.
bool OnlyReadTransposed(const Graph& g, ValueId v) {
  static const std::vector<int64_t> kSwap = {0, 2, 1, 3};
  bool any = false;
  for (const Node& n : g.nodes) {
    for (ValueId o : n.operands) {
      if (o != v) continue;
      if (n.op != Op::kPermute || n.attrs.axes != kSwap) return false;
      any = true;
    }
  }
  return any;
}

// Where attention answers in its query's memory order, what is computed for such an attention alone is stored so, too.
bool OnlyReadByTransposed(const Graph& g, ValueId v) {
  if (!TraitsOf(g.nodes[v].type.device).attention_as_query || Info(g.nodes[v].op).kind != 'P') return false;
  bool any = false;
  for (ValueId u = v + 1; u < g.nodes.size(); ++u) {
    const Node& n = g.nodes[u];
    if (std::find(n.operands.begin(), n.operands.end(), v) == n.operands.end()) continue;
    if (n.op != Op::kAttention || !n.strides.empty() || !OnlyReadTransposed(g, u)) return false;
    any = true;
  }
  return any && std::find(g.outputs.begin(), g.outputs.end(), v) == g.outputs.end();
}

bool Injective(const Ints& strides, const Ints& sizes) {
  for (size_t i = 0; i < strides.size(); ++i) {
    if (strides[i] == Int(0) && sizes[i] != Int(1)) return false;
  }
  return true;
}

bool IsPeelable(Op op) {
  return op == Op::kPermute || op == Op::kReshape || op == Op::kBroadcast;
}

}  // namespace

bool IsHard(const Graph& g, ValueId v) {
  const char kind = Info(g.nodes[v].op).kind;
  return g.nodes[v].op == Op::kInput || kind == 'M' || kind == 'X' || kind == 'W';
}

Layout StoredLayout(const Graph& g, ValueId v) {
  const Node& n = g.nodes[v];
  const auto& sizes = n.type.shape;
  if (sizes.size() == 4 && n.strides.empty() &&
      (n.op == Op::kAttention ? OnlyReadTransposed(g, v) : OnlyReadByTransposed(g, v))) {
    Ints t = RowMajor(Ints{sizes[0], sizes[2], sizes[1], sizes[3]});
    return {{t[0], t[2], t[1], t[3]}, 0};
  }
  const bool row_major = n.op == Op::kMatMul || n.op == Op::kLinear;  // what Host::MatMul and Linear promise to write
  if (n.strides.empty() || row_major) return {RowMajor(sizes), 0};
  const auto output = [&] { return std::find(g.outputs.begin(), g.outputs.end(), v) != g.outputs.end(); };
  if (n.op == Op::kInput || Info(n.op).kind == 'X' || Injective(n.strides, sizes) || output()) return {n.strides, 0};
  return {RowMajor(sizes), 0};
}

Ints OutputStrides(const Graph& g, ValueId v) {
  const Node& n = g.nodes[v];
  // An input that came to be an output took the place of a copy of its own layout.
  const bool promised = !n.strides.empty() && (n.op != Op::kInput || Injective(n.strides, n.type.shape));
  return promised ? n.strides.list() : RowMajor(n.type.shape);
}

bool CoversAsOutput(const Graph& g, ValueId base, ValueId output, const Layout& layout) {
  const auto& t = g.nodes[output].type;
  return layout.offset == Int(0) && t.numel() == g.nodes[base].type.numel() &&
         SameStrides(t.shape, layout.strides, OutputStrides(g, output)) && Injective(layout.strides, t.shape);
}

std::vector<std::optional<Alias>> HardAliases(const Graph& g, const std::vector<bool>& live) {
  std::vector<std::optional<Alias>> aliases(g.nodes.size());
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    const Node& n = g.nodes[v];
    if (!live[v] || !IsView(n.op) || n.operands.size() != 1) continue;
    const ValueId o = n.operands[0];
    if (!aliases[o] && !IsHard(g, o)) continue;
    auto layout = ViewLayout(n, g.nodes[o].type, aliases[o] ? aliases[o]->layout : StoredLayout(g, o));
    if (layout) aliases[v] = Alias{aliases[o] ? aliases[o]->base : o, std::move(*layout)};
  }
  return aliases;
}

// Where what they read lies decides in which order kernels add up: do all of those in `summing`, which sum as NumPy
// does, and that read one of `values`, do so also if these lie so, and `before` is `now`?
static bool SumsStayInOrder(const Graph& g, const Grouping& grouping, const std::vector<const Group*>& summing,
                            const Group& before, const Group& now,
                            const std::vector<std::pair<ValueId, Alias>>& values) {
  std::vector<Layout> layouts;  // by value, where a sum is found
  for (const Group* other : summing) {
    const Group& group = other == &before ? now : *other;
    const auto reads = [&](ValueId v) {
      const auto& operands = g.nodes[v].operands;
      return std::any_of(values.begin(), values.end(), [&](const auto& value) {
        return std::find(operands.begin(), operands.end(), value.first) != operands.end();
      });
    };
    if (&group != &now && std::none_of(group.nodes.begin(), group.nodes.end(), reads)) continue;
    if (layouts.empty()) {
      for (ValueId v = 0; v < g.nodes.size(); ++v)
        layouts.push_back(grouping.aliases[v] ? grouping.aliases[v]->layout : StoredLayout(g, v));
      for (const auto& [v, alias] : values) layouts[v] = alias.layout;
    }
    if (!loop::SumsInOrder(g, group.nodes, group.stored, layouts)) return false;
  }
  return true;
}

void AliasStoredViews(const Graph& g, loop::Fusing& fusing, Grouping& grouping) {
  std::vector<bool> written(g.nodes.size(), false), output(g.nodes.size(), false);
  for (const Write& w : g.writes) written[w.value] = true;
  for (ValueId v : g.outputs) output[v] = true;
  std::vector<const Group*> summing;
  for (const Group& group : grouping.groups) {
    const auto numpys = [&](ValueId v) { return loop::IsNumpys(g.nodes[v]); };
    if (group.kind == Group::Kind::kKernel && std::any_of(group.nodes.begin(), group.nodes.end(), numpys))
      summing.push_back(&group);
  }
  for (Group& group : grouping.groups) {
    if (group.kind != Group::Kind::kKernel) continue;
    auto has = [&](ValueId v) { return std::binary_search(group.nodes.begin(), group.nodes.end(), v); };
    std::vector<std::pair<ValueId, Alias>> found;
    for (ValueId v : group.stored) {
      absl::InlinedVector<ValueId, 8> chain;  // v and the views above it, then the root
      for (ValueId r = v;; r = g.nodes[r].operands[0]) {
        chain.push_back(r);
        if (!IsPeelable(g.nodes[r].op) || !has(g.nodes[r].operands[0])) break;
      }
      ValueId root = chain.back();
      if (root == v) continue;
      Layout layout = StoredLayout(g, root);
      for (size_t i = chain.size() - 1; i-- > 0;) {
        auto next = ViewLayout(g.nodes[chain[i]], g.nodes[chain[i + 1]].type, layout);
        if (next) {
          layout = std::move(*next);
        } else {
          root = chain[i];
          layout = StoredLayout(g, root);
        }
      }
      if (root == v) continue;
      if (output[v] && !CoversAsOutput(g, root, v, layout)) continue;
      const char kind = Info(g.nodes[root].op).kind;
      if (kind == 'C') continue;  // a broadcast constant: nothing is gained
      found.push_back({v, Alias{root, std::move(layout)}});
    }
    if (found.empty()) continue;
    std::set<ValueId> stored(group.stored.begin(), group.stored.end());
    for (auto& [v, alias] : found) stored.erase(v);
    for (auto& [v, alias] : found) stored.insert(alias.base);
    // A base that became an alias itself (two stored views of one chain) would need composing: roots are never views
    // that were peeled, because every chain is walked to the same root.
    if (std::any_of(found.begin(), found.end(), [&](auto& f) { return stored.contains(f.first); })) continue;
    Group changed = group;
    changed.stored.assign(stored.begin(), stored.end());
    std::vector<int> readers(group.nodes.size());
    auto each_read = [&](ValueId u, auto f) {
      for (ValueId v : g.nodes[u].operands)
        if (has(v)) f(readers[std::lower_bound(group.nodes.begin(), group.nodes.end(), v) - group.nodes.begin()]);
    };
    for (ValueId u : group.nodes) each_read(u, [](int& n) { ++n; });
    for (size_t i = changed.nodes.size(); i-- > 0;) {  // views that nobody inside reads any more
      if (readers[i] || stored.contains(changed.nodes[i])) continue;
      each_read(changed.nodes[i], [](int& n) { --n; });
      changed.nodes[i] = kNoValue;
    }
    std::erase(changed.nodes, kNoValue);
    if (!fusing.Can(changed.nodes, changed.stored) || !SumsStayInOrder(g, grouping, summing, group, changed, found))
      continue;
    group = std::move(changed);
    for (auto& [v, alias] : found) grouping.aliases[v] = std::move(alias);
  }
}

void SetLayouts(const Graph& g, Grouping& grouping) {
  grouping.layouts.assign(g.nodes.size(), {});
  for (ValueId v : g.inputs) grouping.layouts[v] = StoredLayout(g, v);
  for (const Group& group : grouping.groups) {
    for (ValueId v : group.stored) grouping.layouts[v] = StoredLayout(g, v);
  }
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    if (grouping.aliases[v]) grouping.layouts[v] = grouping.aliases[v]->layout;
  }
  for (ValueId v : g.outputs) {  // dimensions of size 1 have the promised strides too
    const auto& alias = grouping.aliases[v];
    if (alias && CoversAsOutput(g, alias->base, v, alias->layout)) grouping.layouts[v].strides = OutputStrides(g, v);
  }
}

}  // namespace framejit::pass
