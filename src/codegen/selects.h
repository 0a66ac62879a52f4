// Branches on comparisons of floats become selects in innermost loops, where that is cheap: LLVM takes such branches to
// be foreseen, and neither foreseeing one that depends on data nor vectorising a loop with it works.
#pragma once

#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

// Checks that stand on one way of a branch are made before it, where nothing but them and arithmetic stands there: LLVM
// makes a select of what is left.
struct HoistChecksPass : llvm::PassInfoMixin<HoistChecksPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

struct SelectsPass : llvm::PassInfoMixin<SelectsPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

// LLVM writes a number to which another is added or not as a sum of what is chosen. Where what decides hangs on the
// same number as the sum does, as in checksums, the sum is made first and chosen then (of the last passes, as others
// would undo it).
struct UnfoldSelectsPass : llvm::PassInfoMixin<UnfoldSelectsPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
