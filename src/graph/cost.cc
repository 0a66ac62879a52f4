#include "graph/cost.h"

#include <algorithm>

#include "graph/hints.h"

namespace framejit {
namespace {

class Counter {
 public:
  explicit Counter(const Graph& g) : g_(g), hints_(Hints(g)) {}

  GraphCost Count() {
    GraphCost cost;
    for (ValueId v : g_.inputs) cost.input_bytes += Bytes(v);
    std::vector<ValueId> outputs = g_.outputs;
    std::sort(outputs.begin(), outputs.end());
    outputs.erase(std::unique(outputs.begin(), outputs.end()), outputs.end());
    for (ValueId v : outputs)
      if (g_.node(v).op != Op::kInput) cost.output_bytes += Bytes(v);
    for (const Node& n : g_.nodes) {
      cost.flops += Flops(n);
      if (n.op == Op::kExtern && n.attrs.call) cost.unknown.push_back(n.attrs.call->callee.name());
    }
    return cost;
  }

 private:
  double Size(const TensorType& t, int axis) const {  // from behind, where it is negative
    return static_cast<double>(t.shape.at(axis < 0 ? axis + t.shape.size() : axis).Eval(hints_));
  }
  double Elements(const TensorType& t) const {
    double n = 1;
    for (shape::Int e : t.shape) n *= static_cast<double>(e.Eval(hints_));
    return n;
  }
  double Elements(ValueId v) const { return Elements(g_.node(v).type); }
  int64_t Bytes(ValueId v) const {
    const TensorType& t = g_.node(v).type;
    return static_cast<int64_t>(Elements(t)) * DTypeSize(t.dtype);
  }

  double Contraction(const Node& n) const {
    const TensorType& first = g_.node(n.operands[0]).type;
    switch (n.op) {
      case Op::kMatMul:
      case Op::kLinear: return 2 * Elements(n.type) * Size(first, -1);
      case Op::kConv: {  // each weight is multiplied once for every place of what it goes over
        const TensorType& w = g_.node(n.operands[1]).type;
        const TensorType& places = n.attrs.flag ? first : n.type;
        return 2 * Elements(places) * Elements(w) / std::max(1.0, Size(w, 0));
      }
      case Op::kAttention: {  // two products, and the softmax between them: maximum, difference, exponential, sum,
                              // quotient
        const TensorType& k = g_.node(n.operands[1]).type;
        const double scores = Elements(first) / std::max(1.0, Size(first, -1)) * Size(k, -2);
        return 2 * scores * (Size(first, -1) + Size(n.type, -1)) + 5 * scores;
      }
      default: return 0;  // the same in another form
    }
  }

  double Flops(const Node& n) const {
    switch (Info(n.op).kind) {
      case 'P': return n.op == Op::kCast || n.op == Op::kBitcast || n.op == Op::kWhere ? 0 : Elements(n.type);
      case 'R': return Elements(n.operands[0]);
      case 'M': return Contraction(n);
      default: return n.op == Op::kCumSum ? Elements(n.type) : 0;
    }
  }

  const Graph& g_;
  const std::vector<int64_t> hints_;
};

}  // namespace

GraphCost CostOf(const Graph& g) {
  return Counter(g).Count();
}

}  // namespace framejit
