// Compile().Run against Interpret(): whole graphs, with fusion on and off.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>
#include <thread>

#include "compile_fixture.h"
#include "compiler/target.h"
#include "runtime/prepared.h"

static std::atomic<long> allocations = 0;  // that the program and its libraries asked for
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

namespace framejit {
namespace {

using shape::Int;
using shape::Ints;
using test::AsBuffer;
using test::Check;
using test::CompileAndCheck;
using test::F32;
using test::RandomF32;
using test::TestHost;
using Fixture = test::CompileFixture;

int Count(const std::string& text, const std::string& what) {
  int n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(Compile, Pointwise) {
  Fixture f;
  ValueId x = f.In({4, 5}), y = f.In({4, 5});
  f.g.outputs = {f.b.Binary(Op::kAdd, f.b.Binary(Op::kMul, x, y), f.Const(1, x))};
  CompileAndCheck(f.g, {RandomF32({4, 5}, 1), RandomF32({4, 5}, 2)});
  EXPECT_EQ(Compile(f.g)->stats().kernels, 1);
}

// Layers x = max(x @ w, 0) * x.
Fixture Layers(int count) {
  Fixture f;
  ValueId x = f.In({4, 8});
  for (int i = 0; i < count; ++i) {
    const ValueId y = f.b.Add(Op::kMatMul, {x, f.In({8, 8})});
    x = f.b.Binary(Op::kMul, f.b.Binary(Op::kMaximum, y, f.Const(0, y)), x);
  }
  f.g.outputs = {x};
  return f;
}

TEST(Compile, LayersCostTheSameInALongGraph) {
  const auto asked = [](int layers) {
    const Fixture f = Layers(layers);
    const auto first = Compile(f.g);  // what only the first time brings
    EXPECT_EQ(first->stats().kernels, layers);
    EXPECT_LE(first->stats().kernels_compiled, 1);
    const long before = allocations;
    Compile(f.g);
    return allocations - before;
  };
  const long few = asked(400), many = asked(1600);
  EXPECT_GT(few, 400);
  EXPECT_LT(many, 4.1 * few);
  EXPECT_LT(many, 1600 * 160);
}

// Each differs from the one before it in one thing alone.
TEST(Compile, KernelsAreTakenForOthersOnlyIfTheyDoTheSame) {
  Fixture f;
  ValueId x = f.In({8, 8}), w = f.In({8, 8});
  std::vector<HostTensor> inputs = {RandomF32({8, 8}, 1), RandomF32({8, 8}, 2)};
  const auto layer = [&](auto&& kernel) {
    const ValueId y = f.b.Add(Op::kMatMul, {x, w});
    f.g.outputs.push_back(x = kernel(y));
  };
  const auto times = [&](ValueId a, ValueId b) { return f.b.Unary(Op::kTanh, f.b.Binary(Op::kMul, a, b)); };
  for (int round = 0; round < 2; ++round) {
    const ValueId before = x;
    layer([&](ValueId y) { return times(y, y); });
    layer([&](ValueId y) { return times(y, before); });
    layer([&](ValueId y) { return times(y, f.b.Add(Op::kPermute, {before}, {.axes = {1, 0}})); });
    for (double value : {0.0, -0.0, 1.0, std::nan("")})
      layer([&](ValueId y) { return f.b.Unary(Op::kReciprocal, f.b.Binary(Op::kMul, y, f.Const(value, y))); });
    layer([&](ValueId y) { return f.b.Unary(Op::kExp, f.b.Reduce(Op::kSum, y, {0}, true)); });
    x = before;
    layer([&](ValueId y) { return f.b.Binary(Op::kSub, y, before); });
    layer([&](ValueId y) { return f.b.Binary(Op::kSub, before, y); });
  }
  CompileAndCheck(f.g, inputs);
}

TEST(Compile, Softmax) {
  for (int axis : {0, 1, 2}) {
    Fixture f;
    ValueId x = f.In({3, 17, 33});
    f.g.outputs = {f.Softmax(x, axis)};
    CompileAndCheck(f.g, {RandomF32({3, 17, 33}, 1, 4)});
    if (axis == 2) {
      EXPECT_EQ(Compile(f.g)->stats().kernels, 1);
    }
  }
}

TEST(Compile, LayerNorm) {
  Fixture f;
  ValueId x = f.In({2, 7, 100}), w = f.In({100}), bias = f.In({100});
  f.g.outputs = {f.LayerNorm(x, w, bias)};
  CompileAndCheck(f.g, {RandomF32({2, 7, 100}, 1), RandomF32({100}, 2), RandomF32({100}, 3)});
  EXPECT_EQ(Compile(f.g)->stats().kernels, 1);
}

TEST(Compile, MatMulBiasGelu) {
  Fixture f;
  ValueId x = f.In({9, 20}), w = f.In({20, 30}), bias = f.In({30});
  ValueId m = f.b.Add(Op::kMatMul, {x, w});
  f.g.outputs = {f.Gelu(f.b.Binary(Op::kAdd, m, f.b.Broadcast(bias, {9, 30})))};
  CompileAndCheck(f.g, {RandomF32({9, 20}, 1), RandomF32({20, 30}, 2), RandomF32({30}, 3)});
  auto exe = Compile(f.g);
  EXPECT_EQ(exe->stats().kernels, 1);
  EXPECT_EQ(exe->stats().library_calls, 1);
}

TEST(Compile, InputsAreGivenBackWhenTheyWereReadForTheLastTime) {
  struct Taking : TestHost {
    bool TakesInputs() override { return true; }
    void InputDone(size_t input) override { done.push_back(input); }
    std::vector<size_t> done;
  };
  Fixture f;
  ValueId a = f.In({6, 6}), b = f.In({6, 6}), c = f.In({6, 6}), d = f.In({6, 6});
  ValueId ab = f.b.Add(Op::kMatMul, {a, b}), abd = f.b.Add(Op::kMatMul, {ab, d});
  f.g.outputs = {f.b.Add(Op::kMatMul, {f.b.Add(Op::kMatMul, {abd, c}), a})};
  auto exe = Compile(f.g);
  std::vector<HostTensor> tensors;
  std::vector<Buffer> inputs;
  for (int i = 0; i < 4; ++i) tensors.push_back(RandomF32({6, 6}, i));
  for (const HostTensor& t : tensors) inputs.push_back(AsBuffer(t));
  Taking host;
  Buffer out;
  exe->Run(host, inputs, {}, {&out, 1});
  EXPECT_EQ(host.done, (std::vector<size_t>{1, 3, 2, 0}));
  host.Release(&out);
}

TEST(Compile, WhatIsMadeOfWeightsOutlivesTheHostOfTheRunThatMadeIt) {
  struct Always : MemoryWatch {
    bool Unchanged(const Buffer&) override { return true; }
  };
  struct OfOneRun : TestHost {
    explicit OfOneRun(TestHost& lasting) : lasting(lasting) {}
    Host& BeyondRun() override { return lasting; }
    std::unique_ptr<MemoryWatch> WatchMemory(const Buffer&) override { return std::make_unique<Always>(); }
    TestHost& lasting;
  };
  Fixture whole, weight, rest;
  ValueId x = whole.In({8, 16});
  whole.g.outputs = {whole.b.Binary(Op::kAdd, x, whole.b.Unary(Op::kExp, whole.In({8, 16})))};
  weight.g.outputs = {weight.b.Unary(Op::kExp, weight.In({8, 16}))};
  x = rest.In({8, 16});
  rest.In({8, 16});
  rest.g.outputs = {rest.b.Binary(Op::kAdd, x, rest.In({8, 16}))};
  runtime::Preparation preparation{Compile(weight.g), {1}, {{{0}, false}}, [&] { return Compile(whole.g); }};
  auto exe = runtime::MakePrepared(Compile(rest.g), std::move(preparation));
  const std::vector<HostTensor> inputs = {RandomF32({8, 16}, 1), RandomF32({8, 16}, 2)};
  TestHost lasting;
  int made = 0;
  for (int i = 0; i < 5; ++i) {
    OfOneRun host(lasting);
    const Buffer in[] = {AsBuffer(inputs[0]), AsBuffer(inputs[1])};
    Buffer out;
    exe->Run(host, in, {}, {&out, 1});
    const auto first = [](const Buffer& b) { return *static_cast<const float*>(b.data); };
    EXPECT_NEAR(first(out), first(in[0]) + std::exp(first(in[1])), 1e-5);
    host.Release(&out);
    made += host.live;
  }
  EXPECT_EQ(made, 1);  // once, in some run
  EXPECT_EQ(lasting.live, 0);
  exe.reset();
  EXPECT_EQ(lasting.live, -1);
}

TEST(Compile, RunsTakeTurnsAmongForms) {
  Fixture f;
  ValueId x = f.In({4000, 16});
  f.g.outputs = {f.b.Reduce(Op::kSum, f.b.Unary(Op::kExp, x), {0}, false)};
  CompileOptions options;
  options.tune = true;
  auto exe = Compile(f.g, options);
  TestHost host;
  const std::vector<HostTensor> inputs = {RandomF32({4000, 16}, 1)};
  for (int i = 0; i < 60; ++i) Check(*exe, host, f.g, inputs, 2e-4);
  EXPECT_EQ(host.live, 0);
}

TEST(Compile, ViewsBetweenLibraryCalls) {
  Fixture f;
  ValueId x = f.In({2, 5, 24}), w = f.In({24, 24}), bias = f.In({24});
  auto heads = [&](ValueId v) {
    return f.b.Permute(f.b.Reshape(f.b.Add(Op::kLinear, {v, w, bias}), {2, 5, 3, 8}), {0, 2, 1, 3});
  };
  Attrs attention;
  attention.scalar = 0.35;
  ValueId a =
      f.b.Add(Op::kAttention, {heads(x), heads(f.b.Unary(Op::kTanh, x)), heads(f.b.Unary(Op::kNeg, x))}, attention);
  f.g.outputs = {f.b.Add(Op::kLinear, {f.b.Reshape(f.b.Permute(a, {0, 2, 1, 3}), {2, 5, 24}), w})};
  CompileAndCheck(f.g, {RandomF32({2, 5, 24}, 1), RandomF32({24, 24}, 2), RandomF32({24}, 3)});
  auto exe = Compile(f.g);
  EXPECT_EQ(exe->stats().kernels, 2);  // tanh and neg: all views cost nothing
  EXPECT_EQ(Count(exe->str(), "  copy"), 0) << exe->str();
}

TEST(Compile, ElementsOfAnInput) {  // aliases without strides, but with an offset
  Fixture f;
  ValueId x = f.In({6});
  auto at = [&](int i) { return f.b.Reshape(f.b.Slice(x, 0, i, 1), {}); };
  f.g.outputs = {f.b.Binary(Op::kMul, at(1), at(4)), at(5)};
  CompileAndCheck(f.g, {RandomF32({6}, 1)});
}

TEST(Compile, OutputsWithStrides) {
  Fixture f;
  ValueId x = f.In({6, 10}), y = f.In({6, 10});
  ValueId e = f.b.Binary(Op::kAdd, x, y);
  ValueId t = f.b.Permute(e, {1, 0});
  f.g.nodes[t].strides = {1, 10};  // as eager makes it
  ValueId u = f.b.Unary(Op::kNeg, x);
  f.g.nodes[u].strides = {1, 6};
  ValueId r = f.b.Reshape(f.b.Unary(Op::kAbs, x), {3, 20});
  ValueId p = f.b.Permute(f.b.Unary(Op::kExp, x), {1, 0});  // row-major: a real transposition
  f.g.outputs = {t, u, r, p};
  CompileAndCheck(f.g, {RandomF32({6, 10}, 1), RandomF32({6, 10}, 2)});
}

TEST(Compile, OutputsThatAreInputsViewsAndDuplicates) {
  Fixture f;
  ValueId x = f.In({4, 6}), w = f.In({6, 5});
  ValueId e = f.b.Unary(Op::kExp, x);
  ValueId m = f.b.Add(Op::kMatMul, {e, w});
  f.g.outputs = {x,
                 f.b.Permute(x, {1, 0}),
                 e,
                 e,
                 f.b.Slice(e, 0, 1, 2),
                 m,
                 f.b.Reshape(m, {20}),
                 f.b.Permute(m, {1, 0}),
                 f.b.Constant(2.5, DType::kFloat32, {3}),
                 f.b.Iota(DType::kInt64, {2, 3}, 1)};
  CompileAndCheck(f.g, {RandomF32({4, 6}, 1), RandomF32({6, 5}, 2)});
}

TEST(Compile, LibraryResultIsWrittenIntoTheOutput) {
  Fixture f;
  ValueId x = f.In({4, 6}), w = f.In({6, 5});
  f.g.outputs = {f.b.Reshape(f.b.Add(Op::kMatMul, {x, w}), {2, 2, 5})};
  auto exe = Compile(f.g);
  EXPECT_EQ(Count(exe->str(), "copy"), 0) << exe->str();
  EXPECT_EQ(exe->ScratchBytes({}), 0);
  CompileAndCheck(f.g, {RandomF32({4, 6}, 1), RandomF32({6, 5}, 2)});
}

TEST(Compile, StridedInputs) {
  Fixture f;
  ValueId x = f.In({4, 6}, {12, 2}, DType::kFloat32);  // every second element
  ValueId y = f.In({4, 6}, {1, 4}, DType::kFloat32);   // transposed
  ValueId z = f.In({4, 6}, {0, 1}, DType::kFloat32);   // expanded
  f.g.outputs = {f.b.Binary(Op::kAdd, f.b.Binary(Op::kMul, x, y), z),
                 f.b.Reduce(Op::kSum, f.b.Binary(Op::kMul, x, z), {1}, false)};
  auto strided = [](HostTensor t, std::vector<int64_t> strides) {
    t.sizes = {4, 6};
    t.strides = std::move(strides);
    return t;
  };
  CompileAndCheck(f.g, {strided(RandomF32({48}, 1), {12, 2}), strided(RandomF32({24}, 2), {1, 4}),
                        strided(RandomF32({6}, 3), {0, 1})});
}

TEST(Compile, WritesHappenLast) {
  Fixture f;
  ValueId x = f.In({8}), y = f.In({8});
  ValueId sum = f.b.Binary(Op::kAdd, x, y);
  f.g.writes = {{0, sum}, {1, x}};                 // x <- x + y, y <- old x
  f.g.outputs = {f.b.Unary(Op::kNeg, x), y, sum};  // of the old values
  CompileAndCheck(f.g, {RandomF32({8}, 1), RandomF32({8}, 2)});
  Fixture swap;
  x = swap.In({3, 3}), y = swap.In({3, 3});
  swap.g.writes = {{0, swap.b.Permute(y, {1, 0})}, {1, x}};
  CompileAndCheck(swap.g, {RandomF32({3, 3}, 1), RandomF32({3, 3}, 2)});
}

TEST(Compile, WriteThroughStridedInput) {
  Fixture f;
  ValueId x = f.In({3, 4}, {8, 2}, DType::kFloat32);
  f.g.writes = {{0, f.b.Binary(Op::kMul, x, f.Const(2, x))}};
  HostTensor t = RandomF32({24}, 1);
  t.sizes = {3, 4};
  t.strides = {8, 2};
  CompileAndCheck(f.g, {t});
}

TEST(Compile, KernelsWriteInputsThemselves) {
  Fixture f;
  ValueId x = f.In({6, 50}), g = f.In({6, 50});
  f.g.writes = {{0, f.b.Binary(Op::kSub, x, f.b.Binary(Op::kMul, g, f.Const(0.1, g)))}};
  EXPECT_EQ(Count(Compile(f.g)->str(), "written by its kernel"), 1) << Compile(f.g)->str();
  CompileAndCheck(f.g, {RandomF32({6, 50}, 1), RandomF32({6, 50}, 2)});

  // Inputs that overlap in memory: the old values count.
  auto exe = Compile(f.g);
  TestHost host;
  HostTensor memory = RandomF32({350}, 3);
  std::vector<double> want = test::Values(AsBuffer(memory));
  for (int i = 0; i < 300; ++i) want[i] -= 0.1f * test::Values(AsBuffer(memory))[i + 50];
  HostTensor a = memory, b = memory;
  a.sizes = b.sizes = {6, 50};
  a.strides = b.strides = {50, 1};
  b.offset = 50;
  std::vector<Buffer> inputs = {AsBuffer(a), AsBuffer(b)};
  exe->Run(host, inputs, {}, {});
  const std::vector<double> got = test::Values(AsBuffer(memory));
  for (int i = 0; i < 350; ++i) ASSERT_NEAR(got[i], want[i], 1e-6) << i;
  // And without overlap again, after that.
  Check(*exe, host, f.g, {RandomF32({6, 50}, 1), RandomF32({6, 50}, 2)});
}

// x with rows [row, row + 1) and columns [column, column + count) replaced.
ValueId Replaced(Fixture& f, ValueId x, Int row, int64_t column, int64_t count, ValueId fresh) {
  const Ints shape = f.b.type(x).shape;
  auto cat = [&](int64_t axis, std::vector<ValueId> parts) {
    Attrs attrs;
    attrs.axes = {axis};
    return f.b.Add(Op::kCat, parts, attrs);
  };
  ValueId line = f.b.Reshape(f.b.Slice(x, 0, row, 1, 1), {shape[1]});
  line = cat(0, {f.b.Slice(line, 0, 0, column, 1), fresh,
                 f.b.Slice(line, 0, column + count, shape[1] - Int(column + count), 1)});
  return cat(0, {f.b.Slice(x, 0, 0, row, 1), f.b.Reshape(line, {Int(1), shape[1]}),
                 f.b.Slice(x, 0, row + Int(1), shape[0] - row - Int(1), 1)});
}

TEST(Compile, AWriteOfAPartStoresThatPart) {
  Fixture f;
  ValueId x = f.In({6, 50}), y = f.In({10});
  f.g.writes = {{0, Replaced(f, x, 2, 7, 10, f.b.Binary(Op::kMul, y, f.Const(2, y)))}};
  std::string plan = Compile(f.g)->str();
  EXPECT_EQ(Count(plan, ":in0+107"), 1) << plan;
  EXPECT_EQ(Count(plan, "f32[6, 50]"), 0) << plan;  // made nowhere
  CompileAndCheck(f.g, {RandomF32({6, 50}, 1), RandomF32({10}, 2)});

  // Another part, of what the first one gave, where rows lie apart: two stores, the second one of what is there then.
  Fixture twice;
  x = twice.In({6, 50}, {1, 6}, DType::kFloat32), y = twice.In({10});
  ValueId once = Replaced(twice, x, 2, 7, 10, y);
  ValueId seen = twice.b.Reshape(twice.b.Slice(twice.b.Slice(once, 0, 2, 1, 1), 1, 10, 10, 1), {Int(10)});
  twice.g.writes = {{0, Replaced(twice, once, 4, 3, 10, seen)}};
  plan = Compile(twice.g)->str();
  EXPECT_EQ(Count(plan, "  write "), 2) << plan;
  EXPECT_EQ(Count(plan, "f32[6, 50]"), 0) << plan;
  HostTensor columns = RandomF32({300}, 1);
  columns.sizes = {6, 50};
  columns.strides = {1, 6};
  CompileAndCheck(twice.g, {columns, RandomF32({10}, 2)});

  // What is moved is read before it is written over.
  Fixture moved;
  x = moved.In({6, 50});
  Attrs first;
  first.axes = {0};
  moved.g.writes = {{0, moved.b.Add(Op::kCat, {moved.b.Slice(x, 0, 0, 1, 1), moved.b.Slice(x, 0, 0, 5, 1)}, first)}};
  CompileAndCheck(moved.g, {RandomF32({6, 50}, 1)});

  // A row that a symbol tells.
  Fixture symbolic;
  x = symbolic.In({6, 50}), y = symbolic.In({10});
  const Int n = symbolic.Symbol(1, 0, 10);
  symbolic.g.writes = {{0, Replaced(symbolic, x, n - Int(8), 7, 10, y)}};
  CompileAndCheck(symbolic.g, {RandomF32({6, 50}, 1), RandomF32({10}, 2)});
}

TEST(Compile, KernelsThatReadElsewhereDoNotWriteInputs) {
  Fixture f;  // x <- x - its transpose; each element is needed twice
  ValueId x = f.In({5, 5});
  f.g.writes = {{0, f.b.Binary(Op::kSub, x, f.b.Permute(x, {1, 0}))}};
  EXPECT_EQ(Count(Compile(f.g)->str(), "written by its kernel"), 0);
  CompileAndCheck(f.g, {RandomF32({5, 5}, 1)});
  Fixture softmax;  // rows are read several times, then written
  x = softmax.In({7, 40});
  softmax.g.writes = {{0, softmax.Softmax(x, 1)}};
  CompileAndCheck(softmax.g, {RandomF32({7, 40}, 1)});
  Fixture two;  // the second kernel reads what the first one writes
  x = two.In({7, 40});
  ValueId w = two.In({40, 40});
  two.g.writes = {{0, two.b.Unary(Op::kExp, x)}, {1, two.b.Add(Op::kMatMul, {two.b.Unary(Op::kNeg, w), w})}};
  two.g.outputs = {two.b.Reduce(Op::kSum, two.b.Unary(Op::kSin, x), {0}, false)};
  CompileAndCheck(two.g, {RandomF32({7, 40}, 1), RandomF32({40, 40}, 2)});
}

TEST(Compile, ScratchIsReused) {
  Fixture f;
  ValueId x = f.In({64, 64});
  ValueId v = x;
  for (int i = 0; i < 8; ++i) v = f.b.Unary(Op::kTanh, f.b.Add(Op::kMatMul, {v, x}));
  f.g.outputs = {v};
  EXPECT_LE(Compile(f.g)->ScratchBytes({}), 2 * 64 * 64 * 4);  // tanh in place of the product it reads
  CompileAndCheck(f.g, {RandomF32({64, 64}, 1, 0.1f)});
}

TEST(Compile, SymbolicSizesReuseKernels) {
  Fixture f;
  Int n = f.Symbol(0, 0, 8), c = f.Symbol(0, 1, 16);
  ValueId x = f.In({n, c}), w = f.In({c, 12});
  ValueId m = f.b.Add(Op::kMatMul, {f.Softmax(x, 1), w});
  f.g.outputs = {f.Gelu(m), f.b.Reshape(m, {n * Int(12)}), f.b.Reduce(Op::kSum, x, {0}, false)};
  ASSERT_EQ(Verify(f.g), "");
  auto exe = Compile(f.g);
  TestHost host;
  for (auto [rows, columns] :
       std::vector<std::pair<int64_t, int64_t>>{{8, 16}, {1, 1}, {33, 7}, {3, 100}, {8, 16}, {0, 5}}) {
    Check(*exe, host, f.g, {RandomF32({rows, columns}, 1), RandomF32({columns, 12}, 2)});
  }
  for (int64_t rows = 1; rows < 40; ++rows) Check(*exe, host, f.g, {RandomF32({rows, 5}, 1), RandomF32({5, 12}, 2)});
}

TEST(Compile, KernelsAreSharedBetweenGraphs) {
  auto graph = [](int64_t rows) {
    Fixture f;
    ValueId x = f.In({rows, 64});
    f.g.outputs = {f.b.Add(Op::kMatMul, {f.Softmax(x, 1), f.In({64, 64})})};
    return f.g;
  };
  Compile(graph(21));
  auto again = Compile(graph(21));
  EXPECT_EQ(again->stats().kernels_compiled, 0);
  EXPECT_EQ(again->stats().kernels_reused, 1);
}

TEST(Compile, TwoThreadsRunOneExecutable) {
  Fixture f;
  Int n = f.Symbol(0, 0, 8);
  ValueId x = f.In({n, 300}), w = f.In({300, 300});
  f.g.outputs = {f.Gelu(f.b.Add(Op::kMatMul, {f.Softmax(f.b.Add(Op::kMatMul, {f.Gelu(x), w}), 1), w}))};
  auto exe = Compile(f.g);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      TestHost host;
      host.threads = 2;
      for (int i = 0; i < 6; ++i)
        Check(*exe, host, f.g, {RandomF32({10 + t * (i % 3), 300}, t + i), RandomF32({300, 300}, 2, 0.1f)});
      EXPECT_EQ(host.live, 0);
    });
  }
  for (auto& t : threads) t.join();
}

std::shared_ptr<Call> NamedCall(const std::string& name) {
  auto call = std::make_shared<Call>();
  call->callee = name;
  call->args = {Arg::Tensor(0)};
  return call;
}

// "double": 2 * x in the operand's layout; "pair": (x + 1, -x); "same": a view of the operand; "fail" throws;
// "transposed": 2 * x, but laid out column-major.
void RunTestExtern(TestHost& host, const Call& call, std::span<const Buffer> operands, std::span<Buffer> results) {
  if (call.callee.name() == "fail") throw ExternError();
  const Buffer& x = operands[0];
  std::vector<double> values = test::Values(x);
  for (size_t r = 0; r < results.size(); ++r) {
    std::vector<int64_t> strides(x.rank, 1);
    if (call.callee.name() == "transposed") {
      for (int d = 1; d < x.rank; ++d) strides[d] = strides[d - 1] * x.sizes[d - 1];
    } else {
      for (int d = x.rank - 1; d-- > 0;) strides[d] = strides[d + 1] * x.sizes[d + 1];
    }
    host.Make(x.dtype, {x.sizes, static_cast<size_t>(x.rank)}, strides, &results[r]);
    if (call.callee.name() == "same") {
      results[r].data = x.data;
      continue;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const double v = call.callee.name() == "pair" ? (r == 0 ? values[i] + 1 : -values[i]) : 2 * values[i];
      static_cast<float*>(results[r].data)[test::Offset(i, x.sizes, strides.data(), x.rank)] = static_cast<float>(v);
    }
  }
}

std::vector<HostTensor> InterpretTestExtern(const Node& n, const std::vector<HostTensor>& operands) {
  TestHost host;
  std::vector<Buffer> in, out(std::max<size_t>(1, n.attrs.result_types.size()));
  for (const HostTensor& t : operands) in.push_back(AsBuffer(t));
  RunTestExtern(host, *n.attrs.call, in, out);
  std::vector<HostTensor> results;
  for (Buffer& b : out) {
    std::vector<float> values;
    for (double v : test::Values(b)) values.push_back(static_cast<float>(v));
    results.push_back(F32({b.sizes, b.sizes + b.rank}, values));
    host.Delete(&b);
  }
  return results;
}

void CheckWithExterns(const Graph& g, const std::vector<HostTensor>& inputs) {
  ASSERT_EQ(Verify(g), "") << g.str();
  for (bool fuse : {true, false}) {
    CompileOptions options;
    options.fuse = fuse;
    auto exe = Compile(g, options);
    TestHost host;
    host.run_extern = RunTestExtern;
    for (int i = 0; i < 3; ++i) Check(*exe, host, g, inputs, 1e-5, {}, InterpretTestExtern);
    EXPECT_EQ(host.live, 0);
  }
}

TEST(Compile, Externs) {
  Fixture f;
  ValueId x = f.In({4, 6});
  ValueId e = f.b.Unary(Op::kExp, x);
  ValueId d = f.b.Extern(NamedCall("double"), {e}, {f.b.type(e)}, {});
  ValueId k = f.b.Binary(Op::kAdd, d, e);
  ValueId view = f.b.Extern(NamedCall("double"), {f.b.Permute(k, {1, 0})}, {{DType::kFloat32, {6, 4}, {}}}, {});
  f.g.outputs = {view, d, f.b.Unary(Op::kNeg, view), d, f.b.Permute(d, {1, 0})};
  CheckWithExterns(f.g, {RandomF32({4, 6}, 1)});
}

TEST(Compile, ExternsWithSeveralResults) {
  Fixture f;
  ValueId x = f.In({4, 6});
  TensorType t = f.b.type(x);
  const ValueId first = f.b.Extern(NamedCall("pair"), {f.b.Unary(Op::kExp, x)}, {t, t}, {});
  ValueId source = first;
  if (f.g.node(first).op == Op::kResult) source = f.g.node(first).operands[0];
  std::vector<ValueId> results;
  for (ValueId v = 0; v < f.g.nodes.size(); ++v) {
    if (f.g.nodes[v].op == Op::kResult) results.push_back(v);
  }
  if (results.empty()) {
    for (int64_t r : {0, 1}) {
      Attrs a;
      a.axes = {r};
      results.push_back(f.b.Add(Op::kResult, {source}, a));
    }
  }
  f.g.outputs = {results[1], f.b.Binary(Op::kMul, results[0], results[1])};
  CheckWithExterns(f.g, {RandomF32({4, 6}, 1)});
}

TEST(Compile, ExternWithAnotherLayoutOrAViewOfScratch) {
  Fixture f;
  ValueId x = f.In({4, 6});
  TensorType t = f.b.type(x);
  ValueId a = f.b.Extern(NamedCall("transposed"), {f.b.Unary(Op::kExp, x)}, {t}, {});
  ValueId same = f.b.Extern(NamedCall("same"), {f.b.Unary(Op::kSin, x)}, {t}, {});
  ValueId later = f.b.Unary(Op::kTanh, f.b.Extern(NamedCall("double"), {f.b.Unary(Op::kCos, x)}, {t}, {}));
  f.g.outputs = {a, same, later, f.b.Binary(Op::kAdd, a, same)};
  CheckWithExterns(f.g, {RandomF32({4, 6}, 1)});
}

TEST(Compile, FailingExternReleasesEverythingAndWritesNothing) {
  Fixture f;
  ValueId x = f.In({4, 6});
  TensorType t = f.b.type(x);
  ValueId d = f.b.Extern(NamedCall("double"), {x}, {t}, {});
  ValueId bad = f.b.Extern(NamedCall("fail"), {f.b.Unary(Op::kExp, d)}, {t}, {});
  f.g.outputs = {d, f.b.Unary(Op::kNeg, bad), f.b.Unary(Op::kAbs, x)};
  f.g.writes = {{0, f.b.Unary(Op::kExp, x)}};
  auto exe = Compile(f.g);
  TestHost host;
  host.run_extern = RunTestExtern;
  HostTensor in = RandomF32({4, 6}, 1);
  const auto before = *in.storage;
  for (int i = 0; i < 3; ++i) {
    std::vector<Buffer> inputs = {AsBuffer(in)}, outputs(3);
    EXPECT_THROW(exe->Run(host, inputs, {}, outputs), ExternError);
    EXPECT_EQ(host.live, 0);
  }
  EXPECT_EQ(before, *in.storage);
  EXPECT_EQ(host.externs, 6);
}

TEST(Compile, EmptyAndScalarTensors) {
  Fixture f;
  ValueId x = f.In({0, 4}), s = f.In({});
  ValueId sum = f.b.Reduce(Op::kSum, x, {0}, false);
  f.g.outputs = {f.b.Unary(Op::kExp, x), sum, f.b.Binary(Op::kAdd, s, f.Const(1, s)),
                 f.b.Reduce(Op::kSum, x, {0, 1}, false), f.b.Add(Op::kMatMul, {f.b.Permute(x, {1, 0}), x})};
  CompileAndCheck(f.g, {RandomF32({0, 4}, 1), RandomF32({}, 2)});
}

TEST(Compile, TextForm) {
  Graph g = Graph::Parse(R"(graph "t" {
  %0 = input name="x" : f32[8, 16] strides [16, 1]
  %1 = tanh %0 : f32[8, 16]
  %2 = sum %1, axes=[1] : f32[8]
  return %2
})");
  CompileAndCheck(g, {RandomF32({8, 16}, 1)});
}

TEST(Compile, FuelAndDisabledPasses) {
  Fixture f;
  ValueId x = f.In({4, 5});
  f.g.outputs = {f.b.Unary(Op::kExp, f.b.Unary(Op::kNeg, x))};
  CompileOptions options;
  options.fuel = 0;
  EXPECT_EQ(Compile(f.g, options)->stats().kernels, 2);
  options.fuel = -1;
  options.disabled_passes = {"fuse"};
  EXPECT_EQ(Compile(f.g, options)->stats().kernels, 2);
  EXPECT_EQ(Compile(f.g)->stats().kernels, 1);
}

TEST(Compile, LargeWorkRunsInParallel) {
  Fixture f;
  ValueId x = f.In({512, 1024});
  f.g.outputs = {f.b.Unary(Op::kTanh, x)};
  auto exe = Compile(f.g);
  TestHost host;
  host.threads = 2;
  Check(*exe, host, f.g, {RandomF32({512, 1024}, 1)});
  EXPECT_EQ(host.parallel_regions, 1);
}

TEST(Compile, LargeResultsAreStreamedHoweverLargeTheCacheIs) {  // others share a server's cache
  EXPECT_LE(compiler::CpuTarget().costs().streamed_bytes, int64_t{32} << 20);
  EXPECT_LE(compiler::CpuTarget().costs().streamed_results, int64_t{8} << 20);
}

TEST(Compile, LargeReductionsAreSplit) {
  for (int which = 0; which < 6; ++which) {
    Fixture f;
    ValueId x = f.In(which < 4 ? Ints{300, 250} : which == 4 ? Ints{2, 48, 1024} : Ints{65536});
    const std::vector<int64_t> all = which == 4   ? std::vector<int64_t>{1, 2}
                                     : which == 5 ? std::vector<int64_t>{0}
                                                  : std::vector<int64_t>{0, 1};
    const Op ops[] = {Op::kSum, Op::kMax, Op::kMin, Op::kSum, Op::kSum, Op::kSum};
    f.g.outputs = {f.b.Reduce(ops[which], f.b.Unary(Op::kSin, x), all, which == 3 || which == 5)};
    std::vector<int64_t> sizes;
    for (Int d : f.b.type(x).shape) sizes.push_back(d.value());
    CompileAndCheck(f.g, {RandomF32(sizes, which)});
    EXPECT_EQ(Compile(f.g)->stats().kernels, 2);
  }
}

}  // namespace
}  // namespace framejit
