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

// A graph on its way through the passes, and what they leave beside it.
struct Unit {
  Graph graph;
  Device device;  // the one beside the CPU that some of its values are on, or the CPU
  const CompileOptions& options;
  pass::Hoisted hoisted;                 // what is made of weights alone, by another executable
  std::optional<pass::Regions> regions;  // the graph to compile instead, whose writes are to parts of inputs
};

struct Stage {
  const char* name;  // as options.disabled_passes says it
  void (*apply)(Unit& unit);
  bool for_weights = false;  // runs only where some input is a weight
};

class Target {
 public:
  virtual ~Target() = default;
  virtual std::string_view name() const = 0;
  virtual std::span<const Stage> stages() const = 0;  // between the passes for all targets and fusion, in order
  virtual const DeviceTraits& traits() const = 0;     // constant; so are the costs
  virtual const loop::Costs& costs() const = 0;
  // Is a run over when Executable::Run returns, so that a clock tells what it takes?
  virtual bool can_time_runs() const { return false; }
  // Who computes contractions; those that do not take one leave it to the next.
  virtual std::span<const runtime::Library> libraries() const = 0;
  // Does the library give a tensor of its own as the result of v, which is used as it is?
  virtual bool LibraryLends(const Graph& g, ValueId v) const;
  // A kernel of our own for what a library would compute. Has: unless the layouts turn out to be others.
  virtual bool HasOwnKernel(const Graph& g, ValueId v) const { return false; }
  virtual std::optional<loop::BuiltKernel> OwnKernel(const Graph& g, ValueId v,
                                                     const std::vector<loop::Layout>& layouts) const {
    return std::nullopt;
  }
  // Machine code, or a kernel that has it already (*reused): either fn, rows, line_and_row, work_per_row and code of
  // the step, or device_kernel. Throws codegen::CodegenUnsupported for what it cannot do: the kernel is cut then.
  virtual void Emit(const loop::Kernel& kernel, Device device, const CompileOptions& options, runtime::Step* step,
                    bool* reused) const = 0;
  virtual std::shared_ptr<const runtime::Machine> machine(Device device) const { return nullptr; }  // null: the CPU's
};

const Target* TargetFor(DeviceKind kind);  // null: no code is made for it
const Target& TargetOf(Device device);     // throws std::runtime_error
// The names of its passes are valid from now on (options.disabled_passes).
void NameStages(std::span<const Stage> stages);
// Of DeviceKind::kPrivate; null: none again. Kept by the caller.
void RegisterTarget(const Target* target);

const Target& CpuTarget();
const Target& CudaTarget();

}  // namespace framejit::compiler
