#include "runtime/library.h"

#include <cmath>
#include <cstring>

#include "runtime/fallback_gemm.h"
#include "runtime/interpret_node.h"

namespace framejit::runtime {

void RunLibrary(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> ops,
                Buffer& out) {
  const Attrs& attrs = step.node.attrs;
  const Buffer* third = ops.size() > 2 ? &ops[2] : nullptr;
  switch (step.kind) {
    case Step::Kind::kMatMul:
      if (host.MatMul(ops[0], ops[1], out) || FallbackMatMul(host, ops[0], ops[1], out)) return;
      break;
    case Step::Kind::kLinear:
      if (host.Linear(ops[0], ops[1], third, attrs.name, out)) return;
      if (FallbackLinear(host, ops[0], ops[1], third, attrs.name, out)) return;
      break;
    case Step::Kind::kConv:
      if (host.Conv(ops[0], ops[1], third, attrs, out)) return;
      break;
    case Step::Kind::kAttention: {
      const Buffer* mask = ops.size() > 3 ? &ops[3] : nullptr;
      double scale = attrs.scalar.AsDouble();
      if (attrs.sym_scalar) scale = static_cast<double>(attrs.sym_scalar->Eval(symbols));
      if (host.Attention(ops[0], ops[1], ops[2], mask, attrs.flag, scale, out)) return;
      break;
    }
    default: break;
  }
  InterpretNode(host, step, symbols, ops, out);
}

}  // namespace framejit::runtime
