#pragma once

#include <stdexcept>
#include <string>

namespace framejit::diag {

// No kernel and no library serves this step: the framework makes the calls itself.
struct NoKernel : std::runtime_error {
  NoKernel(const std::string& step, const std::string& why)
      : std::runtime_error("no kernel for " + step + ": " + why) {}
};

}  // namespace framejit::diag
