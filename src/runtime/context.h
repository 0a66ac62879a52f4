// The mutable part of one run in progress: its buffers, and the arguments of its kernels with every pointer in place.
// It is kept between runs, so that the next run with the same sizes only patches the pointers that changed.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/arena.h"
#include "runtime/instance.h"

namespace framejit::runtime {

// A list of numbers for each step. Most are empty, and of many plans all are.
class StepLists {
 public:
  void Fill(size_t steps, std::vector<std::pair<int, int>> numbers);  // pairs of a step and a number
  std::span<const int> operator[](size_t step) const {
    if (begin_.empty()) return {};
    return {numbers_.data() + begin_[step], numbers_.data() + begin_[step + 1]};
  }

 private:
  std::vector<uint32_t> begin_;
  std::vector<int> numbers_;
};

// What is computed once from the plan alone.
struct PlanIndex {
  explicit PlanIndex(const Plan& plan);
  // For each step: where the arguments of its kernel begin in Context::pointers.
  std::vector<uint32_t> first_pointer;
  size_t num_pointers = 0;
  // Likewise in Context::params, which holds the addresses that a GPU launch takes. Empty: there is none.
  std::vector<uint32_t> first_param;
  size_t num_params = 0;
  std::vector<bool> needs_buffer;   // for each value: is it read by something other than kernels?
  std::vector<int> output_storage;  // for each output; -1: a framework call hands it over
  std::vector<bool> zero_outputs;   // for each output: does its first step write zeros alone?
  // Pairs of the first step that writes an output, and the output; without those of framework calls.
  std::vector<std::pair<int, int>> outputs_by_step;
  std::vector<int> input_storage;  // There is one for each input.
  StepLists lent_before;           // lent values that the step is the first to write
  StepLists release_after;         // framework results and lent memory that nothing reads behind the step
  StepLists inputs_after;          // inputs that nothing reads behind the step
  bool has_externs = false;
};

struct Context {
  Context() = default;
  Context(const Context&) = delete;
  ~Context() { FreeBlock(own); }

  // Sets buffers, patches and constant pointers for these sizes. Uses the context's own scratch memory if that
  // suffices.
  void Bind(const Plan& plan, const PlanIndex& index, std::shared_ptr<const Instance> i);
  void MakePatches(const Plan& plan, const PlanIndex& index);
  void SetStorage(int storage, void* data) {
    for (uint32_t p = patch_begin[storage]; p < patch_begin[storage + 1]; ++p) {
      const auto [place, value] = patches[p];
      void*& at = place < pointers.size() ? pointers[place] : buffers[place - pointers.size()].data;
      at = static_cast<std::byte*>(data) + instance->values[value].offset_bytes;
    }
  }
  void SetScratch(const Plan& plan, std::byte* base);
  void SetDeviceScratch(const Plan& plan, std::byte* base);

  std::shared_ptr<const Instance> instance;
  std::vector<Buffer> buffers;  // There is one for each value.
  std::vector<void*> pointers;  // the arguments of the kernels of all steps
  std::vector<void*> params;
  struct Patch {
    uint32_t place;  // in `pointers`, or behind these in `buffers`
    uint32_t value;  // the value that is there
  };
  std::vector<Patch> patches;  // those of one storage are neighbours
  std::vector<uint32_t> patch_begin;
  Block own;
  std::byte* scratch = nullptr;         // where the scratch memory that `pointers` point into begins
  std::byte* device_scratch = nullptr;  // the host allocates it for each run

  // For a storage that a framework call fills, or that is lent.
  struct External {
    Buffer buffer;              // The buffer as the host gave it.
    std::byte* copy = nullptr;  // is read in its place if its layout or device does not fit
    Block block;                // The memory of the copy.
    Buffer device_copy;         // the memory of the copy on another device, which the host allocated
    bool live = false;          // the buffer must be given back to the host
    bool output_allocated = false;
  };
  std::vector<External> externals;
};

// A context keeps scratch memory up to so many bytes. Larger scratch memory comes from the pool, for each run.
inline constexpr int64_t kOwnScratch = 256 << 10;

}  // namespace framejit::runtime
