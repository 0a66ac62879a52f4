#include "runtime/arena.h"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace framejit::runtime {
namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr size_t kMaxIdle = 4;

size_t RoundUp(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

}  // namespace

Block AllocateBlock(size_t bytes) {
  Block b;
  const size_t align = bytes >= kHuge ? kHuge : 64;
  b.bytes = RoundUp(bytes, align);
  b.data = static_cast<std::byte*>(std::aligned_alloc(align, b.bytes));
  if (!b.data) throw std::bad_alloc();
  if (align == kHuge) madvise(b.data, b.bytes, MADV_HUGEPAGE);
  return b;
}

void FreeBlock(Block b) {
  std::free(b.data);
}

struct ArenaPool::State {
  std::mutex mu;
  std::vector<Block> idle;  // least recently used first
  int users = 0;
};

ArenaPool& ArenaPool::Get() {
  static ArenaPool* pool = new ArenaPool();  // never destroyed: runs may end after static destructors began
  return *pool;
}

ArenaPool::ArenaPool() : s_(*new State()) {}

void ArenaPool::AddUser() {
  std::lock_guard lock(s_.mu);
  ++s_.users;
}

void ArenaPool::RemoveUser() {
  std::lock_guard lock(s_.mu);
  if (--s_.users > 0) return;
  for (Block b : s_.idle) FreeBlock(b);
  s_.idle.clear();
}

Block ArenaPool::Acquire(size_t bytes) {
  std::lock_guard lock(s_.mu);
  int best = -1, largest = -1;
  for (int i = 0; i < static_cast<int>(s_.idle.size()); ++i) {
    const size_t size = s_.idle[i].bytes;
    if (size >= bytes && (best < 0 || size < s_.idle[best].bytes)) best = i;
    if (largest < 0 || size > s_.idle[largest].bytes) largest = i;
  }
  if (best >= 0) {
    Block b = s_.idle[best];
    s_.idle.erase(s_.idle.begin() + best);
    return b;
  }
  if (largest >= 0) {  // a larger block replaces one that was too small, so that the pool does not hold every size
    FreeBlock(s_.idle[largest]);
    s_.idle.erase(s_.idle.begin() + largest);
  }
  return AllocateBlock(bytes);
}

void ArenaPool::Release(Block b) {
  std::lock_guard lock(s_.mu);
  if (s_.users == 0) return FreeBlock(b);
  s_.idle.push_back(b);
  if (s_.idle.size() > kMaxIdle) {
    FreeBlock(s_.idle.front());
    s_.idle.erase(s_.idle.begin());
  }
}

size_t ArenaPool::idle_bytes() {
  std::lock_guard lock(s_.mu);
  size_t n = 0;
  for (const Block& b : s_.idle) n += b.bytes;
  return n;
}

}  // namespace framejit::runtime
