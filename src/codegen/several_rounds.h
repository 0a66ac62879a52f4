// Small loops whose number of rounds is known before the first, but for exits, go through four at once.
#pragma once

#include <llvm/Analysis/LoopInfo.h>
#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

// Is it a loop that runs as a rule, and that is neither vectorised nor the rest of such a one?
bool Runs(const llvm::Loop& loop);

struct SeveralRoundsPass : llvm::PassInfoMixin<SeveralRoundsPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
