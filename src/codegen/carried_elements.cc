#include "codegen/carried_elements.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/Analysis/AliasAnalysis.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/Analysis/ScalarEvolutionExpressions.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/Transforms/Utils/LoopUtils.h>
#include <llvm/Transforms/Utils/ScalarEvolutionExpander.h>

#include <vector>

namespace framejit::codegen {
namespace {

using llvm::SCEV;
using llvm::SCEVAddRecExpr;
using llvm::Value;

constexpr size_t kMostAccesses = 48;

class CarriedElements {
 public:
  CarriedElements(llvm::Loop& loop, llvm::DominatorTree& dt, llvm::ScalarEvolution& se, llvm::AAResults& aa)
      : loop_(loop), dt_(dt), se_(se), aa_(aa), layout_(loop.getHeader()->getDataLayout()) {}

  bool Run() {
    if (!loop_.isLoopSimplifyForm()) return false;
    std::vector<llvm::LoadInst*> loads;
    for (llvm::BasicBlock* b : loop_.blocks())
      for (llvm::Instruction& i : *b) {
        if (auto* load = llvm::dyn_cast<llvm::LoadInst>(&i); load && load->isSimple()) loads.push_back(load);
        if (i.mayWriteToMemory() && !llvm::isa<llvm::AssumeInst, llvm::LoadInst>(i)) writes_.push_back(&i);
      }
    if (loads.size() + writes_.size() > kMostAccesses) return false;
    bool changed = false;
    for (llvm::LoadInst* load : loads) {
      llvm::StoreInst* store = Before(*load);
      if (!store) continue;
      Carry(*load, *store);
      changed = true;
    }
    return changed;
  }

 private:
  const SCEVAddRecExpr* Moves(Value* pointer) {
    const auto* moves = llvm::dyn_cast<SCEVAddRecExpr>(se_.getSCEV(pointer));
    return moves && moves->getLoop() == &loop_ && moves->isAffine() ? moves : nullptr;
  }
  int64_t Size(llvm::Type* type) const { return static_cast<int64_t>(layout_.getTypeStoreSize(type)); }

  // Gives the write of which the next round reads what this load does, and which nothing comes between.
  llvm::StoreInst* Before(llvm::LoadInst& load) {
    if (!ReadFirst(load)) return nullptr;
    const SCEVAddRecExpr* at = Moves(load.getPointerOperand());
    if (!at) return BeforeAtOnePlace(load);
    const SCEV* step = at->getStepRecurrence(se_);
    for (llvm::Instruction* write : writes_) {
      auto* store = llvm::dyn_cast<llvm::StoreInst>(write);
      if (!store || !store->isSimple() || store->getValueOperand()->getType() != load.getType()) continue;
      const SCEVAddRecExpr* to = Moves(store->getPointerOperand());
      if (!to || to->getStepRecurrence(se_) != step || !dt_.dominates(store->getParent(), loop_.getLoopLatch()) ||
          se_.getMinusSCEV(to->getStart(), at->getStart()) != step ||
          !(dt_.dominates(&load, store) || Steps(step, Size(load.getType()))))
        continue;
      const bool alone = llvm::all_of(writes_, [&](llvm::Instruction* w) {
        return w == write || Apart(*w, load, *at) || Overwritten(*w, *store, load, *step);
      });
      return alone ? store : nullptr;
    }
    return nullptr;
  }

  // Does `store` write over this one in each round, which meets nothing that the load reads before that?
  bool Overwritten(llvm::Instruction& write, llvm::StoreInst& store, llvm::LoadInst& load, const SCEV& step) {
    const auto* first = llvm::dyn_cast<llvm::StoreInst>(&write);
    return first && first->isSimple() && dt_.dominates(first, &store) &&
           first->getValueOperand()->getType() == load.getType() &&
           se_.getSCEV(const_cast<Value*>(first->getPointerOperand())) == se_.getSCEV(store.getPointerOperand()) &&
           (dt_.dominates(&load, first) || Steps(&step, Size(load.getType())));
  }

  // Do rounds lie so far apart that what one writes for the next is nothing that it reads itself behind the write? An
  // array's stride may be zero, or less than an element.
  static bool Steps(const SCEV* step, int64_t size) {
    const auto* c = llvm::dyn_cast<llvm::SCEVConstant>(step);
    return c && c->getAPInt().abs().uge(size);
  }

  // The same of an element that all rounds read and write.
  llvm::StoreInst* BeforeAtOnePlace(llvm::LoadInst& load) {
    const SCEV* at = se_.getSCEV(load.getPointerOperand());
    for (llvm::Instruction* write : writes_) {
      auto* store = llvm::dyn_cast<llvm::StoreInst>(write);
      if (!store || !store->isSimple() || store->getValueOperand()->getType() != load.getType() ||
          se_.getSCEV(store->getPointerOperand()) != at || !dt_.dominates(&load, store) ||
          !dt_.dominates(store->getParent(), loop_.getLoopLatch()))
        continue;
      const bool alone = llvm::all_of(writes_, [&](llvm::Instruction* w) { return w == write || Elsewhere(*w, load); });
      return alone ? store : nullptr;
    }
    return nullptr;
  }

  // What is read in the first round: an address that does not change, or with which it begins.
  const SCEV* Start(Value* pointer) {
    const SCEVAddRecExpr* moves = Moves(pointer);
    const SCEV* at = se_.getSCEV(pointer);
    return moves ? moves->getStart() : se_.isLoopInvariant(at, &loop_) ? at : nullptr;
  }

  bool Elsewhere(llvm::Instruction& write, llvm::LoadInst& load) {
    const llvm::MemoryLocation anywhere =
        llvm::MemoryLocation::getBeforeOrAfter(load.getPointerOperand(), load.getAAMetadata());
    return !llvm::isModSet(aa_.getModRefInfo(&write, anywhere));
  }

  // Is it read in the first round, whatever happens in that? Then it may be read before the loop.
  bool ReadFirst(llvm::LoadInst& load) {
    const SCEV* start = Start(load.getPointerOperand());
    if (!start) return false;
    llvm::SCEVExpander expander(se_, layout_, "carried");
    llvm::SmallVector<llvm::BasicBlock*, 8> exiting;
    loop_.getExitingBlocks(exiting);
    exiting.push_back(loop_.getLoopLatch());
    // Whether an address that does not change lies in its array does not change either: so does no other check ask.
    const bool one_place = !Moves(load.getPointerOperand());
    const auto asks_else = [&](llvm::BasicBlock* b) {
      const auto* branch = llvm::dyn_cast<llvm::BranchInst>(b->getTerminator());
      return one_place && b != loop_.getLoopLatch() && branch && branch->isConditional() &&
             !loop_.isLoopInvariant(branch->getCondition());
    };
    return llvm::all_of(exiting,
                        [&](llvm::BasicBlock* b) {
                          return dt_.dominates(load.getParent(), b) || asks_else(b) || AsksNumbers(*b, load);
                        }) &&
           expander.isSafeToExpandAt(start, loop_.getLoopPreheader()->getTerminator());
  }

  // Does the loop end here by what numbers came to, of which the load's address is not made? Then that is the array's
  // whether it ends or not: whether it is is asked by comparisons of ints.
  bool AsksNumbers(llvm::BasicBlock& b, llvm::LoadInst& load) const {
    const auto* branch = llvm::dyn_cast<llvm::BranchInst>(b.getTerminator());
    if (!branch || !branch->isConditional() || &b == loop_.getLoopLatch()) return false;
    const Value* asked = branch->getCondition();
    if (llvm::isa<llvm::FCmpInst>(asked)) return true;
    const auto* part = llvm::dyn_cast<llvm::ExtractValueInst>(asked);
    const auto* sum = part ? llvm::dyn_cast<llvm::WithOverflowInst>(part->getAggregateOperand()) : nullptr;
    return sum && !MadeOf(load.getPointerOperand(), sum, 0);
  }
  bool MadeOf(const Value* v, const Value* of, int depth) const {
    constexpr int kDeep = 16;
    if (v == of || depth == kDeep) return true;
    const auto* i = llvm::dyn_cast<llvm::Instruction>(v);
    if (!i || !loop_.contains(i) || (llvm::isa<llvm::PHINode>(i) && i->getParent() == loop_.getHeader())) return false;
    return llvm::any_of(i->operands(), [&](const Value* o) { return MadeOf(o, of, depth + 1); });
  }

  // Does `write` meet neither what the load reads in its round nor what it reads in the next one?
  bool Apart(llvm::Instruction& write, llvm::LoadInst& load, const SCEVAddRecExpr& at) {
    auto* store = llvm::dyn_cast<llvm::StoreInst>(&write);
    const SCEVAddRecExpr* to = store && store->isSimple() ? Moves(store->getPointerOperand()) : nullptr;
    const SCEV* step = at.getStepRecurrence(se_);
    if (to && to->getStepRecurrence(se_) == step) {
      const SCEV* distance = se_.getMinusSCEV(to->getStart(), at.getStart());
      const int64_t written = Size(store->getValueOperand()->getType()), read = Size(load.getType());
      const auto outside = [&](const SCEV* d) {
        const auto* c = llvm::dyn_cast<llvm::SCEVConstant>(d);
        if (!c || c->getAPInt().getSignificantBits() > 62) return false;
        const int64_t bytes = c->getAPInt().getSExtValue();
        return bytes >= read || bytes + written <= 0;
      };
      if (outside(distance) && outside(se_.getMinusSCEV(distance, step))) return true;
    }
    return Elsewhere(write, load);
  }

  void Carry(llvm::LoadInst& load, llvm::StoreInst& store) {
    llvm::Instruction* end = loop_.getLoopPreheader()->getTerminator();
    llvm::SCEVExpander expander(se_, layout_, "carried");
    Value* pointer = load.getPointerOperand();
    Value* at = expander.expandCodeFor(Start(pointer), pointer->getType(), end);
    llvm::IRBuilder<> b(end);
    auto* first = b.CreateAlignedLoad(load.getType(), at, load.getAlign());
    first->setAAMetadata(load.getAAMetadata());
    b.SetInsertPoint(loop_.getHeader(), loop_.getHeader()->begin());
    llvm::PHINode* element = b.CreatePHI(load.getType(), 2, "carried");
    element->addIncoming(first, loop_.getLoopPreheader());
    element->addIncoming(store.getValueOperand(), loop_.getLoopLatch());
    se_.forgetValue(&load);
    load.replaceAllUsesWith(element);
    load.eraseFromParent();
  }

  llvm::Loop& loop_;
  llvm::DominatorTree& dt_;
  llvm::ScalarEvolution& se_;
  llvm::AAResults& aa_;
  const llvm::DataLayout& layout_;
  std::vector<llvm::Instruction*> writes_;
};

}  // namespace

llvm::PreservedAnalyses CarriedElementsPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  auto& dt = fam.getResult<llvm::DominatorTreeAnalysis>(f);
  auto& se = fam.getResult<llvm::ScalarEvolutionAnalysis>(f);
  auto& aa = fam.getResult<llvm::AAManager>(f);
  bool changed = false;
  for (llvm::Loop* loop : fam.getResult<llvm::LoopAnalysis>(f).getLoopsInPreorder())
    if (loop->isInnermost()) changed |= CarriedElements(*loop, dt, se, aa).Run();
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

}  // namespace framejit::codegen
