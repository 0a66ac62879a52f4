// Rounds that compute a sum which the next one carries on, and write something: four or eight of them compute first,
// and write behind the one check of what the last one carries on. Where that fails, none of these has written, and the
// loop as it was goes on from there, looks at each round, and leaves at the right element.
#pragma once

#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

struct GroupedRoundsPass : llvm::PassInfoMixin<GroupedRoundsPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
