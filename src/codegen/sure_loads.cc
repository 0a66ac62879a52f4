#include "codegen/sure_loads.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/Analysis/AliasAnalysis.h>
#include <llvm/Analysis/AssumptionCache.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/MemoryLocation.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/Transforms/Utils/LoopSimplify.h>

#include <vector>

namespace framejit::codegen {
namespace {

constexpr size_t kMostWrites = 48;

bool MoveLoads(llvm::Loop& loop, llvm::AAResults& aa) {
  std::vector<llvm::LoadInst*> loads;
  std::vector<llvm::Instruction*> writes;
  for (llvm::BasicBlock* b : loop.blocks())
    for (llvm::Instruction& i : *b) {
      if (auto* load = llvm::dyn_cast<llvm::LoadInst>(&i))
        if (load->isSimple() && load->getMetadata(kSureLoad) && loop.isLoopInvariant(load->getPointerOperand()))
          loads.push_back(load);
      if (i.mayWriteToMemory() && !llvm::isa<llvm::AssumeInst, llvm::LoadInst>(i)) writes.push_back(&i);
    }
  if (writes.size() > kMostWrites) return false;
  bool changed = false;
  for (llvm::LoadInst* load : loads) {
    const llvm::MemoryLocation at = llvm::MemoryLocation::get(load);
    if (llvm::any_of(writes, [&](llvm::Instruction* w) { return llvm::isModSet(aa.getModRefInfo(w, at)); })) continue;
    load->moveBefore(loop.getLoopPreheader()->getTerminator());
    changed = true;
  }
  return changed;
}

}  // namespace

llvm::PreservedAnalyses SureLoadsPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  const auto sure = [](llvm::Instruction& i) { return i.getMetadata(kSureLoad) != nullptr; };
  if (llvm::none_of(f, [&](llvm::BasicBlock& b) { return llvm::any_of(b, sure); }))
    return llvm::PreservedAnalyses::all();
  auto& li = fam.getResult<llvm::LoopAnalysis>(f);
  auto& dt = fam.getResult<llvm::DominatorTreeAnalysis>(f);
  auto& aa = fam.getResult<llvm::AAManager>(f);
  auto& se = fam.getResult<llvm::ScalarEvolutionAnalysis>(f);
  auto& assumed = fam.getResult<llvm::AssumptionAnalysis>(f);
  bool changed = false;
  for (llvm::Loop* loop : llvm::SmallVector<llvm::Loop*, 8>(li.begin(), li.end()))
    changed |= llvm::simplifyLoop(loop, &dt, &li, &se, &assumed, nullptr, /*PreserveLCSSA=*/false);
  const auto loops = li.getLoopsInPreorder();
  for (llvm::Loop* loop : llvm::reverse(loops))  // the inner ones first
    if (loop->getLoopPreheader()) changed |= MoveLoads(*loop, aa);
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

}  // namespace framejit::codegen
