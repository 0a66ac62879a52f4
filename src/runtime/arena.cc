#include "runtime/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>

#include "diag/diag.h"

namespace framejit::runtime {
namespace {

constexpr size_t kHuge = size_t{2} << 20, kPage = 4096, kAligned = 64;
constexpr size_t kMaxIdleBytes = size_t{768} << 20;

thread_local bool wants_untouched = false;

// glibc's malloc keeps twice the largest block that a program has freed so far, up to this one, and gives the rest back
// to the system. It sees none of the results that we take away from it, but their memory being asked for and given back
// untouched (tensor/torch_host.cc), upon which it would give back, and get anew, what libraries use in each of their
// calls. So it is shown the largest block that it learns from.
void TeachMalloc() {
  void* volatile block = std::malloc((size_t{32} << 20) - 2 * kPage);
  std::free(block);
}

size_t RoundUp(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

// Large ones at a multiple of kHuge, so that all but the last part can be huge pages.
std::byte* Map(size_t bytes) {
  const size_t more = bytes >= kHuge ? kHuge : 0;
  void* at = mmap(nullptr, bytes + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  auto* data = static_cast<std::byte*>(at);
  if (!more) return data;
  const size_t before = RoundUp(reinterpret_cast<uintptr_t>(data), kHuge) - reinterpret_cast<uintptr_t>(data);
  if (before) munmap(data, before);
  if (before < more) munmap(data + before + bytes, more - before);
  madvise(data + before, bytes, MADV_HUGEPAGE);
  return data + before;
}

// With the option `poison`, each block has pages of its own, and it ends where the next page may not be touched; nor
// may the one before. What is too small to fill its first page lies behind a pattern that is looked at when it goes.
std::byte* MapGuarded(size_t bytes) {
  const size_t pages = RoundUp(bytes, kPage), whole = pages + 2 * kPage;
  void* at = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  auto* first = static_cast<std::byte*>(at) + kPage;
  if (pages && mprotect(first, pages, PROT_READ | PROT_WRITE) != 0) {
    munmap(at, whole);
    throw std::bad_alloc();
  }
  Fill(first, pages, Poison::kOver);
  return first + pages - RoundUp(bytes, kAligned);
}

void UnmapGuarded(std::byte* data, size_t bytes) {
  const size_t pages = RoundUp(bytes, kPage), used = RoundUp(bytes, kAligned);
  const std::byte* first = data + used - pages;
  constexpr auto kOver = static_cast<std::byte>(Poison::kOver);
  FRAMEJIT_CHECK(std::all_of(first, const_cast<const std::byte*>(data), [](std::byte b) { return b == kOver; }));
  munmap(const_cast<std::byte*>(first) - kPage, pages + 2 * kPage);
}

}  // namespace

bool PoisonOption() {
  return diag::OptionOn("poison");
}

void Fill(void* data, size_t bytes, Poison pattern) {
  if (Poisons() && data) std::memset(data, static_cast<int>(pattern), bytes);
}

Block AllocateBlock(size_t bytes) {
  Block b;
  b.bytes = RoundUp(bytes, kAligned);
  b.data = Poisons() ? MapGuarded(b.bytes) : static_cast<std::byte*>(std::aligned_alloc(kAligned, b.bytes));
  if (!b.data) throw std::bad_alloc();
  Fill(b.data, b.bytes, Poison::kFresh);
  return b;
}

void FreeBlock(Block b) {
  if (Poisons() && b.data) return UnmapGuarded(b.data, b.bytes);
  std::free(b.data);
}

struct ArenaPool::State {
  struct Range {
    size_t bytes;
    uint64_t since;  // when it, or the last part of it, became idle
  };
  using Idle = std::map<std::byte*, Range>;

  // Gives the smallest range that is large enough, and of equal ones the warmest.
  Block Take(size_t bytes) {
    bytes = RoundUp(bytes, kPage);
    auto best = idle.end();
    for (auto i = idle.begin(); i != idle.end(); ++i) {
      if (i->second.bytes < bytes) continue;
      if (best == idle.end() || i->second.bytes < best->second.bytes ||
          (i->second.bytes == best->second.bytes && i->second.since > best->second.since))
        best = i;
    }
    if (best == idle.end()) {
      Shrink(idle_bytes - std::min(idle_bytes, bytes));
      mapped.fetch_add(1, std::memory_order_relaxed);
      return {Map(bytes), bytes};
    }
    const auto [data, range] = *best;
    idle.erase(best);
    idle_bytes -= bytes;
    if (range.bytes > bytes) idle.emplace(data + bytes, Range{range.bytes - bytes, range.since});
    return {data, bytes};
  }

  void Keep(Block b) {
    idle_bytes += b.bytes;
    auto at = idle.emplace(b.data, Range{b.bytes, ++clock}).first;
    if (auto next = std::next(at); next != idle.end() && at->first + at->second.bytes == next->first) {
      at->second.bytes += next->second.bytes;
      idle.erase(next);
    }
    if (at != idle.begin()) {
      if (auto before = std::prev(at); before->first + before->second.bytes == at->first) {
        before->second = {before->second.bytes + at->second.bytes, clock};
        idle.erase(at);
      }
    }
    Shrink(users ? kMaxIdleBytes : 0);
  }

  // Gives back what has been idle longest, the upper ends of ranges.
  void Shrink(size_t to) {
    while (idle_bytes > to) {
      auto oldest = idle.begin();
      for (auto i = idle.begin(); i != idle.end(); ++i) {
        if (i->second.since < oldest->second.since) oldest = i;
      }
      Range& range = oldest->second;
      const size_t gone = std::min(range.bytes, RoundUp(idle_bytes - to, kPage));
      munmap(oldest->first + range.bytes - gone, gone);
      idle_bytes -= gone;
      range.bytes -= gone;
      if (range.bytes == 0) idle.erase(oldest);
    }
  }

  std::mutex mu;
  Idle idle;
  size_t idle_bytes = 0;
  uint64_t clock = 0;
  struct Result {
    size_t bytes;
    bool untouched;
  };
  std::unordered_map<void*, Result> results;  // handed out
  int users = 0;
  std::atomic<uint64_t> mapped{0};
};

ArenaPool& ArenaPool::Get() {
  static ArenaPool* pool = new ArenaPool();  // never destroyed: runs may end after static destructors began
  return *pool;
}

ArenaPool::ArenaPool() : s_(*new State()) {}

ArenaPool::User::User() {
  State& s = Get().s_;
  std::lock_guard lock(s.mu);
  ++s.users;
}

ArenaPool::User::~User() {
  State& s = Get().s_;
  std::lock_guard lock(s.mu);
  if (--s.users == 0) s.Shrink(0);
}

Block ArenaPool::Acquire(size_t bytes) {
  if (Poisons()) return AllocateBlock(bytes);
  std::lock_guard lock(s_.mu);
  return s_.Take(bytes);
}

void ArenaPool::Release(Block b) {
  if (Poisons()) return FreeBlock(b);
  std::lock_guard lock(s_.mu);
  s_.Keep(b);
}

ArenaPool::Untouched::Untouched() {
  wants_untouched = true;
}
ArenaPool::Untouched::~Untouched() {
  wants_untouched = false;
}

void* ArenaPool::AcquireResult(size_t bytes) {
  static const bool taught = (TeachMalloc(), true);
  static_cast<void>(taught);
  std::lock_guard lock(s_.mu);
  const size_t whole = RoundUp(bytes, kPage);
  const Block b = wants_untouched ? Block{Map(whole), whole} : Poisons() ? AllocateBlock(bytes) : s_.Take(bytes);
  s_.results.emplace(b.data, State::Result{b.bytes, wants_untouched});
  return b.data;
}

void ArenaPool::ReleaseResult(void* data) {
  std::lock_guard lock(s_.mu);
  auto at = s_.results.find(data);
  const auto [bytes, untouched] = at->second;
  s_.results.erase(at);
  const Block b{static_cast<std::byte*>(data), bytes};
  if (untouched)
    munmap(data, bytes);
  else if (Poisons())
    FreeBlock(b);
  else
    s_.Keep(b);
}

size_t ArenaPool::BytesOfResult(void* data) {
  std::lock_guard lock(s_.mu);
  auto at = s_.results.find(data);
  return at == s_.results.end() ? 0 : at->second.bytes;
}

bool ArenaPool::IsUntouched(void* data) {
  std::lock_guard lock(s_.mu);
  auto at = s_.results.find(data);
  return at != s_.results.end() && at->second.untouched;
}

uint64_t ArenaPool::mapped() const {
  return s_.mapped.load(std::memory_order_relaxed);
}

size_t ArenaPool::idle_bytes() {
  std::lock_guard lock(s_.mu);
  return s_.idle_bytes;
}

}  // namespace framejit::runtime
