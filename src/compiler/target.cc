#include "compiler/target.h"

#include <atomic>
#include <stdexcept>

namespace framejit::compiler {
namespace {

std::atomic<const Target*> registered{nullptr};

}  // namespace

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

void RegisterTarget(const Target* target) {
  registered.store(target, std::memory_order_release);
}

}  // namespace framejit::compiler
