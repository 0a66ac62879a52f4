// A number of a float that has no int of 64 bits is the least of them. Where a branch behind that check asks whether
// the int is an index, or greater than something, the check is asked on the other way alone: what is an index is not
// the least int.
#pragma once

#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

struct SunkChecksPass : llvm::PassInfoMixin<SunkChecksPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
