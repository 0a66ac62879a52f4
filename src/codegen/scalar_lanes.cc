#include "codegen/scalar_lanes.h"

#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/Constants.h>
#include <llvm/IR/Instructions.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#include <llvm/Transforms/Utils/Local.h>
#include <llvm/Transforms/Utils/LoopUtils.h>

namespace framejit::codegen {
namespace {

class ScalarLanes {
 public:
  explicit ScalarLanes(llvm::Loop& loop) : loop_(loop) {}
  // `v` as it is in this lane; null: something else goes into it.
  llvm::Value* At(llvm::Value* v, unsigned lane, llvm::Instruction* before) {
    if (llvm::Value* same = llvm::getSplatValue(v)) return same;
    if (auto* c = llvm::dyn_cast<llvm::Constant>(v)) return c->getAggregateElement(lane);
    if (auto* phi = llvm::dyn_cast<llvm::PHINode>(v)) return Counter(*phi, lane, before);
    auto* op = llvm::dyn_cast<llvm::BinaryOperator>(v);
    if (!op || !loop_.contains(op) || op->isIntDivRem()) return nullptr;
    llvm::Value* a = At(op->getOperand(0), lane, before);
    llvm::Value* b = a ? At(op->getOperand(1), lane, before) : nullptr;
    return b ? llvm::BinaryOperator::Create(op->getOpcode(), a, b, "lane", before->getIterator()) : nullptr;
  }

 private:
  // One that begins at constants is the loop's own counter and a constant.
  llvm::Value* Counter(llvm::PHINode& v, unsigned lane, llvm::Instruction* before) {
    llvm::BasicBlock *from = loop_.getLoopPreheader(), *latch = loop_.getLoopLatch();
    if (v.getParent() != loop_.getHeader() || !from || !latch) return nullptr;
    const auto step = [&](llvm::PHINode& phi) -> llvm::Constant* {
      auto* next = llvm::dyn_cast<llvm::BinaryOperator>(phi.getIncomingValueForBlock(latch));
      if (!next || next->getOpcode() != llvm::Instruction::Add || next->getOperand(0) != &phi) return nullptr;
      return llvm::dyn_cast<llvm::Constant>(next->getOperand(1));
    };
    auto* first = llvm::dyn_cast<llvm::Constant>(v.getIncomingValueForBlock(from));
    llvm::Constant* const each = step(v);
    auto* place = first && each ? llvm::dyn_cast_or_null<llvm::ConstantInt>(first->getAggregateElement(lane)) : nullptr;
    if (!place) return nullptr;
    for (llvm::PHINode& counter : loop_.getHeader()->phis()) {
      if (counter.getType() != place->getType() || step(counter) != each->getSplatValue()) continue;
      auto* begin = llvm::dyn_cast<llvm::ConstantInt>(counter.getIncomingValueForBlock(from));
      if (!begin || !step(counter)) continue;
      auto* behind = llvm::ConstantInt::get(place->getContext(), place->getValue() - begin->getValue());
      return llvm::BinaryOperator::CreateAdd(&counter, behind, "lane", before->getIterator());
    }
    return nullptr;
  }

  llvm::Loop& loop_;
};

}  // namespace

llvm::PreservedAnalyses ScalarLanesPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  bool changed = false;
  for (llvm::Loop* loop : fam.getResult<llvm::LoopAnalysis>(f).getLoopsInPreorder()) {
    if (!loop->isInnermost() || !llvm::findStringMetadataForLoop(loop, "llvm.loop.isvectorized")) continue;
    ScalarLanes lanes(*loop);
    llvm::SmallVector<llvm::WeakTrackingVH> dead;
    for (llvm::BasicBlock* block : loop->blocks())
      for (llvm::Instruction& i : *block) {
        auto* taken = llvm::dyn_cast<llvm::ExtractElementInst>(&i);
        if (!taken || !taken->getType()->isIntegerTy(64)) continue;
        const auto* lane = llvm::dyn_cast<llvm::ConstantInt>(taken->getIndexOperand());
        llvm::Value* scalar = lane ? lanes.At(taken->getVectorOperand(), lane->getZExtValue(), taken) : nullptr;
        if (!scalar) continue;
        taken->replaceAllUsesWith(scalar);
        dead.push_back(taken);
      }
    changed |= !dead.empty();
    llvm::RecursivelyDeleteTriviallyDeadInstructionsPermissive(dead);
    llvm::DeleteDeadPHIs(loop->getHeader());
  }
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

}  // namespace framejit::codegen
