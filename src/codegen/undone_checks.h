// Checks of numbers that undo the run if they fail: an innermost loop that only adds up or chooses makes them behind
// its last round, since what the rounds after a failed one do is undone as well. So LLVM can vectorise it.
#pragma once

#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

// Attribute of a function: the number of the exit behind which nothing of the run remains.
inline constexpr const char* kUndoes = "framejit.undoes";

struct UndoneChecksPass : llvm::PassInfoMixin<UndoneChecksPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
