// This file has the kernel cache of the process, from signature and target to machine code. Two threads that want the
// same kernel compile it once. Compile errors are not remembered.
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "codegen/codegen.h"
#include "codegen/gpu.h"
#include "codegen/jit.h"
#include "diag/diag.h"
#include "runtime/prepared.h"

namespace framejit::codegen {
namespace {

struct Entry {
  std::shared_ptr<const CompiledKernel> kernel;  // null while it is being compiled
};

struct Cache {
  std::mutex mutex;
  std::condition_variable ready;
  std::unordered_map<std::string, Entry> entries;
  KernelCacheInfo info;
};

Cache& TheCache();

// What another thread compiled when the process forked is compiled by nobody in the child.
void AfterForkInChild() {
  Cache& cache = TheCache();
  std::erase_if(cache.entries, [](const auto& e) { return e.second.kernel == nullptr; });
  new (&cache.ready) std::condition_variable;  // the threads that waited are gone
  cache.mutex.unlock();
}

Cache& TheCache() {
  static Cache* cache = [] {
    pthread_atfork([] { TheCache().mutex.lock(); }, [] { TheCache().mutex.unlock(); }, AfterForkInChild);
    return new Cache;  // never destroyed: threads may still run kernels at exit
  }();
  return *cache;
}

std::string SymbolOf(const loop::Kernel& kernel) {
  char hash[20];
  std::snprintf(hash, sizeof hash, "#%08x", static_cast<unsigned>(kernel.Signature()));
  return (kernel.name.empty() ? "kernel" : kernel.name) + hash;
}

std::shared_ptr<const CompiledKernel> Make(const loop::Kernel& kernel, const Isa& isa) {
  auto out = std::make_shared<CompiledKernel>();
  out->symbol = SymbolOf(kernel);
  out->kernel = kernel;
  for (auto [channel, assembly] : {std::pair{diag::Channel::llvm_, false}, {diag::Channel::asm_, true}}) {
    if (diag::Enabled(channel)) diag::Log(channel, KernelText(kernel, isa, out->symbol, assembly));
  }
  Code code = CompileKernel(kernel, isa, out->symbol, &out->block);
  out->fn = reinterpret_cast<KernelFn>(code.address);
  out->code_bytes = code.bytes;
  out->code = std::move(code.memory);
  return out;
}

int64_t SizeOf(shape::Int e, const int64_t* symbols) {
  if (e.is_const()) return e.value();
  return symbols[*e.as_symbol()];
}

}  // namespace

int64_t CompiledKernel::rows(const int64_t* symbols) const {
  int64_t n = 1;
  for (shape::Int o : kernel.outer) n *= SizeOf(o, symbols);
  if (block) n *= (SizeOf(kernel.inner, symbols) + block - 1) / block;
  return n;
}

std::pair<int64_t, int64_t> CompiledKernel::line_and_row(const int64_t* symbols) const {
  const int64_t inner = SizeOf(kernel.inner, symbols);
  return {inner, block ? std::min(block, inner) : inner};
}

int64_t CompiledKernel::work_per_row(const int64_t* symbols) const {
  int64_t elements = SizeOf(kernel.inner, symbols);
  if (block && elements > block) elements = block;
  for (shape::Int r : kernel.red) elements *= SizeOf(r, symbols);
  int64_t insts = 0;
  for (const auto& stage : kernel.stages) {
    if (stage.loop) insts += static_cast<int64_t>(stage.insts.size());
  }
  return elements * (insts + 1);
}

std::shared_ptr<const CompiledKernel> GetKernel(const loop::Kernel& kernel, const std::string& cpu, bool* reused) {
  const Isa isa = IsaOf(cpu, true);
  const std::string key = (isa.lowered ? "lowered " : isa.avx512 ? "avx512 " : "avx2 ") + kernel.SignatureText();
  Cache& cache = TheCache();
  {
    std::unique_lock lock(cache.mutex);
    while (true) {
      auto it = cache.entries.find(key);
      if (it == cache.entries.end()) break;
      if (it->second.kernel) {
        ++cache.info.hits;
        if (reused) *reused = true;
        return it->second.kernel;
      }
      cache.ready.wait(lock);
    }
    cache.entries[key] = {};
    ++cache.info.misses;
  }
  const auto start = std::chrono::steady_clock::now();
  std::shared_ptr<const CompiledKernel> made;
  try {
    made = Make(kernel, isa);
  } catch (...) {
    std::lock_guard lock(cache.mutex);
    cache.entries.erase(key);
    cache.ready.notify_all();
    throw;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::lock_guard lock(cache.mutex);
  cache.entries[key].kernel = made;
  ++cache.info.kernels;
  cache.info.compile_seconds += seconds;
  cache.info.code_bytes += made->code_bytes;
  cache.ready.notify_all();
  if (reused) *reused = false;
  return made;
}

std::string EmitText(const loop::Kernel& kernel, const std::string& cpu, std::string_view what) {
  if (what != "llvm" && what != "asm") throw CodegenUnsupported("EmitText: llvm or asm");
  return KernelText(kernel, IsaOf(cpu, false), SymbolOf(kernel), what == "asm");
}

}  // namespace framejit::codegen

namespace framejit {

KernelCacheInfo GetKernelCacheInfo() {
  auto& cache = codegen::TheCache();
  std::lock_guard lock(cache.mutex);
  KernelCacheInfo info = cache.info;
  codegen::AddGpuKernelInfo(&info);
  info.prepared_bytes = runtime::PreparedBytes();
  return info;
}

void ClearKernelCache() {
  auto& cache = codegen::TheCache();
  std::vector<std::shared_ptr<const codegen::CompiledKernel>> evicted;  // freed behind the lock
  {
    std::lock_guard lock(cache.mutex);
    for (const auto& [key, entry] : cache.entries) evicted.push_back(entry.kernel);
    std::erase_if(cache.entries, [](const auto& e) { return e.second.kernel != nullptr; });
    cache.info = {};
  }
  codegen::ClearGpuKernels();
}

}  // namespace framejit
