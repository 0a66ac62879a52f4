// Elements that may be read at any time are read before the loops that only read them, also where a round may leave the
// code before it comes to them: LLVM moves what every round comes to alone.
#pragma once

#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

// Metadata of loads whose address may be read whenever the code runs.
inline constexpr const char* kSureLoad = "framejit.sure";

struct SureLoadsPass : llvm::PassInfoMixin<SureLoadsPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
