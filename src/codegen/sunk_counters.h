// Numbers that an innermost loop counts for what stands behind it alone are computed there, from its other counter.
#pragma once

#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

struct SunkCountersPass : llvm::PassInfoMixin<SunkCountersPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
