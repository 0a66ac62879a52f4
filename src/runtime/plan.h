// The plan of an executable: steps over values, values over storages; sizes are still expressions over symbols. Made
// once by the compiler, immutable afterwards. `Instance` is a plan with numbers put in.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framejit/compile.h"
#include "runtime/machine.h"

namespace framejit::runtime {

using shape::Int;
using shape::Ints;
using KernelFn = void (*)(void* const* buffers, const int64_t* symbols, int64_t begin, int64_t end);

struct Storage {
  enum class Kind : uint8_t { kInput, kOutput, kScratch, kExtern };
  Kind kind = Kind::kScratch;
  int index = -1;             // of the input or output; extern: the output it is handed over as, or -1
  bool on_device = false;     // memory of the plan's device
  int first = -1, last = -1;  // steps between which the contents matter; last == steps.size(): until the writes
};

struct Value {  // a way to read a storage
  int storage = -1;
  DType dtype = DType::kFloat32;
  Device device;
  Ints sizes, strides;  // strides and offset in elements
  Int offset;
  ValueId node = kNoValue;  // for messages
  bool whole = false;       // is what the storage was made for: its framework handle fits
};

struct Step;
// Computes a contraction into `out`; false: another one must.
using Library = bool (*)(Host& host, const Step& step, std::span<const int64_t> symbols,
                         std::span<const Buffer> operands, Buffer& out);

struct Step {
  enum class Kind : uint8_t { kKernel, kMatMul, kLinear, kConv, kAttention, kPack, kExtern, kNode, kCopy };
  Kind kind = Kind::kKernel;
  std::vector<int> operands;  // value numbers; kernels: all buffers in argument order
  std::vector<int> results;   // value numbers; kernels: those of the buffers that are written
  std::string name;
  // kKernel
  KernelFn fn = nullptr;
  std::shared_ptr<const void> code;             // keeps fn alive
  std::vector<Int> symbols;                     // kernel symbol i
  std::function<int64_t(const int64_t*)> rows;  // by kernel symbols
  std::function<int64_t(const int64_t*)> work_per_row;
  bool zeros = false;  // it writes nothing but zeros, and much of them: a result that nobody has touched is that
  // It may raise a status, and writes inputs: a rehearsal before, into memory of its own, tells. Arguments that it must
  // not write then; elements of a line of them and of a row (lines are cut into rows, elements lie in a row's order).
  std::vector<int> rehearse;
  std::function<std::pair<int64_t, int64_t>(const int64_t*)> line_and_row;
  std::shared_ptr<const DeviceKernel> device_kernel;  // instead of fn, rows and work: runs on the plan's device
  // the others
  bool updates = false;                   // an extern that writes its result into its first operand
  Node node;                              // library calls, externs and kNode: what to compute
  std::span<const Library> libraries;     // library calls: who is asked, in order
  std::vector<TensorType> operand_types;  // kNode and fallbacks of library calls
};

const char* KindName(Step::Kind kind);

struct Plan {
  std::string name;
  std::vector<Storage> storages;
  std::vector<Value> values;
  std::vector<Step> steps;
  std::vector<int> inputs;  // value of each graph input
  struct Output {
    int value = -1;
    bool handed_over = false;
  };  // handed over: the extern's own tensor is the result
  std::vector<Output> outputs;
  struct Commit {
    int input;
    int value;
    bool direct = false;  // the value's storage may be the input itself, if that overlaps no other input
    int target = -1;      // a part of the input, as a value over its storage; -1: all of it
  };  // inputs[input] <- value, after everything that can fail
  std::vector<Commit> commits;
  std::vector<Graph::SymbolSource> symbol_sources;
  struct Table {
    Int size, looked_up;
  };  // an axis that indices go along, and how many there are: a run with some and an axis of nothing has no result
  std::vector<Table> tables;
  int traps = 0;  // Status bits that steps may raise and that end the run
  // So many steps run before the status is looked at; the others raise none, or are rehearsed, and may write inputs.
  int checked_steps = 0;
  Device device;                           // the one beside the CPU, if any step or value is there
  std::shared_ptr<const Machine> machine;  // of that device
  GpuGraphs graphs = GpuGraphs::kNever;
  std::string str() const;
};

// First and last step of every storage, from the steps.
void ComputeLifetimes(Plan& plan);

// An executable that runs the plan. `stats` are what the compiler counted.
std::shared_ptr<Executable> MakeExecutable(Plan plan, const CompileStats& stats);

}  // namespace framejit::runtime
