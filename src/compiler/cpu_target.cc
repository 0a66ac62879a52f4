// The CPU that this process runs on.
#include <algorithm>
#include <fstream>
#include <string>

#include "codegen/codegen.h"
#include "compiler/target.h"
#include "pass/conv_products.h"
#include "pass/parts.h"
#include "pass/split_reduce.h"
#include "rules/convolution.h"
#include "runtime/library.h"

namespace framejit::compiler {
namespace {

constexpr PassEntry kPasses[] = {
    {"pack_convolutions", [](Unit& u) { pass::PackConvolutions(u.graph, u.options.weights); }, true},
    {"pack_products", [](Unit& u) { pass::PackProducts(u.graph, u.options.weights); }, true},
    {"conv_products", [](Unit& u) { pass::ConvProducts(u.graph); }},  // of those that are not packed
    {"hoist_weights", [](Unit& u) { u.hoisted = pass::HoistWeights(u.graph, u.options.weights); }, true},
    {"split_reduce", [](Unit& u) { pass::SplitReduce(u.graph, {}); }},
    {"store_regions", [](Unit& u) { u.regions = pass::StoreRegions(u.graph); }},
    {"parts", [](Unit& u) { pass::ForwardParts(u.regions ? u.regions->graph : u.graph); }},
};

// Small products before the library: they are over before it is called.
constexpr runtime::Library kLibraries[] = {runtime::NothingToAdd, runtime::Depthwise, runtime::SmallProduct,
                                           runtime::HostLibrary, runtime::OwnProduct};

// What writes so much need not leave it in a cache: the size of the last cache that the first processor has, and at
// most 32 MiB. The caches of servers are larger by far (480 MiB on a virtual machine of two cores), but others share
// them: on such a machine x * y + 1, softmax and RMSNorm of 16 million floats took 1.7 to 2.5 times as long with stores
// that go through the cache. sysconf() adds up the caches of the whole machine.
int64_t StreamedBytes(int64_t most) {
  int64_t bytes = most;
  for (int index = 0;; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    int64_t size = 0;
    char unit = 0;
    if (!(file >> size)) return std::min(bytes, most);
    file >> unit;
    if (size > 0) bytes = unit == 'M' ? size << 20 : unit == 'K' ? size << 10 : size;
  }
}

class Cpu final : public Target {
 public:
  std::string_view name() const override { return "cpu"; }
  std::span<const PassEntry> passes() const override { return kPasses; }
  bool can_time_runs() const override { return true; }
  const DeviceTraits& traits() const override {
    static constexpr DeviceTraits traits{.host_code = true, .checks = true};
    return traits;
  }
  const loop::Costs& costs() const override {
    // Results of 8 to 31 MiB (x * 2 + 1, one thread) take .6 to .7 of the time past the caches, and a sum that reads
    // such a result behind it takes the whole to .8 to 1.
    static const loop::Costs costs{.streamed_bytes = StreamedBytes(int64_t{32} << 20),
                                   .streamed_results = StreamedBytes(int64_t{8} << 20)};
    return costs;
  }
  std::span<const runtime::Library> libraries() const override { return kLibraries; }
  bool LibraryLends(const Graph& g, ValueId v) const override {
    return Target::LibraryLends(g, v) && !rules::IsHostDepthwise(g, g.nodes[v]);
  }

  void Emit(const loop::Kernel& kernel, Device, const CompileOptions& options, runtime::KernelWork* work,
            bool* reused) const override {
    std::shared_ptr<const codegen::CompiledKernel> code = codegen::GetKernel(kernel, options.cpu, reused);
    work->fn = code->fn;
    work->code = std::move(code);
  }
};

}  // namespace

const Target& CpuTarget() {
  static const Cpu target;
  return target;
}

}  // namespace framejit::compiler
