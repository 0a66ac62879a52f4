#include "runtime/cuda/machine.h"

#include <utility>

#include "runtime/cuda/step_clock.h"

namespace framejit::runtime::cuda {

bool CudaMachine::Enter() const {
  return PushContext(driver, device);
}

void CudaMachine::Exit(bool entered) const {
  if (entered) PopContext(driver);
}

void CudaMachine::Start(const Launch& launch, void** arguments, void* stream, const std::string& name) const {
  Result r;
  if (launch.dependent) {
    constexpr int kProgrammaticSerialization = 6;
    static constexpr LaunchAttribute kEarly{kProgrammaticSerialization, 0, {1}};
    LaunchConfig config;
    config.grid[0] = launch.grid;
    config.block[0] = launch.threads;
    config.shared_bytes = launch.shared_bytes;
    config.stream = stream;
    config.attributes = &kEarly;
    config.count = 1;
    r = driver.launch_ex(&config, launch.function, arguments, nullptr);
  } else {
    r = driver.launch(launch.function, launch.grid, 1, 1, launch.threads, 1, 1, launch.shared_bytes, stream, arguments,
                      nullptr);
  }
  if (r) [[unlikely]]
    Fail(driver, r, "launching " + name);
}

std::unique_ptr<StreamClock> CudaMachine::TimeStream(void* stream, const std::shared_ptr<StepShares>& shares) const {
  int capturing = 0;  // by the user: an event would become part of what is captured
  if (driver.stream_capturing(stream, &capturing) || capturing) return nullptr;
  return MakeStreamClock(driver, device, stream, shares);
}

}  // namespace framejit::runtime::cuda
