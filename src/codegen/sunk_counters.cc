#include "codegen/sunk_counters.h"

#include <llvm/Analysis/AssumptionCache.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/PatternMatch.h>
#include <llvm/Transforms/Utils/Local.h>
#include <llvm/Transforms/Utils/LoopSimplify.h>
#include <llvm/Transforms/Utils/LoopUtils.h>

#include <limits>
#include <optional>
#include <vector>

namespace framejit::codegen {
namespace {

using namespace llvm::PatternMatch;  // NOLINT(google-build-using-namespace): the words of its patterns
using llvm::BasicBlock;
using llvm::Value;

// A number to which each round adds the same.
struct Counter {
  llvm::PHINode* now;
  llvm::Instruction* next;
  int64_t step;
};

std::vector<Counter> CountersOf(const llvm::Loop& loop) {
  std::vector<Counter> all;
  for (llvm::PHINode& phi : loop.getHeader()->phis()) {
    auto* next = llvm::dyn_cast<llvm::Instruction>(phi.getIncomingValueForBlock(loop.getLoopLatch()));
    const llvm::APInt* step;
    if (phi.getType()->isIntegerTy(64) && next && match(next, m_Add(m_Specific(&phi), m_APInt(step))))
      all.push_back({&phi, next, step->getSExtValue()});
  }
  return all;
}

// Where the counter is used besides in counting: in the loop, and behind it.
bool UsedIn(const Counter& c, const llvm::Loop& loop, std::vector<llvm::PHINode*>& behind) {
  for (llvm::Instruction* i : {llvm::cast<llvm::Instruction>(c.now), c.next})
    for (llvm::User* user : i->users()) {
      if (user == c.now || user == c.next) continue;
      auto* phi = llvm::dyn_cast<llvm::PHINode>(user);
      if (!phi || loop.contains(phi)) return true;
      if (!llvm::is_contained(behind, phi)) behind.push_back(phi);  // it may use the counter on several ways
    }
  return false;
}

// Can each of these be told from a counter's value in the round in which the loop was left?
bool Tells(const std::vector<llvm::PHINode*>& behind, const llvm::Loop& loop) {
  return llvm::all_of(behind, [&](llvm::PHINode* phi) {
    return llvm::all_of(phi->blocks(), [&](BasicBlock* from) {
      return loop.contains(from) && phi->getIncomingValueForBlock(from) == phi->getIncomingValue(0);
    });
  });
}

// a / b, if that is an integer of 64 bits.
std::optional<int64_t> Quotient(int64_t a, int64_t b) {
  if (b == 0 || (b == -1 && a == std::numeric_limits<int64_t>::min()) || a % b != 0) return {};
  return a / b;
}

// `c` counts `times` what `main` counts.
void Sink(const Counter& c, const Counter& main, int64_t times, const llvm::Loop& loop,
          const std::vector<llvm::PHINode*>& behind) {
  const auto start = [&](const Counter& of) { return of.now->getIncomingValueForBlock(loop.getLoopPreheader()); };
  for (llvm::PHINode* phi : behind) {
    BasicBlock* at = phi->getParent();
    llvm::IRBuilder<> b(at, at->begin());
    llvm::PHINode* count = b.CreatePHI(phi->getType(), phi->getNumIncomingValues());
    for (BasicBlock* from : phi->blocks()) count->addIncoming(main.now, from);
    b.SetInsertPoint(at, at->getFirstInsertionPt());
    Value* rounds = b.CreateMul(b.CreateSub(count, start(main)), b.getInt64(times));
    if (phi->getIncomingValue(0) == c.next) rounds = b.CreateAdd(rounds, b.getInt64(c.step));
    phi->replaceAllUsesWith(b.CreateAdd(start(c), rounds));
    phi->eraseFromParent();
  }
  llvm::RecursivelyDeleteDeadPHINode(c.now);
}

// A flag that the first round sets is set behind the loop if it has gone round, or was before: main is not what it
// began with.
bool SinkFlag(llvm::PHINode& flag, const Counter& main, const llvm::Loop& loop) {
  auto* last = llvm::dyn_cast<llvm::ConstantInt>(flag.getIncomingValueForBlock(loop.getLoopLatch()));
  constexpr int64_t kMostStep = 1 << 20;  // so it does not come back to that
  if (!flag.getType()->isIntegerTy(1) || !last || !last->isOne() || main.step == 0 || std::abs(main.step) > kMostStep)
    return false;
  std::vector<llvm::PHINode*> behind;
  for (llvm::User* user : flag.users()) {
    auto* phi = llvm::dyn_cast<llvm::PHINode>(user);
    if (!phi || loop.contains(phi)) return false;
    if (!llvm::is_contained(behind, phi)) behind.push_back(phi);
  }
  if (!Tells(behind, loop)) return false;
  for (llvm::PHINode* phi : behind) {
    BasicBlock* at = phi->getParent();
    llvm::IRBuilder<> b(at, at->begin());
    llvm::PHINode* count = b.CreatePHI(main.now->getType(), phi->getNumIncomingValues());
    for (BasicBlock* from : phi->blocks()) count->addIncoming(main.now, from);
    b.SetInsertPoint(at, at->getFirstInsertionPt());
    Value* gone = b.CreateICmpNE(count, main.now->getIncomingValueForBlock(loop.getLoopPreheader()));
    phi->replaceAllUsesWith(b.CreateOr(gone, flag.getIncomingValueForBlock(loop.getLoopPreheader())));
    phi->eraseFromParent();
  }
  return true;
}

// A flag that is set where a number is replaced by a greater one, or by a smaller one: it is set behind the loop if
// that is another number than before. (One that was not-a-number before stays that.)
bool SinkChosen(llvm::PHINode& flag, const llvm::Loop& loop) {
  BasicBlock *latch = loop.getLoopLatch(), *before = loop.getLoopPreheader();
  Value *next = flag.getIncomingValueForBlock(latch), *replaced, *x, *y;
  if (!flag.getType()->isIntegerTy(1) || !flag.hasOneUse() ||
      !match(next, m_c_LogicalOr(m_Specific(&flag), m_Value(replaced))))
    return false;
  auto* compare = llvm::dyn_cast<llvm::CmpInst>(replaced);
  if (!compare || !compare->isStrictPredicate() ||
      (compare->isFPPredicate() && !llvm::FCmpInst::isOrdered(compare->getPredicate())))
    return false;
  llvm::PHINode* number = nullptr;
  for (llvm::PHINode& phi : loop.getHeader()->phis())
    if (match(phi.getIncomingValueForBlock(latch), m_Select(m_Specific(compare), m_Value(x), m_Value(y))) &&
        y == &phi &&
        ((compare->getOperand(0) == x && compare->getOperand(1) == y) ||
         (compare->getOperand(0) == y && compare->getOperand(1) == x)))
      number = &phi;
  if (!number || !llvm::all_of(next->users(), [&](llvm::User* user) {
        const auto* phi = llvm::dyn_cast<llvm::PHINode>(user);
        return phi && (phi == &flag ||
                       (!loop.contains(phi) && phi->getNumIncomingValues() == 1 && phi->getIncomingBlock(0) == latch));
      }))
    return false;
  Value* last = number->getIncomingValueForBlock(latch);
  for (llvm::User* user : llvm::make_early_inc_range(next->users())) {
    auto* phi = llvm::cast<llvm::PHINode>(user);
    if (phi == &flag) continue;
    BasicBlock* at = phi->getParent();
    auto* then = llvm::PHINode::Create(last->getType(), 1, "", at->begin());
    then->addIncoming(last, phi->getIncomingBlock(0));
    llvm::IRBuilder<> b(at, at->getFirstInsertionPt());
    Value* first = number->getIncomingValueForBlock(before);
    Value* other = compare->isFPPredicate() ? b.CreateFCmpONE(then, first) : b.CreateICmpNE(then, first);
    phi->replaceAllUsesWith(b.CreateOr(other, flag.getIncomingValueForBlock(before)));
    phi->eraseFromParent();
  }
  llvm::RecursivelyDeleteDeadPHINode(&flag);
  return true;
}

bool SinkCounters(llvm::Loop& loop) {
  const std::vector<Counter> all = CountersOf(loop);
  const Counter* main = nullptr;
  for (const Counter& c : all) {
    std::vector<llvm::PHINode*> behind;
    if (!main && UsedIn(c, loop, behind)) main = &c;
  }
  bool changed = false;
  for (const Counter& c : all) {
    std::vector<llvm::PHINode*> behind;
    if (!main || &c == main || UsedIn(c, loop, behind) || !Tells(behind, loop)) continue;
    const std::optional<int64_t> times = Quotient(c.step, main->step);
    if (!times) continue;
    Sink(c, *main, *times, loop, behind);
    changed = true;
  }
  for (llvm::PHINode& phi : llvm::make_early_inc_range(loop.getHeader()->phis())) changed |= SinkChosen(phi, loop);
  if (main)
    for (llvm::PHINode& phi : llvm::make_early_inc_range(loop.getHeader()->phis()))
      if (SinkFlag(phi, *main, loop)) {
        phi.eraseFromParent();
        changed = true;
      }
  return changed;
}

}  // namespace

llvm::PreservedAnalyses SunkCountersPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  auto& li = fam.getResult<llvm::LoopAnalysis>(f);
  auto& dt = fam.getResult<llvm::DominatorTreeAnalysis>(f);
  auto& se = fam.getResult<llvm::ScalarEvolutionAnalysis>(f);
  bool changed = false;
  for (llvm::Loop* loop : li.getLoopsInPreorder()) {
    if (!loop->isInnermost()) continue;
    changed |= llvm::simplifyLoop(loop, &dt, &li, &se, &fam.getResult<llvm::AssumptionAnalysis>(f), nullptr,
                                  /*PreserveLCSSA=*/false);
    if (!loop->isLoopSimplifyForm()) continue;
    llvm::formLCSSA(*loop, dt, &li, &se);
    changed |= SinkCounters(*loop);
  }
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

}  // namespace framejit::codegen
