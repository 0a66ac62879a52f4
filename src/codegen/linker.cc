// This file has the one execution session of the process. Each kernel is a library (JITDylib) of its own, so that equal
// names do not meet and an evicted kernel takes its memory with it. Helpers are found by name when a kernel first asks
// for one.
#include "codegen/linker.h"

#include <llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h>
#include <llvm/ExecutionEngine/Orc/Core.h>
#include <llvm/ExecutionEngine/Orc/DebugObjectManagerPlugin.h>
#include <llvm/ExecutionEngine/Orc/Debugging/PerfSupportPlugin.h>
#include <llvm/ExecutionEngine/Orc/EPCDebugObjectRegistrar.h>
#include <llvm/ExecutionEngine/Orc/ExecutorProcessControl.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/ExecutionEngine/Orc/TargetProcess/JITLoaderGDB.h>
#include <llvm/ExecutionEngine/Orc/TargetProcess/JITLoaderPerf.h>
#include <llvm/Support/SmallVectorMemoryBuffer.h>
#include <llvm/TargetParser/Host.h>
#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <new>

#include "codegen/math.h"
#include "diag/diag.h"

namespace framejit::codegen {
namespace {

namespace orc = llvm::orc;

// Names that a kernel refers to.
class Helpers : public orc::DefinitionGenerator {
 public:
  llvm::Error tryToGenerate(orc::LookupState&, orc::LookupKind, orc::JITDylib& library, orc::JITDylibLookupFlags,
                            const orc::SymbolLookupSet& names) override {
    orc::SymbolMap found;
    for (const auto& [name, flags] : names) {
      llvm::StringRef text = *name;
      if (void* address = HelperAddress({text.data(), text.size()}))
        found[name] = {orc::ExecutorAddr::fromPtr(address), llvm::JITSymbolFlags::Exported};
    }
    return found.empty() ? llvm::Error::success() : library.define(orc::absoluteSymbols(std::move(found)));
  }
};

std::unique_ptr<orc::ExecutorProcessControl> ThisProcess() {
  const auto page = static_cast<unsigned>(sysconf(_SC_PAGESIZE));
  return std::make_unique<orc::SelfExecutorProcessControl>(
      std::make_shared<orc::SymbolStringPool>(), std::make_unique<orc::InPlaceTaskDispatcher>(),
      llvm::Triple(llvm::sys::getProcessTriple()), page, std::make_unique<llvm::jitlink::InProcessMemoryManager>(page));
}

struct Session {
  Session()
      : session(ThisProcess()),
        layer(session, session.getExecutorProcessControl().getMemMgr()),
        helpers(session.createBareJITDylib("helpers")) {
    session.setErrorReporter(
        [](llvm::Error error) { llvm::consumeError(std::move(error)); });  // the caller has it, too
    helpers.addGenerator(std::make_unique<Helpers>());
    AddTools();
  }

  // gdb and perf hear of kernels only where the option asks for it: each keeps a copy of what it is told. gdb is never
  // told that a kernel is gone, so then none goes.
  void AddTools() {
    const std::string tools = diag::GetOption("symbols");
    if (tools.find("gdb") != std::string::npos) {
      keep = true;
      auto registrar = std::make_unique<orc::EPCDebugObjectRegistrar>(
          session, orc::ExecutorAddr::fromPtr(&llvm_orc_registerJITLoaderGDBWrapper));
      layer.addPlugin(std::make_shared<orc::DebugObjectManagerPlugin>(
          session, std::move(registrar), /*RequireDebugSections=*/false, /*AutoRegisterCode=*/true));
    }
    if (tools.find("perf") != std::string::npos) {
      layer.addPlugin(std::make_shared<orc::PerfSupportPlugin>(
          session.getExecutorProcessControl(), orc::ExecutorAddr::fromPtr(&llvm_orc_registerJITLoaderPerfStart),
          orc::ExecutorAddr::fromPtr(&llvm_orc_registerJITLoaderPerfEnd),
          orc::ExecutorAddr::fromPtr(&llvm_orc_registerJITLoaderPerfImpl), /*EmitDebugInfo=*/false,
          /*EmitUnwindInfo=*/false));
    }
  }

  orc::ExecutionSession session;
  orc::ObjectLinkingLayer layer;
  orc::JITDylib& helpers;
  bool keep = false;  // evicted kernels, too
};

// The session is used by one thread at a time: linking is a hundredth of compiling. fork() waits for it, so that a
// child finds it whole.
struct Linker {
  std::mutex users_mutex;  // held before `mutex`
  std::condition_variable idle;
  int users = 0;  // threads in a scope of UsesLlvm
  std::mutex mutex;
  Session* session = nullptr;  // never destroyed: threads may still run kernels at exit
  int64_t serial = 0;
};

void BeforeFork();
void AfterFork();

Linker& TheLinker() {
  static Linker* linker = [] {
    pthread_atfork(BeforeFork, AfterFork, [] {
      new (&TheLinker().idle) std::condition_variable;  // the threads that waited are gone
      AfterFork();
    });
    return new Linker;
  }();
  return *linker;
}

void BeforeFork() {
  Linker& linker = TheLinker();
  std::unique_lock lock(linker.users_mutex);
  linker.idle.wait(lock, [&] { return linker.users == 0; });
  (void)lock.release();
  linker.mutex.lock();
}

void AfterFork() {
  TheLinker().mutex.unlock();
  TheLinker().users_mutex.unlock();
}

void Remove(Session* session, orc::JITDylib& library) {
  Linker& linker = TheLinker();
  std::lock_guard lock(linker.mutex);
  if (session == linker.session && !session->keep) llvm::consumeError(session->session.removeJITDylib(library));
}

llvm::Expected<orc::ExecutorSymbolDef> Add(Session& s, orc::JITDylib& library,
                                           std::unique_ptr<llvm::MemoryBuffer> object, const std::string& symbol) {
  library.addToLinkOrder(s.helpers);
  if (llvm::Error error = s.layer.add(library, std::move(object))) return error;
  return s.session.lookup({&library}, s.session.intern(symbol));
}

}  // namespace

UsesLlvm::UsesLlvm() {
  Linker& linker = TheLinker();
  std::lock_guard lock(linker.users_mutex);
  ++linker.users;
}

UsesLlvm::~UsesLlvm() {
  Linker& linker = TheLinker();
  std::lock_guard lock(linker.users_mutex);
  if (--linker.users == 0) linker.idle.notify_all();
}

Linked LinkObject(llvm::SmallVector<char, 0> object, const std::string& symbol) {
  Linker& linker = TheLinker();
  Session* session = nullptr;
  orc::JITDylib* library = nullptr;
  llvm::Expected<orc::ExecutorSymbolDef> found = orc::ExecutorSymbolDef();
  {
    std::lock_guard lock(linker.mutex);
    try {
      if (!linker.session) linker.session = new Session;
      session = linker.session;
      library = &session->session.createBareJITDylib(symbol + "." + std::to_string(linker.serial++));
      found = Add(*session, *library, std::make_unique<llvm::SmallVectorMemoryBuffer>(std::move(object), symbol, false),
                  symbol);
    } catch (...) {  // a fatal error from inside LLVM: the session may be locked for good
      linker.session = nullptr;
      throw;
    }
  }
  std::shared_ptr<const void> memory(library, [session, library](const void*) { Remove(session, *library); });
  if (!found) throw std::runtime_error("LLVM: " + llvm::toString(found.takeError()));
  return {found->getAddress().toPtr<void*>(), std::move(memory)};
}

}  // namespace framejit::codegen
