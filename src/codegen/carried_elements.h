// Elements that an innermost loop writes in one round and reads in the next one (`y[i] = f(y[i - 1])`) stay in a
// register: reading memory that was just written takes longer than most arithmetic.
#pragma once

#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

struct CarriedElementsPass : llvm::PassInfoMixin<CarriedElementsPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
