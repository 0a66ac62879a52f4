#include "pass/epilogue.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "graph/rewrite.h"

namespace framejit::pass {
namespace {

using shape::Int;

// This says what a value is as a function of the linear layer's result x: a polynomial in x and in t, where t is the
// tanh of a polynomial in x, or else max(x, 0). However a program writes GELU, it multiplies out to x/2 + x/2 t.
struct Form {
  std::map<std::pair<int, int>, double> terms;  // coefficients by the powers of x and t
  bool relu = false;

  static Form Term(int x, int t, double by) { return {.terms = {{{x, t}, by}}}; }
};
constexpr int kMostPower = 8;
constexpr double kTolerance = 1e-6;  // relative, of coefficients

Form Sum(const Form& a, const Form& b, double sign) {
  Form out = a;
  for (const auto& [powers, c] : b.terms) out.terms[powers] += sign * c;
  return out;
}

std::optional<Form> Product(const Form& a, const Form& b) {
  Form out;
  for (const auto& [p, c] : a.terms) {
    for (const auto& [q, d] : b.terms) {
      if (p.first + q.first > kMostPower || p.second + q.second > kMostPower) return std::nullopt;
      out.terms[{p.first + q.first, p.second + q.second}] += c * d;
    }
  }
  return out;
}

// Constants may have been rounded to float32. A term with a zero is one: it makes nan of infinity.
bool Same(const Form& a, const Form& b) {
  if (a.relu != b.relu || a.terms.size() != b.terms.size()) return false;
  return std::equal(a.terms.begin(), a.terms.end(), b.terms.begin(), [](const auto& m, const auto& n) {
    return m.first == n.first && std::abs(m.second - n.second) <= kTolerance * std::abs(n.second);
  });
}

bool IsGelu(const Form& f, const Form& inside) {
  constexpr double kScale = 0.7978845608028654, kCubic = 0.044715;
  return Same(f, {.terms = {{{1, 0}, 0.5}, {{1, 1}, 0.5}}}) &&
         Same(inside, {.terms = {{{1, 0}, kScale}, {{3, 0}, kScale * kCubic}}});
}

class Finder {
 public:
  Finder(const Graph& g, Device device) : g_(g), device_(device), users_(g.nodes.size()), kept_(g.nodes.size(), false) {
    for (ValueId v = 0; v < g.nodes.size(); ++v)
      for (ValueId o : g.nodes[v].operands) users_[o].push_back(v);
    for (ValueId v : g.outputs) kept_[v] = true;
    for (const Write& w : g.writes) kept_[w.value] = true;
  }

  struct Found {
    ValueId base, root;  // the layer's result, perhaps reshaped; what is a function of it
    const char* function;
  };
  std::optional<Found> Of(ValueId v) const {
    const Node& n = g_.nodes[v];
    if (n.op != Op::kLinear || n.operands.size() != 3 || !n.attrs.name.empty()) return std::nullopt;
    if (n.type.device != device_ || DTypeSize(n.type.dtype) != 2 || kept_[v]) return std::nullopt;
    for (const Int& size : g_.nodes[n.operands[1]].type.shape)  // others have slower kernels, without functions
      if (!size.is_const() || size.value() % 8 || size.value() == 0) return std::nullopt;
    ValueId base = v;
    if (users_[v].size() == 1 && g_.nodes[users_[v][0]].op == Op::kReshape) base = users_[v][0];
    if (kept_[base]) return std::nullopt;
    std::map<ValueId, Form> known = {{base, Form::Term(1, 0, 1)}};
    Form inside;  // what t is the tanh of, once there is one
    for (ValueId u = base + 1; u < g_.nodes.size(); ++u) {
      const Node& f = g_.nodes[u];
      if (std::none_of(f.operands.begin(), f.operands.end(), [&](ValueId o) { return known.contains(o); })) continue;
      if (!SameShape(f, g_.nodes[base])) continue;
      std::optional<Form> form = Apply(f, known, &inside);
      if (!form) continue;
      known[u] = *form;
      if (f.type.dtype != n.type.dtype) continue;
      const char* name = form->relu ? "relu" : IsGelu(*form, inside) ? "gelu" : nullptr;
      if (name && !kept_[u] && Closed(base, u, known) && EndsAKernel(u)) return Found{base, u, name};
    }
    return std::nullopt;
  }

 private:
  static bool SameShape(const Node& a, const Node& b) { return a.type.shape == b.type.shape; }

  std::optional<double> Constant(ValueId v) const {
    const Node& n = g_.nodes[v];
    if (n.op == Op::kConstant && !n.attrs.sym_scalar) return n.attrs.scalar.AsDouble();
    if (n.op == Op::kBroadcast || n.op == Op::kReshape || (n.op == Op::kCast && IsFloat(n.type.dtype)))
      return Constant(n.operands[0]);
    return std::nullopt;
  }

  // It gives nothing for another kind of function.
  std::optional<Form> Apply(const Node& n, const std::map<ValueId, Form>& known, Form* inside) const {
    if (!IsFloat(n.type.dtype)) return std::nullopt;
    std::vector<Form> in;
    for (ValueId o : n.operands) {
      if (auto at = known.find(o); at != known.end()) {
        in.push_back(at->second);
      } else if (auto c = Constant(o)) {
        in.push_back(Form::Term(0, 0, *c));
      } else {
        return std::nullopt;
      }
      if (in.back().relu && n.op != Op::kCast) return std::nullopt;
    }
    switch (n.op) {
      case Op::kCast: return in[0];
      case Op::kNeg: return Product(in[0], Form::Term(0, 0, -1));
      case Op::kAdd: return Sum(in[0], in[1], 1);
      case Op::kSub: return Sum(in[0], in[1], -1);
      case Op::kMul: return Product(in[0], in[1]);
      case Op::kTanh:
        if (std::any_of(in[0].terms.begin(), in[0].terms.end(), [](const auto& term) { return term.first.second; }))
          return std::nullopt;
        if (!inside->terms.empty() && inside->terms != in[0].terms) return std::nullopt;
        *inside = in[0];
        return Form::Term(0, 1, 1);
      case Op::kMaximum:
        for (int x : {0, 1}) {
          const Form zero = Form::Term(0, 0, 0);
          if (in[x].terms == Form::Term(1, 0, 1).terms && in[1 - x].terms == zero.terms) return Form{.relu = true};
        }
        return std::nullopt;
      default: return std::nullopt;
    }
  }

  // Nobody else reads what lies between.
  bool Closed(ValueId base, ValueId root, const std::map<ValueId, Form>& known) const {
    std::set<ValueId> inside;
    std::vector<ValueId> todo = {root};
    while (!todo.empty()) {
      const ValueId v = todo.back();
      todo.pop_back();
      if (!known.contains(v) || !inside.insert(v).second || v == base) continue;
      for (ValueId o : g_.nodes[v].operands) todo.push_back(o);
    }
    for (ValueId v : inside) {
      if (v == root) continue;
      if (kept_[v]) return false;
      for (ValueId u : users_[v])
        if (!inside.contains(u)) return false;
    }
    return true;
  }

  bool EndsAKernel(ValueId v) const {
    const Node& n = g_.nodes[v];
    if (!n.strides.empty() && n.strides != RowMajor(n.type.shape)) return false;
    return std::all_of(users_[v].begin(), users_[v].end(), [&](ValueId u) {
      const char kind = Info(g_.nodes[u].op).kind;
      return kind == 'M' || kind == 'X' || (kind == 'V' && EndsAKernel(u));
    });
  }

  const Graph& g_;
  const Device device_;
  std::vector<std::vector<ValueId>> users_;
  std::vector<bool> kept_;
};

}  // namespace

int Epilogues(Graph& g, Device device) {
  std::map<ValueId, const char*> named;  // linear layers
  std::map<ValueId, ValueId> moved;      // functions of them -> what is that now
  const Finder finder(g, device);
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    if (auto found = finder.Of(v)) {
      named[v] = found->function;
      moved[found->root] = found->base;
    }
  }
  if (named.empty()) return 0;
  Rewriter r(g);
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    if (auto at = moved.find(v); at != moved.end()) {
      r.Set(v, r[at->second]);
      r.SetStrides(r[v], g.nodes[v].strides);
      continue;
    }
    const auto at = named.find(v);
    if (at == named.end()) {
      r.Keep(v);
      continue;
    }
    Node n = r.Remapped(v);
    n.attrs.name = at->second;
    r.Set(v, r.Append(std::move(n)));
  }
  r.Finish();
  return static_cast<int>(named.size());
}

}  // namespace framejit::pass
