// Where the run is undone if NumPy would tell of a number, nobody has to look at the number: the processor notes
// infinities and not-a-numbers that operations make of other numbers, and whoever runs the code asks it behind the run
// (ScalarCode::status). All that has to be seen to is that these operations do run, though LLVM takes them to be
// without effect. A call of a function that only takes the number stands for that until the last passes.
#pragma once

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

// The operation that made this number is to run wherever this is come to.
void TellOf(llvm::IRBuilder<>& b, llvm::Value* number);
bool IsTold(const llvm::Instruction& i);

// Numbers that are stored in each round, or of which others are made that are told of, are told of no more. What is
// left keeps a loop from being vectorised.
struct ToldNumbersPass : llvm::PassInfoMixin<ToldNumbersPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

// Of the calls that are left: no code, but the number is there.
struct EraseToldPass : llvm::PassInfoMixin<EraseToldPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
