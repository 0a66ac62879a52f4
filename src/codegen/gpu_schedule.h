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
  int row_threads = 32;    // threads of a block that share a row
  bool ahead = false;      // loops ask for the next step's vectors while they compute one
  int cluster = 1;         // How many blocks share a row.
  bool dependent = false;  // it waits by itself for the kernel before it, and may be launched before that has ended
  bool resident = false;
  int held = 0;          // bytes of shared memory for a block's part of the row
  bool stores = false;   // its loops write about as much as they read
  int blocks = 1;        // blocks that a multiprocessor should hold at once, which bounds the registers of a thread
  int first_blocks = 0;  // blocks that the whole chip holds at once
  int slices = 1;
  bool tail = false;                  // for point: the inner axis need not be a multiple of `vector`
  int tile = 32, group = 1;           // for tile
  bool mirrored = false;              // for tile
  std::vector<bool> staged;           // for tile: does an instruction's access go through shared memory?
  std::vector<bool> wide_access;      // for each instruction: is it one access of `vector` elements?
  std::vector<shape::Int> multiples;  // sizes that must be multiples of `vector` when the kernel is launched
  std::vector<uint32_t> alignment;    // For each buffer, in bytes.

  // Elements from one row of a tile in shared memory to the next, such that few accesses meet in a bank.
  static int Pitch(int tile) { return tile + 3; }
};

// The most blocks of a cluster. More than 8 are used only where the driver finds room for them.
constexpr int kMostCluster = 16;

// vectors: false makes the variant that runs where addresses or sizes are no multiples of a vector's.
GpuSchedule MakeGpuSchedule(const loop::Kernel& k, const runtime::cuda::Chip& chip, bool vectors, bool narrow,
                            int most_cluster = kMostCluster);

// The loads of a row that are held: those of whole vectors that differ from row to row, each once.
std::vector<int> GpuHeldLoads(const loop::Kernel& k, const GpuSchedule& s);

// For each instruction: is its value the same for all elements of a vector?
std::vector<bool> GpuUniform(const loop::Kernel& k, int vector);

// Does every index of the kernel fit 32 bits for these values of its symbols?
bool FitsNarrow(const loop::Kernel& k, const int64_t* symbols);
bool MultiplesHold(const GpuSchedule& s, const int64_t* symbols);
int64_t GpuBlocks(const loop::Kernel& k, const GpuSchedule& s, const int64_t* symbols);
int64_t SizeOf(shape::Int e, const int64_t* symbols);

}  // namespace framejit::codegen
