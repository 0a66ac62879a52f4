#include "runtime/cuda/launch.h"

namespace framejit::runtime::cuda {

Launch LaunchFor(const Plan& plan, const Step& step, const Instance::StepInfo& info, void* const* pointers) {
  if (info.launch.grid == 0) return info.launch;
  const std::vector<uint32_t>& alignment = step.gpu->alignment();
  uintptr_t odd = 0;
  for (size_t i = 0; i < alignment.size(); ++i) odd |= reinterpret_cast<uintptr_t>(pointers[i]) & (alignment[i] - 1);
  if (odd) [[unlikely]]  // a view that begins between two vectors
    return step.gpu->Configure(plan.device.index, info.symbols, false);
  return info.launch;
}

void LaunchStep(const Driver& driver, const Plan& plan, const Step& step, const Instance::StepInfo& info,
                void* const* pointers, void** params, Stream stream) {
  const Launch launch = LaunchFor(plan, step, info, pointers);
  if (launch.grid == 0) return;
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
    r = driver.launch_ex(&config, launch.function, params, nullptr);
  } else {
    r = driver.launch(launch.function, launch.grid, 1, 1, launch.threads, 1, 1, launch.shared_bytes, stream, params,
                      nullptr);
  }
  if (r) [[unlikely]]
    Fail(driver, r, "launching " + step.name);
}

}  // namespace framejit::runtime::cuda
