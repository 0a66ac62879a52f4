// Groups of a graph -> plan: kernels are built and compiled, values get storages, outputs and writes are wired.
#pragma once

#include "framejit/compile.h"
#include "pass/fuse.h"
#include "runtime/plan.h"

namespace framejit::compiler {

// Counts what it made in `stats`.
runtime::Plan Lower(const Graph& g, const pass::Grouping& grouping, const CompileOptions& options, CompileStats& stats);

}  // namespace framejit::compiler
