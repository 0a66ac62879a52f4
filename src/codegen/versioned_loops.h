// Innermost loops twice: without the checks that are known to hold in all their rounds before the first, and as they
// were.
#pragma once

#include <llvm/ADT/STLFunctionalExtras.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/PassManager.h>

#include <optional>

namespace framejit::codegen {

struct VersionLoopsPass : llvm::PassInfoMixin<VersionLoopsPass> {
  // Have loops of few rounds been unrolled? Those that are left are loops as others are.
  explicit VersionLoopsPass(bool unrolled) : unrolled_(unrolled) {}
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);

 private:
  bool unrolled_;
};

// Of a branch one way of which is cold, which one is not.
std::optional<bool> UsualWay(const llvm::Instruction& end);

// A second loop like it, which is returned and stays as it is: where what `ask` makes at the end of the first one's
// preheader is false, it runs instead. Exits get its values, too.
llvm::Loop* CopyLoop(llvm::Loop& loop, llvm::LoopInfo& li, llvm::DominatorTree& dt, llvm::ScalarEvolution& se,
                     llvm::function_ref<llvm::Value*(llvm::BasicBlock&)> ask);

}  // namespace framejit::codegen
