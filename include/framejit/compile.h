// From a graph to something that runs. `Compile` is the whole back end; an Executable may be run from several threads
// at once (scratch is leased per call).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "framejit/graph.h"

namespace framejit {

// A tensor at run time: raw memory plus whatever the framework wants to remember. Plain data, owned by nobody.
struct Buffer {
  void* data = nullptr;
  void* handle = nullptr;  // framework's handle (AtenTensorHandle, PyObject*), null for scratch
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;  // in elements
  int32_t rank = 0;
  DType dtype = DType::kFloat32;
  Device device;
};

// Watches the memory of an input from the moment it was made.
class MemoryWatch {
 public:
  virtual ~MemoryWatch() = default;
  virtual bool Unchanged(const Buffer& b) = 0;  // is `b` that memory, and nobody wrote to it?
};

// What the side with Python provides. All functions may be called without the GIL unless they say so.
class Host {
 public:
  virtual ~Host() = default;
  // A host that outlives the run: for what is kept beyond it.
  virtual Host& BeyondRun() { return *this; }
  // A fresh tensor for a result. Fills `out` (data, handle). sizes/strides outlive the call only if the host copies
  // them.
  virtual void AllocateOutput(DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides,
                              Device device, Buffer* out) = 0;
  virtual void FreeOutput(Buffer* out) = 0;  // Called where a run fails.
  // Runs an `extern` node with the framework. The host takes and gives back framework tensors; results are filled in.
  // Throws ExternError after setting a Python exception. Takes the GIL itself.
  virtual void RunExtern(const Call& call, std::span<const Buffer> operands, std::span<Buffer> results) = 0;
  virtual void Release(Buffer* b) = 0;  // a result of RunExtern that is no longer needed
  // Inputs that this run may give back as soon as no step reads them any more (asked once a run), told by number.
  virtual bool TakesInputs() { return false; }
  virtual void InputDone(size_t input) {}
  // Where memory is not the CPU's: the stream that kernels run on, and copies on it (between devices, too; to the CPU
  // they are over when the call returns). Throws std::runtime_error.
  virtual void* CurrentStream(Device device) { return nullptr; }
  virtual void Copy(const Buffer& from, const Buffer& to);
  // For CUDA graphs. Until EndRecording, `stream` is this thread's current one, and what this thread allocates there
  // comes from a pool of its own, which is made at the first use and never given back. False: cannot be done.
  virtual bool BeginRecording(Device device, void* stream, void** pool) { return false; }
  virtual void EndRecording(Device device, void* pool) {}
  virtual uint64_t LibrarySettings() { return 0; }  // whatever of the user's settings decides what library calls do
  // Library calls; false: "not me", the next candidate (the runtime's own loop) runs. Operands may have any strides (0
  // for broadcast dimensions). Results are preallocated: row-major for MatMul and Linear; Conv and Attention must
  // honour out.strides (attention is usually asked for [B, L, H, E] memory order, which is what libraries produce), or,
  // where out.data is null, hand out the library's own tensor as RunExtern does, in any strides.
  virtual bool MatMul(const Buffer& a, const Buffer& b, Buffer& out) { return false; }
  // packed: null, or what Pack made of w, which may be used instead.
  virtual bool Linear(const Buffer& x, const Buffer& w, const Buffer* bias, const Buffer* packed, Buffer& out) {
    return false;
  }
  // A function of it in the same call: "relu", "gelu" (by tanh). As Conv it may hand out the library's own tensor.
  virtual bool LinearThen(const std::string& function, const Buffer& x, const Buffer& w, const Buffer& bias,
                          Buffer& out) {
    return false;
  }
  virtual bool Conv(const Buffer& x, const Buffer& w, const Buffer* bias, const Attrs& attrs, Buffer& out) {
    return false;
  }
  virtual bool Attention(const Buffer& q, const Buffer& k, const Buffer& v, const Buffer* mask, bool causal,
                         double scale, Buffer& out) {
    return false;
  }
  // A weight in the form that the library wants (`pack` nodes): out.handle, out.data stays null. No handle, where the
  // reader can do without ("linear"): not worth its memory. w.data is null where it must not be kept.
  virtual bool Pack(const Buffer& w, const Attrs& attrs, Buffer& out) { return false; }
  // Null: it cannot be told whether that memory changes, so nothing that is made of it may be kept.
  virtual std::unique_ptr<MemoryWatch> WatchMemory(const Buffer& b) { return nullptr; }
  virtual void SetSymbol(uint32_t symbol, int64_t value) {}  // one that appeared in the run
  virtual int NumThreads() { return 1; }
  // Runs f(begin, end) over a partition of [0, n) on the framework's thread team.
  virtual void ParallelFor(int64_t n, int64_t grain, void (*f)(void* ctx, int64_t begin, int64_t end), void* ctx) {
    f(ctx, 0, n);
  }
};
struct ExternError {};  // a framework call failed; the host has kept the error

// What kernels notice and the program must be told by the framework itself: IEEE exceptions (the first four, numbered
// as NumPy does), an index out of range.
enum Status : int { kDivide = 1, kOverflow = 2, kUnderflow = 4, kInvalid = 8, kBadIndex = 16 };
struct StatusRaised {
  int status;
};

// A condition on sizes does not hold, or a call's result has others than were expected. Nothing was written.
struct ConditionMissed {
  std::string text;
};

enum class GpuGraphs : uint8_t { kNever, kAuto, kAlways };  // CUDA graphs: where they pay; wherever they can be made

struct CompileOptions {
  std::string cpu;  // "", "avx2", "avx512": "" detects
  bool fuse = true;
  int verify = 0;     // Is the graph verified after every pass?
  int64_t fuel = -1;  // number of pass applications before passes stop (bisecting)
  std::vector<std::string> disabled_passes;
  bool deterministic = false;
  bool tune = false;  // measure other forms of the graph on its runs (mode="max-autotune")
  GpuGraphs gpu_graphs = GpuGraphs::kNever;
  int traps = kBadIndex;  // The Status bits that end a run.
  // By input: a weight, which is expected to stay as it is from run to run. What is made of weights alone (packed
  // forms, folded normalisations) is made once and again when the host says that one has changed.
  std::vector<bool> weights;
};

struct CompileStats {
  int kernels = 0;           // Kernels that this executable uses.
  int kernels_compiled = 0;  // Those of them that were compiled for it.
  int kernels_reused = 0;    // Those that the cache had.
  int library_calls = 0;
  int externs = 0;
  int interpreted = 0;  // nodes run by the reference semantics, because code generation cannot do them
  double seconds = 0;
};

class Executable {
 public:
  virtual ~Executable() = default;
  // inputs: in graph order. scalars: values of scalar inputs. outputs: filled by Host::AllocateOutput; the caller owns
  // them. An output that is an extern's result is the framework's own tensor, handed on. outputs[i].sizes and strides
  // point into the executable (or to where the host redirected them): good until it has run with many other sizes.
  // Writes to inputs happen last. Throws ExternError or StatusRaised; nothing was written then.
  virtual void Run(Host& host, std::span<const Buffer> inputs, std::span<const int64_t> scalars,
                   std::span<Buffer> outputs) = 0;
  virtual const CompileStats& stats() const = 0;
  virtual int64_t ScratchBytes(std::span<const int64_t> symbols) const = 0;
  virtual std::string str() const = 0;  // The plan, one step in each line.
  // False while runs try out several forms of the graph (CompileOptions::tune): their times say nothing of later ones.
  virtual bool settled() const { return true; }
};

std::shared_ptr<Executable> Compile(const Graph& g, const CompileOptions& options = {});
// Why no code is made for the devices that the graph's values are on; empty: it is.
std::string DeviceObstacle(const Graph& g);

// The same graph run by the reference interpreter: slow, exact; backend="interpreter".
std::shared_ptr<Executable> MakeInterpreter(const Graph& g, int traps = 0);

struct KernelCacheInfo {
  int64_t kernels = 0, hits = 0, misses = 0;
  double compile_seconds = 0;
  int64_t code_bytes = 0;
  int64_t prepared_bytes = 0;  // held by executables for packed and folded weights
};
// Exported also from a stage that is compiled with hidden visibility.
[[gnu::visibility("default")]] KernelCacheInfo GetKernelCacheInfo();
[[gnu::visibility("default")]] void ClearKernelCache();

}  // namespace framejit
