// Groups of a graph -> plan: kernels are built and compiled, values get storages, outputs and writes are wired.
#pragma once

#include <string>

#include "framejit/compile.h"
#include "pass/fuse.h"
#include "runtime/plan.h"

namespace framejit::compiler {

// Counts what it made in `stats`.
// device: the GPU that some of the graph's values are on, or the CPU.
runtime::Plan MakePlan(const Graph& g, const pass::Grouping& grouping, const CompileOptions& options, Device device,
                       CompileStats& stats);

// For FRAMEJIT_LOG=fusion: the groups, each with its operations, and why neighbours stayed apart.
std::string FusionText(const Graph& g, const pass::Grouping& grouping);

}  // namespace framejit::compiler
