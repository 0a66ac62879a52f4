// Compile().Run against Interpret(): random graphs.
#include "random_graph.h"

namespace framejit {
namespace {

using test::CompileAndCheck;
using test::RandomGraph;

TEST(CompileRandom, Graphs) {
  // FRAMEJIT_TEST_SEED=n runs one graph, FRAMEJIT_TEST_GRAPHS=n runs n.
  const char* only = std::getenv("FRAMEJIT_TEST_SEED");
  const char* count = std::getenv("FRAMEJIT_TEST_GRAPHS");
  const uint32_t begin = only ? std::atoi(only) : 0, end = only ? begin + 1 : count ? std::atoi(count) : 200;
  for (uint32_t seed = begin; seed < end; ++seed) {
    RandomGraph random(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    CompileAndCheck(random.g, random.inputs, 2e-5);
    RandomGraph symbolic(seed, true);
    CompileAndCheck(symbolic.g, symbolic.inputs, 2e-5);
    if (::testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace framejit
