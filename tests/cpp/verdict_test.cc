// The verdict of capture/policy/verdict.h on times that are written here.
#include "capture/policy/verdict.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

#include "capture/now.h"

namespace framejit::capture {
namespace {

Verdict Of(std::vector<double> compiled, std::vector<double> plain) {
  return Judge(Samples{std::move(compiled), std::move(plain)});
}

// What calls by turns come to, with what each kind takes the first, the second, ... time.
Verdict AfterTurns(double compiled, std::vector<double> cold, double plain) {
  Samples s;
  for (size_t run = 0;;) {
    s.compiled.push_back(compiled);
    while (IsCold(s, static_cast<int>(run))) ++run;
    s.plain.push_back(run < cold.size() ? cold[run] : plain);
    ++run;
    if (const Verdict verdict = Judge(s); verdict != Verdict::kMore) return verdict;
  }
}

TEST(Verdict, ShortCallsWantMoreSamplesBeforeTheyAreKept) {
  EXPECT_EQ(Of({1.5e-6, 1.4e-6}, {65e-6, 3e-6}), Verdict::kMore);
  EXPECT_EQ(Of({1.5e-3, 1.4e-3}, {65e-3, 3e-3}), Verdict::kKeep);
  EXPECT_EQ(Of({1e-6, 1e-6, 1e-6, 1e-6}, {2e-6, 2e-6, 2e-6, 2e-6}), Verdict::kKeep);
}

TEST(Verdict, FirstRunsOfShortCodeAreNoSamples) {
  EXPECT_EQ(AfterTurns(1.4e-6, {65e-6, 3e-6, 2.5e-6, 2.5e-6, 2.4e-6, 2.4e-6}, 1.1e-6), Verdict::kLeave);
  EXPECT_EQ(AfterTurns(1.4e-6, {65e-6, 3e-6}, 2.2e-6), Verdict::kKeep);
  EXPECT_EQ(AfterTurns(5e-3, {6e-3}, 4e-3), Verdict::kLeave);
}

TEST(Verdict, LongCalls) {
  EXPECT_EQ(Of({1e-3}, {9e-3}), Verdict::kMore);
  EXPECT_EQ(Of({5e-3, 5e-3}, {1e-3, 1e-3}), Verdict::kLeave);
  EXPECT_EQ(Of({2e-3, 2e-3}, {1e-3, 1e-3}), Verdict::kMore);
  EXPECT_EQ(Of({2e-3, 2e-3, 2e-3}, {1e-3, 1e-3, 1e-3}), Verdict::kLeave);
  EXPECT_EQ(Of(std::vector(4, .8e-3), std::vector(4, 1e-3)), Verdict::kKeep);
  EXPECT_EQ(Of(std::vector(4, .9e-3), std::vector(4, 1e-3)), Verdict::kMore);
  EXPECT_EQ(Of(std::vector(4, 1.1e-3), std::vector(4, 1e-3)), Verdict::kLeave);
  EXPECT_EQ(Of(std::vector(4, 1e-3), std::vector(4, 1e-3)), Verdict::kMore);
  EXPECT_EQ(Of(std::vector(kMostSamples, 1e-3), std::vector(kMostSamples, 1e-3)), Verdict::kLeave);
  EXPECT_EQ(Of(std::vector(kMostSamples, .96e-3), std::vector(kMostSamples, 1e-3)), Verdict::kKeep);
  // As written, it has not been warm before.
  EXPECT_EQ(AfterTurns(1e-3, {1.6e-3, 1.2e-3, 1.1e-3}, .97e-3), Verdict::kLeave);
  EXPECT_EQ(AfterTurns(1e-3, {1.6e-3, 1.2e-3, 1.1e-3}, 1.1e-3), Verdict::kKeep);
}

TEST(Waited, IsWhatOtherThreadsTakeOfTheOnlyProcessor) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const double alone = Waited();
  std::jthread other([](std::stop_token stop) {
    while (!stop.stop_requested()) {
    }
  });
  const double start = Now();
  while (Now() - start < .2) {
  }
  const double waited = Waited() - alone;
  sched_setaffinity(0, sizeof before, &before);
  if (Waited() == 0) GTEST_SKIP() << "this kernel does not count it";
  EXPECT_GT(waited, .02);
  EXPECT_LT(waited, Now() - start);
}

}  // namespace
}  // namespace framejit::capture
