// How a loop kernel is laid over blocks and threads of a GPU. No LLVM here: launches need it, too.
//
//   point    no reductions: a thread computes `vector` neighbours of the inner axis, `unroll` times
//   row      the inner axis is reduced: `row_threads` threads share a row; a block holds threads / row_threads rows.
//            resident: every thread keeps its `unroll` vectors in registers from stage to stage (the row is read once)
//            cluster: so many blocks, which write to each other's shared memory, share a row
//            held: rows too long for registers stay in shared memory from stage to stage
//   tile     point, where some accesses are contiguous along the last outer axis: `tile` x `tile` elements a block,
//            those accesses through shared memory. Blocks follow a Z-curve over `group` x `group` tiles; of a square
//            the mirror images of a group come next to each other (`mirrored`): what one of them reads along rows
//            and the other along columns is still in the L2 cache
//   column   the inner axis is kept: 32 * vector columns a block, `slices` threads share a column's reduction
#pragma once

#include <cstdint>
#include <vector>

#include "loop/kernel.h"
#include "runtime/cuda/chip.h"

namespace framejit::codegen {

struct GpuSchedule {
  enum Mode : uint8_t { kPoint, kRow, kColumn, kTile } mode = kPoint;
  bool narrow = true;  // element indices fit 32 bits
  bool pairs = false;  // the chip converts two numbers to 16 bits at once
  int vector = 1;
  int threads = 256;
  int unroll = 1;
  int row_threads = 32;    // of a block
  bool ahead = false;      // loops ask for the next step's vectors while they compute one
  int cluster = 1;         // blocks that reduce together
  bool dependent = false;  // may be launched before what runs before it has ended: waits for that by itself
  bool resident = false;
  int held = 0;          // bytes of shared memory for a block's part of the row
  bool stores = false;   // in a loop: it writes about as much as it reads
  int blocks = 1;        // that a multiprocessor should hold at once: bounds the registers
  int first_blocks = 0;  // that the chip holds at once
  int slices = 1;
  bool tail = false;                  // point: the inner axis need not be a multiple of `vector`
  int tile = 32, group = 1;           // tile
  bool mirrored = false;              // tile
  std::vector<bool> staged;           // tile: by instruction
  std::vector<bool> wide_access;      // by instruction: one access of `vector` elements
  std::vector<shape::Int> multiples;  // must be multiples of `vector` when the kernel is launched
  std::vector<uint32_t> alignment;    // bytes, by buffer

  static int Pitch(int tile) { return tile + 3; }  // of a tile in shared memory: few accesses meet in a bank
};

constexpr int kMostCluster = 16;  // blocks; more than 8 only where the driver finds room for them

// vectors: false for the variant that runs where addresses or sizes are odd.
GpuSchedule MakeGpuSchedule(const loop::Kernel& k, const runtime::cuda::Chip& chip, bool vectors, bool narrow,
                            int most_cluster = kMostCluster);

// What is held of a row: loads of whole vectors that differ from row to row, each once.
std::vector<int> GpuHeldLoads(const loop::Kernel& k, const GpuSchedule& s);

// Is there one value for all elements of a vector? By instruction.
std::vector<bool> GpuUniform(const loop::Kernel& k, int vector);

// Every index of the kernel fits 32 bits for these sizes.
bool FitsNarrow(const loop::Kernel& k, const int64_t* symbols);
bool MultiplesHold(const GpuSchedule& s, const int64_t* symbols);
int64_t GpuBlocks(const loop::Kernel& k, const GpuSchedule& s, const int64_t* symbols);
int64_t SizeOf(shape::Int e, const int64_t* symbols);

}  // namespace framejit::codegen
