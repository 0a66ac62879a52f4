// The passes over the module of one scalar code.
#pragma once

#include <llvm/IR/Module.h>
#include <llvm/Target/TargetMachine.h>

namespace framejit::codegen {

void OptimizeScalar(llvm::Module& m, llvm::TargetMachine& machine);

}  // namespace framejit::codegen
