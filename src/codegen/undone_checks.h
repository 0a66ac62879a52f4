// Checks of numbers that undo the run if they fail: an innermost loop that only adds up or chooses makes them behind
// its last round, since what the rounds after a failed one do is undone as well. So LLVM can vectorise it.
#pragma once

#include <llvm/Analysis/LoopInfo.h>
#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

// Attribute of a function: the number of the exit behind which nothing of the run remains.
inline constexpr const char* kUndoes = "framejit.undoes";

// Does a loop that has no end of its own at its latch undo the run there once it has gone round too often? That is no
// number of rounds to reckon with.
bool EndsUndone(const llvm::Loop& loop);

struct UndoneChecksPass : llvm::PassInfoMixin<UndoneChecksPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
