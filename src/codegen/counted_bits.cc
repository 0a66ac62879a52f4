#include "codegen/counted_bits.h"

#include <llvm/Analysis/AssumptionCache.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/Analysis/ScalarEvolutionExpressions.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/PatternMatch.h>
#include <llvm/Transforms/Utils/LoopSimplify.h>
#include <llvm/Transforms/Utils/LoopUtils.h>
#include <llvm/Transforms/Utils/ScalarEvolutionExpander.h>

#include <optional>
#include <set>
#include <vector>

namespace framejit::codegen {
namespace {

using llvm::BasicBlock, llvm::BranchInst, llvm::Instruction, llvm::PHINode, llvm::Value;
using namespace llvm::PatternMatch;  // NOLINT(google-build-using-namespace)

constexpr int64_t kBits = 64;

// x - 1, which may leave the code behind it.
bool IsBefore(Value* v, Value* x) {
  return match(v, m_Add(m_Specific(x), m_AllOnes())) ||
         match(v, m_ExtractValue<0>(m_Intrinsic<llvm::Intrinsic::sadd_with_overflow>(m_Specific(x), m_AllOnes()))) ||
         match(v, m_ExtractValue<0>(m_Intrinsic<llvm::Intrinsic::ssub_with_overflow>(m_Specific(x), m_One())));
}

class Counter {
 public:
  Counter(llvm::Loop& loop, llvm::ScalarEvolution& se)
      : loop_(loop), se_(se), before_(loop.getLoopPreheader()), latch_(loop.getLoopLatch()) {}

  bool Run() {
    if (!before_ || !latch_ || !FindNumber() || !OnlyCounts() || !FindEnd()) return false;
    const std::optional<std::vector<const llvm::SCEV*>> counted = Counted();
    if (!counted) return false;
    auto* go = llvm::cast<BranchInst>(before_->getTerminator());
    llvm::IRBuilder<> b(go);
    Value* first = x_->getIncomingValueForBlock(before_);
    Value* fine = b.CreateICmpSGE(first, b.getInt64(0));
    for (const auto& [start, most] : limits_) fine = b.CreateAnd(fine, b.CreateICmpSLE(start, b.getInt64(most)));
    Value* bits = b.CreateUnaryIntrinsic(llvm::Intrinsic::ctpop, first);
    // Of 0 there is one round as well, where the loop is come to at all.
    Value* rounds = b.CreateSelect(b.CreateICmpEQ(bits, b.getInt64(0)), b.getInt64(1), bits);
    Value* last = b.CreateSub(rounds, b.getInt64(1));
    llvm::SCEVExpander expand(se_, before_->getDataLayout(), "bits");
    size_t k = 0;
    for (PHINode& phi : end_->phis()) {
      const llvm::SCEV* value = (*counted)[k++];
      Value* v = b.getInt64(0);  // of x
      if (auto* steps = llvm::dyn_cast_or_null<llvm::SCEVAddRecExpr>(value))
        value = steps->evaluateAtIteration(se_.getSCEV(last), se_);
      if (value) v = expand.expandCodeFor(value, phi.getType(), go);
      phi.addIncoming(v, before_);
    }
    b.SetInsertPoint(go);
    b.CreateCondBr(fine, end_, loop_.getHeader(), llvm::MDBuilder(b.getContext()).createBranchWeights(1 << 16, 1));
    go->eraseFromParent();
    return true;
  }

 private:
  bool FindNumber() {
    for (PHINode& phi : loop_.getHeader()->phis()) {
      if (!phi.getType()->isIntegerTy(kBits)) continue;
      next_ = phi.getIncomingValueForBlock(latch_);
      Value* before = nullptr;
      if (!match(next_, m_c_And(m_Specific(&phi), m_Value(before))) || !IsBefore(before, &phi)) continue;
      x_ = &phi;
      return true;
    }
    return false;
  }

  // Nothing happens in the loop but that it counts.
  bool OnlyCounts() const {
    for (BasicBlock* block : loop_.blocks())
      for (Instruction& i : *block) {
        if (llvm::isa<BranchInst>(i)) continue;
        if (i.mayReadOrWriteMemory() || i.mayHaveSideEffects() || !i.willReturn()) return false;
      }
    return true;
  }

  // Where it leads to when x is 0, and what other ends ask of what they count.
  bool FindEnd() {
    llvm::SmallVector<BasicBlock*, 4> exiting;
    loop_.getExitingBlocks(exiting);
    for (BasicBlock* block : exiting) {
      auto* branch = llvm::dyn_cast<BranchInst>(block->getTerminator());
      if (!branch || !branch->isConditional()) return false;
      const bool leaves = !loop_.contains(branch->getSuccessor(0));
      BasicBlock* to = branch->getSuccessor(leaves ? 0 : 1);
      llvm::CmpInst::Predicate p;
      Value *a = nullptr, *condition = branch->getCondition();
      const llvm::APInt* most = nullptr;
      if (match(condition, m_ICmp(p, m_Specific(next_), m_Zero())) &&
          p == (leaves ? llvm::CmpInst::ICMP_EQ : llvm::CmpInst::ICMP_NE)) {
        if (end_) return false;
        end_ = to, from_ = block;
        continue;
      }
      if (leaves && match(condition, m_ExtractValue<1>(m_Value(a))) && Steps(a)) continue;
      if (!leaves || !match(condition, m_ICmp(p, m_Value(a), m_APInt(most))) || p != llvm::CmpInst::ICMP_SGT)
        return false;
      const auto* steps = llvm::dyn_cast<llvm::SCEVAddRecExpr>(se_.getSCEV(a));
      const auto* by = steps && steps->isAffine() ? llvm::dyn_cast<llvm::SCEVConstant>(steps->getOperand(1)) : nullptr;
      constexpr int64_t kMostStep = 1 << 20;
      if (!by || steps->getLoop() != &loop_ || !a->getType()->isIntegerTy(kBits)) return false;
      const int64_t step = by->getAPInt().getSExtValue(), up = most->getSExtValue();
      if (step < 0 || step > kMostStep || up < 0) return false;
      auto* plus = llvm::dyn_cast<llvm::BinaryOperator>(a);
      PHINode* start = nullptr;
      for (PHINode& phi : loop_.getHeader()->phis())
        if (&phi == a || (plus && llvm::is_contained(plus->operands(), &phi))) start = &phi;
      if (!start || se_.getMinusSCEV(steps, se_.getSCEV(start)) != (start == a ? se_.getZero(by->getType()) : by))
        return false;
      limits_.emplace_back(start->getIncomingValueForBlock(before_), up - step * (kBits + 1));
    }
    return end_ != nullptr;
  }

  // x - 1 itself: a natural number has no round in which that overflows.
  bool Steps(Value* pair) const {
    return match(pair, m_Intrinsic<llvm::Intrinsic::sadd_with_overflow>(m_Specific(x_), m_AllOnes())) ||
           match(pair, m_Intrinsic<llvm::Intrinsic::ssub_with_overflow>(m_Specific(x_), m_One()));
  }

  // What each of the end's numbers is: null for x, what goes up by even steps, or what the loop leaves alone.
  std::optional<std::vector<const llvm::SCEV*>> Counted() const {
    std::vector<const llvm::SCEV*> counted;
    for (PHINode& phi : end_->phis()) {
      Value* v = phi.getIncomingValueForBlock(from_);
      if (v == next_) {
        counted.push_back(nullptr);
        continue;
      }
      if (!se_.isSCEVable(v->getType())) return {};
      const llvm::SCEV* value = se_.getSCEV(v);
      const auto* steps = llvm::dyn_cast<llvm::SCEVAddRecExpr>(value);
      const bool affine = steps && steps->isAffine() && steps->getLoop() == &loop_;
      if (!affine && !se_.isLoopInvariant(value, &loop_)) return {};
      if (!llvm::SCEVExpander(se_, before_->getDataLayout(), "")
               .isSafeToExpandAt(affine ? steps->getStart() : value, before_->getTerminator()))
        return {};
      counted.push_back(value);
    }
    return counted;
  }

  llvm::Loop& loop_;
  llvm::ScalarEvolution& se_;
  BasicBlock *before_, *latch_, *end_ = nullptr, *from_ = nullptr;
  PHINode* x_ = nullptr;
  Value* next_ = nullptr;
  std::vector<std::pair<Value*, int64_t>> limits_;  // a number before the loop, and how large it may be
};

}  // namespace

llvm::PreservedAnalyses CountedBitsPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  const auto takes_bit = [](Instruction& i) {
    Value *x = nullptr, *before = nullptr;
    return llvm::isa<llvm::BinaryOperator>(i) && match(&i, m_c_And(m_Value(x), m_Value(before))) &&
           (IsBefore(before, x) || IsBefore(x, before));
  };
  std::set<BasicBlock*> seen;
  bool changed = false, again = llvm::any_of(f, [&](BasicBlock& b) { return llvm::any_of(b, takes_bit); });
  while (again) {
    again = false;
    auto& li = fam.getResult<llvm::LoopAnalysis>(f);
    auto& dt = fam.getResult<llvm::DominatorTreeAnalysis>(f);
    auto& se = fam.getResult<llvm::ScalarEvolutionAnalysis>(f);
    auto& assumed = fam.getResult<llvm::AssumptionAnalysis>(f);
    for (llvm::Loop* loop : li.getLoopsInPreorder()) {
      if (!loop->isInnermost() || !seen.insert(loop->getHeader()).second) continue;
      if (llvm::none_of(loop->blocks(), [&](BasicBlock* b) { return llvm::any_of(*b, takes_bit); })) continue;
      changed |= llvm::simplifyLoop(loop, &dt, &li, &se, &assumed, nullptr, /*PreserveLCSSA=*/false);
      changed |= llvm::formLCSSA(*loop, dt, &li, &se);
      if (!Counter(*loop, se).Run()) continue;
      fam.invalidate(f, llvm::PreservedAnalyses::none());
      changed = again = true;
      break;
    }
  }
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

}  // namespace framejit::codegen
