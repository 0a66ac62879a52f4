// CUDA graphs: what many steps of a plan ask the driver to do, captured once and asked again as one launch.
//
// A plan is cut into ranges of steps that always read and write the same memory; the steps between them run as ever.
//
//   step                                    in a range
//   own kernel                              always: where its arguments have changed, its node is updated
//   product, convolution, attention         if its operands and results stay where they are: in the arena, in weights,
//                                           in results of other such calls
//   extern, copy to the CPU, CPU kernel     never
//
// So nothing is copied into or out of a graph, results are fresh tensors, and what is random, data-dependent or
// unknown is never captured. All memory that graphs use is scratch: one pool serves all graphs of a stream, and one run
// at a time holds it. Runs that find it taken, other streams and the user's own captures run the steps one by one.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "runtime/context.h"

namespace framejit::runtime::cuda {

struct StreamPool {
  std::atomic<bool> taken{false};
  Stream side = nullptr;   // captures are made on it; nothing ever runs there
  void* memory = nullptr;  // The host's pool.
};
StreamPool& PoolOf(const Driver& driver, int device, uint64_t stream_id);

struct GraphRange {
  int first = 0, last = 0;  // The steps in [first, last).
  Graph graph = nullptr;    // whose nodes name those of exec
  GraphExec exec = nullptr;
  struct Kernel {
    int step;
    GraphNode node;
  };
  std::vector<Kernel> kernels;
};

// Steps that a library runs, which a graph can hold.
bool IsLibrary(Step::Kind kind);
// moving: by input. Every range is worth a launch; forced: two steps are.
std::vector<GraphRange> FindRanges(const Plan& plan, const std::vector<bool>& moving, bool forced);

// The graphs of a plan for one tuple of sizes on one stream, and what has been seen of its runs there.
struct StreamGraphs {
  StreamGraphs(const Driver& d, int device, uint64_t id, size_t steps)
      : driver(d), stream_id(id), pool(PoolOf(d, device, id)), shares(std::make_shared<StepShares>(steps)) {}
  ~StreamGraphs() { Clear(); }
  void Clear();  // Destroys the graphs.
  void Captured(const Plan& plan, const std::vector<void*>& all);
  void GiveUp(const Plan& plan, const std::string& why);

  // What to do in this run. Graphs whose inputs have moved are dropped here.
  enum class Use { kNone, kCapture, kLaunch };
  Use Next(const Plan& plan, std::span<const Buffer> inputs, uint64_t settings);

  const Driver& driver;
  const uint64_t stream_id;
  StreamPool& pool;              // what follows belongs to who has taken it
  std::atomic<bool> off{false};  // Set where they could not be captured.
  int runs = 0, captures = 0;
  uint64_t settings = 0;  // the user's, of libraries, in the last run
  std::thread::id
      thread;  // of the last run: libraries make their handles by thread, and not while something is captured
  std::vector<void*> addresses;  // of the inputs in the last run
  std::vector<int> moves;        // by input: how often its address has changed
  std::vector<GraphRange> ranges;
  std::vector<int> fixed;       // inputs that library calls in ranges read
  std::vector<void*> captured;  // addresses of the inputs in the captured run
  std::byte* arena = nullptr;
  std::vector<void*> pointers;                   // kernel arguments that the graphs hold, by slot of the context
  std::vector<std::pair<int, void*>> externals;  // values in memory that calls in ranges have allocated
  const std::shared_ptr<StepShares> shares;      // Those of the plan's steps.
};

}  // namespace framejit::runtime::cuda
