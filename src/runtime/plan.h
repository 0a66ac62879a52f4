// The plan of an executable: its steps read and write values, and values lie in storages. Sizes are still expressions
// over symbols; an `Instance` is a plan with numbers put in. The compiler makes a plan once, and nothing changes it
// later.
#pragma once

#include <absl/container/inlined_vector.h>

#include <bit>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "framejit/compile.h"
#include "runtime/machine.h"

namespace framejit::runtime {

using shape::Int;
using shape::Ints;
using KernelFn = void (*)(void* const* buffers, const int64_t* symbols, int64_t begin, int64_t end);

struct Storage {
  // kLent: the framework allocates it for each run, and who is given it may keep it.
  enum class Kind : uint8_t { kInput, kOutput, kScratch, kExtern, kLent };
  Kind kind = Kind::kScratch;
  bool on_device = false;     // it is memory of the plan's device
  int index = -1;             // which input or output it is; for a call's result the output it becomes, or -1
  int first = -1, last = -1;  // the steps between which its contents matter; last == steps.size(): until the writes
};

// A way to read a storage.
struct Value {
  int storage = -1;
  ValueId node = kNoValue;  // The node of the graph, for messages.
  DType dtype = DType::kFloat32;
  bool whole = false;  // it is what the storage was made for, so the framework's handle of the storage fits
  Device device;
  shape::IntList sizes, strides;  // strides and offset are in elements
  Int offset;
};

// The machine code of a kernel, which lives as long as this, for values of the kernel's symbols.
class KernelCode {
 public:
  virtual ~KernelCode() = default;
  virtual int64_t rows(const int64_t* symbols) const = 0;          // the size of the parallel space
  virtual int64_t work_per_row(const int64_t* symbols) const = 0;  // Elements times instructions.
  // How many elements of an argument are a line and how many a row: lines are cut into rows, whose elements lie in
  // order.
  virtual std::pair<int64_t, int64_t> line_and_row(const int64_t* symbols) const = 0;
};

struct Step;
// Computes a contraction into `out`. False: this library does not take it, and the next one is asked.
using Library = bool (*)(Host& host, const Step& step, std::span<const int64_t> symbols,
                         std::span<const Buffer> operands, Buffer& out);

// What a kernel runs.
struct KernelWork {
  KernelFn fn = nullptr;
  std::shared_ptr<const KernelCode> code;             // The code that `fn` is in.
  shape::IntList symbols;                             // the values of the kernel's symbols
  std::shared_ptr<const DeviceKernel> device_kernel;  // runs on the plan's device, in place of fn
};

// What a step that is no kernel computes: a library call, a call of the framework or a node (kNode).
struct Operation {
  Op op = Op::kExtern;
  Attrs attrs;
  TensorType type;
  std::span<const Library> libraries;  // who is asked to compute a contraction, in order
};

// Steps are many. What those have in common that do the same to other values, as in the layers of a model, they share.

struct Step {
  enum class Kind : uint8_t { kKernel, kMatMul, kLinear, kConv, kAttention, kPack, kExtern, kNode, kCopy };
  Kind kind = Kind::kKernel;
  bool zeros = false;  // A kernel that writes nothing but zeros, and many: fresh memory of the system is that already.
  bool feeds = false;  // What it makes is the first operand of the product behind it and nothing else: may be made as
                       // that reads it.
  bool pairs = false;  // A product of a matrix and a vector: the one behind it is of the same matrix, and both may be
                       // made as that is read once.
  bool updates = false;  // a framework call that writes its result into its first operand
  using Numbers = absl::InlinedVector<int, 4>;
  Numbers operands;                    // numbers of values; for a kernel all its buffers, in the order of its arguments
  Numbers results;                     // numbers of values; for a kernel those of the buffers that it writes
  const std::string* name = NoName();  // of Plan::names
  std::shared_ptr<const KernelWork> kernel;    // null: it is none
  std::shared_ptr<const Operation> operation;  // null: it is a kernel or a copy
  // A kernel that may raise a status and writes inputs is rehearsed first: it runs into memory of its own, which tells
  // whether the status would be raised. These are the arguments that the rehearsal must not write, as bits.
  uint64_t rehearse = 0;
  static constexpr int kRehearsed = 64;  // arguments from here on cannot be

  bool on_device() const { return kernel && kernel->device_kernel; }
  template <class F>
  void EachRehearsed(F f) const {
    for (uint64_t left = rehearse; left; left &= left - 1) f(std::countr_zero(left));
  }

 private:
  static const std::string* NoName() {
    static const std::string none;
    return &none;
  }
};

const char* KindName(Step::Kind kind);

struct Plan {
  Plan() = default;
  Plan(Plan&&) = default;
  Plan& operator=(Plan&&) = default;
  std::string name;
  std::set<std::string> names;  // those of steps
  std::vector<Storage> storages;
  std::vector<Value> values;
  std::vector<Step> steps;
  std::vector<int> inputs;  // the value of each graph input
  struct Output {
    int value = -1;
    bool handed_over = false;  // the tensor that a framework call has returned is the result itself
  };
  std::vector<Output> outputs;
  // Makes an input what a value is, after everything that can fail.
  struct Commit {
    int input;
    int value;
    bool direct = false;  // the value's storage may be the input itself, if that overlaps no other input
    int target = -1;      // the value that is written, where it is a part of the input; -1: all of it
  };
  std::vector<Commit> commits;
  std::vector<Graph::SymbolSource> symbol_sources;
  // A run with `of` elements, not none, where `size` is 0 ends with this status: it looks elements up in an axis of
  // size 0, or what may raise is read by nothing but what has no elements, so that no kernel computes it.
  struct Nothing {
    Int size, of;
    int status;
  };
  std::vector<Nothing> nothings;
  int traps = 0;  // bits of Status that steps may raise and that end the run
  // The number of steps that run before the status is looked at. The steps behind them raise none or are rehearsed, and
  // so they may write inputs.
  int checked_steps = 0;
  Device device;                           // the device that some steps or values are on, or the CPU
  std::shared_ptr<const Machine> machine;  // what runs kernels on that device
  GpuGraphs graphs = GpuGraphs::kNever;
  std::string str() const;
};

// Sets the first and the last step of every storage.
void ComputeLifetimes(Plan& plan);

// An executable that runs the plan. `stats` are what the compiler counted.
std::shared_ptr<Executable> MakeExecutable(Plan plan, const CompileStats& stats);

}  // namespace framejit::runtime
