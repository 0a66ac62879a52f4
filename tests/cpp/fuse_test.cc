// What fusion puts together, and what it keeps apart.
#include "pass/fuse.h"

#include <gtest/gtest.h>

#include "graph/views.h"

namespace framejit {
namespace {

using pass::Group;
using pass::Grouping;
using shape::Int;
using shape::Ints;

struct Fixture {
  Graph g;
  shape::Env env;
  Builder b{g, env};
  ValueId In(Ints shape, DType t = DType::kFloat32) {
    return b.Input({t, shape, {}}, shape::RowMajor(shape), "x" + std::to_string(g.inputs.size()));
  }
  Grouping Fuse(std::vector<ValueId> outputs) {
    g.outputs = std::move(outputs);
    EXPECT_EQ(Verify(g), "") << g.str();
    return pass::Fuse(g, {.boundaries = true});
  }
};

// "1-2: why" of the groups that stayed apart.
std::vector<std::string> Apart(const Grouping& grouping) {
  std::vector<std::string> texts;
  for (const pass::Boundary& b : grouping.boundaries)
    texts.push_back(std::to_string(b.producer) + "-" + std::to_string(b.consumer) + ": " + b.why);
  return texts;
}

int Kernels(const Grouping& grouping) {
  int n = 0;
  for (const Group& group : grouping.groups) n += group.kind == Group::Kind::kKernel;
  return n;
}

TEST(Views, ReshapeStrides) {
  const Int s0 = Int::Symbol(0);
  auto reshape = [](Ints from, Ints strides, Ints to) {
    Node n;
    n.op = Op::kReshape;
    n.type.shape = to;
    n.attrs.syms = to;
    return ViewLayout(n, {DType::kFloat32, from, {}}, {strides, 0});
  };
  EXPECT_EQ(reshape({2, 3, 4}, {12, 4, 1}, {6, 4})->strides, (Ints{4, 1}));
  EXPECT_EQ(reshape({6, 4}, {4, 1}, {2, 3, 1, 4})->strides[0], Int(12));
  EXPECT_FALSE(reshape({4, 6}, {1, 4}, {24}).has_value());        // transposed: a copy
  EXPECT_EQ(reshape({4, 6}, {12, 2}, {24})->strides, (Ints{2}));  // dense in steps of two
  EXPECT_EQ(reshape({s0, 12, 64}, {768, 64, 1}, {s0, 768})->strides, (Ints{768, 1}));
  EXPECT_EQ(reshape({2, s0, 768}, {s0 * Int(768), 768, 1}, {2, s0, 12, 64})->strides,
            (Ints{s0 * Int(768), 768, 64, 1}));
  EXPECT_EQ(reshape({2, s0, 768}, {s0 * Int(768), 768, 1}, {Int(2) * s0, 768})->strides, (Ints{768, 1}));
  EXPECT_FALSE(reshape({s0, 2}, {1, s0}, {2, s0}).has_value());
  EXPECT_EQ(reshape({1, 1}, {5, 7}, {})->strides, (Ints{}));
  EXPECT_EQ(reshape({}, {}, {1, 1})->strides.size(), 2u);
}

TEST(Fuse, PointwiseChainIsOneKernel) {
  Fixture f;
  ValueId x = f.In({64, 32}), y = f.In({64, 32});
  ValueId t = f.b.Unary(Op::kTanh, f.b.Binary(Op::kAdd, f.b.Binary(Op::kMul, x, y), y));
  Grouping grouping = f.Fuse({t});
  ASSERT_EQ(grouping.groups.size(), 1u);
  EXPECT_EQ(grouping.groups[0].stored, std::vector<ValueId>{t});
}

TEST(Fuse, SoftmaxIsOneKernel) {
  Fixture f;
  ValueId x = f.In({64, 32});
  ValueId m = f.b.Reduce(Op::kMax, x, {1}, true);
  ValueId e = f.b.Unary(Op::kExp, f.b.Binary(Op::kSub, x, m));
  ValueId s = f.b.Reduce(Op::kSum, e, {1}, true);
  Grouping grouping = f.Fuse({f.b.Binary(Op::kDiv, e, s)});
  EXPECT_EQ(grouping.groups.size(), 1u);
}

TEST(Fuse, LibraryCallsStayWholeAndViewsBetweenThemAreFree) {
  Fixture f;
  const Int s = Int::Symbol(f.env.NewSymbol({"s", 16}).as_symbol().value());
  f.g.symbols.push_back(f.env.symbol(0));
  f.g.symbol_sources.push_back({0, 1});
  ValueId x = f.In({2, s, 768}), w = f.In({768, 768});
  auto heads = [&] { return f.b.Permute(f.b.Reshape(f.b.Add(Op::kLinear, {x, w}), {2, s, 12, 64}), {0, 2, 1, 3}); };
  Attrs attention;
  attention.scalar = 0.125;
  ValueId q = heads(), k = heads(), v = heads();
  ValueId a = f.b.Add(Op::kAttention, {q, k, v}, attention);
  ValueId merged = f.b.Reshape(f.b.Permute(a, {0, 2, 1, 3}), {2, s, 768});
  Grouping grouping = f.Fuse({f.b.Add(Op::kLinear, {merged, w})});
  EXPECT_EQ(Kernels(grouping), 0);
  EXPECT_EQ(grouping.groups.size(), 5u);
  ASSERT_TRUE(grouping.aliases[merged].has_value());
  EXPECT_EQ(grouping.layouts[merged].strides, shape::RowMajor(Ints{2, s, 768}));
}

TEST(Fuse, ViewAtTheEndOfAKernelIsAnAlias) {
  Fixture f;
  ValueId x = f.In({8, 16}), y = f.In({8, 4});
  ValueId e = f.b.Unary(Op::kExp, x);
  ValueId t = f.b.Permute(e, {1, 0});
  Grouping grouping = f.Fuse({f.b.Add(Op::kMatMul, {t, y})});
  ASSERT_TRUE(grouping.aliases[t].has_value());
  EXPECT_EQ(grouping.aliases[t]->base, e);
  EXPECT_EQ(grouping.layouts[t].strides, (Ints{1, 16}));
}

TEST(Fuse, NoCycleThroughALibraryCall) {
  Fixture f;
  ValueId x = f.In({8, 8});
  ValueId e = f.b.Unary(Op::kExp, x);
  ValueId m = f.b.Add(Op::kMatMul, {e, e});
  Grouping grouping = f.Fuse({f.b.Binary(Op::kAdd, e, m)});
  EXPECT_EQ(grouping.groups.size(), 3u);  // exp, matmul, add: exp and add cannot meet
  EXPECT_EQ(Apart(grouping),
            (std::vector<std::string>{"0-1: a product is a library's call", "0-2: a third step must run between them",
                                      "1-2: a product is a library's call"}));
}

TEST(Fuse, ExpensiveWorkIsNotRepeatedForEveryRow) {
  Fixture f;
  ValueId x = f.In({1000, 64}), w = f.In({64});
  ValueId expensive = f.b.Binary(Op::kMul, x, f.b.Broadcast(f.b.Unary(Op::kExp, w), {1000, 64}));
  const Grouping grouping = f.Fuse({expensive});
  EXPECT_EQ(grouping.groups.size(), 2u);
  EXPECT_EQ(Apart(grouping), std::vector<std::string>{"0-1: expensive values would be computed again for every row"});
  Fixture c;
  x = c.In({1000, 64}), w = c.In({64});
  ValueId cheap = c.b.Binary(Op::kMul, x, c.b.Broadcast(c.b.Unary(Op::kNeg, w), {1000, 64}));
  EXPECT_EQ(c.Fuse({cheap}).groups.size(), 1u);
}

TEST(Fuse, GroupsRunAfterWhatTheyRead) {
  Fixture f;
  ValueId x = f.In({16, 16});
  ValueId v = x;
  std::vector<ValueId> outputs;
  for (int i = 0; i < 12; ++i) {
    ValueId e = f.b.Unary(Op::kExp, v);
    if (i % 3 == 0) outputs.push_back(e);
    v = f.b.Binary(Op::kAdd, i % 2 ? f.b.Add(Op::kMatMul, {e, x}) : f.b.Permute(e, {1, 0}), i % 4 ? e : x);
  }
  outputs.push_back(v);
  Grouping grouping = f.Fuse(outputs);
  std::vector<bool> ready(f.g.nodes.size(), false);
  for (ValueId i : f.g.inputs) ready[i] = true;
  for (const Group& group : grouping.groups) {
    for (ValueId n : group.nodes) {
      for (ValueId o : f.g.node(n).operands) {
        ValueId base = grouping.aliases[o] ? grouping.aliases[o]->base : o;
        EXPECT_TRUE(ready[base] || std::count(group.nodes.begin(), group.nodes.end(), o)) << o << "\n" << f.g.str();
      }
    }
    for (ValueId s : group.stored) ready[s] = true;
  }
  for (ValueId o : outputs) EXPECT_TRUE(ready[o] || (grouping.aliases[o] && ready[grouping.aliases[o]->base]));
}

TEST(Fuse, SmallPartsAreNotComputedForAllElements) {
  for (const int64_t columns : {1, 40}) {  // as many as the other part has: both are computed where they are read
    Fixture f;
    const ValueId inner = f.In({64, 40}), edge = f.In({64, columns});
    ValueId part = edge;
    for (int i = 0; i < 6; ++i) part = f.b.Binary(Op::kAdd, f.b.Binary(Op::kMul, part, edge), edge);
    Attrs attrs;
    attrs.axes = {1};
    const ValueId all = f.b.Add(Op::kCat, {f.b.Binary(Op::kAdd, inner, inner), part}, attrs);
    EXPECT_EQ(Kernels(f.Fuse({all})), columns == 1 ? 2 : 1);
  }
}

TEST(Fuse, GroupsAreBounded) {
  Fixture f;
  ValueId v = f.In({64});
  for (int i = 0; i < 500; ++i) v = f.b.Unary(Op::kSin, v);
  Grouping grouping = f.Fuse({v});
  EXPECT_GT(grouping.groups.size(), 500u / 80);
  EXPECT_LT(grouping.groups.size(), 20u);
}

}  // namespace
}  // namespace framejit
