// Launches of GPU plans on a driver that only takes notes.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>

#include "codegen/gpu.h"
#include "diag/diag.h"
#include "gpu_graphs.h"
#include "runtime/cuda/driver.h"
#include "runtime/step_times.h"
#include "test_host.h"

namespace framejit {
namespace {

using shape::Int;
using test::In;
using test::Softmax;

struct Launched {
  std::string function;
  unsigned grid, threads;
  std::vector<void*> pointers;
};
struct FakeGpu {
  std::vector<Launched> launches;
  std::vector<std::string*> functions;
  int fail_launch = 0;
  std::atomic<int> pushed{0};  // kernels are made in threads of their own
  int driver_version = 13000;
  // graphs
  bool capturing = false, users_capture = false;
  void* stream = reinterpret_cast<void*>(0x77);
  int captures = 0, captured = 0, graph_launches = 0, graphs = 0;
  float graph_takes = 0;
  std::vector<void*> updated;  // the last argument of kernels that were told new ones
  // events: each is the time at which it was reached; a kernel takes as many milliseconds as its grid has blocks
  std::vector<std::unique_ptr<float>> events;
  float clock = 0;
  bool behind = false;  // it is through with nothing yet
  int waits = 0;
  void* node = nullptr;
};
FakeGpu* fake = nullptr;
void* const kSide = reinterpret_cast<void*>(0x99);

void* Argument(const void* at) {
  void* value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

runtime::cuda::Result FakeLaunch(runtime::cuda::Function f, unsigned grid, unsigned, unsigned, unsigned threads,
                                 unsigned, unsigned, unsigned, runtime::cuda::Stream stream, void** params, void**) {
  if (fake->fail_launch) return fake->fail_launch;
  EXPECT_EQ(stream, fake->capturing ? kSide : fake->stream);
  if (fake->capturing) return ++fake->captured, 0;
  fake->clock += static_cast<float>(grid);
  Launched l{*static_cast<std::string*>(f), grid, threads, {}};
  for (int i = 0; i < 2; ++i) l.pointers.push_back(Argument(params[i]));
  fake->launches.push_back(l);
  return 0;
}

runtime::cuda::Driver FakeDriver() {
  using namespace runtime::cuda;
  Driver d;
  d.init = [](unsigned) { return 0; };
  d.device_count = [](int* n) { return *n = 1, 0; };
  d.device_get = [](int* d, int ordinal) { return *d = ordinal, 0; };
  d.device_attribute = [](int* v, int what, int) {
    static const std::map<int, int> kKnown = {{16, 7}, {39, 1024}, {75, 9}, {76, 0}, {82, 32768}, {97, 64 << 10}};
    auto known = kKnown.find(what);
    if (known == kKnown.end()) return 1;  // CUDA_ERROR_INVALID_VALUE
    return *v = known->second, 0;
  };
  d.primary_retain = [](Context* c, int) { return *c = reinterpret_cast<Context>(0x1234), 0; };
  d.ctx_current = [](Context* c) { return *c = reinterpret_cast<Context>(0x4321), 0; };  // another library's
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
  d.function_set = [](Function, int, int) { return 0; };
  d.clusters_at_once = [](int* n, Function, const LaunchConfig* c) { return *n = 132 / c->attributes->value[0], 0; };
  d.launch = FakeLaunch;
  d.launch_ex = [](const LaunchConfig* c, Function f, void** params, void** extra) {
    EXPECT_EQ(c->count, 1u);
    EXPECT_EQ(c->attributes->id, 6);
    EXPECT_EQ(c->attributes->value[0], 1);
    return FakeLaunch(f, c->grid[0], 1, 1, c->block[0], 1, 1, c->shared_bytes, c->stream, params, extra);
  };
  d.stream_capturing = [](Stream, int* on) { return *on = fake->users_capture, 0; };
  d.stream_id = [](Stream s, uint64_t* id) { return *id = reinterpret_cast<uint64_t>(s), 0; };
  d.stream_create = [](Stream* s, unsigned) { return *s = kSide, 0; };
  d.capture_mode = [](int*) { return 0; };
  d.event_create = [](Event* e, unsigned flags) {
    EXPECT_EQ(flags, 0u);  // one that takes the time
    fake->events.push_back(std::make_unique<float>(-1.0f));
    return *e = fake->events.back().get(), 0;
  };
  d.event_record = [](Event e, Stream s) {
    EXPECT_EQ(s, fake->stream);
    EXPECT_FALSE(fake->capturing || fake->users_capture);
    return *static_cast<float*>(e) = fake->clock, 0;
  };
  d.event_query = [](Event) { return fake->behind ? 600 : 0; };
  d.event_wait = [](Event) { return ++fake->waits, fake->behind = false, 0; };
  d.event_elapsed = [](float* ms, Event from, Event to) {
    return *ms = *static_cast<float*>(to) - *static_cast<float*>(from), 0;
  };
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
    fake->clock += fake->graph_takes;
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
    if (!fake->capturing) fake->clock += 1000;
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

TEST_F(GpuPlan, TheDriverIsAskedAboutTheChip) {
  const runtime::cuda::Chip chip = runtime::cuda::GetDevice(0).chip;
  EXPECT_EQ(chip.capability, 90);
  EXPECT_EQ(chip.multiprocessors, 7);
  EXPECT_EQ(chip.threads, 1024);
  EXPECT_EQ(chip.registers, 32768);
  EXPECT_EQ(chip.shared_of_block, 64 << 10);
}

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
      if (damage == 2 && text.size() > 30) text[text.size() - 30] ^= 1;  // in the code
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

// Between other convolutions, which lie with their channels inside.
TEST_F(GpuPlan, DepthwiseConvolutionsAreKernels) {
  Graph g;
  shape::Env env;
  Builder b(g, env);
  auto conv = [&](ValueId x, ValueId w, int64_t size, int64_t groups) {
    Attrs attrs;
    attrs.axes = {1, 1, size / 2, size / 2, 1, 1, 0, 0, groups};
    return b.Add(Op::kConv, {x, w}, attrs);
  };
  const auto t = DType::kBFloat16;
  ValueId x = In(b, t, {Int(2), Int(32), Int(14), Int(14)}), wide = In(b, t, {Int(64), Int(32), Int(1), Int(1)});
  ValueId deep = In(b, t, {Int(64), Int(1), Int(5), Int(5)}), large = In(b, t, {Int(64), Int(1), Int(7), Int(7)});
  ValueId narrow = In(b, t, {Int(32), Int(64), Int(1), Int(1)});
  g.outputs = {conv(conv(conv(conv(x, wide, 1, 1), deep, 5, 64), large, 7, 64), narrow, 1, 1)};
  auto exe = Compile(g);
  EXPECT_EQ(exe->stats().library_calls, 3) << exe->str();  // 49 taps are the library's
  EXPECT_NE(exe->str().find("gpu kernel conv"), std::string::npos) << exe->str();
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

// Times of steps on the made-up GPU, whose products take a second each.
class GpuStepTimes : public GpuGraphPlan {
 protected:
  GpuStepTimes() { runtime::TimeEveryRun(true); }
  ~GpuStepTimes() override {
    runtime::TakeStepTimes(true);
    runtime::TimeEveryRun(false);
  }
  void Take(bool wait = true) {
    seconds_.clear();
    runs_.clear();
    for (const runtime::StepTime& t : runtime::TakeStepTimes(wait)) {
      EXPECT_EQ(t.device, "cuda:0");
      seconds_[t.kind] += t.seconds;
      runs_[t.kind] += t.runs;
    }
  }
  double KernelSeconds() {
    double blocks = 0;
    for (const Launched& l : gpu_.launches) blocks += l.grid;
    gpu_.launches.clear();
    return blocks / 1e3;
  }
  std::map<std::string, double> seconds_, runs_;
};

TEST_F(GpuStepTimes, EachStepIsTimedOnItsStream) {
  Run(0x1000, 0x2000);
  gpu_.behind = true;
  Take(false);
  EXPECT_TRUE(seconds_.empty());
  Take(true);
  EXPECT_EQ(gpu_.waits, 1);
  EXPECT_EQ(runs_["kernel"], 3);
  EXPECT_EQ(runs_["matmul"], 2);
  EXPECT_NEAR(seconds_["matmul"], 2.0, 1e-6);
  const double kernels = KernelSeconds();
  EXPECT_GT(kernels, 0);
  EXPECT_NEAR(seconds_["kernel"], kernels, 1e-6);
  const size_t events = gpu_.events.size();
  Run(0x1000, 0x2000);
  Take();
  EXPECT_EQ(gpu_.events.size(), events) << "events are not used again";
}

TEST_F(GpuStepTimes, StepsOfAGraphShareItsTimeAsTheyTookAlone) {
  Run(0x1000, 0x2000);
  const double kernels = KernelSeconds();
  gpu_.graph_takes = 500;
  while (gpu_.graph_launches == 0) {
    Take();
    Run(0x1000, 0x2000);
  }
  Take();
  EXPECT_EQ(runs_["kernel"], 3);
  EXPECT_EQ(runs_["matmul"], 2);
  EXPECT_NEAR(seconds_["kernel"] + seconds_["matmul"], 0.5, 1e-6);
  EXPECT_NEAR(seconds_["matmul"], 0.5 * 2 / (2 + kernels), 1e-6);
}

// What was captured before anybody asked runs once step by step.
TEST_F(GpuStepTimes, AGraphThatIsThereRunsOnceStepByStep) {
  runtime::TimeEveryRun(false);
  while (gpu_.graph_launches == 0) Run(0x1000, 0x2000);
  EXPECT_TRUE(gpu_.events.empty());
  runtime::TimeEveryRun(true);
  gpu_.launches.clear();
  Run(0x1000, 0x2000);
  EXPECT_EQ(gpu_.graph_launches, 1);
  EXPECT_EQ(gpu_.launches.size(), 3u);
  Run(0x1000, 0x2000);
  EXPECT_EQ(gpu_.graph_launches, 2);
  EXPECT_EQ(gpu_.captures, 1);
}

TEST_F(GpuStepTimes, TheUsersCapturesHoldNoEvents) {
  gpu_.users_capture = true;
  Run(0x1000, 0x2000);
  EXPECT_TRUE(gpu_.events.empty());
  Take();
  EXPECT_TRUE(seconds_.empty());
}

TEST_F(GpuStepTimes, TheFirstRunsSayNothingToTheEventStream) {
  runtime::StepSampler sampler;
  EXPECT_EQ(sampler.Weight(2), 1);  // somebody profiles
  runtime::TimeEveryRun(false);
  char folder[] = "/tmp/framejit-events-XXXXXX";
  ASSERT_TRUE(mkdtemp(folder));
  diag::SetOption("events", folder);
  EXPECT_EQ(sampler.Weight(2), 0);
  EXPECT_EQ(sampler.Weight(2), 0);
  EXPECT_EQ(sampler.Weight(2), 1);
  sampler.Took(1, 1e-6);
  EXPECT_EQ(sampler.Weight(2), 1);
  EXPECT_TRUE(runtime::StepSampler::On());
  diag::SetOption("events", "");
  EXPECT_FALSE(runtime::StepSampler::On());
  std::filesystem::remove_all(folder);
  runtime::TimeEveryRun(true);
}

}  // namespace
}  // namespace framejit
