// mode="max-autotune" with executables that take a time of their own: which one runs in the end.
#include "compiler/forms.h"

#include <filesystem>
#include <list>
#include <map>
#include <thread>

#include "diag/diag.h"
#include "test_host.h"

namespace framejit {
namespace {

using test::TestHost;

struct Fake : Executable {
  Fake(std::string name, double milliseconds) : name(std::move(name)), milliseconds(milliseconds) {}
  void Run(Host&, std::span<const Buffer>, std::span<const int64_t>, std::span<Buffer>) override {
    const bool lucky = runs < lucky_runs;
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(lucky ? milliseconds / 4 : milliseconds));
    ++runs;
    last = name;
  }
  const CompileStats& stats() const override { return kept; }
  int64_t ScratchBytes(std::span<const int64_t>) const override { return 0; }
  std::string str() const override { return name; }
  const std::string name;
  const double milliseconds;
  CompileStats kept;
  int runs = 0, lucky_runs = 0;  // The first ones take a quarter of the time.
  static inline std::string last;
};

struct FormsTest : testing::Test {
  FormsTest() { diag::SetOption("cache_dir", "/dev/null"); }  // verdicts of other processes are not known
  // times: milliseconds of the default form "" and of those without a pass.
  std::shared_ptr<Executable> Make(std::string graph, std::map<std::string, double> times, bool symbolic = false) {
    Graph g;
    g.name = graph;
    if (symbolic) g.symbols.push_back({.name = "s0", .hint = 4});
    made = 0;
    std::vector<std::string_view> passes;
    for (auto& [pass, ms] : times)
      if (!pass.empty()) passes.push_back(*names.emplace(names.end(), pass));
    return compiler::MakeForms(g, {}, passes, [this, times, graph](const CompileOptions& o) {
      ++made;
      const std::string pass = o.disabled_passes.empty() ? "" : o.disabled_passes.back();
      forms[pass] = std::make_shared<Fake>(graph + pass, times.at(pass));
      if (pass == lucky) forms[pass]->lucky_runs = 8;  // those in which the forms are compared first
      return forms[pass];
    });
  }
  // What ran in the last of so many runs.
  std::string Run(Executable& e, int times, int64_t size = 4) {
    Buffer b;
    b.sizes = b.strides = &size;
    b.rank = 1;
    for (int i = 0; i < times; ++i) e.Run(host, std::span(&b, 1), {}, {});
    return Fake::last;
  }
  TestHost host;
  std::list<std::string> names;
  std::map<std::string, std::shared_ptr<Fake>> forms;
  std::string lucky;  // the pass without which the first runs are too fast
  int made = 0;
};

TEST_F(FormsTest, TheFastestStays) {
  auto e = Make("faster", {{"", 12}, {"fuse", 1}, {"pack", 9}});
  EXPECT_EQ(Run(*e, 60), "fasterfuse");
  EXPECT_EQ(made, 3);
}

TEST_F(FormsTest, WhatIsNotClearlyFasterDoesNot) {
  auto e = Make("slower", {{"", 2}, {"fuse", 400}, {"pack", 30}});
  EXPECT_EQ(Run(*e, 60), "slower");
  EXPECT_LE(forms["fuse"]->runs, 1);  // far too slow, and known after one run
  EXPECT_LE(forms["pack"]->runs, 3);
}

TEST_F(FormsTest, WhatWasFasterByChanceDoesNot) {
  lucky = "fuse";
  auto e = Make("lucky", {{"", 8}, {"fuse", 10}, {"pack", 11}});
  EXPECT_FALSE(e->settled());
  EXPECT_EQ(Run(*e, 60), "lucky");
  EXPECT_GT(forms["fuse"]->runs, 8);  // It came into the second comparison, and lost that.
  EXPECT_TRUE(e->settled());
}

TEST_F(FormsTest, OtherSizesRunTheDefault) {
  auto e = Make("symbolic", {{"", 12}, {"fuse", 1}}, true);
  EXPECT_EQ(Run(*e, 40), "symbolicfuse");
  EXPECT_EQ(Run(*e, 1, 5), "symbolic");
  EXPECT_EQ(Run(*e, 1, 4), "symbolicfuse");
}

TEST_F(FormsTest, SizesThatDoNotComeAgainAreNotWaitedFor) {
  auto e = Make("once", {{"", 1}, {"fuse", 2}}, true);
  Run(*e, 1);
  Run(*e, 99, 5);
  EXPECT_FALSE(e->settled());
  Run(*e, 1, 5);
  EXPECT_TRUE(e->settled());
  EXPECT_EQ(Run(*e, 1), "once");
}

TEST_F(FormsTest, AVerdictIsKnownToTheNextGraphOfTheKind) {
  for (int i = 0; i < 2; ++i) {
    auto e = Make("again", {{"", 12}, {"fuse", 1}, {"pack", 9}});
    EXPECT_EQ(Run(*e, i ? 1 : 60), "againfuse");
    EXPECT_EQ(made, i ? 2 : 3);  // the default, and what was chosen
  }
}

}  // namespace
}  // namespace framejit
