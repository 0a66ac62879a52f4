#include "compiler/target.h"

#include <atomic>
#include <stdexcept>

#include "diag/option_values.h"

namespace framejit::compiler {
namespace {

std::atomic<const Target*> registered{nullptr};

[[maybe_unused]] const bool named = [] {
  NamePasses(CpuTarget().passes());
  NamePasses(CudaTarget().passes());
  return true;
}();

}  // namespace

// These are convolutions, attention, packed weights, and linear layers with a function.
bool Target::LibraryLends(const Graph& g, ValueId v) const {
  const Node& n = g.nodes[v];
  if (n.op == Op::kLinear) return n.attrs.name == "relu" || n.attrs.name == "gelu";
  return n.op != Op::kMatMul;
}

const Target* TargetFor(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu: return &CpuTarget();
    case DeviceKind::kCuda: return &CudaTarget();
    case DeviceKind::kPrivate: return registered.load(std::memory_order_acquire);
    case DeviceKind::kMeta: break;
  }
  return nullptr;
}

const Target& TargetOf(Device device) {
  const Target* target = TargetFor(device.kind);
  if (!target) throw std::runtime_error("no code generation for this device");
  return *target;
}

void NamePasses(std::span<const PassEntry> passes) {
  for (const PassEntry& entry : passes) diag::AllowValue("disabled_passes", entry.name);
}

void RegisterTarget(const Target* target) {
  if (target) NamePasses(target->passes());
  registered.store(target, std::memory_order_release);
}

}  // namespace framejit::compiler

namespace framejit {

const DeviceTraits& TraitsOf(Device device) {
  static constexpr DeviceTraits kUnknown;
  const compiler::Target* target = compiler::TargetFor(device.kind);
  return target ? target->traits() : kUnknown;
}

}  // namespace framejit
