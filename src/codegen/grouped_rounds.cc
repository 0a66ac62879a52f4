#include "codegen/grouped_rounds.h"

#include <llvm/ADT/SetVector.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/Analysis/ScalarEvolutionExpressions.h>
#include <llvm/Analysis/ValueTracking.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/Transforms/Utils/LoopUtils.h>
#include <llvm/Transforms/Utils/ScalarEvolutionExpander.h>
#include <llvm/Transforms/Utils/ValueMapper.h>

#include <map>
#include <optional>
#include <vector>

#include "codegen/late_checks.h"
#include "codegen/several_rounds.h"
#include "codegen/versioned_loops.h"

namespace framejit::codegen {
namespace {

using llvm::BasicBlock;
using llvm::SCEV;
using llvm::SCEVAddRecExpr;
using llvm::Value;

constexpr int kMost = 8, kFew = 4;  // rounds at once, of short ones and of others
constexpr unsigned kShort = 12, kMostInstructions = 40, kMostEach = 2;

class GroupedRounds {
 public:
  GroupedRounds(llvm::Loop& loop, llvm::LoopInfo& li, llvm::DominatorTree& dt, llvm::ScalarEvolution& se)
      : loop_(loop), li_(li), dt_(dt), se_(se), i64_(llvm::Type::getInt64Ty(loop.getHeader()->getContext())) {}

  bool Run() {
    if (!loop_.isLoopSimplifyForm() || !Runs(loop_) || !loop_.isLoopExiting(loop_.getLoopLatch())) return false;
    rounds_ = se_.getExitCount(&loop_, loop_.getLoopLatch());
    llvm::SCEVExpander expander(se_, loop_.getHeader()->getDataLayout(), "grouped");
    if (llvm::isa<llvm::SCEVCouldNotCompute>(rounds_) || rounds_->getType() != i64_ ||
        !se_.isAvailableAtLoopEntry(rounds_, &loop_) ||
        !expander.isSafeToExpandAt(rounds_, loop_.getLoopPreheader()->getTerminator()))
      return false;
    if (!Find() || stores_.empty() || numbers_.empty() || !Apart()) return false;
    llvm::SmallSetVector<Value*, 4> others;
    for (Value* x : numbers_)
      if (Value* last = CarriedOn(x, loop_))
        told_.insert(last);
      else
        others.insert(x);
    each_ = Last(others, loop_);
    if (each_.size() > kMostEach) return false;
    Change(expander);
    return true;
  }

 private:
  // What a round runs as a rule: one block behind the other, and in order what they compute, read and write.
  bool Find() {
    BasicBlock *block = loop_.getHeader(), *before = nullptr;
    for (;; before = block, block = next_) {
      for (llvm::Instruction& i : *block) {
        if (i.isTerminator() || llvm::isa<llvm::AssumeInst>(i)) continue;
        if (auto* phi = llvm::dyn_cast<llvm::PHINode>(&i)) {
          if (before) same_[phi] = phi->getIncomingValueForBlock(before);
          continue;
        }
        auto* load = llvm::dyn_cast<llvm::LoadInst>(&i);
        auto* store = llvm::dyn_cast<llvm::StoreInst>(&i);
        if (load ? !load->isSimple() : store ? !store->isSimple() : !llvm::isSafeToSpeculativelyExecute(&i))
          return false;
        if (!load && !store && i.mayReadOrWriteMemory()) return false;
        if (store) stores_.push_back(store);
        if (load) loads_.emplace_back(load, stores_.size());
        all_.push_back(&i);
      }
      if (all_.size() > kMostInstructions) return false;
      if (block == loop_.getLoopLatch()) {
        group_ = all_.size() <= kShort ? kMost : kFew;
        return true;
      }
      auto* branch = llvm::dyn_cast<llvm::BranchInst>(block->getTerminator());
      if (!branch) return false;
      next_ = branch->getSuccessor(0);
      if (branch->isConditional()) {
        const std::optional<bool> usual = branch->getMetadata(kLateCheck) ? UsualWay(*branch) : std::nullopt;
        if (!usual || !NumbersAsked(branch->getCondition(), *usual, numbers_)) return false;
        next_ = branch->getSuccessor(*usual ? 0 : 1);
      }
      if (!loop_.contains(next_) || next_ == loop_.getHeader()) return false;
    }
  }

  // Reads that come before what earlier rounds write, or this one, read nothing of that.
  bool Apart() {
    for (auto [load, before] : loads_)
      for (size_t k = 0; k < stores_.size(); ++k)
        for (int rounds = k < before ? 0 : 1; rounds < group_; ++rounds)
          if (!OtherArrays(*load, *stores_[k]) && !OtherPlaces(*load, *stores_[k], rounds)) return false;
    return true;
  }

  static bool OtherArrays(const llvm::Instruction& a, const llvm::Instruction& b) {
    const llvm::MDNode *of = a.getMetadata(llvm::LLVMContext::MD_alias_scope),
                       *others = b.getMetadata(llvm::LLVMContext::MD_noalias);
    return of && others && of->getNumOperands() == 1 && llvm::is_contained(others->operands(), of->getOperand(0));
  }

  bool OtherPlaces(llvm::LoadInst& load, llvm::StoreInst& store, int rounds) {
    const auto* reads = llvm::dyn_cast<SCEVAddRecExpr>(se_.getSCEV(load.getPointerOperand()));
    const auto* writes = llvm::dyn_cast<SCEVAddRecExpr>(se_.getSCEV(store.getPointerOperand()));
    if (!reads || !writes || reads->getLoop() != &loop_ || writes->getLoop() != &loop_ || !reads->isAffine() ||
        !writes->isAffine() || reads->getStepRecurrence(se_) != writes->getStepRecurrence(se_))
      return false;
    const auto* step = llvm::dyn_cast<llvm::SCEVConstant>(reads->getStepRecurrence(se_));
    const auto* between = llvm::dyn_cast<llvm::SCEVConstant>(se_.getMinusSCEV(reads, writes));
    if (!step || !between || step->getAPInt().getSignificantBits() > 32 ||
        between->getAPInt().getSignificantBits() > 32)
      return false;
    const int64_t behind = between->getAPInt().getSExtValue() + rounds * step->getAPInt().getSExtValue();
    const llvm::DataLayout& layout = load.getDataLayout();
    const auto size = [&](llvm::Type* t) { return static_cast<int64_t>(layout.getTypeStoreSize(t).getFixedValue()); };
    return behind >= size(store.getValueOperand()->getType()) || -behind >= size(load.getType());
  }

  void Change(llvm::SCEVExpander& expander) {
    llvm::Function& f = *loop_.getHeader()->getParent();
    llvm::LLVMContext& c = f.getContext();
    BasicBlock* before = loop_.getLoopPreheader();
    llvm::Instruction* end = before->getTerminator();
    auto* compute = BasicBlock::Create(c, "grouped", &f, loop_.getHeader());
    auto* write = BasicBlock::Create(c, "grouped.write", &f, loop_.getHeader());
    auto* rest = BasicBlock::Create(c, "grouped.rest", &f, loop_.getHeader());
    llvm::MDNode* seldom = llvm::MDBuilder(c).createBranchWeights(1, 1 << 16);

    Value* rounds = expander.expandCodeFor(rounds_, i64_, end);
    llvm::IRBuilder<> b(end);  // The last round is one of the loop's.
    Value* groups = b.CreateLShr(rounds, llvm::Log2_32(group_));
    b.CreateCondBr(b.CreateICmpEQ(groups, b.getInt64(0)), rest, compute);
    end->eraseFromParent();

    b.SetInsertPoint(compute);
    auto* left = b.CreatePHI(i64_, 2, "groups");
    llvm::ValueToValueMapTy map;
    std::vector<std::pair<llvm::PHINode*, llvm::PHINode*>> heads;  // the loop's, and that of the groups
    for (llvm::PHINode& phi : loop_.getHeader()->phis()) {
      heads.emplace_back(&phi, b.CreatePHI(phi.getType(), 2));
      heads.back().second->addIncoming(phi.getIncomingValueForBlock(before), before);
      map[&phi] = heads.back().second;
    }
    const auto mapped = [&](Value* v) {
      for (auto it = same_.find(v); it != same_.end(); it = same_.find(v)) v = it->second;
      const auto it = map.find(v);
      return it == map.end() ? v : static_cast<Value*>(it->second);
    };
    std::vector<llvm::Instruction*> writes;
    std::vector<Value*> nothing(each_.size());  // sums that are not-a-number if a check would fail
    for (int k = 0; k < group_; ++k) {
      for (llvm::Instruction* i : all_) {
        llvm::Instruction* copy = i->clone();
        for (llvm::Use& use : copy->operands()) use.set(mapped(use.get()));
        if (llvm::isa<llvm::StoreInst>(copy))
          writes.push_back(copy);
        else
          b.Insert(copy);
        map[i] = copy;
      }
      std::vector<Value*> carried;
      for (auto [phi, group] : heads) carried.push_back(mapped(phi->getIncomingValueForBlock(loop_.getLoopLatch())));
      for (size_t j = 0; j < each_.size(); ++j) {
        Value *now = mapped(each_[j]), *zero = llvm::ConstantFP::getZero(now->getType());
        nothing[j] = nothing[j] ? b.CreateIntrinsic(llvm::Intrinsic::fmuladd, {now->getType()}, {now, zero, nothing[j]})
                                : b.CreateFMul(now, zero);
      }
      if (k + 1 == group_) {
        for (Value* last : told_) {
          Value* now = mapped(last);
          nothing.push_back(b.CreateFSub(now, now));
        }
        Value* failed = b.getFalse();
        for (Value* sum : nothing) failed = b.CreateOr(failed, b.CreateFCmpUNO(sum, sum));
        b.CreateCondBr(failed, rest, write, seldom);
      }
      for (size_t j = 0; j < heads.size(); ++j) map[heads[j].first] = carried[j];
    }
    b.SetInsertPoint(write);
    for (llvm::Instruction* store : writes) b.Insert(store);
    Value* fewer = b.CreateSub(left, b.getInt64(1));
    b.CreateCondBr(b.CreateICmpEQ(fewer, b.getInt64(0)), rest, compute);
    left->addIncoming(groups, before);
    left->addIncoming(fewer, write);

    b.SetInsertPoint(rest);
    for (auto [phi, group] : heads) {
      auto* from = b.CreatePHI(phi->getType(), 3);
      from->addIncoming(phi->getIncomingValueForBlock(before), before);
      from->addIncoming(group, compute);
      from->addIncoming(map[phi], write);
      group->addIncoming(map[phi], write);
      phi->setIncomingValueForBlock(before, from);
      phi->replaceIncomingBlockWith(before, rest);
    }
    b.CreateBr(loop_.getHeader());
    if (llvm::Loop* around = loop_.getParentLoop()) around->addBasicBlockToLoop(rest, li_);
  }

  llvm::Loop& loop_;
  llvm::LoopInfo& li_;
  llvm::DominatorTree& dt_;
  llvm::ScalarEvolution& se_;
  llvm::Type* i64_;
  const SCEV* rounds_ = nullptr;  // jumps back
  BasicBlock* next_ = nullptr;
  int group_ = kFew;
  std::vector<llvm::Instruction*> all_;
  std::map<Value*, Value*> same_;                          // phis of blocks behind the header, and what they are there
  std::vector<std::pair<llvm::LoadInst*, size_t>> loads_;  // with the number of stores before it
  std::vector<llvm::StoreInst*> stores_;
  llvm::SmallSetVector<Value*, 4> numbers_, told_;  // that are checked; that tell of rounds before
  llvm::SmallVector<Value*, 4> each_;               // those of which no such one tells
};

}  // namespace

llvm::PreservedAnalyses GroupedRoundsPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  auto& li = fam.getResult<llvm::LoopAnalysis>(f);
  auto& dt = fam.getResult<llvm::DominatorTreeAnalysis>(f);
  auto& se = fam.getResult<llvm::ScalarEvolutionAnalysis>(f);
  bool changed = false;
  for (llvm::Loop* loop : li.getLoopsInPreorder()) {
    if (!GroupedRounds(*loop, li, dt, se).Run()) continue;
    changed = true;
    dt.recalculate(f);
    se.forgetAllLoops();
  }
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

}  // namespace framejit::codegen
