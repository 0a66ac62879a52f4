// Checks for infinities and not-a-numbers behind an innermost loop instead of in each of its rounds. If one came, what
// the loop has written is put back and all of it runs again with its checks: so it is left at the right element.
#pragma once

#include <llvm/ADT/SetVector.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/IR/PassManager.h>

namespace framejit::codegen {

// Metadata of branches whose unusual way only tells of what has happened: the code is right without it.
inline constexpr const char* kLateCheck = "framejit.late";

// Of a check's condition, which is `usual` as a rule: the numbers that it asks for infinities and not-a-numbers. It is
// false if the condition asks more.
bool NumbersAsked(llvm::Value* condition, bool usual, llvm::SmallSetVector<llvm::Value*, 4>& numbers);
// Gives the value at a round's end that tells of this number in it and in the rounds before, or nothing if there is
// none.
llvm::Value* CarriedOn(llvm::Value* x, const llvm::Loop& loop);
// Of numbers of which one is special if another one is, that one alone.
llvm::SmallVector<llvm::Value*, 4> Last(const llvm::SmallSetVector<llvm::Value*, 4>& numbers, const llvm::Loop& loop);

struct LateChecksPass : llvm::PassInfoMixin<LateChecksPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

// Of the loops whose checks came behind them at the price of copies of what they write: only those that are vectorised
// keep that.
struct VectorisedChecksPass : llvm::PassInfoMixin<VectorisedChecksPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

// A number that was special makes all sums and products with it special. Where the loop carries such a sum on, its last
// value tells of all rounds.
struct CarriedChecksPass : llvm::PassInfoMixin<CarriedChecksPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

// Where no such sum tells of a number, and the loop is not vectorised, 0 times each number is added up: that takes one
// instruction in a round.
struct AddedChecksPass : llvm::PassInfoMixin<AddedChecksPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam);
};

}  // namespace framejit::codegen
