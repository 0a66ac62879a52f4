// A quotient that the next round needs is made of two products where the divisor stays the same: a loop that carries
// one on waits for nothing else, and a division takes longer than both. They give what the division does, to the last
// bit.
#pragma once

#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

struct QuotientsPass : llvm::PassInfoMixin<QuotientsPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
