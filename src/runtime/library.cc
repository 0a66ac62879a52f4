#include "runtime/library.h"

#include <algorithm>
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

bool IsPacked(const Step& step) {
  return step.kind == Step::Kind::kLinear && step.operation->attrs.name == "packed";
}

// This is the call without the packed form of a weight.
std::span<const Buffer> Plain(const Step& step, std::span<const Buffer> ops) {
  return IsPacked(step) ? ops.first(ops.size() - 1) : ops;
}

const Buffer* Third(std::span<const Buffer> ops) {
  return ops.size() > 2 ? &ops[2] : nullptr;
}

bool Product(Host& host, const Step& step, std::span<const Buffer> ops, const Buffer& out, bool small) {
  ops = Plain(step, ops);
  if (step.kind == Step::Kind::kMatMul) return FallbackMatMul(host, ops[0], ops[1], out, small);
  if (step.kind != Step::Kind::kLinear || !(step.operation->attrs.name.empty() || IsPacked(step))) return false;
  return FallbackLinear(host, ops[0], ops[1], Third(ops), out, small);
}

}  // namespace

bool NothingToAdd(Host& host, const Step& step, std::span<const int64_t>, std::span<const Buffer> ops, Buffer& out) {
  const Buffer* bias = nullptr;
  bool nothing = false;
  if (step.kind == Step::Kind::kMatMul || step.kind == Step::Kind::kLinear) {
    nothing = ops[0].rank > 0 && ops[0].sizes[ops[0].rank - 1] == 0;
    bias = step.kind == Step::Kind::kLinear ? Third(ops) : nullptr;
  } else if (step.kind == Step::Kind::kAttention) {
    nothing = ops[1].rank > 1 && ops[1].sizes[ops[1].rank - 2] == 0;
  }
  if (!nothing || !out.data || !step.operation->attrs.name.empty()) return false;
  alignas(16) static const std::byte zero[16] = {};
  std::vector<int64_t> strides(out.rank, 0);
  if (bias) strides.back() = bias->strides[0];
  Buffer from = out;
  from.data = bias ? bias->data : const_cast<std::byte*>(zero);
  from.strides = strides.data();
  StridedCopy(host, from, out);
  return true;
}

bool Depthwise(Host& host, const Step& step, std::span<const int64_t>, std::span<const Buffer> ops, Buffer& out) {
  return step.kind == Step::Kind::kConv && DepthwiseConv(host, ops[0], ops[1], Third(ops), step.operation->attrs, out);
}

bool SmallProduct(Host& host, const Step& step, std::span<const int64_t>, std::span<const Buffer> ops, Buffer& out) {
  const int64_t k = ops[0].rank > 0 ? ops[0].sizes[ops[0].rank - 1] : 0;
  return k <= 64 && k * Elements(out) <= 512 && Product(host, step, ops, out, true);
}

bool HostLibrary(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> all,
                 Buffer& out) {
  const Attrs& attrs = step.operation->attrs;
  const std::span<const Buffer> ops = Plain(step, all);
  switch (step.kind) {
    case Step::Kind::kMatMul: return host.MatMul(ops[0], ops[1], out);
    case Step::Kind::kLinear:
      if (!attrs.name.empty() && !IsPacked(step)) return host.LinearThen(attrs.name, ops[0], ops[1], ops[2], out);
      return host.Linear(ops[0], ops[1], Third(ops), IsPacked(step) && all.back().handle ? &all.back() : nullptr, out);
    case Step::Kind::kConv: return host.Conv(ops[0], ops[1], Third(ops), attrs, out);
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

bool OwnProduct(Host& host, const Step& step, std::span<const int64_t>, std::span<const Buffer> ops, Buffer& out) {
  return Product(host, step, ops, out, false);
}

bool AskLibraries(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> ops,
                  Buffer& out) {
  return std::any_of(step.operation->libraries.begin(), step.operation->libraries.end(),
                     [&](Library library) { return library(host, step, symbols, ops, out); });
}

void RunLibrary(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> ops,
                Buffer& out) {
  if (Elements(out) > 0 && !AskLibraries(host, step, symbols, ops, out))
    InterpretNode(host, step, symbols, Plain(step, ops), out);
}

}  // namespace framejit::runtime
