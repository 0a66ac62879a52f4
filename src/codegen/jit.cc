// TargetMachine -> object in memory -> linker.cc. A TargetMachine is not thread safe and costs 0.25 ms: each compiling
// thread keeps one per Isa.
#include "codegen/jit.h"

#include <llvm/Analysis/LoopAccessAnalysis.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>

#ifdef FRAMEJIT_SANITIZE_CODE
#include <llvm/Analysis/TargetLibraryInfo.h>
#include <llvm/IR/PassInstrumentation.h>
#include <llvm/IR/PassManager.h>
#include <llvm/Transforms/Instrumentation/AddressSanitizer.h>
#endif

#include <mutex>

#include "codegen/emit_kernel.h"
#include "codegen/linker.h"
#include "codegen/machine.h"
#include "codegen/math.h"

namespace framejit::codegen {
namespace {

// LLVM's answer to a fatal error is exit(); it is compiled with unwind tables, so an exception gets out. What was being
// compiled is then in no defined state and is leaked, never destroyed.
void ThrowFatal(void*, const char* reason, bool) {
  throw std::runtime_error(std::string("LLVM: ") + reason);
}

void SetLlvmOption(const char* name, bool value) {
  auto& options = llvm::cl::getRegisteredOptions();
  if (auto it = options.find(name); it != options.end()) static_cast<llvm::cl::opt<bool>*>(it->second)->setValue(value);
}

// Some are asked for only if they were named.
void NameLlvmOption(const char* name, bool value) {
  auto& options = llvm::cl::getRegisteredOptions();
  if (auto it = options.find(name); it != options.end()) it->second->addOccurrence(1, name, value ? "true" : "false");
}

void Initialize() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    llvm::install_fatal_error_handler(ThrowFatal, nullptr);
    // Loop strength reduction takes a third of the time of a small kernel; our loops have one counter and x86 scales it
    // for free. There is no option for it but the command line's.
    SetLlvmOption("disable-lsr", true);
    NameLlvmOption("unroll-runtime-multi-exit", true);  // scalar_code.cc asks for it where it wants it
    // A tenth of the time that scalar code takes to compile, for what these processors do by themselves, and for
    // masks in integers, of which our code has none.
    NameLlvmOption("post-RA-scheduler", false);
    SetLlvmOption("disable-x86-domain-reassignment", true);
    // Parts of one array overlap as a whole where their rows do not.
    llvm::VectorizerParams::HoistRuntimeChecks = false;
    // Strides are numbers of bytes, so one that LLVM takes to be 1 is none of elements that lie side by side.
    SetLlvmOption("enable-mem-access-versioning", false);
#ifdef FRAMEJIT_SANITIZE_CODE
    // Of the first three the runtime would have to hear when code is loaded. With the last one a masked load is not
    // looked at behind a load of its first element.
    for (const char* name : {"asan-globals", "asan-stack", "asan-use-stack-safety", "asan-opt-same-temp"})
      SetLlvmOption(name, false);
#endif
  });
}

const llvm::StringMap<bool>& HostFeatures() {
  static const llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
  return features;
}

bool HostHas(const char* feature) {
  auto it = HostFeatures().find(feature);
  return it != HostFeatures().end() && it->second;
}

bool HostAvx512() {
  return HostHas("avx512f") && HostHas("avx512bw") && HostHas("avx512dq") && HostHas("avx512vl");
}

constexpr const char* kAvx2 = "+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt,+movbe,+cx16,+sahf";
constexpr const char* kAvx512 = ",+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512cd";

llvm::TargetMachine* MakeMachine(const Isa& isa) {
  Initialize();
  const std::string triple = llvm::sys::getProcessTriple();
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (!target) throw std::runtime_error("LLVM: " + error);
  std::string features;
#if defined(__x86_64__)
  features = kAvx2;
  if (isa.avx512 && !isa.lowered) features += kAvx512;
#else
  for (const auto& f : HostFeatures()) {
    if (f.second) features += (features.empty() ? "+" : ",+") + f.first().str();
  }
#endif
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Standard;  // llvm.fma stays, a * b + c is not contracted
  auto* machine = target->createTargetMachine(triple, "", features, options, llvm::Reloc::PIC_, llvm::CodeModel::Small,
                                              llvm::CodeGenOptLevel::Default, true);
  if (!machine) throw std::runtime_error("LLVM: no target machine");
  return machine;
}

// After a fatal error a machine is replaced and never touched again.
std::unique_ptr<llvm::TargetMachine>& ThreadMachine(const Isa& isa) {
  thread_local std::unique_ptr<llvm::TargetMachine> machines[2];
  return machines[isa.avx512 && !isa.lowered];
}

auto KernelFiller(const loop::Kernel& kernel, const Isa& isa, const std::string& symbol, int64_t* block) {
  return [&kernel, &isa, &symbol, block](llvm::Module& m, llvm::TargetMachine&) {
    const Schedule schedule = MakeSchedule(kernel, isa);
    if (block) *block = schedule.block;
    EmitKernel(m, kernel, isa, schedule, symbol);
  };
}

void Prepare(llvm::Module& m, llvm::TargetMachine& machine) {
  m.setTargetTriple(machine.getTargetTriple().str());
  m.setDataLayout(machine.createDataLayout());
}

// In a build for AddressSanitizer each access of the code looks into its shadow memory first, where it is loaded.
void Sanitize([[maybe_unused]] llvm::Module& m) {
#ifdef FRAMEJIT_SANITIZE_CODE
  if (!HelperAddress("__asan_report_load8_noabort")) return;
  for (llvm::Function& f : m)
    if (!f.isDeclaration()) f.addFnAttr(llvm::Attribute::SanitizeAddress);
  llvm::FunctionAnalysisManager fam;
  llvm::ModuleAnalysisManager mam;
  fam.registerPass([] { return llvm::PassInstrumentationAnalysis(); });
  fam.registerPass([] { return llvm::TargetLibraryAnalysis(); });
  mam.registerPass([] { return llvm::PassInstrumentationAnalysis(); });
  mam.registerPass([&] { return llvm::FunctionAnalysisManagerModuleProxy(fam); });
  llvm::ModulePassManager passes;
  const llvm::AddressSanitizerOptions options{.Recover =
                                                  true};  // halt_on_error=0 may ask for more than the first fault
  passes.addPass(llvm::AddressSanitizerPass(options, /*UseGlobalGC=*/false, /*UseOdrIndicator=*/false,
                                            llvm::AsanDtorKind::None, llvm::AsanCtorKind::None));
  passes.run(m, mam);
#endif
}

}  // namespace

Isa IsaOf(const std::string& cpu, bool run) {
  Initialize();
  Isa isa;
#if defined(__x86_64__)
  isa.lowered = cpu == "avx512-lowered";
  const bool avx512 = cpu == "avx512" || isa.lowered || (cpu.empty() && HostAvx512());
  if (!cpu.empty() && cpu != "avx2" && !avx512) {
    throw CodegenUnsupported("unknown cpu '" + cpu + "': avx2, avx512");
  }
  if (run && !(HostHas("avx2") && HostHas("fma") && HostHas("f16c")))
    throw CodegenUnsupported("this machine has no AVX2");
  if (run && avx512 && !isa.lowered && !HostAvx512()) throw CodegenUnsupported("this machine has no AVX-512");
  isa.avx512 = avx512;
  isa.vector_bytes = avx512 ? 64 : 32;
#else
  isa.vector_bytes = 16;
#endif
  return isa;
}

Code CompileModule(const Isa& isa, const std::string& symbol, FillModule fill) {
  UsesLlvm scope;
  auto& machine = ThreadMachine(isa);
  if (!machine) machine.reset(MakeMachine(isa));
  auto context = std::make_unique<llvm::LLVMContext>();
  auto module = std::make_unique<llvm::Module>("framejit", *context);
  llvm::SmallVector<char, 0> object;
  Prepare(*module, *machine);
  fill(*module, *machine);  // our own errors: nothing of LLVM is half done
  try {
    Sanitize(*module);
    llvm::raw_svector_ostream stream(object);
    auto passes = std::make_unique<llvm::legacy::PassManager>();
    llvm::MCContext* mc = nullptr;
    if (machine->addPassesToEmitMC(*passes, mc, stream, /*DisableVerify=*/true))
      throw std::runtime_error("LLVM: no object emission");
    passes->run(*module);
  } catch (...) {  // a fatal error from inside LLVM
    (void)machine.release();
    (void)module.release();
    (void)context.release();
    throw;
  }
  const auto bytes = static_cast<int64_t>(object.size());
  Linked linked = LinkObject(std::move(object), symbol);
  return {linked.address, bytes, std::move(linked.memory)};
}

Code CompileKernel(const loop::Kernel& kernel, const Isa& isa, const std::string& symbol, int64_t* block) {
  return CompileModule(isa, symbol, KernelFiller(kernel, isa, symbol, block));
}

std::string KernelText(const loop::Kernel& kernel, const Isa& isa, const std::string& symbol, bool assembly) {
  return ModuleText(isa, assembly, KernelFiller(kernel, isa, symbol, nullptr));
}

std::string ModuleText(const Isa& isa, bool assembly, FillModule fill) {
  UsesLlvm scope;
  std::unique_ptr<llvm::TargetMachine> machine(MakeMachine(isa));
  llvm::LLVMContext context;
  llvm::Module module("framejit", context);
  Prepare(module, *machine);
  fill(module, *machine);
  std::string text;
  llvm::raw_string_ostream out(text);
  if (!assembly) {
    if (llvm::verifyModule(module, &out)) throw std::runtime_error("LLVM: invalid module: " + text);
    module.print(out, nullptr);
    return text;
  }
  llvm::SmallVector<char, 0> code;
  {
    llvm::raw_svector_ostream stream(code);
    llvm::legacy::PassManager passes;
    machine->addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::AssemblyFile);
    passes.run(module);
  }
  return std::string(code.data(), code.size());
}

}  // namespace framejit::codegen
