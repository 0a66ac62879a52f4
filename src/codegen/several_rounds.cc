#include "codegen/several_rounds.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/Analysis/AssumptionCache.h>
#include <llvm/Analysis/OptimizationRemarkEmitter.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/Analysis/TargetTransformInfo.h>
#include <llvm/IR/Dominators.h>
#include <llvm/Transforms/Utils/LoopUtils.h>
#include <llvm/Transforms/Utils/UnrollLoop.h>

#include "codegen/undone_checks.h"
#include "codegen/versioned_loops.h"

namespace framejit::codegen {
namespace {

constexpr unsigned kAtOnce = 4;  // How many rounds become one.
constexpr unsigned kMost = 30;   // Loops of more instructions than these stay as they are.

// Is there code in it that hardly ever runs? It would be there four times, too.
bool HasSeldom(const llvm::Loop& loop) {
  return llvm::any_of(loop.blocks(), [&](llvm::BasicBlock* block) {
    const llvm::Instruction* end = block->getTerminator();
    const std::optional<bool> usual = UsualWay(*end);
    return usual && loop.contains(end->getSuccessor(*usual));
  });
}

// A `while` that looks at elements has few rounds as a rule.
bool Reads(const llvm::Loop& loop) {
  return llvm::any_of(loop.blocks(), [](llvm::BasicBlock* block) {
    return llvm::any_of(*block, [](llvm::Instruction& i) { return i.mayReadFromMemory(); });
  });
}

}  // namespace

bool Runs(const llvm::Loop& loop) {
  return loop.isInnermost() && !llvm::findStringMetadataForLoop(&loop, "llvm.loop.isvectorized");
}

llvm::PreservedAnalyses SeveralRoundsPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  auto& li = fam.getResult<llvm::LoopAnalysis>(f);
  auto& se = fam.getResult<llvm::ScalarEvolutionAnalysis>(f);
  auto& dt = fam.getResult<llvm::DominatorTreeAnalysis>(f);
  auto& tti = fam.getResult<llvm::TargetIRAnalysis>(f);
  bool changed = false;
  for (llvm::Loop* loop : li.getLoopsInPreorder()) {
    llvm::BasicBlock* latch = loop->getLoopLatch();
    if (!Runs(*loop) || !loop->isLoopSimplifyForm() || !loop->isLoopExiting(latch)) continue;
    if (EndsUndone(*loop) && Reads(*loop)) continue;
    unsigned size = 0;
    for (llvm::BasicBlock* block : loop->blocks()) size += block->size();
    if (size > kMost || llvm::isa<llvm::SCEVCouldNotCompute>(se.getExitCount(loop, latch)) || HasSeldom(*loop))
      continue;
    llvm::formLCSSA(*loop, dt, &li, &se);
    llvm::UnrollLoopOptions how{};
    how.Count = kAtOnce;
    how.Runtime = how.AllowExpensiveTripCount = true;
    changed |= llvm::UnrollLoop(loop, how, &li, &se, &dt, &fam.getResult<llvm::AssumptionAnalysis>(f), &tti,
                                &fam.getResult<llvm::OptimizationRemarkEmitterAnalysis>(f),
                                /*PreserveLCSSA=*/true) != llvm::LoopUnrollResult::Unmodified;
  }
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

}  // namespace framejit::codegen
