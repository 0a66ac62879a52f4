#include "codegen/repeats.h"

#include <llvm/ADT/SetVector.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/Analysis/ScalarEvolutionExpressions.h>
#include <llvm/Analysis/ValueTracking.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/Instructions.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/PatternMatch.h>

#include <map>
#include <optional>
#include <vector>

namespace framejit::codegen {
namespace {

using llvm::BasicBlock, llvm::BranchInst, llvm::DominatorTree, llvm::Instruction, llvm::PHINode, llvm::Value;

// The same operation of the same operands, down to this depth, whatever it is called.
bool SameExpression(const Value* a, const Value* b, int depth) {
  if (a == b) return true;
  const auto *x = llvm::dyn_cast<Instruction>(a), *y = llvm::dyn_cast<Instruction>(b);
  if (!x || !y || depth == 0 || x->getNumOperands() != y->getNumOperands() || !x->isSameOperationAs(y)) return false;
  if (!llvm::isa<llvm::BinaryOperator, llvm::CmpInst, llvm::SelectInst>(x)) return false;
  for (unsigned k = 0; k < x->getNumOperands(); ++k)
    if (!SameExpression(x->getOperand(k), y->getOperand(k), depth - 1)) return false;
  return true;
}

// A number that one branch leaves as it is, and the other way changes, unless it leaves the code.
struct Either {
  PHINode* number;
  BranchInst *ask, *other;
  Value* changed;
  bool usual;  // the way that leaves it as it is
};

constexpr int kDepth = 4;

std::optional<Either> EitherOf(PHINode& number) {
  if (number.getNumIncomingValues() != 2) return {};
  for (unsigned k = 0; k < 2; ++k) {
    BasicBlock *from = number.getIncomingBlock(1 - k), *to = number.getParent();
    auto* ask = llvm::dyn_cast<BranchInst>(number.getIncomingBlock(k)->getTerminator());
    auto* other = llvm::dyn_cast<BranchInst>(from->getTerminator());
    if (!ask || !other || !ask->isConditional() || !other->isConditional()) continue;
    if (from->getSinglePredecessor() != ask->getParent() || ask->getSuccessor(0) == ask->getSuccessor(1)) continue;
    const bool usual = ask->getSuccessor(0) == to;
    if (ask->getSuccessor(usual ? 1 : 0) != from || ask->getSuccessor(usual ? 0 : 1) != to) continue;
    if (llvm::any_of(*from, [](Instruction& i) { return i.mayHaveSideEffects() || llvm::isa<PHINode>(i); })) continue;
    return Either{&number, ask, other, number.getIncomingValue(1 - k), usual};
  }
  return {};
}

bool Same(const Either& a, const Either& b) {
  const auto kept = [](const Either& e) { return e.number->getIncomingValueForBlock(e.ask->getParent()); };
  const auto leads = [](const Either& e) { return e.other->getSuccessor(0) == e.number->getParent(); };
  return kept(a) == kept(b) && a.usual == b.usual && leads(a) == leads(b) &&
         SameExpression(a.ask->getCondition(), b.ask->getCondition(), kDepth) &&
         SameExpression(a.changed, b.changed, kDepth) &&
         SameExpression(a.other->getCondition(), b.other->getCondition(), kDepth);
}

// What a condition is known to be at the end of a block, by the branches on the way there.
std::optional<bool> Known(const Value* c, const BasicBlock* at, const DominatorTree& dt) {
  constexpr int kMostSteps = 12;
  const llvm::DomTreeNode* node = dt.getNode(at);
  for (int step = 0; node && step < kMostSteps; ++step, node = node->getIDom()) {
    const auto* end = llvm::dyn_cast<BranchInst>(node->getBlock()->getTerminator());
    if (!end || !end->isConditional() || end->getSuccessor(0) == end->getSuccessor(1)) continue;
    for (const bool way : {true, false}) {
      const llvm::BasicBlockEdge edge(node->getBlock(), end->getSuccessor(way ? 0 : 1));
      if (!dt.dominates(edge, at)) continue;
      std::vector<const Value*> told{end->getCondition()};
      while (!told.empty()) {
        const Value* v = told.back();
        told.pop_back();
        if (v == c) return way;
        using namespace llvm::PatternMatch;
        const Value *x = nullptr, *y = nullptr;
        if (way ? match(v, m_LogicalAnd(m_Value(x), m_Value(y))) : match(v, m_LogicalOr(m_Value(x), m_Value(y))))
          told.push_back(x), told.push_back(y);
      }
    }
  }
  return {};
}

class Carrier {
 public:
  Carrier(llvm::Loop& loop, DominatorTree& dt, llvm::ScalarEvolution& se)
      : loop_(loop), dt_(dt), se_(se), before_(loop.getLoopPreheader()), latch_(loop.getLoopLatch()) {}

  bool Run() {
    bool changed = false;
    for (PHINode& phi : loop_.getHeader()->phis()) todo_.push_back(&phi);
    while (!todo_.empty()) {
      PHINode* phi = todo_.back();
      todo_.pop_back();
      llvm::SmallSetVector<Instruction*, 8> users;
      for (llvm::User* user : phi->users()) users.insert(llvm::cast<Instruction>(user));
      for (Instruction* user : users) changed |= loop_.contains(user) && Replace(*user);
    }
    return changed;
  }

 private:
  static bool Computes(const Instruction& i) {
    return llvm::isa<llvm::BinaryOperator, llvm::CmpInst, llvm::ExtractValueInst, llvm::WithOverflowInst>(i);
  }
  Value* Translated(Value* v, BasicBlock* from) const {
    auto* phi = llvm::dyn_cast<PHINode>(v);
    return phi && phi->getParent() == loop_.getHeader() ? phi->getIncomingValueForBlock(from) : v;
  }
  // The same operation of what is carried on into the loop from this block, computed on every way to the block's end.
  Instruction* Computed(const Instruction& i, BasicBlock* from) const {
    constexpr unsigned kMostUsers = 32;
    for (Value* operand : i.operands()) {
      Value* x = Translated(operand, from);
      if (x == operand || llvm::isa<llvm::Constant>(x)) continue;
      unsigned asked = 0;
      for (llvm::User* user : x->users()) {
        if (++asked > kMostUsers) break;
        auto* other = llvm::dyn_cast<Instruction>(user);
        if (!other || other == &i || other->getFunction() != i.getFunction() || !other->isSameOperationAs(&i)) continue;
        bool same = dt_.dominates(other, from->getTerminator());
        for (unsigned k = 0; same && k < i.getNumOperands(); ++k)
          same = other->getOperand(k) == Translated(i.getOperand(k), from);
        if (same) return other;
      }
    }
    return nullptr;
  }
  Value* Sure(Value* v, BasicBlock* from) const {
    if (!v->getType()->isIntegerTy(1)) return v;
    const std::optional<bool> known = Known(v, from, dt_);
    return known ? llvm::ConstantInt::getBool(v->getContext(), *known) : v;
  }

  bool Replace(Instruction& i) {
    if (!Computes(i) || !llvm::isSafeToSpeculativelyExecute(&i)) return false;
    for (Value* operand : i.operands())
      if (!loop_.isLoopInvariant(operand) && Translated(operand, latch_) == operand) return false;
    // What changes by even steps is known as such, and stays so.
    if (se_.isSCEVable(i.getType()) && llvm::isa<llvm::SCEVAddRecExpr>(se_.getSCEV(&i))) return false;
    Instruction* again = Computed(i, latch_);
    if (!again) return false;
    Value* first = Computed(i, before_);
    if (!first) {
      Instruction* made = i.clone();
      for (llvm::Use& operand : made->operands()) operand.set(Translated(operand.get(), before_));
      made->insertBefore(before_->getTerminator());
      first = made;
    }
    Value *x = Sure(first, before_), *y = Sure(again, latch_);
    se_.forgetValue(&i);
    if (x == y && llvm::isa<llvm::Constant>(x)) {
      i.replaceAllUsesWith(x);
    } else {
      auto* carried = PHINode::Create(i.getType(), 2, "", loop_.getHeader()->begin());
      carried->addIncoming(x, before_);
      carried->addIncoming(y, latch_);
      i.replaceAllUsesWith(carried);
      todo_.push_back(carried);
    }
    i.eraseFromParent();
    return true;
  }

  llvm::Loop& loop_;
  DominatorTree& dt_;
  llvm::ScalarEvolution& se_;
  BasicBlock *before_, *latch_;
  std::vector<PHINode*> todo_;
};

}  // namespace

llvm::PreservedAnalyses SameIndicesPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  auto& dt = fam.getResult<llvm::DominatorTreeAnalysis>(f);
  std::map<Value*, std::vector<Either>> of;  // by the number that may stay as it is
  for (BasicBlock& block : f)
    for (PHINode& phi : block.phis())
      if (const std::optional<Either> e = EitherOf(phi))
        of[phi.getIncomingValueForBlock(e->ask->getParent())].push_back(*e);
  bool changed = false;
  for (auto& [number, all] : of) {
    std::vector<bool> gone(all.size());
    for (size_t k = 0; k < all.size(); ++k)
      for (size_t first = 0; first < all.size() && !gone[k]; ++first) {
        if (first == k || gone[first] || !Same(all[first], all[k])) continue;
        if (!dt.dominates(all[first].number->getParent(), all[k].ask->getParent())) continue;
        all[k].number->replaceAllUsesWith(all[first].number);
        all[k].ask->setCondition(llvm::ConstantInt::getBool(f.getContext(), all[k].usual));
        gone[k] = changed = true;
      }
    for (size_t k = 0; k < all.size(); ++k)
      if (gone[k]) all[k].number->eraseFromParent();
  }
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

llvm::PreservedAnalyses CarriedValuesPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  auto& li = fam.getResult<llvm::LoopAnalysis>(f);
  auto& dt = fam.getResult<llvm::DominatorTreeAnalysis>(f);
  auto& se = fam.getResult<llvm::ScalarEvolutionAnalysis>(f);
  bool changed = false;
  for (llvm::Loop* loop : li.getLoopsInPreorder())
    if (loop->getLoopPreheader() && loop->getLoopLatch()) changed |= Carrier(*loop, dt, se).Run();
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

}  // namespace framejit::codegen
