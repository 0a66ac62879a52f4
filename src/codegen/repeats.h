// What the code has found out already, where LLVM does not see it: an index that was counted from the end, or was not,
// and what the round before has computed of numbers that it carries on.
#pragma once

#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

// `a[i]` behind another `a[i]`: where the first was reached, the second finds the same place.
struct SameIndicesPass : llvm::PassInfoMixin<SameIndicesPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

// `while x[j] * k < n: ... j += 1`: the condition of a round has computed what its body asks for again.
struct CarriedValuesPass : llvm::PassInfoMixin<CarriedValuesPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
