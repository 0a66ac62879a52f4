// Code generation: every pointwise op in every type against the interpreter, casts, special values, kernels written by
// hand, the kernel cache, threads, text.
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>

#include "kernel_harness.h"

namespace framejit {
namespace {

using shape::Int;
using test::CheckGraph;
using test::Random;

constexpr DType kTypes[] = {DType::kBool,     DType::kUInt8,   DType::kInt8,   DType::kInt16,  DType::kInt32,
                            DType::kInt64,    DType::kUInt16,  DType::kUInt32, DType::kUInt64, DType::kFloat16,
                            DType::kBFloat16, DType::kFloat32, DType::kFloat64};

// Small values of the type, every pair of them; with the ends of the type.
std::vector<double> Interesting(DType t, bool ends) {
  std::vector<double> v = {0, 1, 2, 3, 5, 7};
  if (IsBool(t)) return {0, 1};
  if (IsFloat(t)) {
    v.insert(v.end(), {0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -1, -3, 0.25, 4.75, -4.75});
    if (ends) v.insert(v.end(), {-0.0, INFINITY, -INFINITY, NAN});
    return v;
  }
  const int bits = DTypeSize(t) * 8;
  if (IsSigned(t)) {
    v.insert(v.end(), {-1, -2, -3, -7});
    if (ends) v.insert(v.end(), {std::ldexp(-1, bits - 1), bits < 64 ? std::ldexp(1, bits - 1) - 1 : 9e18});
  } else if (ends) {
    v.push_back(bits < 64 ? std::ldexp(1, bits) - 1 : 9e18);
  }
  return v;
}

class EveryOp : public ::testing::TestWithParam<int> {};

TEST_P(EveryOp, AgreesWithTheInterpreter) {
  const Op op = static_cast<Op>(GetParam());
  if (Info(op).kind != 'P' || op == Op::kCast || op == Op::kBitcast || op == Op::kWhere) return;
  int checked = 0;
  for (DType t : kTypes) {
    const int arity = Info(op).arity;
    std::vector<double> some = Interesting(t, true), x, y;
    for (double a : some) {
      for (double b : some) {
        x.push_back(a);
        y.push_back(b);
      }
    }
    const int64_t n = static_cast<int64_t>(x.size());
    Graph g;
    shape::Env env;
    Builder b(g, env);
    std::vector<HostTensor> inputs = {test::Make(t, {n}, x)};
    std::vector<ValueId> operands = {b.Input({t, {n}, {}}, {1}, "x")};
    if (arity == 2) {
      inputs.push_back(test::Make(t, {n}, y));
      operands.push_back(b.Input({t, {n}, {}}, {1}, "y"));
    }
    try {
      g.outputs = {b.Add(op, operands)};
      if (g.outputs[0] == operands[0]) continue;  // the identity for this type
      Interpret(g, inputs);
    } catch (const std::exception&) {
      continue;  // not defined for the type
    }
    CheckGraph(g, inputs, Info(op).approximate ? -1 : 0);
    ++checked;
  }
  EXPECT_GT(checked, 0) << Info(op).name;
}
INSTANTIATE_TEST_SUITE_P(Ops, EveryOp, ::testing::Range(0, static_cast<int>(Op::kWhere) + 1),
                         [](const auto& info) { return Info(static_cast<Op>(info.param)).name; });

TEST(Casts, EveryPair) {
  for (DType from : kTypes) {
    for (DType to : kTypes) {
      if (from == to) continue;
      // In range of both: what lies outside is the machine's business.
      std::vector<double> x = {0, 1, 2, 3, 100, 127};
      if (IsFloat(from)) x.insert(x.end(), {0.5, 1.5, 2.75});
      const bool negative =
          !IsBool(from) && (IsFloat(from) || IsSigned(from)) && (IsFloat(to) || IsSigned(to) || IsBool(to));
      if (negative) x.insert(x.end(), {-1, -2, -100});
      if (negative && IsFloat(from)) x.insert(x.end(), {-0.5, -2.75});
      const int64_t n = static_cast<int64_t>(x.size());
      Graph g;
      shape::Env env;
      Builder b(g, env);
      g.outputs = {b.Cast(b.Input({from, {n}, {}}, {1}, "x"), to)};
      CheckGraph(g, {test::Make(from, {n}, x)}, 0);
    }
  }
}

TEST(Casts, HalfTypesRoundToNearestEven) {
  for (DType t : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<double> x;
    std::mt19937 rng(1);
    for (int k = 0; k < 20000; ++k) {
      uint32_t bits = rng();
      float f;
      std::memcpy(&f, &bits, 4);
      x.push_back(f);
    }
    for (double v : {65504.0, 65519.0, 65520.0, 1e-8, 5.96e-8, 3e-8, 1.00390625, 1.01171875}) x.push_back(v);
    const int64_t n = static_cast<int64_t>(x.size());
    Graph g;
    shape::Env env;
    Builder b(g, env);
    g.outputs = {b.Cast(b.Input({DType::kFloat32, {n}, {}}, {1}, "x"), t)};
    CheckGraph(g, {test::Make(DType::kFloat32, {n}, x)}, 0);
  }
}

TEST(Casts, ComparisonsSeeRoundedHalves) {  // a + b is rounded before it is compared
  Graph g;
  shape::Env env;
  Builder b(g, env);
  ValueId x = b.Input({DType::kBFloat16, {2}, {}}, {1}, "x");
  ValueId s = b.Binary(Op::kAdd, x, b.Constant(256.0, DType::kBFloat16, {2}));
  g.outputs = {b.Binary(Op::kEq, s, b.Constant(256.0, DType::kBFloat16, {2})), b.Cast(s, DType::kInt32)};
  CheckGraph(g, {test::Make(DType::kBFloat16, {2}, {0.5, 3})}, 0);
}

TEST(Casts, Bitcast) {
  for (auto [from, to] : {std::pair(DType::kFloat32, DType::kInt32), std::pair(DType::kInt64, DType::kFloat64),
                          std::pair(DType::kBFloat16, DType::kInt16), std::pair(DType::kInt16, DType::kFloat16)}) {
    Graph g;
    shape::Env env;
    Builder b(g, env);
    Attrs a;
    a.dtype = to;
    g.outputs = {b.Add(Op::kBitcast, {b.Input({from, {40}, {}}, {1}, "x")}, a)};
    CheckGraph(g, {Random(from, {40}, 4, -100, 100)}, 0);
  }
}

loop::Kernel Scale(Int n) {  // y[i] = x[i] * 2
  using namespace loop;
  Kernel k;
  k.name = "scale@test.py:1";
  k.inner = n;
  k.buffers = {{DType::kFloat32, false}, {DType::kFloat32, true}};
  k.insts.resize(4);
  k.insts[0] = {.kind = IKind::kConst, .dtype = DType::kFloat32, .scalar = 2.0};
  k.insts[1] = {.kind = IKind::kLoad, .dtype = DType::kFloat32, .buffer = 0};
  k.insts[1].index.inner = 1;
  k.insts[2] = {.kind = IKind::kOp, .op = Op::kMul, .dtype = DType::kFloat32, .operands = {0, 1}};
  k.insts[3] = {.kind = IKind::kStore, .dtype = DType::kFloat32, .operands = {2}, .buffer = 1};
  k.insts[3].index.inner = 1;
  k.stages = {{false, {0}}, {true, {1, 2, 3}}};
  if (!n.is_const()) k.num_symbols = 1;
  return k;
}

TEST(Kernel, ByHand) {
  auto code = codegen::GetKernel(Scale(Int::Symbol(0)), "avx2", nullptr);
  for (int64_t n : {0, 1, 7, 8, 9, 100}) {
    std::vector<float> x(n + 1, 3), y(n + 1, -1);
    void* buffers[] = {x.data(), y.data()};
    code->fn(buffers, &n, 0, code->rows(&n));
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(y[i], 6);
    EXPECT_EQ(y[n], -1) << "wrote past the end";
  }
}

loop::Kernel SumOfRows(Int n) {  // y[o] = sum of x[o*n + i]
  using namespace loop;
  Kernel k;
  k.name = "sum@test.py:1";
  k.outer = {3};
  k.inner = n;
  k.buffers = {{DType::kFloat32, false}, {DType::kFloat32, true}};
  k.insts.resize(3);
  k.insts[0] = {.kind = IKind::kLoad, .dtype = DType::kFloat32, .buffer = 0};
  k.insts[0].index = {.offset = 0, .outer = {n}, .red = {}, .inner = 1};
  k.insts[1] = {.kind = IKind::kReduce, .op = Op::kSum, .dtype = DType::kFloat32, .operands = {0}};
  k.insts[2] = {.kind = IKind::kStore, .dtype = DType::kFloat32, .operands = {1}, .buffer = 1};
  k.insts[2].index = {.offset = 0, .outer = {1}, .red = {}, .inner = 0};
  k.stages = {{true, {0, 1}}, {false, {2}}};
  if (!n.is_const()) k.num_symbols = 1;
  return k;
}

size_t Count(const std::string& text, std::string_view what) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++n;
  return n;
}

// A long sum has an upper level in double. A short one needs none, also where its length is a symbol.
TEST(Kernel, ShortSumsHaveCodeOfTheirOwn) {
  const auto text = [](Int n) { return codegen::EmitText(SumOfRows(n), "avx2", "llvm"); };
  const std::string brief = text(100), any = text(Int::Symbol(0)), lengthy = text(100'000);
  EXPECT_EQ(Count(brief, "fpext"), 0);
  EXPECT_GT(Count(lengthy, "fpext"), 0);
  EXPECT_EQ(Count(any, "fpext"), Count(text(100'001), "fpext"));  // in one of its two loops
  EXPECT_EQ(Count(any, "call <8 x float> @llvm.masked.load"),
            2 * Count(text(100'001), "call <8 x float> @llvm.masked.load"));
  for (const std::string& cpu : test::Cpus()) {
    auto code = codegen::GetKernel(SumOfRows(Int::Symbol(0)), cpu, nullptr);
    for (int64_t n : {0, 1, 100, 1024, 4095, 4096, 4097, 8192, 8193, 100'000}) {
      std::vector<float> x(3 * n, 0.1f), y(3, -1);
      void* buffers[] = {x.data(), y.data()};
      code->fn(buffers, &n, 0, code->rows(&n));
      for (float sum : y) EXPECT_NEAR(sum, 0.1f * static_cast<double>(n), 2e-6 * static_cast<double>(n)) << n;
    }
  }
}

TEST(Kernel, StreamsOnlyWholeLines) {  // a streaming store to an address that is not aligned would be a fault
  loop::Kernel k = Scale(Int::Symbol(0));
  k.stream = true;
  for (const std::string& cpu : test::Cpus()) {
    auto code = codegen::GetKernel(k, cpu, nullptr);
    if (cpu != "avx512-lowered") {
      EXPECT_NE(codegen::EmitText(k, cpu, "asm").find("vmovntps"), std::string::npos);
    }
    for (int64_t n : {0, 7, 64, 100, 1000}) {
      for (int64_t shift : {0, 1, 8, 15}) {
        alignas(64) float x[1100], y[1100];
        std::fill_n(x, 1100, 3.0f);
        std::fill_n(y, 1100, -1.0f);
        void* buffers[] = {x, y + shift};
        code->fn(buffers, &n, 0, code->rows(&n));
        for (int64_t i = 0; i < 1100; ++i) EXPECT_EQ(y[i], i >= shift && i < shift + n ? 6 : -1);
        buffers[1] = x;  // in place
        code->fn(buffers, &n, 0, code->rows(&n));
        for (int64_t i = 0; i < n; ++i) EXPECT_EQ(x[i], 6);
      }
    }
  }
}

// Rows whose length is no multiple of a line begin anywhere in it, each at another place.
TEST(Kernel, StreamsRowsFromTheirFirstWholeLine) {
  loop::Kernel k = Scale(Int::Symbol(0));
  k.stream = true;
  k.outer = {Int(3)};
  for (int n : {1, 3}) k.insts[n].index.outer = {Int::Symbol(0)};
  for (int64_t block : {0, 128}) {
    k.block = block;
    for (const std::string& cpu : test::Cpus()) {
      auto code = codegen::GetKernel(k, cpu, nullptr);
      for (int64_t n : {1, 15, 16, 17, 64, 128, 129, 301}) {
        for (int64_t shift : {0, 1, 5, 16}) {
          alignas(64) float x[1100], y[1100];
          for (int i = 0; i < 1100; ++i) x[i] = static_cast<float>(i), y[i] = -1;
          void* buffers[] = {x, y + shift};
          const int64_t rows = code->rows(&n);
          code->fn(buffers, &n, 0, rows / 2);
          code->fn(buffers, &n, rows / 2, rows);
          for (int64_t i = 0; i < 1100; ++i)
            EXPECT_EQ(y[i], i >= shift && i < shift + 3 * n ? 2 * static_cast<float>(i - shift) : -1) << n << i;
        }
      }
    }
  }
}

TEST(Kernel, NothingToDo) {
  auto code = codegen::GetKernel(Scale(8), "avx2", nullptr);
  code->fn(nullptr, nullptr, 0, 0);  // touches no buffer
  code->fn(nullptr, nullptr, 3, 3);
}

TEST(Cache, SharesCode) {
  ClearKernelCache();
  loop::Kernel a = Scale(24), b = Scale(24);
  b.name = "another@place.py:9";
  bool reused = true;
  auto first = codegen::GetKernel(a, "avx2", &reused);
  EXPECT_FALSE(reused);
  auto second = codegen::GetKernel(b, "avx2", &reused);
  EXPECT_TRUE(reused);
  EXPECT_EQ(first, second);
  EXPECT_NE(codegen::GetKernel(Scale(25), "avx2", &reused), first);
  const KernelCacheInfo info = GetKernelCacheInfo();
  EXPECT_EQ(info.kernels, 2);
  EXPECT_EQ(info.hits, 1);
  EXPECT_EQ(info.misses, 2);
  EXPECT_GT(info.code_bytes, 0);
  EXPECT_GT(info.compile_seconds, 0);
  ClearKernelCache();
  EXPECT_EQ(GetKernelCacheInfo().kernels, 0);
  float x[24] = {1}, y[24];
  void* buffers[] = {x, y};
  first->fn(buffers, nullptr, 0, 1);  // still alive
  EXPECT_EQ(y[0], 2);
}

TEST(Cache, ManyThreads) {
  ClearKernelCache();
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int n = 1; n < 24; ++n) {
        auto code = codegen::GetKernel(Scale((n * (t % 2 ? 1 : 5)) % 23 + 1), "avx2", nullptr);
        float x[32], y[32] = {};
        std::fill(x, x + 32, 1.5f);
        void* buffers[] = {x, y};
        code->fn(buffers, nullptr, 0, code->rows(nullptr));
        if (y[0] != 3) ++wrong;
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(GetKernelCacheInfo().kernels, 23);  // each compiled once
}

TEST(Cache, EvictedKernelsAreUnmapped) {
  auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  auto compile = [](int64_t first) {
    for (int64_t n = first; n < first + 100; ++n) codegen::GetKernel(Scale(n), "avx2", nullptr);
  };
  ClearKernelCache();
  compile(1000);
  const auto held = mappings();
  ClearKernelCache();
  EXPECT_LE(mappings(), held - 100);
  for (int round = 0; round < 3; ++round) {
    compile(2000);
    EXPECT_LE(mappings(), held + 20);
    ClearKernelCache();
  }
}

TEST(Cache, EqualNamesMayLiveAtOnce) {
  auto first = codegen::GetKernel(Scale(24), "avx2", nullptr);
  ClearKernelCache();
  auto second = codegen::GetKernel(Scale(24), "avx2", nullptr);
  EXPECT_EQ(first->symbol, second->symbol);
  EXPECT_NE(first->fn, second->fn);
  first.reset();
  float x[24] = {1}, y[24];
  void* buffers[] = {x, y};
  second->fn(buffers, nullptr, 0, 1);
  EXPECT_EQ(y[0], 2);
}

TEST(Cache, ForksWhileAnotherThreadCompiles) {
  std::atomic<bool> stop = false;
  std::atomic<int64_t> size = 3000;
  std::thread other([&] {
    while (!stop) codegen::GetKernel(Scale(++size), "avx2", nullptr);
  });
  int wrong = 0;
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(700 * i % 1900));
    const pid_t child = fork();
    if (!child) {
      alarm(20);               // a child that waits for a lock for ever fails
      const int64_t n = size;  // what the other thread is compiling
      auto code = codegen::GetKernel(Scale(n), "avx2", nullptr);
      std::vector<float> x(n, 1.5f), y(n);
      void* buffers[] = {x.data(), y.data()};
      code->fn(buffers, nullptr, 0, code->rows(nullptr));
      _exit(y[n - 1] == 3 ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    wrong += status != 0;
  }
  stop = true;
  other.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Errors, AreExceptions) {
  EXPECT_THROW(codegen::GetKernel(Scale(8), "z80", nullptr), codegen::CodegenUnsupported);
  loop::Kernel k = Scale(8);
  k.insts[2].dtype = DType::kComplex64;
  k.insts[0].dtype = k.insts[1].dtype = DType::kComplex64;
  EXPECT_THROW(codegen::GetKernel(k, "avx2", nullptr), codegen::CodegenUnsupported);
  loop::Kernel bad = Scale(Int::Symbol(0) * 2);
  EXPECT_THROW(codegen::GetKernel(bad, "avx2", nullptr), codegen::CodegenUnsupported);
  EXPECT_NO_THROW(codegen::GetKernel(Scale(8), "avx2", nullptr));  // nothing was left behind
}

TEST(Text, LlvmAndAssembly) {
  const std::string llvm = codegen::EmitText(Scale(64), "avx512", "llvm");
  EXPECT_NE(llvm.find("<16 x float>"), std::string::npos) << llvm;
  EXPECT_NE(codegen::EmitText(Scale(64), "avx512", "asm").find("zmm"), std::string::npos);
  const std::string avx2 = codegen::EmitText(Scale(64), "avx2", "asm");
  EXPECT_EQ(avx2.find("zmm"), std::string::npos);
  EXPECT_NE(avx2.find("ymm"), std::string::npos);
  EXPECT_NE(avx2.find("scale@test.py:1"), std::string::npos);  // what profilers show
}

TEST(Time, OfOneKernel) {  // printed; CPU time, the best of several
  auto cpu = [] {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
  };
  codegen::GetKernel(Scale(8), "avx2", nullptr);
  double best = 1e9;
  for (int i = 0; i < 10; ++i) {
    ClearKernelCache();
    const double start = cpu();
    codegen::GetKernel(Scale(1000 + i), "avx2", nullptr);
    best = std::min(best, cpu() - start);
  }
  std::printf("smallest kernel: %.2f ms of CPU time\n", best);
}

}  // namespace
}  // namespace framejit
