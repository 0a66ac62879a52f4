// This file has the target of NVIDIA GPUs.
#include <bit>

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

// A block of threads takes a row. Two for each multiprocessor are enough, rounded to a power of two, by which most
// sizes can be divided: with 256 on the 132 multiprocessors of an H200, of which a sum takes up to four times as many,
// one of 16M elements runs at 0.97 of the speed of a copy. Sums over leading axes have a thread for each column. 64 of
// them on every multiprocessor are enough, and a sum of 4096 rows of 4096 columns, which is cut in eight then, runs at
// 0.92
// ("full sum 16M" and "column sum 4096x4096" in bench/results/gpu-kernels-h200.json).
pass::Parallel Wanted(Device device) {
  const auto multiprocessors = static_cast<unsigned>(runtime::cuda::GetDevice(device.index).chip.multiprocessors);
  return {.rows = std::bit_floor(2 * multiprocessors), .columns = int64_t{64} * multiprocessors};
}

// Unaligned 16-bit products on an H200 (torch 2.11, called one by one), in us as they lie, padded, and for the copy if
// nothing else writes it: 4096x1025x768 (6.4 GFLOP) 62, 20, 19; 4096x4097x768 207, 38, 55; 4096x50257x768 2396, 411,
// 612. The launch of the copy eats the gain of smaller ones: 512x2049x768 (1.6 GFLOP) 23, 18, 19.
constexpr double kPaddedFlops = 4e9;

constexpr PassEntry kPasses[] = {
    {"channels_last", [](Unit& u) { pass::ChannelsLast(u.graph, u.device); }},
    {"split_bias", [](Unit& u) { pass::SplitBias(u.graph, u.device); }},
    {"pad_products", [](Unit& u) { pass::PadProducts(u.graph, u.device, kPaddedFlops); }},
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
    static constexpr loop::Costs costs{.parts_apart = false, .keeps_rows = false};
    return costs;
  }
  std::span<const runtime::Library> libraries() const override { return kLibraries; }
  bool HasOwnKernel(const Graph& g, ValueId v) const override { return loop::HasDepthwiseKernel(g, g.nodes[v]); }
  std::optional<loop::BuiltKernel> OwnKernel(const Graph& g, ValueId v,
                                             const std::vector<loop::Layout>& layouts) const override {
    return loop::BuildDepthwise(g, v, layouts);
  }
  void Emit(const loop::Kernel& kernel, Device device, const CompileOptions&, runtime::KernelWork* work,
            bool* reused) const override {
    work->device_kernel = codegen::GetGpuKernel(kernel, device.index, reused);
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
