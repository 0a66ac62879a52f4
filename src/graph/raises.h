// Which operations can raise an IEEE exception that NumPy reports (divide by zero, overflow, underflow, invalid).
#pragma once

#include "framejit/graph.h"

namespace framejit {

bool MayRaise(Op op, DType operand, DType result);
inline bool MayRaise(const Graph& g, ValueId v) {
  const Node& n = g.nodes[v];
  return !n.operands.empty() && MayRaise(n.op, g.nodes[n.operands[0]].type.dtype, n.type.dtype);
}

// Would the program notice that `n` was not computed, since it may raise? Calls of the framework and checked indices
// may, and with `ieee` what raises an IEEE exception. `operand` is the type of the first operand, if there is one.
bool IsNoticed(const Node& n, DType operand, bool ieee);

// Errors and warnings do not depend on who reads a result. So this makes outputs of the values that can raise and of
// which some elements might not be computed otherwise, since nothing reads them, or only a part of them. `ieee`: IEEE
// exceptions matter.
void KeepRaising(Graph& g, bool ieee);

// For each node: does it depend on a stand-in for a gradient (kTangent)? Such nodes never run; differentiation copies
// them.
std::vector<bool> StandIns(const Graph& g);

}  // namespace framejit
