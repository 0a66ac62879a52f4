// Compile().Run against Interpret(): whole graphs, with fusion on and off.
#include <thread>

#include "pass/views.h"
#include "test_host.h"

namespace framejit {
namespace {

using shape::Int;
using shape::Ints;
using test::AsBuffer;
using test::Check;
using test::CompileAndCheck;
using test::F32;
using test::I64;
using test::RandomF32;
using test::TestHost;

struct Fixture {
  Graph g;
  shape::Env env;
  Builder b{g, env};
  ValueId In(Ints shape, DType t = DType::kFloat32) { return In(shape, pass::RowMajor(shape), t); }
  ValueId In(Ints shape, Ints strides, DType t) {
    return b.Input({t, shape, {}}, strides, "x" + std::to_string(g.inputs.size()));
  }
  Int Symbol(int input, int dim, int64_t hint) {
    Int s = env.NewSymbol({"s", hint});
    g.symbols.push_back(env.symbol(g.symbols.size()));
    g.symbol_sources.push_back({input, dim});
    return s;
  }
  ValueId Const(double v, ValueId like) {
    ValueId c = b.Constant(Scalar(v), b.type(like).dtype);
    return b.Broadcast(c, Ints(b.type(like).shape));
  }
  ValueId Softmax(ValueId x, int axis) {
    const Ints shape = b.type(x).shape;
    ValueId m = b.Broadcast(b.Reduce(Op::kMax, x, {axis}, true), shape);
    ValueId e = b.Unary(Op::kExp, b.Binary(Op::kSub, x, m));
    return b.Binary(Op::kDiv, e, b.Broadcast(b.Reduce(Op::kSum, e, {axis}, true), shape));
  }
  ValueId Gelu(ValueId x) {
    ValueId erf = b.Unary(Op::kErf, b.Binary(Op::kMul, x, Const(0.70710678118654752, x)));
    return b.Binary(Op::kMul, b.Binary(Op::kMul, x, Const(0.5, x)), b.Binary(Op::kAdd, erf, Const(1, x)));
  }
  ValueId LayerNorm(ValueId x, ValueId w, ValueId bias) {
    const Ints shape = b.type(x).shape;
    const int axis = static_cast<int>(shape.size()) - 1;
    auto mean = [&](ValueId v) {
      ValueId s = b.Reduce(Op::kSum, v, {axis}, true);
      ValueId n = b.SymConstant(shape.back(), DType::kFloat32);
      return b.Binary(Op::kDiv, s, b.Broadcast(n, Ints(b.type(s).shape)));
    };
    ValueId centred = b.Binary(Op::kSub, x, b.Broadcast(mean(x), shape));
    ValueId var = mean(b.Binary(Op::kMul, centred, centred));
    ValueId r = b.Unary(Op::kRsqrt, b.Binary(Op::kAdd, var, Const(1e-5, var)));
    ValueId y = b.Binary(Op::kMul, centred, b.Broadcast(r, shape));
    return b.Binary(Op::kAdd, b.Binary(Op::kMul, y, b.Broadcast(w, shape)), b.Broadcast(bias, shape));
  }
};

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
  if (call.callee == "fail") throw ExternError();
  const Buffer& x = operands[0];
  std::vector<double> values = test::Values(x);
  for (size_t r = 0; r < results.size(); ++r) {
    std::vector<int64_t> strides(x.rank, 1);
    if (call.callee == "transposed") {
      for (int d = 1; d < x.rank; ++d) strides[d] = strides[d - 1] * x.sizes[d - 1];
    } else {
      for (int d = x.rank - 1; d-- > 0;) strides[d] = strides[d + 1] * x.sizes[d + 1];
    }
    host.Make(x.dtype, {x.sizes, static_cast<size_t>(x.rank)}, strides, &results[r]);
    if (call.callee == "same") {
      results[r].data = x.data;
      continue;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const double v = call.callee == "pair" ? (r == 0 ? values[i] + 1 : -values[i]) : 2 * values[i];
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

// --- random graphs --------------------------------------------------------------------------------------------------

struct RandomGraph : Fixture {
  std::mt19937 rng;
  std::vector<ValueId> values;
  std::vector<HostTensor> inputs;

  int Pick(int n) { return static_cast<int>(rng() % n); }
  ValueId Any() { return values[Pick(static_cast<int>(values.size()))]; }
  DType TypeOf(ValueId v) { return b.type(v).dtype; }

  explicit RandomGraph(uint32_t seed, bool symbolic = false) : rng(seed) {
    const int64_t sizes[] = {1, 2, 3, 5, 16, 33};
    for (int i = 0; i < 1 + Pick(3); ++i) {
      std::vector<int64_t> shape(Pick(4));
      for (auto& s : shape) s = sizes[Pick(6)];
      Ints dims(shape.begin(), shape.end());
      if (symbolic) {
        for (size_t d = 0; d < shape.size(); ++d) {
          if (Pick(2) && shape[d] != 1) dims[d] = Symbol(i, static_cast<int>(d), shape[d]);
        }
      }
      const DType t = Pick(4) == 0 ? DType::kInt64 : DType::kFloat32;
      values.push_back(In(dims, t));
      if (t == DType::kFloat32) {
        inputs.push_back(RandomF32(shape, seed * 7 + i));
      } else {
        std::vector<int64_t> v(test::Numel(shape));
        for (auto& x : v) x = Pick(20) - 10;
        inputs.push_back(I64(shape, v));
      }
    }
    const int steps = 3 + Pick(15);
    for (int i = 0; i < steps; ++i) Step();
    for (int i = 0; i < 1 + Pick(3); ++i)
      g.outputs.push_back(values[values.size() - 1 - Pick(std::min<int>(3, values.size()))]);
    if (Pick(4) == 0) {
      for (ValueId v : values) {
        if (b.type(v) == b.type(g.inputs[0]) && v != g.inputs[0]) {
          g.writes = {{0, v}};
          break;
        }
      }
    }
  }

  // Values stay small, so that absolute errors do not grow: products and exponentials go through tanh.
  void Step() {
    ValueId x = Any();
    const TensorType t = b.type(x);
    const bool is_float = IsFloat(t.dtype);
    const int rank = t.rank();
    switch (Pick(17)) {
      case 0: {
        static const Op kFloat[] = {Op::kTanh, Op::kSin, Op::kErf, Op::kAbs, Op::kNeg, Op::kSign};
        if (IsBool(t.dtype)) return values.push_back(b.Unary(Op::kNot, x));
        values.push_back(b.Unary(is_float ? kFloat[Pick(6)] : kFloat[3 + Pick(3)], x));
        return;
      }
      case 1:
      case 2: {
        ValueId y = Any();
        if (TypeOf(y) != t.dtype) y = b.Cast(y, t.dtype);
        if (IsBool(t.dtype)) return Push2(Op::kXor, x, y);
        static const Op kOps[] = {Op::kAdd, Op::kSub, Op::kMaximum, Op::kMinimum, Op::kMul};
        const Op op = kOps[Pick(5)];
        if (op == Op::kMul && is_float) x = b.Unary(Op::kTanh, x);
        if (op == Op::kMul && !is_float) x = b.Unary(Op::kSign, x);
        return Push2(op, x, y);
      }
      case 3: {
        if (rank == 0) return;
        std::vector<int64_t> perm(rank);
        for (int i = 0; i < rank; ++i) perm[i] = i;
        std::shuffle(perm.begin(), perm.end(), rng);
        return values.push_back(b.Permute(x, perm));
      }
      case 4: {
        if (rank == 0 || IsBool(t.dtype)) return;
        const int axis = Pick(rank);
        static const Op kOps[] = {Op::kMax, Op::kMin, Op::kSum};
        const Op op = kOps[Pick(3)];
        if (op == Op::kSum && is_float) x = b.Unary(Op::kTanh, x);
        std::vector<int64_t> axes = {axis};
        if (rank > 1 && Pick(3) == 0) axes = {0, rank - 1};
        ValueId r = b.Reduce(op, x, axes, Pick(2) == 0);
        return values.push_back(is_float && op == Op::kSum ? b.Unary(Op::kTanh, r) : r);
      }
      case 5: {
        if (rank == 0) return;
        const int axis = Pick(rank);
        const int64_t size = env.Hint(t.shape[axis]), start = Pick(static_cast<int>(size));
        const int64_t step = 1 + Pick(2);
        if (size == 0) return;
        return values.push_back(b.Slice(x, axis, start, shape::CeilDiv(t.shape[axis] - Int(start), step), step));
      }
      case 6: return values.push_back(b.Reshape(x, {t.numel()}));
      case 7: {
        if (rank >= 3) return;
        Ints shape = t.shape;
        shape.insert(shape.begin(), Int(1 + Pick(3)));
        return values.push_back(b.Broadcast(x, shape));
      }
      case 8: {
        if (rank == 0 || !is_float) return;
        return values.push_back(Softmax(x, Pick(rank)));
      }
      case 9: {
        if (rank < 2 || t.dtype != DType::kFloat32) return;
        std::vector<int64_t> swap(rank);
        for (int i = 0; i < rank; ++i) swap[i] = i;
        std::swap(swap[rank - 1], swap[rank - 2]);
        ValueId n = b.Unary(Op::kTanh, x);
        return values.push_back(b.Unary(Op::kTanh, b.Add(Op::kMatMul, {n, b.Permute(n, swap)})));
      }
      case 11: {
        if (rank == 0) return;
        Attrs a;
        a.axes = {Pick(rank)};
        return values.push_back(b.Add(Op::kFlip, {x}, a));
      }
      case 12: {
        if (rank == 0 || IsBool(t.dtype)) return;
        Attrs a;
        a.scalar = is_float ? Scalar(0.5) : Scalar(3);
        for (int d = 0; d < rank; ++d) {
          a.syms.push_back(Pick(3));
          a.syms.push_back(Pick(2));
        }
        if (env.Hint(t.numel()) > 2000) return;
        return values.push_back(b.Add(Op::kPad, {x}, a));
      }
      case 13: {
        if (rank == 0) return;
        Attrs a;
        a.axes = {Pick(rank)};
        ValueId y = Pick(2) ? x : b.Slice(x, static_cast<int>(a.axes[0]), 0, 1, 1);
        if (is_float) y = b.Unary(Op::kSin, y);
        return values.push_back(
            b.Add(Op::kCat, Pick(2) ? std::vector<ValueId>{x, y} : std::vector<ValueId>{y, x, x}, a));
      }
      case 14: {
        if (rank == 0 || IsBool(t.dtype)) return;
        return values.push_back(b.Reduce(Pick(2) ? Op::kArgMax : Op::kArgMin, x, {Pick(rank)}, Pick(2) == 0));
      }
      case 15: {  // rows picked by index: positions of the first axis in a strange order
        if (rank == 0) return;
        Attrs a;
        a.axes = {Pick(rank)};
        const Int size = t.shape[a.axes[0]];
        if (env.Hint(size) == 0) return;
        ValueId last = b.Broadcast(b.SymConstant(size - Int(1), DType::kInt64), Ints{3});
        ValueId index = b.Binary(Op::kMinimum, b.Iota(DType::kInt64, {3}, 0), last);
        return values.push_back(b.Add(Op::kTake, {x, Pick(2) ? index : b.Binary(Op::kSub, last, index)}, a));
      }
      case 16: {
        if (!is_float || rank == 0) return;
        ValueId iota = b.Cast(b.Iota(DType::kInt64, t.shape, Pick(rank)), t.dtype);
        return values.push_back(b.Unary(Op::kTanh, b.Binary(Op::kMul, x, iota)));
      }
      case 10: {
        ValueId y = Any();
        if (TypeOf(y) != t.dtype) y = b.Cast(y, t.dtype);
        if (!Fits(x, y)) return;
        ValueId c = b.Binary(Op::kLt, IsBool(t.dtype) ? b.Cast(x, DType::kInt64) : x,
                             IsBool(t.dtype) ? b.Cast(y, DType::kInt64) : y);
        return values.push_back(b.Where(c, x, y));
      }
    }
  }

  bool Fits(ValueId x, ValueId y) {
    const auto &a = b.type(x).shape, &c = b.type(y).shape;
    int64_t size = 1;
    for (size_t i = 1; i <= std::max(a.size(), c.size()); ++i) {
      const int64_t p = i <= a.size() ? env.Hint(a[a.size() - i]) : 1;
      const int64_t q = i <= c.size() ? env.Hint(c[c.size() - i]) : 1;
      if (p != q && p != 1 && q != 1) return false;
      size *= std::max(p, q);
    }
    return size < 20000;
  }
  void Push2(Op op, ValueId x, ValueId y) {
    if (Fits(x, y)) values.push_back(b.Binary(op, x, y));
  }
};

TEST(Compile, RandomGraphs) {
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
