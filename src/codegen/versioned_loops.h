// Innermost loops twice: without the checks that are known to hold in all their rounds before the first, and as they
// were.
#pragma once

#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

struct VersionLoopsPass : llvm::PassInfoMixin<VersionLoopsPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
