#include "runtime/arena.h"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

namespace framejit::runtime {
namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr size_t kMaxIdle = 8, kMaxIdleBytes = size_t{512} << 20;  // one block may be larger

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
  std::vector<Block> idle;                    // least recently used first
  std::unordered_map<void*, size_t> results;  // handed out
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
  Keep(b);
}

void ArenaPool::Keep(Block b) {
  if (s_.users == 0) return FreeBlock(b);
  s_.idle.push_back(b);
  size_t bytes = 0;
  for (const Block& x : s_.idle) bytes += x.bytes;
  while (s_.idle.size() > kMaxIdle || (bytes > kMaxIdleBytes && s_.idle.size() > 1)) {
    bytes -= s_.idle.front().bytes;
    FreeBlock(s_.idle.front());
    s_.idle.erase(s_.idle.begin());
  }
}

void* ArenaPool::AcquireResult(size_t bytes) {
  std::lock_guard lock(s_.mu);
  Block b;
  for (size_t i = s_.idle.size(); i-- > 0;) {  // the warmest that wastes little
    if (s_.idle[i].bytes < bytes || s_.idle[i].bytes > bytes + bytes / 4) continue;
    b = s_.idle[i];
    s_.idle.erase(s_.idle.begin() + i);
    break;
  }
  if (!b.data) b = AllocateBlock(bytes);
  s_.results.emplace(b.data, b.bytes);
  return b.data;
}

void ArenaPool::ReleaseResult(void* data) {
  std::lock_guard lock(s_.mu);
  auto at = s_.results.find(data);
  Keep({static_cast<std::byte*>(data), at->second});
  s_.results.erase(at);
}

size_t ArenaPool::idle_bytes() {
  std::lock_guard lock(s_.mu);
  size_t n = 0;
  for (const Block& b : s_.idle) n += b.bytes;
  return n;
}

}  // namespace framejit::runtime
