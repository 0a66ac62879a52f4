// Code for GPUs without one: structure of the emitted kernels, acceptance by ptxas, launches on a driver that is a
// fake.
#include "codegen/gpu.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "codegen/gpu_schedule.h"
#include "diag/diag.h"
#include "kernel_harness.h"
#include "rules/decompose.h"
#include "test_host.h"

namespace framejit {
namespace {

using codegen::GpuSchedule;
using shape::Int;
using shape::Ints;

TensorType Type(DType t, Ints shape) {
  return {t, std::move(shape), Device{DeviceKind::kCuda, 0}};
}

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
    layouts[v].strides = n.strides.empty() ? test::RowMajor(n.type.shape) : n.strides;
    if (n.op != Op::kInput) group.push_back(v);
  }
  m.built = loop::BuildKernel(m.g, group, stored, layouts, /*keep=*/false);
  return m;
}

ValueId In(Builder& b, DType t, Ints shape, Ints strides = {}) {
  if (strides.empty()) strides = test::RowMajor(shape);
  return b.Input(Type(t, std::move(shape)), std::move(strides), "x");
}

ValueId Softmax(Builder& b, ValueId x, int64_t axis) {
  const Ints shape = b.type(x).shape;
  ValueId m = b.Broadcast(b.Reduce(Op::kMax, x, {axis}, true), shape);
  ValueId e = b.Unary(Op::kExp, b.Binary(Op::kSub, x, m));
  return b.Binary(Op::kDiv, e, b.Broadcast(b.Reduce(Op::kSum, e, {axis}, true), shape));
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
  for (int64_t n : {7, 64, 768, 4096, 50257, 262144}) {
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
  for (DType t : {DType::kFloat32, DType::kBFloat16}) {
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
  const GpuSchedule s = codegen::MakeGpuSchedule(m.built.kernel, 90, true, true);
  EXPECT_TRUE(s.resident);
  EXPECT_EQ(s.row_threads * s.vector * s.unroll, 4096);
  const std::string ptx = Ptx(m);
  EXPECT_EQ(Count(ptx, "ld.global"), s.unroll) << ptx;
  EXPECT_EQ(Count(ptx, "bar.sync"), 2) << ptx;
  EXPECT_EQ(Count(Ptx(Named(all, "softmax_64")), "bar.sync"), 0);  // a warp a row
}

TEST(Gpu, TransposesGoThroughSharedMemory) {
  const auto all = Kernels();
  const Made& m = Named(all, "transpose");
  const GpuSchedule s = codegen::MakeGpuSchedule(m.built.kernel, 90, true, true);
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
  const std::string softmax = Ptx(Named(all, "softmax_262144"));
  EXPECT_EQ(Count(softmax, "ld.global.v4"), 8) << softmax;  // two loops of four vectors
  const std::string sum = Ptx(Named(all, "logsumexp_262144"));
  EXPECT_EQ(Count(sum, "ld.global.v4"), 4) << sum;
  EXPECT_EQ(Count(Ptx(Named(all, "sum_f32")), "ld.global.nc.L1::no_allocate.v4"), 2);
}

// What is rounded to 16 bits anyway takes the short ways.
TEST(Gpu, RoughFunctionsOnlyBefore16Bits) {
  const auto all = Kernels();
  const std::string f32 = Ptx(Named(all, "gelu_f32")), bf16 = Ptx(Named(all, "gelu_bf16"));
  EXPECT_EQ(Count(f32, "copysign") + Count(f32, "0f3F6C0000"), 4) << f32;  // |x| < 0.92, four lanes
  EXPECT_EQ(Count(bf16, "0f3F6C0000"), 0) << bf16;
  EXPECT_EQ(Count(bf16, "ex2.approx.ftz"), 8) << bf16;
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
  const GpuSchedule s = codegen::MakeGpuSchedule(k, 90, true, true);
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

// --- launches, on a driver that only takes notes
struct Launched {
  std::string function;
  unsigned grid, threads;
  std::vector<void*> pointers;
};
struct FakeGpu {
  std::vector<Launched> launches;
  std::vector<std::string*> functions;
  int pushed = 0, fail_launch = 0;
  int driver_version = 13000;
  // graphs
  bool capturing = false, users_capture = false;
  void* stream = reinterpret_cast<void*>(0x77);
  int captures = 0, captured = 0, graph_launches = 0, graphs = 0;
  std::vector<void*> updated;  // the last argument of kernels that were told new ones
  void* node = nullptr;
};
FakeGpu* fake = nullptr;
void* const kSide = reinterpret_cast<void*>(0x99);

void* Argument(const void* at) {
  void* value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

runtime::cuda::Driver FakeDriver() {
  using namespace runtime::cuda;
  Driver d;
  d.init = [](unsigned) { return 0; };
  d.device_count = [](int* n) { return *n = 1, 0; };
  d.device_get = [](int* d, int ordinal) { return *d = ordinal, 0; };
  d.device_attribute = [](int* v, int what, int) { return *v = what == 75 ? 9 : what == 76 ? 0 : 132, 0; };
  d.primary_retain = [](Context* c, int) { return *c = reinterpret_cast<Context>(0x1234), 0; };
  d.ctx_current = [](Context* c) { return *c = nullptr, 0; };
  d.ctx_push = [](Context) { return ++fake->pushed, 0; };
  d.ctx_pop = [](Context*) { return --fake->pushed, 0; };
  d.driver_version = [](int* v) { return *v = fake->driver_version, 0; };
  d.module_load = [](Module* m, const void*, unsigned, int*, void**) { return *m = fake, 0; };
  d.module_function = [](Function* f, Module, const char* name) {
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    fake->functions.push_back(new std::string(name));
    return *f = fake->functions.back(), 0;
  };
  d.launch = [](Function f, unsigned grid, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned,
                Stream stream, void** params, void**) {
    if (fake->fail_launch) return fake->fail_launch;
    EXPECT_EQ(stream, fake->capturing ? kSide : fake->stream);
    if (fake->capturing) return ++fake->captured, 0;
    Launched l{*static_cast<std::string*>(f), grid, threads, {}};
    for (int i = 0; i < 2; ++i) l.pointers.push_back(Argument(params[i]));
    fake->launches.push_back(l);
    return 0;
  };
  d.stream_capturing = [](Stream, int* on) { return *on = fake->users_capture, 0; };
  d.stream_id = [](Stream s, uint64_t* id) { return *id = reinterpret_cast<uint64_t>(s), 0; };
  d.stream_create = [](Stream* s, unsigned) { return *s = kSide, 0; };
  d.capture_begin = [](Stream s, int mode) {
    EXPECT_EQ(s, kSide);
    EXPECT_EQ(mode, 1);
    fake->capturing = true;
    return ++fake->captures, 0;
  };
  d.capture_end = [](Stream, runtime::cuda::Graph* g) {
    fake->capturing = false;
    ++fake->graphs;
    return *g = fake, 0;
  };
  d.capture_info = [](Stream, int*, uint64_t*, runtime::cuda::Graph*, const GraphNode** last, size_t* count) {
    fake->node = reinterpret_cast<void*>(static_cast<intptr_t>(fake->captured));
    return *last = &fake->node, *count = 1, 0;
  };
  d.graph_instantiate = [](GraphExec* e, runtime::cuda::Graph, uint64_t) { return *e = fake, 0; };
  d.graph_destroy = [](runtime::cuda::Graph) { return --fake->graphs, 0; };
  d.graph_exec_destroy = [](GraphExec) { return 0; };
  d.graph_launch = [](GraphExec, Stream s) {
    EXPECT_EQ(s, fake->stream);
    return ++fake->graph_launches, 0;
  };
  d.graph_set_kernel = [](GraphExec, GraphNode, const KernelNodeParams* p) {
    fake->updated.push_back(Argument(p->params[0]));
    return 0;
  };
  d.error_name = [](Result, const char** text) { return *text = "CUDA_ERROR_FAKE", 0; };
  d.error_text = [](Result, const char** text) { return *text = "the fake says no", 0; };
  return d;
}

class GpuHost : public test::TestHost {
 public:
  void AllocateOutput(DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides, Device device,
                      Buffer* out) override {
    EXPECT_EQ(device.kind, DeviceKind::kCuda);
    Make(dtype, sizes, strides, out);
    out->data = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(out->data) + 255) / 256 * 256);  // never followed
    out->device = device;
  }
  void* CurrentStream(Device) override { return fake->stream; }
  bool MatMul(const Buffer& a, const Buffer& b, Buffer& out) override {
    if (fake->capturing && fail_in_capture) throw std::runtime_error("not while capturing");
    ++products;
    return true;
  }
  bool BeginRecording(Device, void* stream, void** pool) override {
    EXPECT_EQ(stream, kSide);
    *pool = this;
    ++recording;
    return true;
  }
  void EndRecording(Device, void* pool) override {
    EXPECT_EQ(pool, this);
    --recording;
  }
  uint64_t LibrarySettings() override { return settings; }
  int products = 0, recording = 0;
  uint64_t settings = 0;
  bool fail_in_capture = false;
};

class GpuPlan : public ::testing::Test {
 protected:
  GpuPlan() {
    diag::SetOption("cache_dir", "/dev/null");  // none
    fake = &gpu_;
    runtime::cuda::SetDriverForTesting(&driver_);
    ClearKernelCache();
  }
  ~GpuPlan() override {
    ClearKernelCache();
    runtime::cuda::SetDriverForTesting(nullptr);
    diag::SetOption("cache_dir", "");
    for (std::string* f : gpu_.functions) delete f;
  }
  Buffer Input(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, uintptr_t address) {
    Buffer b;
    b.data = reinterpret_cast<void*>(address);
    b.sizes = sizes.data();
    b.strides = strides.data();
    b.rank = static_cast<int32_t>(sizes.size());
    b.device = {DeviceKind::kCuda, 0};
    return b;
  }
  FakeGpu gpu_;
  runtime::cuda::Driver driver_ = FakeDriver();
};

TEST_F(GpuPlan, KernelsAreLaunchedOnTheStream) {
  Graph g;
  shape::Env env;
  Builder b(g, env);
  ValueId x = In(b, DType::kFloat32, {64, 4096});
  g.outputs = {Softmax(b, b.Unary(Op::kTanh, x), 1)};
  auto exe = Compile(g);
  EXPECT_EQ(exe->stats().kernels, 1);
  GpuHost host;
  const std::vector<int64_t> sizes = {64, 4096}, strides = {4096, 1};
  for (uintptr_t address : {0x1000, 0x1004, 0x2000}) {
    Buffer in = Input(sizes, strides, address), out;
    exe->Run(host, {&in, 1}, {}, {&out, 1});
    EXPECT_EQ(out.device.kind, DeviceKind::kCuda);
    EXPECT_EQ(gpu_.launches.back().pointers[0], in.data);
    EXPECT_EQ(gpu_.launches.back().pointers[1], out.data);
    EXPECT_EQ(gpu_.launches.back().grid, 64u);
    EXPECT_EQ(gpu_.pushed, 0);
    host.Delete(&out);
  }
  ASSERT_EQ(gpu_.launches.size(), 3u);
  EXPECT_EQ(gpu_.launches[0].threads, 512u);  // two vectors of four a thread
  EXPECT_EQ(gpu_.launches[2].threads, 512u);
  EXPECT_EQ(gpu_.functions.size(), 2u);  // an odd address: the variant without vectors
  EXPECT_EQ(host.live, 0);
}

// Machine code is kept on disk, for this driver, this chip and this kernel; what is damaged there is made again.
TEST_F(GpuPlan, CodeIsKeptOnDisk) {
  char folder[] = "/tmp/framejit-cache-XXXXXX";
  ASSERT_TRUE(mkdtemp(folder));
  diag::SetOption("cache_dir", std::string(folder) + "/of/no/use");
  auto reads = [&](int64_t n) {
    ClearKernelCache();  // as in a new process
    Graph g;
    shape::Env env;
    Builder b(g, env);
    g.outputs = {b.Unary(Op::kExp, In(b, DType::kFloat32, {n, 64}))};
    auto exe = Compile(g);
    GpuHost host;
    const std::vector<int64_t> sizes = {n, 64}, strides = {64, 1};
    Buffer in = Input(sizes, strides, 0x1000), out;
    exe->Run(host, {&in, 1}, {}, {&out, 1});
    host.Delete(&out);
    return codegen::GpuKernelsRead() == 1;
  };
  EXPECT_FALSE(reads(64));
  EXPECT_FALSE(reads(64));  // that folder cannot be made
  diag::SetOption("cache_dir", std::string(folder) + "/kept");
  EXPECT_FALSE(reads(64));
  EXPECT_TRUE(reads(64));
  EXPECT_FALSE(reads(32));
  EXPECT_TRUE(reads(32));
  ++gpu_.driver_version;
  EXPECT_FALSE(reads(64));
  --gpu_.driver_version;
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(folder) + "/kept")) {
    files.push_back(entry.path());
  }
  EXPECT_EQ(files.size(), 3u);
  for (int damage = 0; damage < 4; ++damage) {
    for (const std::string& file : files) {
      std::ifstream in(file, std::ios::binary);
      std::string text((std::istreambuf_iterator<char>(in)), {});
      if (damage == 0) text.clear();
      if (damage == 1) text.resize(text.size() / 2);
      if (damage == 2) text[text.size() - 30] ^= 1;  // in the code
      if (damage == 3) text += "more";
      std::ofstream(file, std::ios::binary) << text;
    }
    EXPECT_FALSE(reads(64)) << damage;
    EXPECT_TRUE(reads(64)) << damage;
    EXPECT_FALSE(reads(32)) << damage;
  }
  std::filesystem::remove_all(folder);
}

TEST_F(GpuPlan, ALaunchThatFailsLeavesNothing) {
  Graph g;
  shape::Env env;
  Builder b(g, env);
  g.outputs = {b.Unary(Op::kExp, In(b, DType::kFloat32, {64, 64}))};
  auto exe = Compile(g);
  GpuHost host;
  const std::vector<int64_t> sizes = {64, 64}, strides = {64, 1};
  Buffer in = Input(sizes, strides, 0x1000), out;
  gpu_.fail_launch = 700;
  try {
    exe->Run(host, {&in, 1}, {}, {&out, 1});
    FAIL() << "no exception";
  } catch (const std::runtime_error& e) {
    EXPECT_NE(std::string(e.what()).find("the fake says no (CUDA_ERROR_FAKE)"), std::string::npos) << e.what();
  }
  EXPECT_EQ(host.live, 0);
  EXPECT_EQ(gpu_.pushed, 0);
}

TEST_F(GpuPlan, EmptyTensorsLaunchNothing) {
  Graph g;
  shape::Env env;
  Builder b(g, env);
  g.outputs = {b.Unary(Op::kExp, In(b, DType::kFloat32, {0, 64}))};
  auto exe = Compile(g);
  GpuHost host;
  const std::vector<int64_t> sizes = {0, 64}, strides = {64, 1};
  Buffer in = Input(sizes, strides, 0), out;
  exe->Run(host, {&in, 1}, {}, {&out, 1});
  EXPECT_TRUE(gpu_.launches.empty());
  host.Delete(&out);
}

TEST_F(GpuPlan, ValuesOfTwoDevicesAreNotFused) {
  Graph g;
  shape::Env env;
  Builder b(g, env);
  ValueId x = b.Input({DType::kFloat32, {64}, {}}, {Int(1)}, "x");  // on the CPU
  ValueId y = In(b, DType::kFloat32, {64});
  g.outputs = {b.Unary(Op::kExp, x), b.Unary(Op::kExp, y)};
  auto exe = Compile(g);
  EXPECT_EQ(exe->stats().kernels, 2);
  EXPECT_NE(exe->str().find("gpu kernel"), std::string::npos) << exe->str();
}

class GpuGraphPlan : public GpuPlan {
 protected:
  GpuGraphPlan() {
    Graph g;
    shape::Env env;
    Builder b(g, env);
    ValueId x = In(b, DType::kFloat32, {64, 64}), w = In(b, DType::kFloat32, {64, 64});
    ValueId h = b.Add(Op::kMatMul, {b.Unary(Op::kExp, x), w});
    g.outputs = {b.Unary(Op::kTanh, b.Add(Op::kMatMul, {b.Unary(Op::kExp, h), w}))};
    CompileOptions options;
    options.gpu_graphs = GpuGraphs::kAlways;
    exe_ = Compile(g, options);
  }
  void Run(uintptr_t x, uintptr_t w) {
    Buffer in[] = {Input(sizes_, strides_, x), Input(sizes_, strides_, w)}, out;
    exe_->Run(host_, in, {}, {&out, 1});
    last_out_ = out.data;
    host_.Delete(&out);
    EXPECT_EQ(host_.recording, 0);
    EXPECT_EQ(host_.live, 0);
    EXPECT_EQ(gpu_.pushed, 0);
  }
  const std::vector<int64_t> sizes_ = {64, 64}, strides_ = {64, 1};
  GpuHost host_;
  std::shared_ptr<Executable> exe_;
  void* last_out_ = nullptr;
};

TEST_F(GpuGraphPlan, StepsAreCapturedOnceAndToldNewAddresses) {
  Run(0x1000, 0x2000);
  EXPECT_EQ(gpu_.launches.size(), 3u);
  EXPECT_EQ(host_.products, 2);
  Run(0x3000, 0x2000);
  EXPECT_EQ(gpu_.captures, 1);
  EXPECT_EQ(gpu_.captured, 3);
  EXPECT_EQ(host_.products, 4);
  EXPECT_EQ(gpu_.graph_launches, 1);
  gpu_.updated.clear();
  Run(0x5000, 0x2000);
  EXPECT_EQ(gpu_.captures, 1);
  EXPECT_EQ(gpu_.graph_launches, 2);
  EXPECT_EQ(host_.products, 4);
  EXPECT_EQ(gpu_.launches.size(), 3u);
  ASSERT_GE(gpu_.updated.size(), 1u);
  EXPECT_EQ(gpu_.updated[0], reinterpret_cast<void*>(0x5000));
  Run(0x5000, 0x6000);  // what the products read has moved
  EXPECT_EQ(gpu_.captures, 2);
  EXPECT_EQ(gpu_.graph_launches, 3);
  host_.settings = 1;
  Run(0x5000, 0x6000);
  EXPECT_EQ(gpu_.captures, 3);
  EXPECT_EQ(gpu_.graph_launches, 4);
  EXPECT_EQ(gpu_.graphs, 1);
  exe_.reset();
  EXPECT_EQ(gpu_.graphs, 0);
}

TEST_F(GpuGraphPlan, OtherStreamsAndCapturesOfTheUserRunStepByStep) {
  Run(0x1000, 0x2000);
  Run(0x1000, 0x2000);
  EXPECT_EQ(gpu_.graph_launches, 1);
  gpu_.stream = reinterpret_cast<void*>(0x78);
  Run(0x1000, 0x2000);
  EXPECT_EQ(gpu_.graph_launches, 1);
  EXPECT_EQ(gpu_.launches.size(), 6u);
  gpu_.stream = reinterpret_cast<void*>(0x77);
  gpu_.users_capture = true;
  Run(0x1000, 0x2000);
  EXPECT_EQ(gpu_.graph_launches, 1);
  EXPECT_EQ(gpu_.launches.size(), 9u);
  gpu_.users_capture = false;
  Run(0x1000, 0x2000);
  EXPECT_EQ(gpu_.graph_launches, 2);
}

TEST_F(GpuGraphPlan, ACaptureThatFailsIsGivenUp) {
  host_.fail_in_capture = true;
  for (int i = 0; i < 4; ++i) Run(0x1000, 0x2000);
  EXPECT_EQ(gpu_.captures, 1);
  EXPECT_EQ(gpu_.graph_launches, 0);
  EXPECT_EQ(host_.products, 8);
  EXPECT_EQ(gpu_.launches.size(), 12u);
  EXPECT_EQ(gpu_.graphs, 0);
}

TEST(Gpu, UnknownArchitectureIsRefused) {
  const auto all = Kernels();
  EXPECT_THROW(Ptx(all[0], true, "sm_12"), codegen::CodegenUnsupported);
}

}  // namespace
}  // namespace framejit
