// Scratch memory for runs. Small blocks belong to the executable's leases; large ones come from one pool of the
// process, so that a hundred executables that run one after another share one block.
#pragma once

#include <cstddef>
#include <cstdint>

namespace framejit::runtime {

struct Block {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

Block AllocateBlock(size_t bytes);  // 64-byte aligned; large ones on huge pages. Throws std::bad_alloc.
void FreeBlock(Block b);

// Idle blocks that may serve any executable. Thread safe; frees its blocks when the last user is gone.
class ArenaPool {
 public:
  static ArenaPool& Get();
  void AddUser();
  void RemoveUser();
  Block Acquire(size_t bytes);
  void Release(Block b);
  size_t idle_bytes();

 private:
  struct State;
  ArenaPool();
  State& s_;
};

}  // namespace framejit::runtime
