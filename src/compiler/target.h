// What is made for one kind of device, and how: passes, loops, machine code, runs. Compile() knows devices by this
// alone.
//
//   target    passes of its own                          code                     runs
//   cpu       packed weights, products of convolutions,  LLVM: vectors of the     on the host's threads
//             stores into parts                          machine (codegen.h)
//   cuda      channels last, epilogues, padded products  PTX (gpu.h)              on the host's stream (CudaMachine)
//   private   none, until a program registers its own: examples/c_target emits C for a memory space of its own
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "framejit/compile.h"
#include "graph/device.h"
#include "loop/kernel.h"
#include "pass/store_regions.h"
#include "pass/weights.h"
#include "runtime/plan.h"

namespace framejit::compiler {

// A graph on its way through the passes, and what the passes make beside it.
struct Unit {
  Graph graph;
  Device device;  // the device that some of its values are on, or the CPU
  const CompileOptions& options;
  pass::Hoisted hoisted;                 // what depends on weights alone, which another executable computes
  std::optional<pass::Regions> regions;  // the graph to compile in place of `graph`; it writes parts of inputs
};

// A row of a table of passes.
struct PassEntry {
  const char* name;  // as options.disabled_passes says it
  void (*apply)(Unit& unit);
  bool for_weights = false;  // runs only where some input is a weight
};

class Target {
 public:
  virtual ~Target() = default;
  virtual std::string_view name() const = 0;
  // The target's own passes, in the order in which they run: after the passes of all targets, before fusion.
  virtual std::span<const PassEntry> passes() const = 0;
  // Traits and costs never change.
  virtual const DeviceTraits& traits() const = 0;
  virtual const loop::Costs& costs() const = 0;
  // Is a run over when Executable::Run returns, so that a clock around the call says how long it took?
  virtual bool can_time_runs() const { return false; }
  // The libraries that compute contractions, in the order in which they are asked.
  virtual std::span<const runtime::Library> libraries() const = 0;
  // Does the library return a tensor of its own for v, which becomes the value without a copy?
  virtual bool LibraryLends(const Graph& g, ValueId v) const;
  // A kernel of our own for what a library would compute otherwise. HasOwnKernel answers before layouts are known;
  // OwnKernel returns nothing if the kernel does not take these layouts.
  virtual bool HasOwnKernel(const Graph& g, ValueId v) const { return false; }
  virtual std::optional<loop::BuiltKernel> OwnKernel(const Graph& g, ValueId v,
                                                     const std::vector<loop::Layout>& layouts) const {
    return std::nullopt;
  }
  // Makes machine code for the kernel, or finds some (*reused), and fills in either fn and code, or device_kernel.
  // Throws codegen::CodegenUnsupported for what it cannot do: then the kernel is cut into smaller ones.
  virtual void Emit(const loop::Kernel& kernel, Device device, const CompileOptions& options, runtime::KernelWork* work,
                    bool* reused) const = 0;
  virtual std::shared_ptr<const runtime::Machine> machine(Device device) const { return nullptr; }  // Null: the CPU's.
};

const Target* TargetFor(DeviceKind kind);  // null: framejit makes no code for such devices
const Target& TargetOf(Device device);     // throws std::runtime_error where TargetFor gives null
// Makes the names of these passes valid values of options.disabled_passes.
void NamePasses(std::span<const PassEntry> passes);
// Sets the target of DeviceKind::kPrivate; null takes it away. The caller keeps it alive.
void RegisterTarget(const Target* target);

const Target& CpuTarget();
const Target& CudaTarget();

}  // namespace framejit::compiler
