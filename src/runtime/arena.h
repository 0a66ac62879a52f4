// Scratch memory for runs, and memory of large results. Small blocks belong to the executable's leases; large ones come
// from one pool of the process, so that a hundred executables that run one after another share their memory, and a
// result gets that of one that has died: fresh pages cost more than most kernels do.
#pragma once

#include <cstddef>
#include <cstdint>

namespace framejit::runtime {

struct Block {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

inline constexpr size_t kResultFrom = size_t{256} << 10, kResultTo = size_t{256} << 20;

// With the option `poison`, memory of the CPU's that is handed out holds kFresh (NaN in all floating types, -1), memory
// whose contents are over holds kOver: what reads it shows. Blocks, and results of any size, lie between pages that may
// not be touched, and are gone when they are given back.
enum class Poison : unsigned char { kFresh = 0xff, kOver = 0xfb };
bool PoisonOption();
inline bool Poisons() {  // Asked in every run.
  static const bool on = PoisonOption();
  return on;
}
void Fill(void* data, size_t bytes, Poison pattern);  // Does nothing without the option.

Block AllocateBlock(size_t bytes);  // 64-byte aligned, not of the pool. Throws std::bad_alloc.
void FreeBlock(Block b);

// Idle memory that may serve any executable: ranges of pages, cut where less is needed, joined where they meet. Where
// none is large enough, as much idle memory goes as fresh memory comes: the pool holds what was once needed at the same
// time. Thread safe; gives its memory back when the last user is gone.
class ArenaPool {
 public:
  static ArenaPool& Get();
  struct User {  // Somebody who may need memory again.
    User();
    ~User();
    User(const User&) = delete;
    User& operator=(const User&) = delete;
  };
  Block Acquire(size_t bytes);  // Throws std::bad_alloc.
  void Release(Block b);
  // For a result of kResultFrom to kResultTo bytes; given back from any thread, by its address alone.
  void* AcquireResult(size_t bytes);
  void ReleaseResult(void* data);
  size_t BytesOfResult(void* data);  // at least what was asked for; 0: it is none
  // While one lives, results of this thread are memory that nobody has touched: zeros, and pages that stay untouched
  // (most rows of an embedding's gradient) cost nothing. It is not for others afterwards.
  class Untouched {
   public:
    Untouched();
    ~Untouched();
  };
  bool IsUntouched(void* data);  // Was this result made so?
  size_t idle_bytes();
  uint64_t mapped() const;  // how often the system was asked for memory that is used again

 private:
  struct State;
  ArenaPool();
  State& s_;
};

}  // namespace framejit::runtime
