// Compile: from a graph to an executable, in a straight line.

#include <chrono>

#include "compiler/lower.h"
#include "diag/diag.h"
#include "pass/cse.h"
#include "pass/dce.h"
#include "pass/fold.h"
#include "pass/fuse.h"
#include "pass/pass_manager.h"
#include "pass/split_reduce.h"

namespace framejit {

std::shared_ptr<Executable> Compile(const Graph& graph, const CompileOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  if (std::string error = Verify(graph); !error.empty()) throw std::runtime_error("invalid graph: " + error);
  for (const Node& n : graph.nodes) {
    if (n.type.device.kind != DeviceKind::kCpu) throw std::runtime_error("no code generation for this device");
  }
  Graph g = graph;
  pass::PassManager pm(options);
  pass::RunPass(pm, "fold", g, pass::Fold);
  pass::RunPass(pm, "cse", g, pass::Cse);
  pass::RunPass(pm, "dce", g, pass::Dce);
  pass::RunPass(pm, "split_reduce", g, pass::SplitReduce);
  pass::FuseOptions fuse;
  fuse.fuse = options.fuse && !pm.Disabled("fuse");
  pass::Grouping grouping;
  if (!pass::RunPass(pm, "fuse", g, [&](Graph& g) { grouping = pass::Fuse(g, fuse); })) {
    grouping = pass::Fuse(g, {.fuse = false});
  }
  CompileStats stats;
  runtime::Plan plan = compiler::Lower(g, grouping, options, stats);
  if (diag::Enabled(diag::Channel::graph_)) diag::Log(diag::Channel::graph_, plan.str());
  stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return runtime::MakeExecutable(std::move(plan), stats);
}

}  // namespace framejit
