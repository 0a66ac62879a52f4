// Eight threads compile random graphs, run their own and each other's executables, and drop kernels meanwhile. For
// FRAMEJIT_SOAK_SECONDS; `tools/dev tsan` watches.
#include <chrono>
#include <cstdlib>
#include <thread>

#include "random_graph.h"

namespace framejit {
namespace {

using test::CompileAndCheck;
using test::RandomGraph;
using test::TestHost;

TEST(Threads, CompileRunAndDrop) {
  constexpr int kThreads = 8, kShared = 12, kDropEvery = 50;
  const char* text = std::getenv("FRAMEJIT_SOAK_SECONDS");
  std::vector<std::unique_ptr<RandomGraph>> graphs;
  std::vector<std::shared_ptr<Executable>> shared;
  for (uint32_t seed = 0; seed < kShared; ++seed) {
    graphs.push_back(std::make_unique<RandomGraph>(seed, seed % 2));
    shared.push_back(Compile(graphs.back()->g));
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(text ? std::atof(text) : 1.5);
  const auto goes_on = [&] { return std::chrono::steady_clock::now() < end && !::testing::Test::HasFailure(); };
  std::atomic<int> rounds{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      TestHost host;
      host.threads = 1 + t % 3;
      for (uint32_t i = 0; i == 0 || goes_on(); ++i) {       // a loaded machine may have no time for more than one
        const uint32_t seed = i % 4 ? i * kThreads + t : i;  // some graphs are one thread's, some are everybody's
        RandomGraph own(seed, i % 3 == 0);
        CompileAndCheck(own.g, own.inputs, 2e-5);
        const size_t k = (i + t) % kShared;
        test::Check(*shared[k], host, graphs[k]->g, graphs[k]->inputs, 2e-5);
        if (++rounds % kDropEvery == 0) ClearKernelCache();
      }
      EXPECT_EQ(host.live, 0);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_GE(rounds, kThreads);
}

}  // namespace
}  // namespace framejit
