// Times on a GPU by events of the driver, which its stream reaches in order: one before what is timed and one behind
// it. They are read some time later, by whoever asks next, so that no run waits for the GPU. Where the GPU waits for
// the host, that is in the time, too: launches that are done before the host has made the next one.
#pragma once

#include <memory>

#include "runtime/cuda/driver.h"
#include "runtime/step_times.h"

namespace framejit::runtime::cuda {

// The device's context is the thread's current one. Null: too much is under way that was timed and not read yet.
std::unique_ptr<StreamClock> MakeStreamClock(const Driver& driver, const DeviceInfo& device, Stream stream,
                                             std::shared_ptr<StepShares> shares);

// Tells AddStepTime what GPUs are through with. wait: with all that was started. Needs no context.
void CollectStepTimes(bool wait);

// Another driver comes: the events of this one are gone, with what they would tell.
void ForgetEvents();

}  // namespace framejit::runtime::cuda
