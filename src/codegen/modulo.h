// Python's remainder of integers in scalar code. It is a function of the module, so that passes see one instruction
// that has no effects, move it out of loops and find it again. ExpandModuloPass puts its body in the place of each
// call. Many programs keep a number within bounds that it seldom leaves, and then no division runs. It may be computed
// where nobody wants it, with any divisor.
#pragma once

#include <llvm/IR/Module.h>
#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

// What is known of the operands.
enum class Signs : uint8_t { kAny, kDivisorNatural, kNatural };
llvm::Function* Modulo(llvm::Module& m, Signs signs);
// A remainder of this number, which is natural: it is below it.
bool IsRemainderOf(const llvm::Value* v, const llvm::Value* divisor);
struct ExpandModuloPass : llvm::PassInfoMixin<ExpandModuloPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};
// Behind that pass nothing calls it.
void EraseModulo(llvm::Module& m);

}  // namespace framejit::codegen
