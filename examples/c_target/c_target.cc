#include "c_target.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <new>

#include "codegen/codegen.h"
#include "compiler/target.h"
#include "pass/split_reduce.h"

namespace framejit::c_target {
namespace {

// --- memory: one region that nobody may touch unless it is open
// -------------------------------------------------------
constexpr size_t kRegion = size_t{1} << 28, kAlign = 256;

class Memory {
 public:
  static Memory& Get() {
    static auto* memory = new Memory();
    return *memory;
  }
  void* Allocate(size_t bytes) {
    std::lock_guard lock(mutex_);
    bytes = (std::max<size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
    size_t at = 0;
    for (const auto& [begin, size] : used_) {  // the first gap that fits
      if (begin - at >= bytes) break;
      at = begin + size;
    }
    if (at + bytes > kRegion) throw std::bad_alloc();
    used_[at] = bytes;
    return base_ + at;
  }
  void Free(void* data) {
    std::lock_guard lock(mutex_);
    if (data) used_.erase(static_cast<std::byte*>(data) - base_);
  }
  void Enter() {
    std::lock_guard lock(mutex_);
    if (open_++ == 0) mprotect(base_, kRegion, PROT_READ | PROT_WRITE);
  }
  void Leave() {
    std::lock_guard lock(mutex_);
    if (--open_ == 0) mprotect(base_, kRegion, PROT_NONE);
  }

 private:
  Memory() {
    void* region = mmap(nullptr, kRegion, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<std::byte*>(region);
  }
  std::mutex mutex_;
  std::byte* base_ = nullptr;
  std::map<size_t, size_t> used_;  // offset, bytes
  int open_ = 0;
};

// --- kernels
// ------------------------------------------------------------------------------------------------------------
using Function = void (*)(void** arguments);

class CKernel final : public runtime::DeviceKernel {
 public:
  explicit CKernel(const loop::Kernel& kernel) : alignment_(kernel.buffers.size(), 1) {
    const std::string code = EmitC(kernel);
    char folder[] = "/tmp/framejit-c-XXXXXX";
    if (!mkdtemp(folder)) throw std::runtime_error("no temporary folder");
    const std::filesystem::path at = folder;
    std::ofstream(at / "k.c") << code;
    const std::string command = "cc -w -O1 -fwrapv -std=gnu17 -shared -fPIC -o " + (at / "k.so").string() + " " +
                                (at / "k.c").string() + " -lm";
    const bool made = std::system(command.c_str()) == 0;
    library_ = made ? dlopen((at / "k.so").c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    std::filesystem::remove_all(at);
    if (!library_) throw std::runtime_error("the C compiler does not take:\n" + code);
    function_ = dlsym(library_, "kernel");
  }
  ~CKernel() override { dlclose(library_); }
  runtime::Launch Configure(const int64_t*, bool) const override {
    return {.function = function_, .grid = 1, .threads = 1};
  }
  const std::vector<uint32_t>& alignment() const override { return alignment_; }

 private:
  const std::vector<uint32_t> alignment_;
  void *library_ = nullptr, *function_ = nullptr;
};

class CMachine final : public runtime::Machine {
 public:
  bool Enter() const override { return false; }
  void Exit(bool) const override {}
  void Start(const runtime::Launch& launch, void** arguments, void*, const std::string&) const override {
    const Open open;
    reinterpret_cast<Function>(launch.function)(arguments);
  }
};

// --- a library
// -----------------------------------------------------------------------------------------------------------
// Where element i of a row-major tensor of these sizes lies in a tensor of these strides.
int64_t Offset(int64_t i, const int64_t* sizes, const int64_t* strides, int rank) {
  int64_t at = 0;
  for (int d = rank; d-- > 0; i /= sizes[d]) at += i % sizes[d] * strides[d];
  return at;
}

bool MatMul(Host&, const runtime::Step& step, std::span<const int64_t>, std::span<const Buffer> ops, Buffer& out) {
  if (step.kind != runtime::Step::Kind::kMatMul || out.dtype != DType::kFloat32) return false;
  const Open open;
  const Buffer &a = ops[0], &b = ops[1];
  const auto at = [](const Buffer& x, int64_t offset) -> float& { return static_cast<float*>(x.data)[offset]; };
  const int r = out.rank;
  const int64_t rows = out.sizes[r - 2], columns = out.sizes[r - 1];
  int64_t products = 1;
  for (int d = 0; d < r - 2; ++d) products *= out.sizes[d];
  for (int64_t p = 0; p < products; ++p)
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t row = Offset(p, out.sizes, a.strides, r - 2) + i * a.strides[r - 2];
        const int64_t column = Offset(p, out.sizes, b.strides, r - 2) + j * b.strides[r - 1];
        double sum = 0;
        for (int64_t k = 0; k < a.sizes[r - 1]; ++k)
          sum += double{at(a, row + k * a.strides[r - 1])} * at(b, column + k * b.strides[r - 2]);
        at(out, Offset((p * rows + i) * columns + j, out.sizes, out.strides, r)) = static_cast<float>(sum);
      }
  return true;
}

// --- the target
// ---------------------------------------------------------------------------------------------------------
constexpr compiler::PassEntry kPasses[] = {
    {"split_reduce", [](compiler::Unit& u) { pass::SplitReduce(u.graph, {}); }},
};

constexpr runtime::Library kLibraries[] = {MatMul};

class CTarget final : public compiler::Target {
 public:
  std::string_view name() const override { return "c"; }
  std::span<const compiler::PassEntry> passes() const override { return kPasses; }
  const DeviceTraits& traits() const override {
    static constexpr DeviceTraits traits;
    return traits;
  }
  const loop::Costs& costs() const override {
    static constexpr loop::Costs costs;
    return costs;
  }
  std::span<const runtime::Library> libraries() const override { return kLibraries; }
  void Emit(const loop::Kernel& kernel, Device, const CompileOptions&, runtime::KernelWork* work,
            bool* reused) const override {
    static std::mutex mutex;
    static std::map<std::string, std::shared_ptr<const CKernel>> kernels;
    std::lock_guard lock(mutex);
    std::shared_ptr<const CKernel>& slot = kernels[kernel.SignatureText()];
    *reused = slot != nullptr;
    if (!slot) slot = std::make_shared<CKernel>(kernel);
    work->device_kernel = slot;
  }
  std::shared_ptr<const runtime::Machine> machine(Device) const override { return std::make_shared<CMachine>(); }
};

}  // namespace

void Register() {
  static const CTarget target;
  compiler::RegisterTarget(&target);
}

void* Allocate(size_t bytes) {
  return Memory::Get().Allocate(bytes);
}
void Free(void* data) {
  Memory::Get().Free(data);
}
Open::Open() {
  Memory::Get().Enter();
}
Open::~Open() {
  Memory::Get().Leave();
}

}  // namespace framejit::c_target
