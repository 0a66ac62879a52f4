#include "runtime/library.h"

#include <vector>

#include "runtime/copy.h"
#include "runtime/depthwise.h"
#include "runtime/fallback_gemm.h"
#include "runtime/interpret_node.h"

namespace framejit::runtime {
namespace {

int64_t Elements(const Buffer& b) {
  int64_t n = 1;
  for (int i = 0; i < b.rank; ++i) n *= b.sizes[i];
  return n;
}

// Of nothing no library makes a product: sums of no products are zero, or what is added to them.
bool RunEmpty(Host& host, const Step& step, std::span<const Buffer> ops, const Buffer& out) {
  if (Elements(out) == 0) return true;
  const Buffer* bias = nullptr;
  bool nothing = false;
  if (step.kind == Step::Kind::kMatMul || step.kind == Step::Kind::kLinear) {
    nothing = ops[0].rank > 0 && ops[0].sizes[ops[0].rank - 1] == 0;
    bias = step.kind == Step::Kind::kLinear && ops.size() > 2 ? &ops[2] : nullptr;
  } else if (step.kind == Step::Kind::kAttention) {
    nothing = ops[1].rank > 1 && ops[1].sizes[ops[1].rank - 2] == 0;
  }
  if (!nothing || out.device.kind != DeviceKind::kCpu || !step.node.attrs.name.empty()) return false;
  alignas(16) static const std::byte zero[16] = {};
  std::vector<int64_t> strides(out.rank, 0);
  if (bias) strides.back() = bias->strides[0];
  Buffer from = out;
  from.data = bias ? bias->data : const_cast<std::byte*>(zero);
  from.strides = strides.data();
  StridedCopy(host, from, out);
  return true;
}

}  // namespace

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
  if (RunEmpty(host, step, ops, out)) return;
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
