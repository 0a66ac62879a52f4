// A kernel has up to four variants, by what the launch can rely on: addresses and sizes fit whole vectors or not,
// indices fit 32 bits or not. The one that is expected is compiled at once, in a thread of its own; the others when a
// launch asks for them.
#include "codegen/gpu.h"

#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <semaphore>
#include <thread>

#include "codegen/gpu_cache.h"
#include "codegen/gpu_jit.h"
#include "diag/diag.h"
#include "runtime/cuda/assemble.h"

namespace framejit::codegen {
namespace {

using runtime::Launch;
using runtime::cuda::DeviceInfo;
using runtime::cuda::Driver;

struct Totals {
  std::atomic<int64_t> kernels{0}, hits{0}, misses{0}, read{0}, code_bytes{0}, micros{0};
};
Totals& TheTotals() {
  static auto* totals = new Totals();
  return *totals;
}

// A PTX name: letters, digits, _ and $.
std::string SymbolOf(const loop::Kernel& kernel) {
  std::string name = kernel.name.empty() ? "kernel" : kernel.name;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') c = '_';
  }
  if (std::isdigit(static_cast<unsigned char>(name[0]))) name = "k" + name;
  char hash[20];
  std::snprintf(hash, sizeof hash, "_%08x", static_cast<unsigned>(kernel.Signature()));
  return name + hash;
}

std::counting_semaphore<64>& Slots() {  // compilations at once
  static auto* slots = new std::counting_semaphore<64>(std::clamp<int>(std::thread::hardware_concurrency(), 2, 32));
  return *slots;
}

struct Loaded {
  GpuSchedule schedule;
  runtime::cuda::Function function = nullptr;
};

// Lets the function have its shared memory and its cluster. False: the chip (or the part of it that is ours) never has
// room for one.
bool Prepare(const Driver& d, const GpuSchedule& s, runtime::cuda::Function f) {
  constexpr int kMaxDynamicShared = 8, kNonPortableCluster = 14, kClusterDimension = 4, kPortable = 8;
  if (s.held) Check(d, d.function_set(f, kMaxDynamicShared, s.held), "cuFuncSetAttribute");
  if (s.cluster == 1) return true;
  if (s.cluster > kPortable) Check(d, d.function_set(f, kNonPortableCluster, 1), "cuFuncSetAttribute");
  const runtime::cuda::LaunchAttribute of_cluster{kClusterDimension, 0, {s.cluster, 1, 1}};
  runtime::cuda::LaunchConfig config;
  config.grid[0] = s.cluster;
  config.block[0] = s.threads;
  config.shared_bytes = s.held;
  config.attributes = &of_cluster;
  config.count = 1;
  int count = 0;
  return !d.clusters_at_once(&count, f, &config) && count > 0;
}

Loaded Compile(const loop::Kernel& kernel, const DeviceInfo& device, bool vectors, bool narrow) {
  Slots().acquire();
  absl::Cleanup release = [] { Slots().release(); };
  const auto start = std::chrono::steady_clock::now();
  Loaded out;
  const Driver& d = *runtime::cuda::GetDriver();
  runtime::cuda::Scope scope(d, device);
  const bool shown = diag::Enabled(diag::Channel::ptx_);
  std::optional<GpuCode> code;
  auto load = [&](int most_cluster) {
    out.schedule = MakeGpuSchedule(kernel, device.chip, vectors, narrow, most_cluster);
    runtime::cuda::Module module = nullptr;  // never unloaded: launches may be in flight
    const std::string key = GpuCodeKey(kernel, out.schedule, device);
    code = shown ? std::nullopt : ReadGpuCode(key);
    auto load = [&] { return d.module_load(&module, code->code.c_str(), 0, nullptr, nullptr); };
    if (code && !load()) {
      ++TheTotals().read;
    } else {
      code.emplace().symbol = SymbolOf(kernel);
      const std::string ptx =
          GpuKernelText(kernel, out.schedule, ArchOf(device.major, device.minor), code->symbol, "ptx");
      if (shown) diag::Log(diag::Channel::ptx_, ptx);
      code->code = runtime::cuda::Assemble(device, ptx, SitePackages());
      if (auto r = load()) runtime::cuda::Fail(d, r, "loading kernel " + code->symbol);
      WriteGpuCode(key, *code);
    }
    Check(d, d.module_function(&out.function, module, code->symbol.c_str()), "cuModuleGetFunction");
    return Prepare(d, out.schedule, out.function);
  };
  for (int most = kMostCluster; !load(most); most = out.schedule.cluster / 2) {
  }
  Totals& t = TheTotals();
  ++t.kernels;
  t.code_bytes += static_cast<int64_t>(code->code.size());
  t.micros += std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
  return out;
}

bool AllConst(const loop::Kernel& k) {
  return k.num_symbols == 0;
}

class GpuKernel : public runtime::DeviceKernel {
 public:
  GpuKernel(const loop::Kernel& kernel, int device) : kernel_(kernel), device_(runtime::cuda::GetDevice(device)) {
    const bool narrow = !AllConst(kernel_) || FitsNarrow(kernel_, nullptr);
    constexpr int kGraphsKnowIt = 12030;
    int version = 0;
    launches_early_ = !runtime::cuda::GetDriver()->driver_version(&version) && version >= kGraphsKnowIt;
    expected_ = MakeGpuSchedule(kernel_, device_.chip, true, narrow);
    Start(true, narrow);
  }

  Launch Configure(const int64_t* symbols, bool aligned) const override {
    const bool narrow = FitsNarrow(kernel_, symbols);
    const bool vectors = aligned && MultiplesHold(expected_, symbols);
    std::shared_future<Loaded> future;
    {
      std::lock_guard lock(mutex_);
      future = Start(vectors || expected_.vector == 1, narrow);
    }
    const Loaded& loaded = future.get();
    Launch out;
    out.function = loaded.function;
    const int64_t blocks = GpuBlocks(kernel_, loaded.schedule, symbols);
    if (blocks > 0x7fffffff)
      throw std::bad_alloc();  // more than a launch can have: its results are larger than memories
    out.grid = static_cast<unsigned>(std::max<int64_t>(0, blocks));
    out.threads = static_cast<unsigned>(loaded.schedule.threads);
    out.shared_bytes = static_cast<unsigned>(loaded.schedule.held);
    out.dependent = loaded.schedule.dependent && launches_early_;
    return out;
  }
  const std::vector<uint32_t>& alignment() const override { return expected_.alignment; }

 private:
  std::shared_future<Loaded> Start(bool vectors, bool narrow) const {
    auto& slot = variants_[vectors * 2 + narrow];
    if (!slot.valid()) {
      slot = std::async(std::launch::async, Compile, std::cref(kernel_), std::cref(device_), vectors, narrow).share();
    }
    return slot;
  }

  const loop::Kernel kernel_;
  const DeviceInfo& device_;
  GpuSchedule expected_;
  bool launches_early_ = false;
  mutable std::mutex mutex_;
  mutable std::shared_future<Loaded> variants_[4];
};

struct Cache {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const GpuKernel>> kernels;
};
Cache& TheCache() {
  static auto* cache = new Cache();  // never destroyed: threads may still launch at exit
  return *cache;
}

// What no thread should have to find out: the emitter's refusals, cheaply.
void CheckSupported(const loop::Kernel& k) {
  if (!k.scratch.empty()) throw CodegenUnsupported("a kernel with scratch rows on a GPU");
  if (!LibdevicePath().empty()) return;
  for (const loop::Inst& inst : k.insts) {
    if (inst.kind != loop::IKind::kOp || inst.operands.empty()) continue;
    const DType t = k.insts[inst.operands[0]].dtype;
    if (!IsFloat(t)) continue;
    const bool always = inst.op == Op::kSin || inst.op == Op::kCos || inst.op == Op::kTan || inst.op == Op::kFmod ||
                        inst.op == Op::kRem || inst.op == Op::kFloorDiv;
    const bool f64 = t == DType::kFloat64 &&
                     (inst.op == Op::kPow || inst.op == Op::kErfc || inst.op == Op::kHypot || inst.op == Op::kLog10);
    if (always || f64) throw CodegenUnsupported(std::string(Info(inst.op).name) + " on a GPU without libdevice");
  }
}

}  // namespace

std::shared_ptr<const runtime::DeviceKernel> GetGpuKernel(const loop::Kernel& kernel, int device, bool* reused) {
  CheckSupported(kernel);
  const std::string key = std::to_string(device) + " " + kernel.SignatureText();
  Cache& cache = TheCache();
  std::lock_guard lock(cache.mutex);
  auto& slot = cache.kernels[key];
  if (reused) *reused = slot != nullptr;
  if (slot) {
    ++TheTotals().hits;
    return slot;
  }
  ++TheTotals().misses;
  slot = std::make_shared<GpuKernel>(kernel, device);
  return slot;
}

std::string EmitGpuText(const loop::Kernel& kernel, const std::string& arch, std::string_view what, bool vectors,
                        bool narrow) {
  CheckSupported(kernel);
  const int capability = arch.starts_with("sm_") ? std::atoi(arch.c_str() + 3) : 0;
  const GpuSchedule schedule = MakeGpuSchedule(kernel, runtime::cuda::ChipLike(capability), vectors, narrow);
  return GpuKernelText(kernel, schedule, arch, SymbolOf(kernel), what);
}

bool LibdeviceFound() {
  return !LibdevicePath().empty();
}

void ClearGpuKernels() {
  std::lock_guard lock(TheCache().mutex);
  TheCache().kernels.clear();
  Totals& t = TheTotals();
  for (auto* n : {&t.kernels, &t.hits, &t.misses, &t.read, &t.code_bytes, &t.micros}) *n = 0;
}

int64_t GpuKernelsRead() {
  return TheTotals().read;
}

void AddGpuKernelInfo(KernelCacheInfo* info) {
  const Totals& t = TheTotals();
  info->kernels += t.kernels;
  info->hits += t.hits;
  info->misses += t.misses;
  info->code_bytes += t.code_bytes;
  info->compile_seconds += t.micros * 1e-6;
}

}  // namespace framejit::codegen
