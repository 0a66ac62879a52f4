// BuildKernel: graphs of every kind the builder folds into one kernel, against the interpreter.
#include <random>

#include "kernel_harness.h"
#include "loop/alike.h"
#include "loop/depthwise.h"

namespace framejit {
namespace {

using shape::Int;
using shape::Ints;
using test::CheckGraph;
using test::Random;
using test::RandomStrided;

struct G {  // a graph under construction
  Graph g;
  shape::Env env;
  Builder b{g, env};
  ValueId In(const HostTensor& t) {
    TensorType type = test::TypeOf(t);
    Ints strides;
    for (int64_t s : t.strides) strides.push_back(s);
    inputs.push_back(t);
    return b.Input(type, strides, "x");
  }
  ValueId F32(std::vector<int64_t> sizes, double low = -2, double high = 2) {
    return In(Random(DType::kFloat32, sizes, 17 + unsigned(inputs.size()), low, high));
  }
  ValueId Softmax(ValueId x, int64_t axis) {
    const Ints shape = b.type(x).shape;
    ValueId m = b.Broadcast(b.Reduce(Op::kMax, x, {axis}, true), shape);
    ValueId e = b.Unary(Op::kExp, b.Binary(Op::kSub, x, m));
    return b.Binary(Op::kDiv, e, b.Broadcast(b.Reduce(Op::kSum, e, {axis}, true), shape));
  }
  ValueId LayerNorm(ValueId x, ValueId w, ValueId bias) {
    const Ints shape = b.type(x).shape;
    const int64_t last = shape.size() - 1;
    const DType t = b.type(x).dtype;
    ValueId n = b.Constant(double(shape[last].value()), t);
    ValueId mean = b.Binary(Op::kDiv, b.Reduce(Op::kSum, x, {last}, true), n);
    ValueId d = b.Binary(Op::kSub, x, b.Broadcast(mean, shape));
    ValueId var = b.Binary(Op::kDiv, b.Reduce(Op::kSum, b.Binary(Op::kMul, d, d), {last}, true), n);
    ValueId r = b.Unary(Op::kRsqrt, b.Binary(Op::kAdd, var, b.Constant(1e-5, t)));
    ValueId y = b.Binary(Op::kMul, d, b.Broadcast(r, shape));
    return b.Binary(Op::kAdd, b.Binary(Op::kMul, y, b.Broadcast(w, shape)), b.Broadcast(bias, shape));
  }
  void Out(std::vector<ValueId> v) { g.outputs = std::move(v); }
  void Check(double tolerance = -1) { CheckGraph(g, inputs, tolerance); }
  loop::Kernel Kernel() { return test::BuildWhole(g).built.kernel; }
  std::vector<HostTensor> inputs;
};

const std::vector<int64_t> kSizes = {0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1000, 5000};

TEST(Pointwise, EveryLength) {
  for (int64_t n : kSizes) {
    G t;
    ValueId x = t.F32({n}), y = t.F32({n});
    t.Out({t.b.Binary(Op::kAdd, t.b.Binary(Op::kMul, x, y), t.b.Constant(1.0, DType::kFloat32))});
    t.Check();
  }
}

TEST(Pointwise, CoalescesContiguousDims) {
  G t;
  ValueId x = t.F32({4, 5, 6}), y = t.F32({4, 5, 6});
  t.Out({t.b.Binary(Op::kSub, x, y)});
  EXPECT_TRUE(t.Kernel().outer.empty()) << t.Kernel().str();
  t.Check();
}

TEST(Pointwise, Broadcasts) {
  G t;
  ValueId x = t.F32({4, 5, 37}), row = t.F32({37}), column = t.F32({5, 1}), scalar = t.F32({});
  ValueId y = t.b.Binary(Op::kAdd, t.b.Binary(Op::kMul, x, row), t.b.Binary(Op::kSub, column, scalar));
  t.Out({y});
  t.Check();
}

TEST(Pointwise, StridedAndTransposed) {
  G t;
  ValueId x = t.In(RandomStrided(DType::kFloat32, {9, 21}, {1, 9}, 1));
  ValueId y = t.In(RandomStrided(DType::kFloat32, {9, 21}, {42, 2}, 2));
  t.Out({t.b.Binary(Op::kMul, x, y)});
  t.Check();
}

TEST(Pointwise, TransposesInTiles) {
  for (int64_t n : {33, 64, 100}) {
    G t;
    ValueId x = t.F32({3, n, 70}), y = t.F32({3, 70, n});
    t.Out({t.b.Binary(Op::kAdd, t.b.Permute(x, {0, 2, 1}), y)});
    EXPECT_TRUE(t.Kernel().tiled);
    t.Check();
  }
}

TEST(Pointwise, ZeroDimensional) {
  G t;
  ValueId x = t.F32({});
  t.Out({t.b.Binary(Op::kMul, x, x)});
  t.Check();
}

TEST(Pointwise, SeveralOutputs) {
  G t;
  ValueId x = t.F32({3, 50});
  ValueId e = t.b.Unary(Op::kExp, x), s = t.b.Binary(Op::kAdd, e, x);
  t.Out({e, s});
  t.Check();
}

TEST(Row, Softmax) {
  for (int64_t n : kSizes) {
    if (n == 0) continue;
    G t;
    t.Out({t.Softmax(t.F32({5, n}), 1)});
    t.Check();
  }
}

TEST(Row, SoftmaxKeepsTheExponentials) {
  G t;
  t.Out({t.Softmax(t.F32({5, 64}), 1)});
  int exps = 0;
  const loop::Kernel k = t.Kernel();
  for (const auto& i : k.insts) exps += i.kind == loop::IKind::kOp && i.op == Op::kExp;
  EXPECT_EQ(exps, 1) << k.str();
}

TEST(Row, LayerNorm) {
  for (int64_t n : {1, 8, 17, 768, 1000}) {
    G t;
    ValueId x = t.F32({3, 4, n}), w = t.F32({n}), bias = t.F32({n});
    t.Out({t.LayerNorm(x, w, bias)});
    t.Check(n == 1 ? 1e-2 : 2e-5);  // of one element: 0 * 316
  }
}

TEST(Row, SumOverTheLastAxis) {
  for (int64_t n : kSizes) {
    G t;
    t.Out({t.b.Reduce(Op::kSum, t.F32({7, n}), {1}, false)});
    t.Check(1e-5);
  }
}

TEST(Column, SoftmaxAndSumOverTheFirstAxis) {
  for (int64_t n : {1, 5, 16, 33, 100, 257}) {
    G t;
    ValueId x = t.F32({21, n});
    t.Out({t.Softmax(x, 0)});
    EXPECT_TRUE(n <= 16 || t.Kernel().column);
    t.Check();
    G s;
    s.Out({s.b.Reduce(Op::kSum, s.F32({300, n}), {0}, false)});
    s.Check(1e-5);
  }
}

TEST(Reduce, EveryAxisSet) {
  for (const std::vector<int64_t>& axes :
       std::vector<std::vector<int64_t>>{{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}}) {
    for (bool keep : {false, true}) {
      G t;
      ValueId x = t.F32({6, 5, 19});
      t.Out({t.b.Reduce(Op::kSum, t.b.Unary(Op::kNeg, x), axes, keep)});
      t.Check(1e-5);
      G m;
      m.Out({m.b.Reduce(Op::kMax, m.F32({6, 5, 19}), axes, keep)});
      m.Check();
    }
  }
}

// Only their results connect them; they are over the same space, so one loop makes both.
TEST(Reduce, ThoseThatMeetLaterShareALoop) {
  for (const std::vector<int64_t>& axes : std::vector<std::vector<int64_t>>{{0}, {1}, {2}, {0, 2}, {0, 1, 2}}) {
    for (bool keep : {false, true}) {
      G t;
      ValueId x = t.F32({6, 5, 19}), y = t.F32({6, 5, 19}, 1, 2);
      ValueId a = t.b.Reduce(Op::kSum, x, axes, keep);
      ValueId b = t.b.Reduce(Op::kMax, t.b.Unary(Op::kExp, y), axes, keep);
      t.Out({t.b.Binary(Op::kDiv, a, b), a});
      t.Check(1e-5);
    }
  }
}

TEST(Reduce, ArgAnyAll) {
  for (int64_t axis : {0, 1}) {
    for (Op op : {Op::kArgMax, Op::kArgMin}) {
      G t;
      t.Out({t.b.Reduce(op, t.In(Random(DType::kFloat32, {13, 45}, 3, -3, 3)), {axis}, false)});
      t.Check();
      G i;  // many equal ones
      i.Out({i.b.Reduce(op, i.In(Random(DType::kInt32, {13, 45}, 3, -3, 3)), {axis}, false)});
      i.Check();
    }
    for (Op op : {Op::kAny, Op::kAll}) {
      G t;
      ValueId x = t.F32({13, 45}, -2, 0.1);
      t.Out({t.b.Reduce(op, t.b.Binary(Op::kLt, x, t.b.Constant(op == Op::kAny ? -1.9 : 0.09, DType::kFloat32)), {axis},
                        false)});
      t.Check();
    }
  }
}

TEST(Reduce, NanWins) {
  G t;
  HostTensor x = Random(DType::kFloat32, {4, 40}, 5);
  SetElement(x, 17, NAN);
  SetElement(x, 60, NAN);
  ValueId v = t.In(x);
  t.Out({t.b.Reduce(Op::kMax, v, {1}, false), t.b.Reduce(Op::kMin, v, {1}, false),
         t.b.Reduce(Op::kArgMax, v, {1}, false), t.b.Reduce(Op::kArgMin, v, {1}, false)});
  t.Check();
}

TEST(Reduce, LongRowsKeepTheErrorOfShortOnes) {
  const int64_t n = 1 << 20;
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1, n}, std::vector<int64_t>{n / 8, 8}}) {
    G t;
    ValueId x = t.F32(sizes, 0, 1);
    t.Out({t.b.Reduce(Op::kSum, x, {sizes[0] == 1 ? 1 : 0}, false)});
    t.Check(2e-7);
  }
}

TEST(Views, ReshapePermute) {
  G t;  // split heads, scale, merge
  ValueId x = t.F32({2, 7, 24});
  ValueId h = t.b.Permute(t.b.Reshape(x, {2, 7, 3, 8}), {0, 2, 1, 3});
  t.Out({t.b.Binary(Op::kMul, h, t.b.Constant(0.5, DType::kFloat32))});
  t.Check();
  G m;
  ValueId y = m.F32({2, 3, 7, 8});
  m.Out({m.b.Reshape(m.b.Permute(m.b.Unary(Op::kNeg, y), {0, 2, 1, 3}), {2, 7, 24})});
  m.Check();
}

TEST(Views, BothSidesOfAReshapeStored) {
  G t;
  ValueId x = t.F32({2, 7, 24});
  ValueId e = t.b.Unary(Op::kExp, x);
  ValueId h = t.b.Unary(Op::kNeg, t.b.Permute(t.b.Reshape(e, {2, 7, 3, 8}), {0, 2, 1, 3}));
  t.Out({e, h});
  t.Check();
}

TEST(Views, UnevenReshapeOfOneNode) {
  G t;
  ValueId x = t.In(RandomStrided(DType::kFloat32, {4, 6}, {1, 4}, 8));
  t.Out({t.b.Reshape(x, {3, 8})});
  t.Check(0);
}

TEST(Views, SliceFlipPad) {
  G t;
  ValueId x = t.F32({6, 40});
  Attrs flip;
  flip.axes = {1};
  Attrs pad;
  pad.syms = {1, 2, 3, -1};
  pad.scalar = 7.5;
  ValueId s = t.b.Slice(x, 1, 3, 12, 3);
  ValueId f = t.b.Add(Op::kFlip, {s}, flip);
  t.Out({t.b.Add(Op::kPad, {t.b.Unary(Op::kAbs, f)}, pad)});
  t.Check();
  G r;
  r.Out({r.b.Add(Op::kFlip, {r.F32({6, 40})}, flip)});
  r.Check(0);
}

TEST(Views, Cat) {
  for (int64_t axis : {0, 1}) {
    G t;
    Attrs a;
    a.axes = {axis};
    ValueId x = t.F32({5, 20}), y = axis ? t.F32({5, 3}) : t.F32({3, 20}), z = t.F32({5, 20});
    t.Out({t.b.Unary(Op::kNeg, t.b.Add(Op::kCat, {x, t.b.Unary(Op::kExp, y), z}, a))});
    t.Check();
  }
}

TEST(Views, CatAndPadOfEveryElementSize) {
  for (DType d : {DType::kFloat32, DType::kBFloat16, DType::kInt8, DType::kBool, DType::kFloat64}) {
    for (int64_t axis : {0, 1}) {
      G t;
      Attrs a;
      a.axes = {axis};
      ValueId x = t.In(Random(d, {5, 21}, 1, 0, 9)), y = t.In(Random(d, {5, 21}, 2, 0, 9));
      ValueId c = t.b.Add(Op::kCat, {x, y}, a);
      Attrs pad;
      pad.syms = {1, 1, 3, 2};
      pad.scalar = true;
      t.Out({t.b.Add(Op::kPad, {c}, pad)});
      t.Check(0);
      G s;  // strided: gathers under predicates
      ValueId z = s.In(RandomStrided(d, {21, 9}, {1, 21}, 1, 0, 9)),
              w = s.In(RandomStrided(d, {21, 9}, {27, 3}, 2, 0, 9));
      s.Out({s.b.Add(Op::kCat, {z, w}, a)});
      s.Check(0);
    }
  }
}

TEST(Views, Rotary) {  // x * cos + cat(-x2, x1) * sin
  G t;
  ValueId x = t.F32({2, 3, 10, 32}), cos = t.F32({10, 32}), sin = t.F32({10, 32});
  Attrs a;
  a.axes = {3};
  ValueId x1 = t.b.Slice(x, 3, 0, 16), x2 = t.b.Slice(x, 3, 16, 16);
  ValueId rotated = t.b.Add(Op::kCat, {t.b.Unary(Op::kNeg, x2), x1}, a);
  t.Out({t.b.Binary(Op::kAdd, t.b.Binary(Op::kMul, x, cos), t.b.Binary(Op::kMul, rotated, sin))});
  t.Check();
}

TEST(Views, IotaMask) {  // causal mask
  G t;
  ValueId x = t.F32({3, 9, 9});
  ValueId q = t.b.Iota(DType::kInt64, {9, 9}, 0), k = t.b.Iota(DType::kInt64, {9, 9}, 1);
  t.Out({t.b.Where(t.b.Binary(Op::kLe, k, q), x, t.b.Constant(-1e9, DType::kFloat32))});
  t.Check();
  for (DType d : {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64, DType::kUInt8}) {
    G i;
    i.Out({i.b.Iota(d, {37}, 0)});
    i.Check(0);
  }
}

TEST(Scan, CumSum) {
  for (int64_t axis : {0, 1, 2}) {
    for (DType d : {DType::kFloat32, DType::kInt32, DType::kBool, DType::kBFloat16}) {
      G t;
      ValueId x = t.In(Random(d, {5, 21, 19}, 2, 0, 3));
      Attrs a;
      a.axes = {axis};
      a.dtype = IsFloat(d) ? d : DType::kInt64;
      ValueId c = t.b.Add(Op::kCumSum, {x}, a);
      t.Out({t.b.Binary(Op::kAdd, c, t.b.Constant(1, a.dtype))});
      t.Check();
    }
  }
  G t;  // with a reduction of the same axis
  ValueId x = t.F32({4, 33});
  Attrs a;
  a.axes = {1};
  a.dtype = DType::kFloat32;
  ValueId total = t.b.Reduce(Op::kSum, x, {1}, true);
  t.Out({t.b.Binary(Op::kSub, t.b.Broadcast(total, {4, 33}), t.b.Add(Op::kCumSum, {x}, a))});
  t.Check(4e-6);
}

TEST(Indexing, TakeAndGather) {
  for (int64_t axis : {0, 1}) {
    G t;
    ValueId w = t.F32({30, 30});
    ValueId i = t.In(Random(DType::kInt64, {4, 6}, 9, 0, 30));
    Attrs a;
    a.axes = {axis};
    t.Out({t.b.Unary(Op::kNeg, t.b.Add(Op::kTake, {w, i}, a))});
    t.Check(0);
    G s;
    ValueId data = s.F32({17, 17});
    ValueId j = s.In(Random(DType::kInt64, {17, 17}, 9, 0, 17));
    s.Out({s.b.Add(Op::kGather, {data, j}, a)});
    s.Check(0);
  }
}

TEST(Indexing, OutOfRangeDoesNotCrash) {
  G t;
  ValueId w = t.F32({30, 8});
  ValueId i = t.In(Random(DType::kInt64, {16}, 9, -1e9, 1e9));
  Attrs a;
  a.axes = {0};
  t.Out({t.b.Add(Op::kTake, {w, i}, a)});
  test::RunGroup(t.g, test::BuildWhole(t.g), t.inputs, "avx2", {});
}

TEST(Fuse, Refusals) {
  G t;
  ValueId x = t.F32({8, 8});
  ValueId a = t.b.Reduce(Op::kSum, x, {0}, false), c = t.b.Reduce(Op::kSum, x, {1}, false);
  EXPECT_TRUE(loop::CanFuse(t.g, {a}, {a}));
  EXPECT_FALSE(loop::CanFuse(t.g, {a, c}, {a, c}));  // different axes
  G s;
  ValueId y = s.F32({4, 6});
  ValueId e = s.b.Unary(Op::kExp, y), r = s.b.Reshape(e, {3, 8}), n = s.b.Unary(Op::kNeg, r);
  EXPECT_TRUE(loop::CanFuse(s.g, {r}, {r}));
  EXPECT_FALSE(loop::CanFuse(s.g, {e, r, n}, {n}));  // would divide for every element
}

TEST(Fuse, AlikeGroupsAreAskedOnce) {
  G t;
  std::mt19937 random(5);
  struct Group {
    std::vector<ValueId> nodes, stored;
  };
  std::vector<Group> groups;
  for (int round = 0; round < 400; ++round) {
    const ValueId x = t.F32(random() % 2 ? std::vector<int64_t>{4, 6} : std::vector<int64_t>{6, 4});
    const auto first = static_cast<ValueId>(t.g.nodes.size());
    ValueId v = x;
    for (int k = 0; k < 3; ++k) {
      const Ints shape = t.b.type(v).shape;
      switch (random() % 5) {
        case 0: v = t.b.Unary(Op::kExp, v); break;
        case 1: v = t.b.Reshape(v, {3, 8}); break;
        case 2: v = t.b.Permute(v, {1, 0}); break;
        case 3: v = t.b.Binary(Op::kAdd, v, v); break;
        default: v = t.b.Broadcast(t.b.Reduce(Op::kSum, v, {static_cast<int64_t>(random() % 2)}, true), shape);
      }
    }
    Group group;
    for (auto n = first; n < t.g.nodes.size(); ++n) {
      group.nodes.push_back(n);
      if (n + 1 == t.g.nodes.size() || random() % 4 == 0) group.stored.push_back(n);
    }
    if (!group.nodes.empty()) groups.push_back(std::move(group));
  }
  loop::Fusing fusing(t.g);
  int can = 0;
  for (const Group& group : groups) {
    const bool expected = loop::CanFuse(t.g, group.nodes, group.stored);
    EXPECT_EQ(fusing.Can(group.nodes, group.stored), expected);
    EXPECT_EQ(fusing.Can(group.nodes, group.stored), expected);
    can += expected;
  }
  EXPECT_GT(can, 50);
  EXPECT_LT(can, static_cast<int>(groups.size()) - 50);
}

TEST(Symbolic, OneKernelManySizes) {
  G t;
  Int n = t.env.NewSymbol({.name = "n", .hint = 4}), c = t.env.NewSymbol({.name = "c", .hint = 40});
  TensorType type{DType::kFloat32, {n, c}, {}};
  ValueId x = t.b.Input(type, {c, 1}, "x"), y = t.b.Input({DType::kFloat32, {c}, {}}, {1}, "y");
  t.Out({t.Softmax(t.b.Binary(Op::kMul, x, y), 1)});
  t.g.symbols = {t.env.symbol(0), t.env.symbol(1)};
  t.g.symbol_sources = {{0, 0}, {0, 1}};
  test::Cpus();
  ClearKernelCache();
  for (int64_t rows : {1, 3, 10}) {
    for (int64_t columns : {1, 5, 16, 33, 1000, 5000}) {
      CheckGraph(t.g, {Random(DType::kFloat32, {rows, columns}, 1), Random(DType::kFloat32, {columns}, 2)}, -1,
                 {rows, columns});
    }
  }
  EXPECT_EQ(GetKernelCacheInfo().misses, int64_t(test::Cpus().size()));
}

TEST(Types, Everything) {
  for (DType d : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kUInt8,
                  DType::kInt16, DType::kInt32, DType::kInt64, DType::kUInt16, DType::kUInt32, DType::kUInt64}) {
    for (int64_t n : {1, 7, 33, 70}) {
      G t;
      ValueId x = t.In(Random(d, {3, n}, 1, 0, 10)), y = t.In(Random(d, {n}, 2, 1, 10));
      ValueId z = t.b.Binary(Op::kAdd, t.b.Binary(Op::kMul, x, y), x);
      ValueId less = t.b.Binary(Op::kLt, x, t.b.Broadcast(y, {3, n}));
      ValueId w = t.b.Where(less, z, t.b.Broadcast(y, {3, n}));
      t.Out({w, less, t.b.Cast(w, DType::kFloat32)});
      t.Check(IsFloat(d) ? test::Tolerance(d) : 0);  // the cast sees what was not rounded
      G r;
      ValueId v = r.In(Random(d, {5, n}, 1, 0, 3));
      r.Out({r.b.Reduce(Op::kSum, v, {1}, false, IsFloat(d) ? d : DType::kInt64), r.b.Reduce(Op::kMax, v, {1}, false)});
      r.Check();
    }
  }
}

TEST(Types, StridedSmallElements) {
  for (DType d : {DType::kInt8, DType::kBool, DType::kBFloat16, DType::kFloat64}) {
    G t;
    ValueId x = t.In(RandomStrided(d, {21, 9}, {1, 21}, 1, 0, 100)),
            y = t.In(RandomStrided(d, {21, 9}, {27, 3}, 2, 0, 100));
    t.Out({t.b.Binary(Op::kMaximum, x, y)});
    t.Check();
  }
}

// The kernel of a depthwise convolution, made for a GPU and run here.
TEST(Depthwise, SumsItsTaps) {
  struct Case {
    int64_t n, c, h, w, rows, columns, stride, padding, dilation;
    bool bias;
    DType t;
  };
  for (const Case& k : {Case{2, 24, 9, 11, 3, 3, 1, 1, 1, false, DType::kFloat32},
                        Case{1, 16, 12, 10, 5, 5, 2, 2, 1, true, DType::kFloat32},
                        Case{3, 7, 8, 8, 3, 5, 1, 0, 2, true, DType::kBFloat16},
                        Case{2, 8, 7, 7, 3, 3, 2, 3, 1, false, DType::kFloat16}}) {
    Graph g;
    shape::Env env;
    Builder b(g, env);
    std::vector<HostTensor> inputs = {
        RandomStrided(k.t, {k.n, k.c, k.h, k.w}, {k.c * k.h * k.w, 1, k.w * k.c, k.c}, 1),
        RandomStrided(k.t, {k.c, 1, k.rows, k.columns}, {1, k.c, k.columns * k.c, k.c}, 2)};
    if (k.bias) inputs.push_back(Random(k.t, {k.c}, 3));
    std::vector<ValueId> operands;
    for (const HostTensor& t : inputs) {
      TensorType type = test::TypeOf(t);
      type.device = {DeviceKind::kCuda, 0};
      Ints strides;
      for (int64_t s : t.strides) strides.push_back(s);
      operands.push_back(b.Input(type, strides, "x"));
    }
    Attrs attrs;
    attrs.axes = {k.stride, k.stride, k.padding, k.padding, k.dilation, k.dilation, 0, 0, k.c};
    const ValueId conv = b.Add(Op::kConv, operands, attrs);
    const Ints& out = g.nodes[conv].type.shape;
    const int64_t rows = out[2].value(), columns = out[3].value();
    g.nodes[conv].strides = {rows * columns * k.c, 1, columns * k.c, k.c};
    g.outputs = {conv};
    std::vector<loop::Layout> layouts(g.nodes.size());
    for (ValueId v = 0; v < g.nodes.size(); ++v) layouts[v].strides = g.nodes[v].strides;
    test::GroupRun run;
    auto built = loop::BuildDepthwise(g, conv, layouts);
    ASSERT_TRUE(built.has_value());
    run.built = std::move(*built);
    const HostTensor got = test::RunGroup(g, run, inputs, "avx2", {})[0];
    int64_t at = 0;
    for (int64_t n = 0; n < k.n; ++n) {
      for (int64_t c = 0; c < k.c; ++c) {
        for (int64_t y = 0; y < rows; ++y) {
          for (int64_t x = 0; x < columns; ++x, ++at) {
            double sum = k.bias ? GetElement(inputs[2], c) : 0;
            for (int64_t i = 0; i < k.rows; ++i) {
              for (int64_t j = 0; j < k.columns; ++j) {
                const int64_t from_y = y * k.stride - k.padding + i * k.dilation;
                const int64_t from_x = x * k.stride - k.padding + j * k.dilation;
                if (from_y < 0 || from_y >= k.h || from_x < 0 || from_x >= k.w) continue;
                sum += GetElement(inputs[0], ((n * k.c + c) * k.h + from_y) * k.w + from_x) *
                       GetElement(inputs[1], (c * k.rows + i) * k.columns + j);
              }
            }
            ASSERT_NEAR(GetElement(got, at), sum, k.t == DType::kFloat32 ? 1e-4 : 0.3) << at;
          }
        }
      }
    }
    layouts[operands[0]].strides = shape::RowMajor(g.nodes[operands[0]].type.shape);
    EXPECT_FALSE(loop::BuildDepthwise(g, conv, layouts).has_value());  // channels outside: not for it
  }
}

}  // namespace
}  // namespace framejit
