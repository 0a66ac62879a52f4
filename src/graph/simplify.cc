#include "framejit/graph.h"

namespace framejit {

void SimplifySizes(Graph& g, const shape::Env& env) {
  auto each = [&](shape::Ints& list) {
    for (shape::Int& i : list) i = env.Simplify(i);
  };
  for (Node& n : g.nodes) {
    each(n.type.shape);
    each(n.strides);
    each(n.attrs.syms);
    for (TensorType& t : n.attrs.result_types)
      for (shape::Int& i : t.shape)
        if (!env.AtRun(i)) i = env.Simplify(i);  // What data decides is bound at this node in each run, so it stays.
    if (!n.attrs.sym_scalar) continue;
    n.attrs.sym_scalar = env.Simplify(*n.attrs.sym_scalar);
    if (auto v = n.attrs.sym_scalar->as_const()) {  // The symbol turned out to be a number.
      n.attrs.scalar = *v;
      n.attrs.sym_scalar.reset();
    }
  }
}

}  // namespace framejit
