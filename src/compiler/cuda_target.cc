// NVIDIA GPUs.
#include "codegen/gpu.h"
#include "compiler/target.h"
#include "loop/depthwise.h"
#include "pass/channels_last.h"
#include "pass/dce.h"
#include "pass/epilogue.h"
#include "pass/pad_products.h"
#include "pass/split_bias.h"
#include "pass/split_reduce.h"
#include "runtime/cuda/machine.h"
#include "runtime/library.h"

namespace framejit::compiler {
namespace {

// Rows of work for blocks of threads, and columns for 64 threads of every multiprocessor (measured on a large chip).
pass::Parallel Wanted(Device device) {
  return {.rows = 256, .columns = 64 * runtime::cuda::GetDevice(device.index).chip.multiprocessors};
}

constexpr PassEntry kPasses[] = {
    {"channels_last", [](Unit& u) { pass::ChannelsLast(u.graph, u.device); }},
    {"split_bias", [](Unit& u) { pass::SplitBias(u.graph, u.device); }},
    {"pad_products", [](Unit& u) { pass::PadProducts(u.graph, u.device); }},
    {"epilogues",
     [](Unit& u) {
       if (pass::Epilogues(u.graph, u.device)) pass::Dce(u.graph);
     }},
    {"split_reduce", [](Unit& u) { pass::SplitReduce(u.graph, Wanted(u.device)); }},
};

constexpr runtime::Library kLibraries[] = {runtime::HostLibrary};

class Cuda final : public Target {
 public:
  std::string_view name() const override { return "cuda"; }
  std::span<const PassEntry> passes() const override { return kPasses; }
  const DeviceTraits& traits() const override {
    static constexpr DeviceTraits traits{.attention_as_query = true, .rereads = true};
    return traits;
  }
  const loop::Costs& costs() const override {
    static constexpr loop::Costs costs{.keeps_rows = false};
    return costs;
  }
  std::span<const runtime::Library> libraries() const override { return kLibraries; }
  bool HasOwnKernel(const Graph& g, ValueId v) const override { return loop::HasDepthwiseKernel(g, g.nodes[v]); }
  std::optional<loop::BuiltKernel> OwnKernel(const Graph& g, ValueId v,
                                             const std::vector<loop::Layout>& layouts) const override {
    return loop::BuildDepthwise(g, v, layouts);
  }
  void Emit(const loop::Kernel& kernel, Device device, const CompileOptions&, runtime::Step* step,
            bool* reused) const override {
    step->device_kernel = codegen::GetGpuKernel(kernel, device.index, reused);
  }
  std::shared_ptr<const runtime::Machine> machine(Device device) const override {
    return std::make_shared<runtime::cuda::CudaMachine>(device.index);
  }
};

}  // namespace

const Target& CudaTarget() {
  static const Cuda target;
  return target;
}

}  // namespace framejit::compiler
