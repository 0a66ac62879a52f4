// Runs passes. RunPass is the only place that switches passes off, counts fuel, times, verifies and dumps.
#pragma once

#include <functional>
#include <string_view>

#include "framejit/compile.h"

namespace framejit::pass {

struct PassManager {
  explicit PassManager(const CompileOptions& options) : options(options), fuel(options.fuel) {}
  bool Disabled(std::string_view name) const;

  const CompileOptions& options;
  int64_t fuel;  // applications left; negative: without end
};

// Applies `apply` to the graph unless the pass is disabled by name or the fuel is used up; true if it ran. After it the
// graph is verified if options.verify asks (a violation is an InternalError that names the pass).
bool RunPass(PassManager& pm, std::string_view name, Graph& g, const std::function<void(Graph&)>& apply);

}  // namespace framejit::pass
