// What passes and schedules ask of a GPU, without a driver: GetDevice() (driver.h) fills it from the device's
// attributes. Text for an architecture (codegen::EmitGpuText) and tests take a chip that is written down here.
#pragma once

namespace framejit::runtime::cuda {

struct Chip {
  int capability = 0;       // Times ten: 90 is sm_90.
  int multiprocessors = 0;  // the rest is of one of these
  int threads = 0;          // The threads that it holds at once.
  int registers = 0;        // Its registers of 32 bits.
  int shared_of_block = 0;  // bytes of shared memory that one block can ask for

  bool converts_pairs() const { return capability >= 80; }  // two numbers to 16 bits at once
  bool has_clusters() const { return capability >= 90; }    // and kernels that are launched before another's end
};

// From the tables of NVIDIA's programming guide; of every architecture a large chip. The newest that is not newer than
// what is asked for.
constexpr Chip ChipLike(int capability) {
  constexpr Chip kChips[] = {
      {70, 80, 2048, 65536, 96 << 10},     // V100
      {75, 40, 1024, 65536, 64 << 10},     // T4
      {80, 108, 2048, 65536, 163 << 10},   // A100
      {86, 84, 1536, 65536, 99 << 10},     // A40
      {89, 142, 1536, 65536, 99 << 10},    // L40
      {90, 132, 2048, 65536, 227 << 10},   // H200
      {100, 148, 2048, 65536, 227 << 10},  // B200
      {120, 188, 1536, 65536, 99 << 10},   // RTX PRO 6000
  };
  Chip found = kChips[0];
  for (const Chip& c : kChips) {
    if (c.capability <= capability) found = c;
  }
  found.capability = capability;
  return found;
}

}  // namespace framejit::runtime::cuda
