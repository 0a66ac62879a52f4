// `while x: x &= x - 1; n += 1` goes round once for each bit of x. What it counts is computed before it, from the
// number of bits that the machine tells at once, where no round would leave the code.
#pragma once

#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

struct CountedBitsPass : llvm::PassInfoMixin<CountedBitsPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
