#include "framejit/shape.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "shape/steps.h"

namespace framejit::shape {
namespace {

const Int s0 = Int::Symbol(0), s1 = Int::Symbol(1), s2 = Int::Symbol(2);

TEST(Shape, EqualExpressionsAreOnePointer) {
  EXPECT_EQ(s0 + s1, s1 + s0);
  EXPECT_EQ((s0 + 1) * (s0 - 1), s0 * s0 - 1);
  EXPECT_EQ(s0 - s0, Int(0));
  EXPECT_EQ(s0 * 2 + s0 * 3, s0 * 5);
  EXPECT_FALSE(s0 == s1);
  EXPECT_EQ(Int(100000), Int(100000));  // beyond the table of small constants
  EXPECT_EQ(s0.as_symbol(), 0u);
  EXPECT_FALSE((s0 + 1).as_symbol());
  EXPECT_THROW((s0 + 1).value(), std::logic_error);
}

TEST(Shape, ExactDivision) {
  EXPECT_EQ(FloorDiv(s0 * 12, 12), s0);
  EXPECT_EQ(FloorDiv(s0 * s1 * 64, s1), s0 * 64);
  EXPECT_EQ(FloorDiv(s0 * s1 * 64, s0 * s1 * 64), Int(1));
  EXPECT_EQ(FloorDiv((s0 + 1) * (s1 - 2) * 3, (s1 - 2) * 3), s0 + 1);
  EXPECT_EQ(FloorDiv(FloorDiv(s0, 2) * s1, FloorDiv(s0, 2)), s1);
  EXPECT_EQ(FloorDiv(s0 * 4 + 7, 4), s0 + 1);
  EXPECT_EQ(FloorDiv(s0 * 4, 6), FloorDiv(s0 * 2, 3));
  EXPECT_EQ(FloorDiv(s0 * s1, s0 * s2), FloorDiv(s1, s2));
  EXPECT_EQ(FloorDiv(FloorDiv(s0, 2), 3), FloorDiv(s0, 6));
  EXPECT_EQ(FloorDiv(s0, -1), -s0);
  EXPECT_EQ(FloorDiv(-s0, -2), FloorDiv(s0, 2));
  EXPECT_EQ(CeilDiv(s0 * 8, 4), s0 * 2);
}

TEST(Shape, Remainder) {
  EXPECT_EQ(Mod(s0 * 12, 4), Int(0));
  EXPECT_EQ(Mod(s0 * s1, s1), Int(0));
  EXPECT_EQ(Mod(s0 * 8 + 5, 4), Int(1));
  EXPECT_EQ(Mod(s0 + 4, 4), Mod(s0, 4));
  EXPECT_EQ(Mod(Mod(s0, 8), 4), Mod(s0, 4));
  EXPECT_EQ(Mod(s0 * 2, 8), Mod(s0, 4) * 2);
  EXPECT_EQ(Mod(s0, 1), Int(0));
  EXPECT_EQ(Mod(Int(-7), 3), Int(2));
  EXPECT_EQ(FloorDiv(Int(-7), 3), Int(-3));
}

TEST(Shape, MinMax) {
  EXPECT_EQ(Min(s0, s0 + 1), s0);
  EXPECT_EQ(Max(s0, s0 + 1), s0 + 1);
  EXPECT_EQ(Min(Min(s0, s1), s0), Min(s1, s0));
  EXPECT_EQ(Max(Max(3, s0), 5), Max(s0, 5));
}

TEST(Shape, PrintsAsPython) {
  EXPECT_EQ((s0 * 12 + 3).str(), "(s0*12 + 3)");
  EXPECT_EQ(FloorDiv(s0, 2).str(), "(s0 // 2)");
  EXPECT_EQ((-s0).str(), "-s0");
  EXPECT_EQ(FloorDiv(s0, s1 * 3).str(), "(s0 // (s1*3))");
  EXPECT_EQ(ToString(Ints{4, s0, s1 - 2}), "[4, s0, (s1 - 2)]");
  EXPECT_EQ(Int::Parse(" (s0*2 + s1) // 3 "), FloorDiv(s0 * 2 + s1, 3));
  EXPECT_EQ(Int::Parse("7 - 2 - 1"), Int(4));
  EXPECT_EQ(Int::Parse("-s0 % 3"), Mod(-s0, 3));
  for (const char* bad : {"", "s", "s0 +", "(s0", "s0)", "s0 s1", "max(", "4294967296s", "s4294967296"})
    EXPECT_FALSE(Int::Parse(bad)) << bad;
}

// A random expression as a tree of its own, evaluated by the definition of each operation.
struct Tree {
  char op;  // n number, s symbol, + - * / % m M
  int64_t value = 0;
  std::vector<Tree> children;

  static Tree Random(std::mt19937& rng, int depth) {
    auto pick = [&](int n) { return static_cast<int>(rng() % n); };
    if (depth == 0 || pick(5) == 0) return pick(2) ? Tree{'s', pick(3), {}} : Tree{'n', pick(13) - 4, {}};
    Tree t{"+-*/%mM" [pick(7)], 0, {}};
    t.children = {Random(rng, depth - 1), Random(rng, depth - 1)};
    return t;
  }
  Int Build() const {
    if (op == 'n') return value;
    if (op == 's') return Int::Symbol(static_cast<uint32_t>(value));
    Int a = children[0].Build(), b = children[1].Build();
    switch (op) {
      case '+': return a + b;
      case '-': return a - b;
      case '*': return a * b;
      case '/': return FloorDiv(a, b);
      case '%': return Mod(a, b);
      case 'm': return Min(a, b);
      default: return Max(a, b);
    }
  }
  // nullopt: divides by zero (where the algebra may assume it does not)
  std::optional<__int128> Eval(const std::vector<int64_t>& symbols) const {
    if (op == 'n') return value;
    if (op == 's') return symbols[value];
    auto a = children[0].Eval(symbols), b = children[1].Eval(symbols);
    if (!a || !b) return std::nullopt;
    switch (op) {
      case '+': return *a + *b;
      case '-': return *a - *b;
      case '*': return *a * *b;
      case '/':
      case '%': {
        if (*b == 0) return std::nullopt;
        __int128 r = *a % *b;
        if (r != 0 && (r < 0) != (*b < 0)) r += *b;
        return op == '%' ? r : (*a - r) / *b;
      }
      case 'm': return std::min(*a, *b);
      default: return std::max(*a, *b);
    }
  }
};

TEST(ShapeProperty, SimplificationKeepsTheValue) {
  std::mt19937 rng(1);
  int compared = 0;
  for (int i = 0; i < 20000; ++i) {
    Tree t = Tree::Random(rng, 4);
    Int e = t.Build();
    ASSERT_EQ(Int::Parse(e.str()), e) << e.str();
    for (int k = 0; k < 6; ++k) {
      std::vector<int64_t> v;
      for (int s = 0; s < 3; ++s) v.push_back(static_cast<int64_t>(rng() % 40) - 8);
      auto expected = t.Eval(v);
      if (!expected) continue;
      ++compared;
      ASSERT_EQ(e.Eval(v), static_cast<int64_t>(*expected))
          << e.str() << " at " << v[0] << ", " << v[1] << ", " << v[2];
      Ints replacement(v.begin(), v.end());
      ASSERT_EQ(e.Substitute(replacement), Int(e.Eval(v))) << e.str();
    }
  }
  EXPECT_GT(compared, 50000);
}

TEST(ShapeProperty, ProofsHold) {
  std::mt19937 rng(2);
  int proved = 0;
  for (int i = 0; i < 4000; ++i) {
    Env env;
    std::vector<std::pair<int64_t, int64_t>> ranges;
    std::vector<int64_t> hints;
    for (int s = 0; s < 3; ++s) {
      int64_t lo = static_cast<int64_t>(rng() % 4), hi = lo + static_cast<int64_t>(rng() % 12);
      hints.push_back(lo + static_cast<int64_t>(rng() % (hi - lo + 1)));
      env.NewSymbol({"", hints[s], lo, hi});
      ranges.emplace_back(lo, hi);
    }
    for (int q = 0; q < 3; ++q)  // facts
      env.Ask(static_cast<Cmp>(rng() % 4), Tree::Random(rng, 1).Build(), Tree::Random(rng, 1).Build());
    for (const Guard& g : env.guards()) ASSERT_TRUE(g.Holds(hints)) << g.str();
    Tree ta = Tree::Random(rng, 2), tb = Tree::Random(rng, 2);
    Int a = ta.Build(), b = tb.Build();
    Cmp cmp = static_cast<Cmp>(rng() % 4);
    auto answer = env.Prove(cmp, a, b);
    Env::Range bounds = env.Bounds(a);
    for (int k = 0; k < 60; ++k) {
      std::vector<int64_t> v;
      for (auto [lo, hi] : ranges) v.push_back(lo + static_cast<int64_t>(rng() % (hi - lo + 1)));
      if (k == 0) v = hints;
      bool admitted = ta.Eval(v) && tb.Eval(v);
      for (const Guard& g : env.guards()) admitted &= g.Holds(v);
      if (!admitted) continue;
      ASSERT_LE(bounds.lo, a.Eval(v)) << a.str();
      ASSERT_GE(bounds.hi, a.Eval(v)) << a.str();
      if (!answer) continue;
      ++proved;
      ASSERT_EQ((Guard{cmp, a, b, ""}.Holds(v)), *answer) << a.str() << " ? " << b.str();
    }
  }
  EXPECT_GT(proved, 10000);
}

TEST(Env, AsksOnlyOnce) {
  Env env;
  Int n = env.NewSymbol({"L['x'].size(0)", 8}), m = env.NewSymbol({"L['y'].size(0)", 8});
  int asked = 0;
  env.set_location_provider([&] { return "m.py:" + std::to_string(++asked); });
  EXPECT_TRUE(env.Eq(n, m));
  EXPECT_TRUE(env.Eq(n * 4, m * 4));
  EXPECT_EQ(env.Simplify(m + 1), n + 1);
  EXPECT_FALSE(env.Lt(n, 5));
  EXPECT_TRUE(env.Lt(3, m));  // implied by 5 <= n and n == m
  EXPECT_FALSE(env.Eq(n * 2, 10));
  EXPECT_TRUE(env.Le(6, n));  // 5 <= n and n != 5
  ASSERT_EQ(env.guards().size(), 3);
  EXPECT_EQ(env.guards()[0].str(), "s0 == s1");
  EXPECT_EQ(env.guards()[1].str(), "5 <= s0");
  EXPECT_EQ(env.guards()[2].str(), "s0*2 != 10");
  EXPECT_EQ(env.guards()[1].where, "m.py:2");
}

TEST(Env, RangesAnswerWithoutAGuard) {
  Env env;
  Int n = env.NewSymbol({"", 8, 2, 100}), m = env.NewSymbol({"", 3, 1, INT64_MAX});
  EXPECT_FALSE(env.Eq(n, 1));
  EXPECT_FALSE(env.Eq(n, 0));
  EXPECT_TRUE(env.Le(FloorDiv(n, 2), n));
  EXPECT_TRUE(env.Lt(Mod(n, 4), 4));
  EXPECT_TRUE(env.Lt(0, n * m));
  EXPECT_TRUE(env.Le(m, n * m));
  EXPECT_FALSE(env.Eq(n * 4 + 2, 0));
  EXPECT_FALSE(env.Eq(n * 4 + 2, m * 8));
  EXPECT_TRUE(env.guards().empty());
}

TEST(Env, FactorsThatAreAtLeastOneAreDividedOut) {
  Env env;
  Int n = env.NewSymbol({"", 5, 1, INT64_MAX}), m = env.NewSymbol({"", 33, 1, INT64_MAX}),
      width = env.NewSymbol({"", 128, 1, INT64_MAX}), maybe_none = env.NewSymbol({"", 7, 0, INT64_MAX}),
      k = env.NewSymbol({"", 4, 0, INT64_MAX});
  EXPECT_TRUE(env.Eq(n * m * 128, n * m * width));  // x.view(n, m, 4, 32) of x[n, m, width]
  EXPECT_EQ(env.Simplify(width), Int(128));
  EXPECT_TRUE(env.Eq(width, 128));
  EXPECT_EQ(env.guards().size(), 1);
  EXPECT_TRUE(env.Eq(maybe_none * 4, maybe_none * k));  // holds for any k where nothing is there
  EXPECT_EQ(env.Simplify(k), k);
  EXPECT_FALSE(env.Prove(Cmp::kEq, k, 4));
  EXPECT_TRUE(env.Lt(0, maybe_none));
  EXPECT_TRUE(env.Eq(maybe_none * 4, maybe_none * k));
  EXPECT_EQ(env.Simplify(k), Int(4));
  for (const Guard& g : env.guards()) EXPECT_TRUE(g.Holds(env.hints())) << g.str();
}

TEST(Env, DivisionsThatLeaveNothingAreTakenOut) {
  Env env;
  Int n = env.NewSymbol({"", 5, 1, INT64_MAX}), m = env.NewSymbol({"", 33, 1, INT64_MAX}),
      width = env.NewSymbol({"", 32, 1, INT64_MAX});
  const Int all = n * m * width;
  EXPECT_TRUE(env.Eq(Mod(all, 32), 0));  // x.reshape(-1, 32).view(n, m, 4, 8) of x[n, m, width]
  EXPECT_TRUE(env.Eq(n * m * 32, FloorDiv(all, 32) * 32));
  EXPECT_EQ(env.Simplify(width), Int(32));
  EXPECT_EQ(env.Simplify(FloorDiv(all, 32)), n * m);
  EXPECT_EQ(env.guards().size(), 2);
  for (const Guard& g : env.guards()) EXPECT_TRUE(g.Holds(env.hints())) << g.str();

  Env other;  // of a number that the division may not leave nothing of, nothing is learned
  Int a = other.NewSymbol({"", 67, 1, INT64_MAX}), b = other.NewSymbol({"", 2, 1, INT64_MAX});
  EXPECT_TRUE(other.Eq(FloorDiv(a, 32), b));
  EXPECT_EQ(other.Simplify(a), a);
}

TEST(Env, SpecializeFixesTheValue) {
  Env env;
  Int n = env.NewSymbol({"", 8});
  EXPECT_EQ(env.Specialize(n * 2), 16);
  EXPECT_EQ(env.Simplify(n), Int(8));
  EXPECT_EQ(env.Specialize(n), 8);
  ASSERT_EQ(env.guards().size(), 1);
  std::vector<int64_t> good{8}, bad{9};
  EXPECT_TRUE(env.guards()[0].Holds(good));
  EXPECT_FALSE(env.guards()[0].Holds(bad));
}

TEST(Env, NumbersThatDoNotFit) {
  Env env;
  SymbolInfo number{"", 3, 2};
  number.number = true;
  Int n = env.NewSymbol(number), size = env.NewSymbol(SymbolInfo{"", 4});
  EXPECT_TRUE(env.Fits(size * 12 + 7, 55));
  EXPECT_TRUE(env.guards().empty());  // nothing in memory is so large
  EXPECT_TRUE(env.Fits(n * n, 9));
  ASSERT_EQ(env.guards().size(), 1);
  std::vector<int64_t> good{1ll << 31, 4}, bad{1ll << 32, 4};
  EXPECT_TRUE(env.guards()[0].Holds(good));
  EXPECT_FALSE(env.guards()[0].Holds(bad));
  EXPECT_FALSE(
      env.Fits(n * Int(int64_t{1} << 40) * Int(int64_t{1} << 40), __int128{3} << 80));  // the coefficient wrapped
}

TEST(Shape, InterningIsThreadSafe) {
  std::vector<std::vector<Int>> made(4);
  std::vector<std::thread> threads;
  for (auto& mine : made)
    threads.emplace_back([&mine] {
      for (int i = 0; i < 3000; ++i) mine.push_back(FloorDiv(Int::Symbol(i % 50) * (i + 5000), 7) + i);
    });
  for (auto& t : threads) t.join();
  for (auto& mine : made) EXPECT_EQ(mine, made[0]);
}

TEST(Shape, StepsCountSharedPartsEachTime) {
  Int e = Int::Symbol(0);
  EXPECT_EQ(Steps(e), 1u);
  const uint32_t one = Steps(FloorDiv(e + Int(1), Int(2)));
  for (int i = 0; i < 30; ++i) e = FloorDiv(e + Mod(e, Int(5)) + Int(1), Int(2));
  EXPECT_GT(one, 1u);
  EXPECT_EQ(Steps(e), UINT32_MAX);
}

}  // namespace
}  // namespace framejit::shape
