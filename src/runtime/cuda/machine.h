// CUDA devices as machines of plans.
#pragma once

#include "runtime/cuda/driver.h"
#include "runtime/machine.h"

namespace framejit::runtime::cuda {

class CudaMachine final : public Machine {
 public:
  explicit CudaMachine(int ordinal) : device(GetDevice(ordinal)), driver(*GetDriver()) {}
  bool Enter() const override;
  void Exit(bool entered) const override;
  void Start(const Launch& launch, void** arguments, void* stream, const std::string& name) const override;
  std::unique_ptr<StreamClock> TimeStream(void* stream, const std::shared_ptr<StepShares>& shares) const override;
  bool records() const override { return true; }

  const DeviceInfo& device;
  const Driver& driver;
};

}  // namespace framejit::runtime::cuda
