// The parts of the runtime that need no compiled kernel.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <thread>

#include "runtime/arena.h"
#include "runtime/copy.h"
#include "runtime/fallback_gemm.h"
#include "runtime/instance.h"
#include "runtime/step_times.h"
#include "test_host.h"

namespace framejit {
namespace {

using test::AsBuffer;
using test::RandomF32;
using test::TestHost;

TEST(PlanMemory, BuffersAliveTogetherDoNotOverlap) {
  std::mt19937 rng(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<runtime::Interval> intervals;
    int64_t sum = 0;
    for (int i = 0; i < 40; ++i) {
      const int first = rng() % 30;
      intervals.push_back({static_cast<int64_t>(rng() % 5000), first, first + static_cast<int>(rng() % 6)});
      sum += intervals.back().bytes + 64;
    }
    std::vector<int64_t> offsets(intervals.size());
    const int64_t total = runtime::PlanMemory(intervals, offsets);
    EXPECT_LT(total, sum * 2 / 3);  // something is reused
    for (size_t i = 0; i < intervals.size(); ++i) {
      EXPECT_EQ(offsets[i] % 64, 0);
      EXPECT_LE(offsets[i] + intervals[i].bytes, total);
      for (size_t j = 0; j < i; ++j) {
        const auto &a = intervals[i], &b = intervals[j];
        if (a.last < b.first || b.last < a.first || a.bytes == 0 || b.bytes == 0) continue;
        EXPECT_TRUE(offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i]);
      }
    }
  }
}

TEST(PlanMemory, ChainNeedsTwoBuffers) {
  std::vector<runtime::Interval> intervals;
  for (int i = 0; i < 10; ++i) intervals.push_back({1024, i, i + 1});
  std::vector<int64_t> offsets(10);
  EXPECT_EQ(runtime::PlanMemory(intervals, offsets), 2048);
}

// As the rule says: the largest first, each at the lowest place that is free as long as it lives.
TEST(PlanMemory, EachLiesAtTheLowestFreePlace) {
  std::mt19937 rng(11);
  for (int round = 0; round < 50; ++round) {
    std::vector<runtime::Interval> intervals;
    for (int i = 0; i < 60; ++i) {
      const int first = rng() % 40;
      intervals.push_back({static_cast<int64_t>(64 * (rng() % 5)), first, first + static_cast<int>(rng() % 20)});
    }
    std::vector<int64_t> offsets(intervals.size());
    runtime::PlanMemory(intervals, offsets);
    std::vector<int> order(intervals.size()), placed;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return intervals[a].bytes > intervals[b].bytes; });
    for (int i : order) {
      const runtime::Interval& x = intervals[i];
      const auto free = [&](int64_t offset) {
        return std::none_of(placed.begin(), placed.end(), [&](int j) {
          const runtime::Interval& y = intervals[j];
          return y.first <= x.last && x.first <= y.last && offset < offsets[j] + y.bytes &&
                 offsets[j] < offset + x.bytes;
        });
      };
      int64_t lowest = 0;
      while (!free(lowest)) lowest += 64;
      EXPECT_EQ(offsets[i], lowest);
      placed.push_back(i);
    }
  }
}

// Scratch memory is planned once for all rounds of a loop: what differs is where its parts of arrays lie.
TEST(Instance, IsMadeOfOneThatDiffersInWhatMoves) {
  using shape::Int;
  const Int n = Int::Symbol(0), round = Int::Symbol(1);
  runtime::Plan plan;
  plan.symbol_sources.resize(2);
  plan.storages.resize(3);
  plan.storages[0] = {runtime::Storage::Kind::kInput, false, 0};
  plan.storages[1].first = 0, plan.storages[1].last = 2;
  plan.storages[2].first = 1, plan.storages[2].last = 3;
  const auto value = [&](int storage, Int size, Int offset, bool whole) {
    runtime::Value v;
    v.storage = storage, v.sizes = {size}, v.strides = {Int(1)}, v.offset = offset, v.whole = whole;
    plan.values.push_back(v);
  };
  value(0, n * Int(8), Int(0), true);
  value(0, n, n * round, false);
  value(1, n * Int(3), Int(0), true);
  value(2, n * Int(2), Int(0), true);
  value(2, n, round + Int(1), false);
  const runtime::Moving moving(plan);
  EXPECT_EQ(moving.symbols, (std::vector<bool>{false, true}));
  EXPECT_EQ(moving.values, (std::vector<int>{1, 4}));

  const int64_t first[] = {100, 2}, second[] = {100, 5};
  auto like = std::make_unique<runtime::Instance>(plan, first);
  const runtime::Instance made(plan, moving, *like, second), fresh(plan, second);
  like.reset();
  EXPECT_EQ(made.symbols, fresh.symbols);
  for (size_t s = 0; s < plan.storages.size(); ++s) EXPECT_EQ(made.storages[s], fresh.storages[s]);
  EXPECT_EQ(made.scratch_bytes, fresh.scratch_bytes);
  for (size_t v = 0; v < plan.values.size(); ++v) {
    EXPECT_EQ(made.values[v].offset_bytes, fresh.values[v].offset_bytes);
    EXPECT_EQ(made.values[v].numel, fresh.values[v].numel);
    EXPECT_EQ(made.values[v].sizes[0], fresh.values[v].sizes[0]);
    EXPECT_EQ(made.values[v].strides[0], 1);
  }
  EXPECT_EQ(made.values[1].offset_bytes, 100 * 5 * 4);

  auto last = std::make_unique<runtime::Instance>(plan, first);
  for (int64_t r = 0; r < 1000; ++r) {
    const int64_t next[] = {100, r};
    last = std::make_unique<runtime::Instance>(plan, moving, *last, next);
  }
  EXPECT_EQ(last->values[1].offset_bytes, 100 * 999 * 4);
  EXPECT_LE(last->values.entries().size(), plan.values.size());
  EXPECT_LE(last->steps.entries().size(), plan.steps.size());
}

TEST(StridedCopy, AllLayouts) {
  TestHost host;
  host.threads = 2;
  std::mt19937 rng(3);
  for (DType t : {DType::kInt8, DType::kFloat16, DType::kFloat32, DType::kInt64}) {
    for (int round = 0; round < 20; ++round) {
      const int rank = rng() % 5;
      std::vector<int64_t> sizes(rank), from_strides(rank), to_strides(rank);
      for (auto& s : sizes) s = rng() % 6;
      auto permuted = [&](std::vector<int64_t>& strides) {
        std::vector<int> order(rank);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), rng);
        int64_t next = 1 + rng() % 2;
        for (int d : order) {
          strides[d] = next;
          next *= std::max<int64_t>(1, sizes[d]);
        }
        return next;
      };
      const int64_t from_size = permuted(from_strides), to_size = permuted(to_strides);
      HostTensor from = HostTensor::Empty(t, {from_size}), to = HostTensor::Empty(t, {to_size});
      for (auto& b : *from.storage) b = std::byte(rng() % 60);
      from.sizes = to.sizes = sizes;
      from.strides = from_strides;
      to.strides = to_strides;
      runtime::StridedCopy(host, AsBuffer(from), AsBuffer(to));
      EXPECT_EQ(test::Values(AsBuffer(from)), test::Values(AsBuffer(to)));
    }
  }
}

TEST(StridedCopy, Transpositions) {
  TestHost host;
  host.threads = 2;
  for (auto [m, n] : std::vector<std::pair<int64_t, int64_t>>{{16, 16}, {300, 500}, {17, 1000}, {1000, 33}}) {
    HostTensor from = RandomF32({3, n, m}, 1), to = HostTensor::Empty(DType::kFloat32, {3, m, n});
    from.sizes = {3, m, n};
    from.strides = {m * n, 1, m};
    runtime::StridedCopy(host, AsBuffer(from), AsBuffer(to));
    EXPECT_EQ(test::Values(AsBuffer(from)), test::Values(AsBuffer(to))) << m << " " << n;
  }
}

TEST(StridedCopy, LargeOnesRunInParallel) {
  TestHost host;
  host.threads = 2;
  HostTensor from = RandomF32({1 << 20}, 1), to = HostTensor::Empty(DType::kFloat32, {1 << 20});
  runtime::StridedCopy(host, AsBuffer(from), AsBuffer(to));
  EXPECT_EQ(*from.storage, *to.storage);
  EXPECT_EQ(host.parallel_regions, 1);
}

TEST(FallbackGemm, MatchesNaiveLoops) {
  TestHost host;
  host.threads = 2;
  for (auto [m, n, k] :
       std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {5, 70, 13}, {64, 128, 600}, {3, 0, 4}, {0, 3, 4}, {2, 3, 0}}) {
    HostTensor a = RandomF32({2, m, k}, 1), b = RandomF32({2, n, k}, 2),
               out = HostTensor::Empty(DType::kFloat32, {2, m, n});
    b.sizes = {2, k, n};  // transposed
    b.strides = {n * k, 1, k};
    ASSERT_TRUE(runtime::FallbackMatMul(host, AsBuffer(a), AsBuffer(b), AsBuffer(out), false));
    HostTensor simple = HostTensor::Empty(DType::kFloat32, {2, m, n});
    ASSERT_TRUE(runtime::FallbackMatMul(host, AsBuffer(a), AsBuffer(b), AsBuffer(simple), true));
    const auto* ps = reinterpret_cast<const float*>(simple.data());
    const auto* pa = reinterpret_cast<const float*>(a.data());
    const auto* pb = reinterpret_cast<const float*>(b.data());
    const auto* pc = reinterpret_cast<const float*>(out.data());
    for (int64_t batch = 0; batch < 2; ++batch) {
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (int64_t p = 0; p < k; ++p) sum += double{pa[(batch * m + i) * k + p]} * pb[(batch * n + j) * k + p];
          ASSERT_NEAR(pc[(batch * m + i) * n + j], sum, 1e-4);
          ASSERT_NEAR(ps[(batch * m + i) * n + j], sum, 1e-4);
        }
      }
    }
  }
}

TEST(FallbackGemm, LinearWithBiasAndStridedRows) {
  TestHost host;
  HostTensor x = RandomF32({2, 3, 4, 8}, 1), w = RandomF32({5, 8}, 2), bias = RandomF32({5}, 3);
  x.sizes = {3, 2, 4, 8};  // leading dimensions swapped: no single row stride
  x.strides = {32, 96, 8, 1};
  for (bool small : {false, true}) {
    HostTensor out = HostTensor::Empty(DType::kFloat32, {3, 2, 4, 5});
    Buffer b = AsBuffer(bias);
    ASSERT_TRUE(runtime::FallbackLinear(host, AsBuffer(x), AsBuffer(w), &b, AsBuffer(out), small));
    const auto xs = test::Values(AsBuffer(x)), ws = test::Values(AsBuffer(w)), bs = test::Values(b),
               got = test::Values(AsBuffer(out));
    for (int row = 0; row < 24; ++row) {
      for (int j = 0; j < 5; ++j) {
        double sum = bs[j];
        for (int p = 0; p < 8; ++p) sum += xs[row * 8 + p] * ws[j * 8 + p];
        ASSERT_NEAR(got[row * 5 + j], sum, 1e-5);
      }
    }
  }
}

TEST(ArenaPool, KeepsCutsAndJoinsItsMemory) {
  auto& pool = runtime::ArenaPool::Get();
  constexpr size_t kMiB = 1 << 20;
  std::optional<runtime::ArenaPool::User> user(std::in_place);
  runtime::Block a = pool.Acquire(3 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data) % 64, 0u);
  pool.Release(a);
  EXPECT_EQ(pool.idle_bytes(), 3 * kMiB);
  runtime::Block b = pool.Acquire(1 * kMiB);
  EXPECT_EQ(a.data, b.data);
  EXPECT_EQ(pool.idle_bytes(), 2 * kMiB);  // the rest of it
  runtime::Block c = pool.Acquire(2 * kMiB);
  EXPECT_EQ(c.data, a.data + kMiB);
  pool.Release(b);
  pool.Release(c);
  EXPECT_EQ(pool.Acquire(3 * kMiB).data, a.data);  // joined
  pool.Release(a);
  void* result = pool.AcquireResult(16 * kMiB);  // what is too small goes
  EXPECT_EQ(pool.idle_bytes(), 0u);
  pool.ReleaseResult(result);
  EXPECT_EQ(pool.AcquireResult(15 * kMiB), result);
  EXPECT_EQ(pool.idle_bytes(), 1 * kMiB);
  std::memset(pool.AcquireResult(17 * kMiB), 1, 17 * kMiB);
  EXPECT_EQ(pool.idle_bytes(), 0u);
  pool.ReleaseResult(result);
  user.reset();
  EXPECT_EQ(pool.idle_bytes(), 0u);
}

void Square(void* ctx, int64_t begin, int64_t end) {
  auto* v = static_cast<std::vector<std::atomic<int>>*>(ctx);
  for (int64_t i = begin; i < end; ++i) (*v)[i]++;
}

bool EveryElementOnce(runtime::ThreadPool& pool, int64_t n, int64_t grain) {
  std::vector<std::atomic<int>> seen(n);
  pool.ParallelFor(n, grain, Square, &seen);
  return std::all_of(seen.begin(), seen.end(), [](auto& s) { return s == 1; });
}

TEST(ThreadPool, CoversTheRangeOnce) {
  auto& pool = runtime::ThreadPool::Get();
  const int before = pool.num_threads();
  for (int threads : {4, 1, 2}) {
    pool.set_num_threads(threads);
    for (int64_t n : {0, 1, 7, 1000}) {
      for (int64_t grain : {1, 10, 5000}) EXPECT_TRUE(EveryElementOnce(pool, n, grain));
    }
  }
  for (int i = 0; i < 3000; ++i) ASSERT_TRUE(EveryElementOnce(pool, 64, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // workers sleep by now
  EXPECT_TRUE(EveryElementOnce(pool, 1000, 1));
  pool.set_num_threads(before);
}

TEST(ThreadPool, NestedAndConcurrentRegions) {
  auto& pool = runtime::ThreadPool::Get();
  std::atomic<int> bad{0};
  auto nested = [](void* ctx, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (!EveryElementOnce(runtime::ThreadPool::Get(), 10, 1)) ++*static_cast<std::atomic<int>*>(ctx);
    }
  };
  std::thread other([&] {
    for (int i = 0; i < 200; ++i) pool.ParallelFor(8, 1, nested, &bad);
  });
  for (int i = 0; i < 200; ++i) pool.ParallelFor(8, 1, nested, &bad);
  other.join();
  EXPECT_EQ(bad, 0);
}

TEST(ThreadPool, WorksInAForkedChild) {
  auto& pool = runtime::ThreadPool::Get();
  const int before = pool.num_threads();
  pool.set_num_threads(2);
  ASSERT_TRUE(EveryElementOnce(pool, 100, 1));
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(EveryElementOnce(pool, 100, 1) ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  pool.set_num_threads(before);
}

// What runs in microseconds is timed once in a thousand runs, what takes long each time; nothing is forgotten but a few
// of the last runs.
TEST(Sampler, TimesFewRunsAndStandsForAll) {
  runtime::Sampler fast, slow;
  int timed = 0, stood_for = 0;
  for (int i = 0; i < 100'000; ++i) {
    const int weight = fast.Weight();
    EXPECT_TRUE(i >= 8 || weight == 1) << i;
    if (!weight) continue;
    ++timed;
    stood_for += weight;
    fast.Took(weight, 1e-6);
  }
  EXPECT_GT(stood_for, 98'900);
  EXPECT_LT(timed, 200);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(slow.Weight(), 1);
    slow.Took(1, 0.1);
  }
  int weight = 0;
  while (!(weight = fast.Weight())) {
  }
  fast.Back(weight);  // it raised an error
  EXPECT_EQ(fast.Weight(), weight);
}

}  // namespace
}  // namespace framejit
