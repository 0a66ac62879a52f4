#include "runtime/library.h"

#include <cmath>
#include <cstring>

#include "runtime/depthwise.h"
#include "runtime/fallback_gemm.h"
#include "runtime/interpret_node.h"

namespace framejit::runtime {

bool RunHostLibrary(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> ops,
                    Buffer& out) {
  const Attrs& attrs = step.node.attrs;
  const bool packed = step.kind == Step::Kind::kLinear && attrs.name == "packed";
  const Buffer* third = ops.size() > (packed ? 3 : 2) ? &ops[2] : nullptr;
  switch (step.kind) {
    case Step::Kind::kMatMul: return host.MatMul(ops[0], ops[1], out);
    case Step::Kind::kLinear:
      if (!attrs.name.empty() && !packed) return host.LinearThen(attrs.name, ops[0], ops[1], ops[2], out);
      return host.Linear(ops[0], ops[1], third, packed && ops.back().handle ? &ops.back() : nullptr, out);
    case Step::Kind::kConv: return host.Conv(ops[0], ops[1], third, attrs, out);
    case Step::Kind::kAttention: {
      const Buffer* mask = ops.size() > 3 ? &ops[3] : nullptr;
      double scale = attrs.scalar.AsDouble();
      if (attrs.sym_scalar) scale = static_cast<double>(attrs.sym_scalar->Eval(symbols));
      return host.Attention(ops[0], ops[1], ops[2], mask, attrs.flag, scale, out);
    }
    case Step::Kind::kPack: return host.Pack(ops[0], attrs, out);
    default: return false;
  }
}

void RunLibrary(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> ops,
                Buffer& out) {
  const auto all = ops;
  if (step.kind == Step::Kind::kLinear && step.node.attrs.name == "packed") ops = ops.first(ops.size() - 1);
  const Buffer* third = ops.size() > 2 ? &ops[2] : nullptr;
  if (step.kind == Step::Kind::kConv && DepthwiseConv(host, ops[0], ops[1], third, step.node.attrs, out)) return;
  auto own = [&](bool small) {
    if (out.device.kind != DeviceKind::kCpu) return false;
    if (step.kind == Step::Kind::kMatMul) return FallbackMatMul(host, ops[0], ops[1], out, small);
    if (step.kind == Step::Kind::kLinear) return FallbackLinear(host, ops[0], ops[1], third, out, small);
    return false;
  };
  if (SmallProduct(ops[0], out) && own(true)) return;
  if (RunHostLibrary(host, step, symbols, all, out) || own(false)) return;
  InterpretNode(host, step, symbols, ops, out);
}

}  // namespace framejit::runtime
