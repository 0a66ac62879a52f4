#include "pass/cse.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory_resource>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>

#include "graph/print.h"
#include "graph/rewrite.h"

namespace framejit::pass {
namespace {

using shape::Int;

// Bit for bit: max and min do not (signed zeros, which nan), nor do complex products, of which one part is fused.
bool Commutes(const Node& n) {
  const Op op = n.op;
  if (op == Op::kMul && IsComplex(n.type.dtype)) return false;
  return op == Op::kAdd || op == Op::kMul || op == Op::kAnd || op == Op::kOr || op == Op::kXor || op == Op::kEq ||
         op == Op::kNe;
}

bool Mergeable(const Node& n) {
  char kind = Info(n.op).kind;
  return n.op != Op::kInput && kind != 'X' && kind != 'W';
}

// Everything that decides the value of a node, as text. For a reduction it does not matter whether its axes stay, with
// size 1: of two the second is the first one, in another shape.
std::string KeyOf(Node n) {
  if (Commutes(n)) std::sort(n.operands.begin(), n.operands.end());
  if (IsReduction(n.op) && n.strides.empty()) {
    n.attrs.flag = false;
    n.type.shape.clear();
  }
  return NodeText(n, false);
}

// Are they alike in every part? Those have the same text.
bool Alike(const Node& a, const Node& b) {
  const auto plain = [](const Node& n) { return !n.attrs.call && !n.attrs.sym_scalar && n.attrs.result_types.empty(); };
  const auto *x = std::get_if<double>(&a.attrs.scalar.v), *y = std::get_if<double>(&b.attrs.scalar.v);
  if (x && y && std::bit_cast<uint64_t>(*x) != std::bit_cast<uint64_t>(*y)) return false;  // 0 and -0
  return a.op == b.op && plain(a) && plain(b) && a.operands == b.operands && a.type == b.type &&
         a.strides == b.strides && a.attrs.axes == b.attrs.axes && a.attrs.syms == b.attrs.syms &&
         a.attrs.scalar == b.attrs.scalar && a.attrs.dtype == b.attrs.dtype && a.attrs.flag == b.attrs.flag &&
         a.attrs.name == b.attrs.name;
}

// The same of nodes that have the same text. `now` gives the numbers that its operands have now.
template <typename Now>
size_t HashOf(const Node& n, Now now) {
  size_t hash = static_cast<size_t>(n.op) << 8 | static_cast<size_t>(n.type.dtype);
  const auto mix = [&](size_t part) { hash = (hash ^ part) * 0x9E3779B97F4A7C15u ^ hash >> 29; };
  size_t operands = 0;
  for (ValueId old : n.operands) {
    const ValueId o = now(old);
    if (Commutes(n)) {
      operands += o * size_t{o};
    } else {
      mix(o);
    }
  }
  mix(operands);
  const std::string_view said = Info(n.op).attrs;
  if (said.find('a') != std::string_view::npos)
    for (int64_t axis : n.attrs.axes) mix(axis);
  if (said.find('s') != std::string_view::npos)
    for (Int size : n.attrs.syms) mix(std::hash<Int>()(size));
  if (!IsReduction(n.op))
    for (Int size : n.type.shape) mix(std::hash<Int>()(size));
  if (n.op == Op::kConstant) {
    const double value = n.attrs.scalar.AsDouble();
    mix(std::isnan(value) ? 1 : std::bit_cast<size_t>(value));
    if (n.attrs.sym_scalar) mix(std::hash<Int>()(*n.attrs.sym_scalar));
  }
  return hash;
}

Node Reshaped(const Node& like, ValueId value) {
  Node n = like;
  n.op = Op::kReshape;
  n.operands = {value};
  n.attrs = {};
  n.attrs.syms = like.type.shape;
  return n;
}

}  // namespace

int Cse(Graph& g) {
  Rewriter r(g);
  std::pmr::monotonic_buffer_resource memory{1 << 12};
  std::pmr::unordered_multimap<size_t, ValueId> seen(&memory);  // new values, by HashOf
  seen.reserve(g.nodes.size());
  // The value that is this one, if there is one, once `make` has made it else.
  const auto find = [&](const Node& n, auto make) {
    const size_t hash = HashOf(n, [](ValueId o) { return o; });
    const auto [first, last] = seen.equal_range(hash);
    for (auto it = first; it != last; ++it)
      if (Alike(r.node(it->second), n)) return it->second;
    if (first != last) {
      const std::string key = KeyOf(n);
      for (auto it = first; it != last; ++it)
        if (KeyOf(r.node(it->second)) == key) return it->second;
    }
    const ValueId made = make();
    seen.emplace(hash, made);
    return made;
  };
  int removed = 0;
  Node n;
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    if (!Mergeable(g.nodes[v])) {
      r.Keep(v);
      continue;
    }
    const size_t hash = HashOf(g.nodes[v], [&](ValueId o) { return r[o]; });
    if (!seen.contains(hash)) {
      r.Keep(v);
      seen.emplace(hash, r[v]);
      continue;
    }
    r.Remap(v, &n);
    bool fresh = false;
    ValueId now = find(n, [&] {
      fresh = true;
      r.Keep(v);
      return r[v];
    });
    if (fresh) continue;
    ++removed;
    if (r.node(now).type.shape != n.type.shape) {
      Node shaped = Reshaped(n, now);
      now = find(shaped, [&] { return r.Append(shaped); });
    }
    r.Set(v, now);
  }
  r.Finish();
  return removed;
}

}  // namespace framejit::pass
