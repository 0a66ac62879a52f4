// Compile: from a graph to an executable, in a straight line.

#include <algorithm>
#include <chrono>

#include "compiler/forms.h"
#include "compiler/make_plan.h"
#include "compiler/pieces.h"
#include "compiler/target.h"
#include "diag/diag.h"
#include "diag/option_values.h"
#include "diag/progress.h"
#include "graph/opaque.h"
#include "pass/cse.h"
#include "pass/dce.h"
#include "pass/fold.h"
#include "pass/fuse.h"
#include "pass/pass_manager.h"
#include "pass/sink_gather.h"
#include "runtime/prepared.h"

namespace framejit {
namespace {

using compiler::Unit;

// These are the passes of every target, in order. Its own come between these and fusion.
constexpr compiler::PassEntry kPasses[] = {
    {"fold", [](Unit& u) { pass::Fold(u.graph); }},
    {"cse", [](Unit& u) { pass::Cse(u.graph); }},
    {"dce", [](Unit& u) { pass::Dce(u.graph); }},
    {"sink_gather", [](Unit& u) { pass::SinkGather(u.graph); }},
};
constexpr const char* kFuse = "fuse";
[[maybe_unused]] const bool named = [] {
  compiler::NamePasses(kPasses);
  diag::AllowValue("disabled_passes", kFuse);
  return true;
}();

// The one device beside the CPU that the graph's values are on.
Device DeviceOf(const Graph& g, std::string* why) {
  Device device;
  for (const Node& n : g.nodes) {
    const Device d = n.type.device;
    if (d.kind == DeviceKind::kCpu || d == device || IsOpaque(d)) continue;
    if (!compiler::TargetFor(d.kind)) *why = "no code generation for this device";
    if (device.kind != DeviceKind::kCpu) *why = "no code generation for two devices at once";
    device = d;
  }
  return device;
}

// The executable that keeps what is made of weights, around one that takes it as further inputs.
std::shared_ptr<Executable> KeepWeights(const Graph& graph, const CompileOptions& options,
                                        std::shared_ptr<Executable> main, pass::Hoisted hoisted) {
  CompileOptions plain = options;
  plain.weights.clear();
  runtime::Preparation p;
  p.sources = std::move(hoisted.sources);
  for (pass::Hoisted::Value& v : hoisted.values) p.values.push_back({std::move(v.sources), v.optional});
  p.make = Compile(hoisted.graph, plain);
  p.plain = [graph, plain] { return Compile(graph, plain); };
  return runtime::MakePrepared(std::move(main), std::move(p));
}

}  // namespace

std::string DeviceObstacle(const Graph& g) {
  std::string why;
  const Device device = DeviceOf(g, &why);
  const bool opaque = HasOpaque(g);
  if (opaque && device.kind != DeviceKind::kCpu) why = "sparse or quantised tensors beside another device";
  if (opaque && compiler::HasDataSizes(g)) why = "sparse or quantised tensors beside sizes that data decides";
  return why;
}

std::shared_ptr<Executable> Compile(const Graph& graph, const CompileOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const diag::Progress progress("compiling " + graph.name);
  if (std::string error = Verify(graph); !error.empty()) throw std::runtime_error("invalid graph: " + error);
  if (compiler::HasDataSizes(graph))
    return compiler::CompilePieces(graph, options.weights, [&](const Graph& part, const std::vector<bool>& weights) {
      CompileOptions own = options;
      own.weights = weights;
      return Compile(part, own);
    });
  std::string why;
  const Device device = DeviceOf(graph, &why);
  if (!why.empty()) throw std::runtime_error(why);
  const compiler::Target& target = compiler::TargetOf(device);
  if (options.tune && target.can_time_runs()) {
    std::vector<std::string_view> passes = {kFuse};
    for (const compiler::PassEntry& entry : target.passes()) passes.push_back(entry.name);
    CompileOptions own = options;
    own.tune = false;
    return compiler::MakeForms(graph, own, std::move(passes),
                               [graph](const CompileOptions& form) { return Compile(graph, form); });
  }
  compiler::Unit unit{graph, device, options, {}, {}};
  Graph& g = unit.graph;
  pass::PassManager pm(options);
  const bool weights = std::find(options.weights.begin(), options.weights.end(), true) != options.weights.end();
  for (std::span<const compiler::PassEntry> passes : {std::span<const compiler::PassEntry>(kPasses), target.passes()})
    for (const compiler::PassEntry& entry : passes)
      if (weights || !entry.for_weights) pass::RunPass(pm, entry.name, g, [&](Graph&) { entry.apply(unit); });
  const Graph& last = unit.regions ? unit.regions->graph : g;
  pass::FuseOptions fuse;
  fuse.fuse = options.fuse && !pm.Disabled(kFuse);
  fuse.parts_apart = target.costs().parts_apart;
  fuse.feeds = options.traps & ~kBadIndex;  // NumPy's
  fuse.boundaries = diag::Enabled(diag::Channel::fusion_);
  pass::Grouping grouping;
  if (!pass::RunPass(pm, kFuse, g, [&](Graph&) { grouping = pass::Fuse(last, fuse); }))
    grouping = pass::Fuse(last, {.fuse = false, .boundaries = fuse.boundaries});
  if (fuse.boundaries) diag::Log(diag::Channel::fusion_, compiler::FusionText(last, grouping));
  if (unit.regions) grouping.regions = std::move(unit.regions->layouts);
  CompileStats stats;
  runtime::Plan plan = compiler::MakePlan(last, grouping, options, device, stats);
  if (diag::Enabled(diag::Channel::graph_)) diag::Log(diag::Channel::graph_, plan.str());
  stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  auto executable = runtime::MakeExecutable(std::move(plan), stats);
  if (unit.hoisted.sources.empty()) return executable;
  return KeepWeights(graph, options, std::move(executable), std::move(unit.hoisted));
}

}  // namespace framejit
