// The mutable part of one run in progress: buffers and kernel arguments with every pointer in place. Kept between runs,
// so that the next run with the same sizes only patches what changed.
#pragma once

#include <memory>
#include <vector>

#include "runtime/arena.h"
#include "runtime/instance.h"

namespace framejit::runtime {

// What follows from the plan alone.
struct PlanIndex {
  explicit PlanIndex(const Plan& plan);
  std::vector<size_t> first_pointer;  // by step: where its kernel arguments begin
  size_t num_pointers = 0;
  std::vector<size_t> first_param;  // likewise, of what a GPU launch is given: addresses of the arguments
  size_t num_params = 0;
  std::vector<bool> needs_buffer;                    // by value: read by something other than kernels
  std::vector<int> output_storage;                   // by output; -1: handed over by an extern
  std::vector<bool> zero_outputs;                    // by output: its first step writes nothing but zeros
  std::vector<std::pair<int, int>> outputs_by_step;  // first step that writes it, output; not those of externs
  std::vector<int> input_storage;                    // by input
  std::vector<std::vector<int>> release_after;       // by step: extern storages that nobody reads any more
  std::vector<std::vector<int>> inputs_after;        // by step: inputs that nobody reads any more
  bool has_externs = false;
};

struct Context {
  Context() = default;
  Context(const Context&) = delete;
  ~Context() { FreeBlock(own); }

  // Buffers, patches and constant pointers for these sizes; uses the context's own scratch if it is small.
  void Bind(const Plan& plan, const PlanIndex& index, std::shared_ptr<const Instance> i);
  void MakePatches(const Plan& plan, const PlanIndex& index);
  void SetStorage(int storage, void* data) {
    for (uint32_t p = patch_begin[storage]; p < patch_begin[storage + 1]; ++p) {
      *patches[p].slot = static_cast<std::byte*>(data) + patches[p].offset;
    }
  }
  void SetScratch(const Plan& plan, std::byte* base);
  void SetDeviceScratch(const Plan& plan, std::byte* base);

  std::shared_ptr<const Instance> instance;
  std::vector<Buffer> buffers;  // by value
  std::vector<void*> pointers;  // kernel arguments of all steps
  std::vector<void*> params;
  struct Patch {
    void** slot;
    int64_t offset;
    int value;  // where the offset comes from
  };
  std::vector<Patch> patches;  // grouped by storage
  std::vector<uint32_t> patch_begin;
  Block own;
  std::byte* scratch = nullptr;         // what the scratch pointers are based on
  std::byte* device_scratch = nullptr;  // allocated by the host for each run

  struct External {             // by storage, for externs
    Buffer buffer;              // as the host gave it
    std::byte* copy = nullptr;  // read instead of it, if its layout or place does not fit
    Block block;                // its memory
    Buffer device_copy;         // or, on another device: the host's
    bool live = false;          // must be given back to the host
    bool output_allocated = false;
  };
  std::vector<External> externals;
};

inline constexpr int64_t kOwnScratch = 256 << 10;  // contexts keep up to this much; more comes from the pool per run

}  // namespace framejit::runtime
