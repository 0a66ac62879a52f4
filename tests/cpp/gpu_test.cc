// Code for GPUs without one: structure of the emitted kernels, acceptance by ptxas.
#include "codegen/gpu.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "codegen/gpu_schedule.h"
#include "gpu_graphs.h"
#include "rules/decompose.h"

namespace framejit {
namespace {

using codegen::GpuSchedule;
using runtime::cuda::ChipLike;
using shape::Int;
using test::In;
using test::Softmax;

struct Made {
  std::string name;
  Graph g;
  loop::BuiltKernel built;
};

// Everything but inputs as one kernel, without scratch: as the compiler builds kernels for a GPU.
Made Whole(std::string name, const std::function<std::vector<ValueId>(Builder&)>& make) {
  Made m;
  m.name = std::move(name);
  shape::Env env;
  Builder b(m.g, env);
  m.g.outputs = make(b);
  for (size_t i = 0; i < env.num_symbols(); ++i) m.g.symbols.push_back(env.symbol(i));
  std::vector<ValueId> group;
  std::vector<ValueId> stored = m.g.outputs;
  std::sort(stored.begin(), stored.end());
  std::vector<loop::Layout> layouts(m.g.nodes.size());
  for (ValueId v = 0; v < m.g.nodes.size(); ++v) {
    const Node& n = m.g.nodes[v];
    layouts[v].strides = n.strides.empty() ? shape::RowMajor(n.type.shape) : n.strides.list();
    if (n.op != Op::kInput) group.push_back(v);
  }
  m.built = loop::BuildKernel(m.g, group, stored, layouts, {.keeps_rows = false});
  return m;
}

std::vector<Made> Kernels() {
  std::vector<Made> all;
  for (DType t : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64, DType::kInt64, DType::kInt32,
                  DType::kUInt8, DType::kBool}) {
    const std::string name(DTypeName(t));
    all.push_back(Whole("add_" + name, [&](Builder& b) -> std::vector<ValueId> {
      ValueId x = In(b, t, {64, 256});
      return {b.Binary(Op::kAdd, x, In(b, t, {64, 256}))};
    }));
    all.push_back(Whole("sum_" + name, [&](Builder& b) -> std::vector<ValueId> {
      return {b.Reduce(Op::kSum, In(b, t, {64, 4096}), {1}, false, IsFloat(t) ? t : DType::kInt64)};
    }));
    all.push_back(Whole("column_max_" + name, [&](Builder& b) -> std::vector<ValueId> {
      return {b.Reduce(Op::kMax, In(b, t, {512, 300}), {0}, false)};
    }));
    all.push_back(Whole("argmax_" + name, [&](Builder& b) -> std::vector<ValueId> {
      return {b.Reduce(Op::kArgMax, In(b, t, {64, 1000}), {1}, false)};
    }));
  }
  for (int64_t n : {7, 64, 768, 4096, 32768, 50256, 50257, 262144}) {
    all.push_back(Whole("softmax_" + std::to_string(n), [&](Builder& b) -> std::vector<ValueId> {
      return {Softmax(b, In(b, DType::kFloat32, {64, n}), 1)};
    }));
  }
  all.push_back(Whole("softmax_column", [&](Builder& b) -> std::vector<ValueId> {
    return {Softmax(b, In(b, DType::kFloat32, {128, 96}), 0)};
  }));
  all.push_back(Whole("cumsum", [&](Builder& b) -> std::vector<ValueId> {
    ValueId x = In(b, DType::kFloat32, {16, 500});
    Attrs attrs;
    attrs.axes = {1};
    attrs.dtype = DType::kFloat32;
    return {b.Add(Op::kCumSum, {x}, attrs)};
  }));
  all.push_back(Whole("transpose", [&](Builder& b) -> std::vector<ValueId> {
    ValueId x = In(b, DType::kFloat32, {256, 512});
    ValueId y = In(b, DType::kFloat32, {512, 256});
    return {b.Binary(Op::kAdd, b.Permute(x, {1, 0}), y)};
  }));
  all.push_back(Whole("transpose_bf16", [&](Builder& b) -> std::vector<ValueId> {
    return {b.Unary(Op::kNeg, b.Permute(In(b, DType::kBFloat16, {256, 512}), {1, 0}))};
  }));
  all.push_back(Whole("logsumexp_262144", [&](Builder& b) -> std::vector<ValueId> {
    ValueId x = In(b, DType::kFloat32, {64, 262144});
    ValueId m = b.Reduce(Op::kMax, x, {1}, true);
    ValueId e = b.Unary(Op::kExp, b.Binary(Op::kSub, x, b.Broadcast(m, b.type(x).shape)));
    return {b.Binary(Op::kAdd, m, b.Unary(Op::kLog, b.Reduce(Op::kSum, e, {1}, true)))};
  }));
  for (DType t : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    all.push_back(Whole("gelu_" + std::string(DTypeName(t)),
                        [&](Builder& b) -> std::vector<ValueId> { return {rules::GeluErf(b, In(b, t, {4096}))}; }));
  }
  all.push_back(Whole("take", [&](Builder& b) -> std::vector<ValueId> {
    ValueId table = In(b, DType::kBFloat16, {1000, 768});
    ValueId at = In(b, DType::kInt64, {32});
    Attrs attrs;
    attrs.axes = {0};
    return {b.Add(Op::kTake, {table, at}, attrs)};
  }));
  all.push_back(Whole("rotate_half", [&](Builder& b) -> std::vector<ValueId> {
    ValueId x = In(b, DType::kBFloat16, {8, 128, 64});
    Attrs attrs;
    attrs.axes = {2};
    return {b.Add(Op::kCat, {b.Unary(Op::kNeg, b.Slice(x, 2, 32, 32)), b.Slice(x, 2, 0, 32)}, attrs)};
  }));
  all.push_back(Whole("dynamic", [&](Builder& b) -> std::vector<ValueId> {
    Int n = b.env().NewSymbol({"n", 100, 2, INT64_MAX, shape::SymbolKind::kInput});
    ValueId x = In(b, DType::kFloat32, {n});
    return {b.Unary(Op::kTanh, x)};
  }));
  all.push_back(Whole("dynamic_rows", [&](Builder& b) -> std::vector<ValueId> {
    Int n = b.env().NewSymbol({"n", 100, 2, INT64_MAX, shape::SymbolKind::kInput});
    Int m = b.env().NewSymbol({"m", 30, 2, INT64_MAX, shape::SymbolKind::kInput});
    return {Softmax(b, In(b, DType::kBFloat16, {n, m}), 1)};
  }));
  for (Op op :
       {Op::kExp,  Op::kExpm1, Op::kLog,  Op::kLog2,  Op::kLog10, Op::kLog1p, Op::kSin,   Op::kCos,   Op::kTan,
        Op::kAsin, Op::kAcos,  Op::kAtan, Op::kSinh,  Op::kCosh,  Op::kTanh,  Op::kAsinh, Op::kAcosh, Op::kAtanh,
        Op::kErf,  Op::kErfc,  Op::kSqrt, Op::kRsqrt, Op::kRound, Op::kFloor, Op::kSign}) {
    if (codegen::LibdeviceFound() ||
        (op != Op::kSin && op != Op::kCos && op != Op::kTan && op != Op::kErfc && op != Op::kLog10)) {
      for (DType t : {DType::kFloat32, DType::kFloat64}) {
        all.push_back(
            Whole(Info(op).name, [&](Builder& b) -> std::vector<ValueId> { return {b.Unary(op, In(b, t, {1024}))}; }));
      }
    }
  }
  for (Op op : {Op::kPow, Op::kFmod, Op::kRem, Op::kFloorDiv}) {
    if (!codegen::LibdeviceFound()) continue;
    for (DType t : {DType::kFloat32, DType::kFloat64, DType::kInt64, DType::kInt8}) {
      all.push_back(Whole(Info(op).name, [&](Builder& b) -> std::vector<ValueId> {
        ValueId x = In(b, t, {1024});
        return {b.Binary(op, x, In(b, t, {1024}))};
      }));
    }
  }
  return all;
}

std::string Ptx(const Made& m, bool vectors = true, const char* arch = "sm_90") {
  return codegen::EmitGpuText(m.built.kernel, arch, "ptx", vectors);
}
int Count(const std::string& text, const std::string& what) {
  int n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++n;
  return n;
}
const Made& Named(const std::vector<Made>& all, const std::string& name) {
  for (const Made& m : all) {
    if (m.name == name) return m;
  }
  throw std::logic_error(name);
}

TEST(Gpu, ModulesAreValid) {
  for (const Made& m : Kernels()) {
    for (bool vectors : {true, false}) {
      for (bool narrow : {true, false}) {
        EXPECT_NO_THROW(codegen::EmitGpuText(m.built.kernel, "sm_90", "llvm", vectors, narrow)) << m.name << "\n"
                                                                                                << m.built.kernel.str();
      }
    }
  }
}

TEST(Gpu, AccessesAreWide) {
  const auto all = Kernels();
  const std::string f32 = Ptx(Named(all, "add_f32"));
  EXPECT_EQ(Count(f32, "ld.global.v4"), 2) << f32;  // two inputs
  EXPECT_EQ(Count(f32, "st.global.v4"), 1) << f32;
  const std::string bf16 = Ptx(Named(all, "add_bf16"));
  EXPECT_EQ(Count(bf16, "ld.global.v4"), 2) << bf16;
  EXPECT_EQ(Count(bf16, "cvt.rn.bf16x2.f32"), 4) << bf16;
  EXPECT_EQ(Count(Ptx(Named(all, "add_f32"), false), ".v4"), 0);
  const std::string take = Ptx(Named(all, "take"));
  EXPECT_GE(Count(take, "ld.global.v4"), 1) << take;
  const std::string rotate = Ptx(Named(all, "rotate_half"));
  EXPECT_GE(Count(rotate, "st.global.v4"), 1) << rotate;
}

TEST(Gpu, ARowIsReadOnce) {
  const auto all = Kernels();
  const Made& m = Named(all, "softmax_4096");
  const GpuSchedule s = codegen::MakeGpuSchedule(m.built.kernel, ChipLike(90), true, true);
  EXPECT_TRUE(s.resident);
  EXPECT_EQ(s.row_threads * s.vector * s.unroll, 4096);
  const std::string ptx = Ptx(m);
  EXPECT_EQ(Count(ptx, "ld.global"), s.unroll) << ptx;
  EXPECT_EQ(Count(ptx, "bar.sync"), 2) << ptx;
  EXPECT_EQ(Count(Ptx(Named(all, "softmax_64")), "bar.sync"), 0);  // a warp a row
}

// What no registers hold stays in shared memory; copies to it begin before anything is waited for, and the first loop
// when its first step is there.
TEST(Gpu, LongRowsAreHeldInSharedMemory) {
  const auto all = Kernels();
  for (const char* name : {"softmax_32768", "softmax_262144", "softmax_50256"}) {
    const Made& m = Named(all, name);
    const loop::Kernel& k = m.built.kernel;
    const GpuSchedule s = codegen::MakeGpuSchedule(k, ChipLike(90), true, true);
    EXPECT_FALSE(s.resident);
    EXPECT_GT(s.cluster, 1) << name;
    const int vectors = static_cast<int>(k.inner.value()) / s.vector, step = s.cluster * s.threads * s.unroll;
    const int steps = (vectors + step - 1) / step;
    EXPECT_EQ(s.held, steps * s.unroll * s.threads * 16) << name;
    EXPECT_LE(s.held * s.blocks, 200 << 10) << name;
    EXPECT_EQ(codegen::GpuBlocks(k, s, nullptr), 64 * s.cluster);
    const std::string ptx = Ptx(m);
    EXPECT_EQ(Count(ptx, "ld.global"), 0) << ptx;
    EXPECT_EQ(Count(ptx, "cp.async.cg.shared.global"), steps * s.unroll);
    EXPECT_EQ(Count(ptx, "cp.async.commit_group"), steps);
    EXPECT_EQ(Count(ptx, "cp.async.wait_group"), steps);
    EXPECT_LT(ptx.rfind("cp.async.commit_group"), ptx.find("cp.async.wait_group " + std::to_string(steps - 1)));
    // One round for the maximum and the sum: no fence, nothing stored is waited for.
    EXPECT_EQ(Count(ptx, ".reqnctapercluster " + std::to_string(s.cluster)), 1);
    EXPECT_EQ(Count(ptx, "st.async"), 2);
    EXPECT_EQ(Count(ptx, "mbarrier.try_wait"), 1);
    EXPECT_EQ(Count(ptx, "barrier.cluster.arrive.relaxed"), 1);
    EXPECT_EQ(Count(ptx, "barrier.cluster"), 2);
    EXPECT_EQ(Count(ptx, ".version 8.1"), 1);
    // A chip (or a part of one) without room for large clusters, and one that has none.
    for (int most : {8, 4, 2, 1})
      EXPECT_LE(codegen::MakeGpuSchedule(k, ChipLike(90), true, true, most).cluster, most) << name;
    EXPECT_LE(codegen::MakeGpuSchedule(k, ChipLike(120), true, true).held, 96 << 10);
    EXPECT_EQ(codegen::MakeGpuSchedule(k, ChipLike(80), true, true).held, 0);
    const std::string old = Ptx(m, true, "sm_80");
    for (const char* what : {"cluster", "mbarrier", "cp.async", "griddepcontrol"})
      EXPECT_EQ(Count(old, what), 0) << what;
  }
  // As many threads as fill their last step, too.
  for (const auto& [length, unroll] : {std::pair{12288, 2}, {20000, 1}, {32768, 2}}) {
    const Made m = Whole("rows", [&](Builder& b) -> std::vector<ValueId> {
      const ValueId x = b.Cast(In(b, DType::kBFloat16, {64, length}), DType::kFloat32);
      return {b.Cast(Softmax(b, x, 1), DType::kBFloat16)};
    });
    const GpuSchedule s = codegen::MakeGpuSchedule(m.built.kernel, ChipLike(90), true, true);
    EXPECT_EQ(s.cluster, 1);
    EXPECT_EQ(s.unroll, unroll) << length;
    EXPECT_LT(s.held, 2 * length * 21 / 20) << length;
  }
  // Vectors past the end of a row read nothing, and fetch nothing: not one address for all of them.
  EXPECT_GT(Count(Ptx(Named(all, "softmax_50256")), "@p prefetch"), 0);
  EXPECT_EQ(Count(Ptx(Named(all, "softmax_50256")), "\tprefetch"), 0);
  EXPECT_GT(Count(Ptx(Named(all, "softmax_50256")), ", 16, %r"), 0);
  EXPECT_EQ(Count(Ptx(Named(all, "softmax_32768")), ", 16, %r"), 0);
  EXPECT_EQ(codegen::MakeGpuSchedule(Named(all, "softmax_50257").built.kernel, ChipLike(90), true, true).held, 0);
}

// Nothing of one chip is written into schedules: what they ask is in Chip.
TEST(Gpu, SchedulesFollowTheChip) {
  const auto all = Kernels();
  const loop::Kernel& sums = Named(all, "logsumexp_262144").built.kernel;  // 64 rows
  const auto large = ChipLike(90);
  auto small = large;
  small.multiprocessors = 4;
  EXPECT_EQ(codegen::MakeGpuSchedule(sums, large, true, true).row_threads, 1024);
  const GpuSchedule few = codegen::MakeGpuSchedule(sums, small, true, true);
  EXPECT_EQ(few.row_threads, 128);  // 64 rows keep four multiprocessors busy
  EXPECT_EQ(few.first_blocks, 4 * 2048 / few.threads);
  const loop::Kernel& rows = Named(all, "softmax_32768").built.kernel;
  auto narrow = large;
  for (int shared : {227 << 10, 99 << 10, 40 << 10, 8 << 10}) {
    narrow.shared_of_block = shared;
    const GpuSchedule s = codegen::MakeGpuSchedule(rows, narrow, true, true);
    EXPECT_LT(s.held * s.blocks, shared);
    EXPECT_EQ(s.held > 0, shared > 16 << 10) << shared;
    if (s.held) {
      EXPECT_EQ(s.first_blocks, large.multiprocessors * s.blocks);
    }
  }
  narrow = large;
  narrow.threads = 512;
  const GpuSchedule s = codegen::MakeGpuSchedule(rows, narrow, true, true);
  EXPECT_LE(s.blocks * s.threads, 512);
}

TEST(Gpu, TransposesGoThroughSharedMemory) {
  const auto all = Kernels();
  const Made& m = Named(all, "transpose");
  const GpuSchedule s = codegen::MakeGpuSchedule(m.built.kernel, ChipLike(90), true, true);
  EXPECT_EQ(s.mode, GpuSchedule::kTile) << m.built.kernel.str();
  EXPECT_EQ(codegen::GpuBlocks(m.built.kernel, s, nullptr), 8 * 4);
  EXPECT_EQ(s.group, 4);
  const std::string ptx = Ptx(m);
  EXPECT_EQ(Count(ptx, "bar.sync"), 1) << ptx;
  EXPECT_EQ(Count(ptx, "ld.global.v4"), 8) << ptx;  // of both, four vectors a thread
  EXPECT_LT(ptx.rfind("ld.global"), ptx.find("bar.sync"));
  EXPECT_EQ(Count(ptx, "st.shared"), 16) << ptx;
  EXPECT_EQ(Count(ptx, "ld.shared"), 16) << ptx;
  EXPECT_EQ(Count(Ptx(Named(all, "transpose_bf16")), "st.global.v4"), 2);
}

TEST(Gpu, AMaximumAndASumOfExponentialsShareAPass) {
  const auto all = Kernels();
  const std::string sum = Ptx(Named(all, "logsumexp_262144"));
  EXPECT_EQ(Count(sum, "ld.global.v4"), 8) << sum;  // four, and four one step ahead
  EXPECT_EQ(Count(sum, "bar.sync"), 1) << sum;      // both are told at once
  EXPECT_EQ(Count(Ptx(Named(all, "sum_f32")), "ld.global.L1::no_allocate.v4"), 2);
}

// Cross-entropy: what is done once a row in between waits until both are known.
TEST(Gpu, ARowsWorkBetweenThemDoesNotSeparateThem) {
  const Made m = Whole("cross_entropy", [](Builder& b) -> std::vector<ValueId> {
    ValueId x = In(b, DType::kFloat32, {2048, 32000}), y = In(b, DType::kFloat32, {2048, 1});
    ValueId most = b.Reduce(Op::kMax, x, {1}, true);
    ValueId e = b.Unary(Op::kExp, b.Binary(Op::kSub, x, b.Broadcast(most, b.type(x).shape)));
    return {b.Binary(Op::kSub, b.Binary(Op::kSub, y, most), b.Unary(Op::kLog, b.Reduce(Op::kSum, e, {1}, true)))};
  });
  const std::string ptx = Ptx(m);
  // Whole steps, and what is left of the row: each asks for the next.
  EXPECT_EQ(Count(ptx, "ld.global.v4"), 12) << ptx;
  EXPECT_EQ(Count(ptx, "bar.sync"), 1) << ptx;
  // 16 terms a step; exact ones only where what was summed is scaled (a step, a warp, a block).
  EXPECT_EQ(Count(ptx, "ex2.approx.ftz.f32") - Count(ptx, ".sat.f32"), 32) << ptx;
}

// On a chip that can, a kernel is sent before the one before it has ended, and waits before it touches memory.
TEST(Gpu, KernelsWaitForWhatRunsBefore) {
  for (const Made& m : Kernels()) {
    const std::string ptx = Ptx(m);
    const size_t wait = ptx.find("griddepcontrol.wait"), load = ptx.find("ld.global"), store = ptx.find("st.global");
    ASSERT_NE(wait, std::string::npos) << m.name;
    EXPECT_LT(wait, std::min(load, store)) << m.name;
    EXPECT_EQ(Count(ptx, "griddepcontrol.wait"), 1) << m.name;
    const bool table = m.name == "sin" || m.name == "cos" || m.name == "tan";  // libdevice's
    EXPECT_TRUE(table || Count(ptx, "ld.global.nc") == 0) << m.name;           // ptxas moves those before the wait
    EXPECT_LT(ptx.find("griddepcontrol.launch_dependents"), wait) << m.name;
    if (const size_t last = ptx.rfind("prefetch"); last != std::string::npos) {
      EXPECT_LT(last, wait) << m.name;
    }
  }
  for (const char* name : {"add_f32", "softmax_4096", "softmax_262144", "sum_bf16", "column_max_f32", "dynamic"})
    EXPECT_GT(Count(Ptx(Named(Kernels(), name)), "prefetch.global.L2"), 0) << name;
  for (const char* name : {"transpose", "take"}) EXPECT_EQ(Count(Ptx(Named(Kernels(), name)), "prefetch"), 0) << name;
  EXPECT_EQ(Count(Ptx(Named(Kernels(), "add_f32"), true, "sm_80"), "griddepcontrol"), 0);
}

// Of x + x.T, each pair of tiles that mirror each other runs side by side; all tiles run.
TEST(Gpu, MirroredTilesRunSideBySide) {
  const Made m = Whole("symmetric", [](Builder& b) -> std::vector<ValueId> {
    ValueId x = In(b, DType::kFloat32, {320, 320});
    return {b.Binary(Op::kAdd, x, b.Permute(x, {1, 0}))};
  });
  const GpuSchedule s = codegen::MakeGpuSchedule(m.built.kernel, ChipLike(90), true, true);
  EXPECT_TRUE(s.mirrored);
  EXPECT_EQ(s.group, 1);
  EXPECT_FALSE(codegen::MakeGpuSchedule(Named(Kernels(), "transpose").built.kernel, ChipLike(90), true, true).mirrored);
}

// What is rounded to 16 bits anyway takes the short ways.
TEST(Gpu, RoughFunctionsOnlyBefore16Bits) {
  const auto all = Kernels();
  const std::string f32 = Ptx(Named(all, "gelu_f32")), bf16 = Ptx(Named(all, "gelu_bf16"));
  EXPECT_EQ(Count(f32, "copysign") + Count(f32, "0f3F6C0000"), 4) << f32;  // |x| < 0.92, four lanes
  EXPECT_EQ(Count(bf16, "0f3F6C0000"), 0) << bf16;
  EXPECT_EQ(Count(bf16, "ex2.approx.ftz"), 8) << bf16;
  const std::string f16 = Ptx(Named(all, "gelu_f16"));  // two terms more for each of eight lanes
  EXPECT_EQ(Count(f16, "fma.rn.f32") - Count(bf16, "fma.rn.f32"), 16) << f16;
}

TEST(Gpu, LocalMemoryIsNotUsed) {
  for (const Made& m : Kernels()) {
    const std::string ptx = Ptx(m);
    // libdevice's trigonometry has a table on the stack for huge arguments.
    if (m.name == "sin" || m.name == "cos" || m.name == "tan") continue;
    EXPECT_EQ(ptx.find(".local"), std::string::npos) << m.name << "\n" << ptx;
  }
}

TEST(Gpu, PtxasAcceptsEveryKernel) {
  if (std::system("ptxas --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no ptxas here";
  char folder[] = "/tmp/framejit-ptx-XXXXXX";
  ASSERT_TRUE(mkdtemp(folder));
  struct Target {
    const char *emit, *assemble;
  };
  for (const Target& t : {Target{"sm_80", "sm_80"}, Target{"sm_90", "sm_90"}, Target{"sm_90", "sm_120"}}) {
    for (const Made& m : Kernels()) {
      const std::string file = std::string(folder) + "/k.ptx";
      std::ofstream(file) << Ptx(m, true, t.emit);
      const std::string command =
          "ptxas -O1 -arch=" + std::string(t.assemble) + " -o /dev/null " + file + " > " + folder + "/log 2>&1";
      const int status = std::system(command.c_str());
      std::ifstream log(std::string(folder) + "/log");
      std::string text((std::istreambuf_iterator<char>(log)), {});
      EXPECT_EQ(status, 0) << m.name << " for " << t.assemble << ": " << text.substr(0, 2000);
    }
  }
  std::system(("rm -r " + std::string(folder)).c_str());
}

TEST(Gpu, SizesDecideTheVariant) {
  const auto all = Kernels();
  const loop::Kernel& k = Named(all, "dynamic_rows").built.kernel;
  const GpuSchedule s = codegen::MakeGpuSchedule(k, ChipLike(90), true, true);
  ASSERT_EQ(s.vector, 8);
  std::vector<int64_t> symbols(k.num_symbols);
  auto with = [&](int64_t n, int64_t m) {
    for (int i = 0; i < k.num_symbols; ++i) {
      const std::vector<int64_t> values = {n, m};
      symbols[i] = Named(all, "dynamic_rows").built.symbols[i].Eval(values);
    }
    return symbols.data();
  };
  EXPECT_TRUE(codegen::MultiplesHold(s, with(3, 64)));
  EXPECT_FALSE(codegen::MultiplesHold(s, with(3, 63)));
  EXPECT_TRUE(codegen::FitsNarrow(k, with(1000, 1000)));
  EXPECT_FALSE(codegen::FitsNarrow(k, with(100000, 100000)));
  EXPECT_EQ(codegen::GpuBlocks(k, s, with(5, 64)), 5);
  EXPECT_EQ(codegen::GpuBlocks(k, s, with(0, 64)), 0);
}

TEST(Gpu, UnknownArchitectureIsRefused) {
  const auto all = Kernels();
  EXPECT_THROW(Ptx(all[0], true, "sm_12"), codegen::CodegenUnsupported);
}

}  // namespace
}  // namespace framejit
