// Addresses of elements that lie apart by a step which is no constant: the vectoriser computes those of one vector side
// by side, from a vector of counters, and takes them apart for loads and stores that are made one by one. Here each
// becomes what it is in its lane, computed from the loop's own counter, which strength reduction makes sums of.
#pragma once

#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

struct ScalarLanesPass : llvm::PassInfoMixin<ScalarLanesPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
