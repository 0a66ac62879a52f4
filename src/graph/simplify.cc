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
  auto each = [&](shape::Ints& list) {
    for (shape::Int& i : list) i = simple(i);
  };
  for (Node& n : g.nodes) {
    each(n.type.shape);
    each(n.strides);
    each(n.attrs.syms);
    for (TensorType& t : n.attrs.result_types)
      for (shape::Int& i : t.shape)
        if (!env.AtRun(i)) i = simple(i);  // What data decides is bound at this node in each run, so it stays.
    if (!n.attrs.sym_scalar) continue;
    n.attrs.sym_scalar = simple(*n.attrs.sym_scalar);
    if (auto v = n.attrs.sym_scalar->as_const()) {  // The symbol turned out to be a number.
      n.attrs.scalar = *v;
      n.attrs.sym_scalar.reset();
    }
  }
}

}  // namespace framejit
