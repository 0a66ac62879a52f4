// Compile: from a graph to an executable, in a straight line.

#include <algorithm>
#include <chrono>

#include "compiler/lower.h"
#include "compiler/pieces.h"
#include "diag/diag.h"
#include "pass/channels_last.h"
#include "pass/conv_products.h"
#include "pass/cse.h"
#include "pass/dce.h"
#include "pass/epilogue.h"
#include "pass/fold.h"
#include "pass/fuse.h"
#include "pass/pad_products.h"
#include "pass/pass_manager.h"
#include "pass/sink_gather.h"
#include "pass/split_bias.h"
#include "pass/split_reduce.h"
#include "pass/store_regions.h"
#include "pass/weights.h"
#include "runtime/prepared.h"

namespace framejit {
namespace {

// The one device beside the CPU that the graph's values are on.
Device DeviceOf(const Graph& g, std::string* why) {
  Device device;
  for (const Node& n : g.nodes) {
    const Device d = n.type.device;
    if (d.kind == DeviceKind::kCpu || d == device) continue;
    if (d.kind != DeviceKind::kCuda) *why = "no code generation for this device";
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
  DeviceOf(g, &why);
  return why;
}

std::shared_ptr<Executable> Compile(const Graph& graph, const CompileOptions& options) {
  const auto start = std::chrono::steady_clock::now();
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
  Graph g = graph;
  pass::PassManager pm(options);
  pass::RunPass(pm, "fold", g, pass::Fold);
  pass::RunPass(pm, "cse", g, pass::Cse);
  pass::RunPass(pm, "dce", g, pass::Dce);
  const bool gpu = device.kind == DeviceKind::kCuda;
  pass::RunPass(pm, "sink_gather", g, pass::SinkGather);
  if (gpu) pass::RunPass(pm, "channels_last", g, pass::ChannelsLast);
  if (gpu) pass::RunPass(pm, "split_bias", g, pass::SplitBias);
  if (gpu) pass::RunPass(pm, "pad_products", g, pass::PadProducts);
  if (gpu) {
    pass::RunPass(pm, "epilogues", g, [](Graph& g) {
      if (pass::Epilogues(g)) pass::Dce(g);
    });
  }
  pass::Hoisted hoisted;
  const bool weights = std::find(options.weights.begin(), options.weights.end(), true) != options.weights.end();
  if (!gpu && weights) {
    pass::RunPass(pm, "pack_convolutions", g, [&](Graph& g) { return pass::PackConvolutions(g, options.weights); });
    pass::RunPass(pm, "pack_products", g, [&](Graph& g) { return pass::PackProducts(g, options.weights); });
  }
  if (!gpu) pass::RunPass(pm, "conv_products", g, pass::ConvProducts);  // those that are not packed
  if (!gpu && weights)
    pass::RunPass(pm, "hoist_weights", g, [&](Graph& g) { hoisted = pass::HoistWeights(g, options.weights); });
  pass::RunPass(pm, "split_reduce", g, [&](Graph& g) { return pass::SplitReduce(g, gpu); });
  std::optional<pass::Regions> regions;
  if (!gpu && !pm.Disabled("store_regions")) regions = pass::StoreRegions(g);
  const Graph& last = regions ? regions->graph : g;
  pass::FuseOptions fuse;
  fuse.fuse = options.fuse && !pm.Disabled("fuse");
  pass::Grouping grouping;
  if (!pass::RunPass(pm, "fuse", g, [&](Graph&) { grouping = pass::Fuse(last, fuse); })) {
    grouping = pass::Fuse(last, {.fuse = false});
  }
  if (regions) grouping.regions = std::move(regions->layouts);
  CompileStats stats;
  runtime::Plan plan = compiler::Lower(last, grouping, options, device, stats);
  if (diag::Enabled(diag::Channel::graph_)) diag::Log(diag::Channel::graph_, plan.str());
  stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  auto executable = runtime::MakeExecutable(std::move(plan), stats);
  if (hoisted.sources.empty()) return executable;
  return KeepWeights(graph, options, std::move(executable), std::move(hoisted));
}

}  // namespace framejit
