// Module -> PTX by LLVM's NVPTX back end; the driver makes machine code of it. libdevice is parsed lazily and only the
// functions that a kernel calls are linked.
#include "codegen/gpu_jit.h"

#include <dlfcn.h>
#include <llvm/Bitcode/BitcodeReader.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/InitializePasses.h>
#include <llvm/Linker/Linker.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Pass.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/SmallVectorMemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/Transforms/IPO/AlwaysInliner.h>
#include <llvm/Transforms/Scalar.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "codegen/codegen.h"
#include "codegen/gpu_emit.h"
#include "codegen/jit.h"
#include "codegen/linker.h"

extern "C" {
void LLVMInitializeNVPTXTarget();
void LLVMInitializeNVPTXTargetInfo();
void LLVMInitializeNVPTXTargetMC();
void LLVMInitializeNVPTXAsmPrinter();
}

namespace framejit::codegen {
namespace {

constexpr const char* kTriple = "nvptx64-nvidia-cuda";
constexpr const char* kFeatures = "+ptx78";  // the first that knows sm_90; drivers since CUDA 11.8

struct Arch {
  int capability;
  const char* name;
};
constexpr Arch kArchs[] = {{70, "sm_70"}, {75, "sm_75"}, {80, "sm_80"}, {86, "sm_86"}, {89, "sm_89"}, {90, "sm_90"}};

void Initialize() {
  static std::once_flag once;
  std::call_once(once, [] {
    IsaOf("", false);  // the native target's initialisation, with the handler of fatal errors
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
  });
}

std::unique_ptr<llvm::TargetMachine>& Machine(const std::string& arch) {
  thread_local std::map<std::string, std::unique_ptr<llvm::TargetMachine>> machines;
  auto& machine = machines[arch];
  if (machine) return machine;
  Initialize();
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(kTriple, error);
  if (!target) throw std::runtime_error("LLVM: " + error);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Standard;  // a * b + c is not contracted, as on the CPU
  machine.reset(target->createTargetMachine(kTriple, arch, kFeatures, options, std::nullopt, std::nullopt,
                                            llvm::CodeGenOptLevel::Default, true));
  if (!machine) throw std::runtime_error("LLVM: no target machine for " + arch);
  return machine;
}

bool Readable(const std::string& path) {
  return !path.empty() && access(path.c_str(), R_OK) == 0;
}

std::string FindLibdevice() {
  if (const char* path = std::getenv("FRAMEJIT_LIBDEVICE")) return Readable(path) ? path : "";
  if (const std::string site = SitePackages(); !site.empty()) {  // torch's CUDA wheels bring Triton, which brings it
    for (const char* rest :
         {"/triton/backends/nvidia/lib/libdevice.10.bc", "/nvidia/cu13/nvvm/libdevice/libdevice.10.bc",
          "/nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc"}) {
      if (Readable(site + rest)) return site + rest;
    }
  }
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* home = std::getenv(variable);
    if (home && Readable(std::string(home) + "/nvvm/libdevice/libdevice.10.bc"))
      return std::string(home) + "/nvvm/libdevice/libdevice.10.bc";
  }
  for (const char* home : {"/usr/local/cuda", "/usr/local/cuda-13.0", "/usr/local/cuda-12", "/opt/cuda"}) {
    const std::string path = std::string(home) + "/nvvm/libdevice/libdevice.10.bc";
    if (Readable(path)) return path;
  }
  return "";
}

void LinkLibdevice(llvm::Module& m) {
  bool wanted = false;
  for (const llvm::Function& f : m) wanted = wanted || (f.isDeclaration() && f.getName().starts_with("__nv_"));
  if (!wanted) return;
  static const auto* file = [] {
    auto buffer = llvm::MemoryBuffer::getFile(LibdevicePath());
    return buffer ? buffer->release() : nullptr;
  }();
  if (!file) throw CodegenUnsupported("libdevice cannot be read");
  auto library = llvm::getLazyBitcodeModule(file->getMemBufferRef(), m.getContext());
  if (!library) throw CodegenUnsupported("libdevice: " + llvm::toString(library.takeError()));
  (*library)->setTargetTriple(m.getTargetTriple());
  (*library)->setDataLayout(m.getDataLayout());
  std::vector<std::string> kernels;
  for (const llvm::Function& f : m) {
    if (!f.isDeclaration() && f.hasExternalLinkage()) kernels.push_back(f.getName().str());
  }
  if (llvm::Linker::linkModules(m, std::move(*library), llvm::Linker::LinkOnlyNeeded))
    throw CodegenUnsupported("libdevice cannot be linked");
  for (llvm::Function& f : m) {
    if (f.isDeclaration() || std::find(kernels.begin(), kernels.end(), f.getName().str()) != kernels.end()) continue;
    f.setLinkage(llvm::GlobalValue::InternalLinkage);
    f.removeFnAttr(llvm::Attribute::NoInline);
    if (!f.hasFnAttribute(llvm::Attribute::AlwaysInline)) f.addFnAttr(llvm::Attribute::AlwaysInline);
  }
}

}  // namespace

std::string SitePackages() {  // .../site-packages/torch/lib/libtorch_cpu.so
  void* torch = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
  void* symbol = torch ? dlsym(torch, "aoti_torch_get_data_ptr") : nullptr;
  Dl_info info;
  if (!symbol || !dladdr(symbol, &info)) return "";
  std::string site = info.dli_fname;
  for (int up = 0; up < 3; ++up) site = site.substr(0, site.rfind('/'));
  return site;
}

const std::string& LibdevicePath() {
  static const std::string path = FindLibdevice();
  return path;
}

std::string ArchOf(int major, int minor) {
  const char* best = kArchs[0].name;
  for (const Arch& a : kArchs) {
    if (a.capability <= major * 10 + minor) best = a.name;
  }
  return best;
}

std::string GpuKernelText(const loop::Kernel& kernel, const GpuSchedule& schedule, const std::string& arch,
                          const std::string& symbol, std::string_view what) {
  if (std::none_of(std::begin(kArchs), std::end(kArchs), [&](const Arch& a) { return arch == a.name; }))
    throw CodegenUnsupported("unknown GPU architecture '" + arch + "'");
  UsesLlvm scope;
  auto& machine = Machine(arch);
  Isa isa;
  isa.c_library = isa.arithmetic_fence = false;
  isa.rounds_to_16 = isa.function_instructions = true;
  isa.pairs = schedule.pairs;
  isa.libdevice = !LibdevicePath().empty();
  auto context = std::make_unique<llvm::LLVMContext>();
  auto module = std::make_unique<llvm::Module>("framejit", *context);
  module->setTargetTriple(kTriple);
  module->setDataLayout(machine->createDataLayout());
  EmitGpuKernel(*module, kernel, isa, schedule, symbol);
  std::string text;
  llvm::raw_string_ostream out(text);
  if (what == "llvm") {
    if (llvm::verifyModule(*module, &out)) throw std::runtime_error("LLVM: invalid module: " + text);
    module->print(out, nullptr);
    return text;
  }
  LinkLibdevice(*module);
  llvm::SmallVector<char, 0> code;
  try {
    llvm::raw_svector_ostream stream(code);
    llvm::legacy::PassManager passes;
    passes.add(llvm::createAlwaysInlinerLegacyPass());
    passes.add(static_cast<llvm::Pass*>(llvm::createEarlyCSEPass()));
    if (machine->addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::AssemblyFile, true))
      throw std::runtime_error("LLVM: no PTX emission");
    passes.run(*module);
  } catch (...) {  // a fatal error from inside LLVM: what was being compiled is in no defined state
    (void)machine.release();
    (void)module.release();
    (void)context.release();
    throw;
  }
  std::string ptx(code.data(), code.size());
  constexpr std::string_view kMost = ".maxclusterrank ";  // the size itself this LLVM has no words for
  if (const size_t at = ptx.find(kMost); at != std::string::npos) ptx.replace(at, kMost.size(), ".reqnctapercluster ");
  constexpr std::string_view kVersion = ".version 7.8";  // pushes to other blocks are younger: CUDA 12.1
  if (const size_t at = ptx.find(kVersion); at != std::string::npos && ptx.find("st.async") != std::string::npos)
    ptx.replace(at, kVersion.size(), ".version 8.1");
  return ptx;
}

}  // namespace framejit::codegen
