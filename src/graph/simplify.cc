#include "framejit/graph.h"

namespace framejit {

void SimplifySizes(Graph& g, const shape::Env& env) {
  // Guards may leave an expression one value though no symbol in it has one: s2 - (s2 + 1) // 2 == 32. What data
  // decides is looked at only while the graph runs.
  auto simple = [&](shape::Int i) {
    i = env.Simplify(i);
    if (i.is_const() || env.AtRun(i)) return i;
    const shape::Env::Range r = env.Bounds(i);
    return r.lo == r.hi ? shape::Int(r.lo) : i;
  };
  // What data decides is bound at the node of the call in each run, so it stays there.
  auto unbound = [&](shape::Int i) { return env.AtRun(i) ? i : simple(i); };
  for (Node& n : g.nodes) {
    n.type.shape.Each(simple);
    n.strides.Each(simple);
    n.attrs.syms.Each(simple);
    for (TensorType& t : n.attrs.result_types) t.shape.Each(unbound);
    if (!n.attrs.sym_scalar) continue;
    n.attrs.sym_scalar = simple(*n.attrs.sym_scalar);
    if (auto v = n.attrs.sym_scalar->as_const()) {  // The symbol turned out to be a number.
      n.attrs.scalar = *v;
      n.attrs.sym_scalar.reset();
    }
  }
}

}  // namespace framejit
