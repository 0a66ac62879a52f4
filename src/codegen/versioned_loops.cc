// A check is what a branch asks whose other way is cold: an exit of the code, or what seldom happens. Of an affine
// index the first and the last round tell whether all are in bounds, of what does not change in the loop any round. So
// much is asked before the loop: if all holds, a copy without these checks runs, else the loop as it was. LLVM's own
// passes for this (IRCE, loop predication, unswitching) want one exit, a signed bound, or a copy for every check.
#include "codegen/versioned_loops.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/SetVector.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/Analysis/ScalarEvolutionExpressions.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/PatternMatch.h>
#include <llvm/IR/ProfDataUtils.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#include <llvm/Transforms/Utils/Cloning.h>
#include <llvm/Transforms/Utils/LoopUtils.h>
#include <llvm/Transforms/Utils/ScalarEvolutionExpander.h>

#include <optional>
#include <vector>

#include "codegen/undone_checks.h"

namespace framejit::codegen {
namespace {

using namespace llvm::PatternMatch;  // NOLINT(google-build-using-namespace): the words of its patterns
using llvm::SCEV;
using llvm::SCEVAddRecExpr;
using llvm::Value;

constexpr const char* kDone = "framejit.versioned";
constexpr uint64_t kCold = 64;  // so much more often goes the other way
constexpr unsigned kMostInstructions = 600, kSearch = 60;
constexpr int64_t kMostRounds = 1 << 30, kMostStep = 1 << 20;
// Of a number to which loops add: what it starts with, what is added at once, how often in a round, and rounds.
constexpr int64_t kMostStart = int64_t{1} << 61, kMostAdded = int64_t{1} << 36, kFewRounds = 1 << 20;
constexpr size_t kMostAdditions = 16;
// Ints that stay the same in a loop are taken to be smaller; what is made of them does not overflow up to kMostMade.
constexpr int64_t kMostSame = int64_t{1} << 31, kMostMade = int64_t{1} << 62;
static_assert(kMostAdded * kFewRounds * int64_t{kMostAdditions} <= kMostStart);
constexpr unsigned kUnrolledWhole = 16;  // rounds: such a loop will be none

// Is it a `while` whose condition has several parts, or which is left by `break`? Such loops search: they have few
// rounds as a rule, and where those are short, looking at all ends before the first one costs more than looking in
// each. They are known by looking for signals themselves, or by undoing the run in their latch.
bool Searches(const llvm::Loop& loop) {
  bool looks = EndsUndone(loop), ends = false;
  for (llvm::BasicBlock* block : loop.blocks()) {
    for (const llvm::Instruction& i : *block) looks |= llvm::isa<llvm::LoadInst>(i) && i.isVolatile();
    ends |= block != loop.getLoopLatch() && loop.isLoopExiting(block) && !UsualWay(*block->getTerminator());
  }
  return looks && ends;
}

class Versioner {
 public:
  Versioner(llvm::Loop& loop, llvm::LoopInfo& li, llvm::DominatorTree& dt, llvm::ScalarEvolution& se, bool unrolled)
      : loop_(loop),
        li_(li),
        dt_(dt),
        se_(se),
        i64_(llvm::Type::getInt64Ty(loop.getHeader()->getContext())),
        unrolled_(unrolled) {}

  bool Run() {
    if (!loop_.isLoopSimplifyForm() || !loop_.isSafeToClone() || llvm::findStringMetadataForLoop(&loop_, kDone))
      return false;
    rounds_ = se_.getExitCount(&loop_, loop_.getLoopLatch());
    if (llvm::isa<llvm::SCEVCouldNotCompute>(rounds_) || rounds_->getType() != i64_ || EndsUndone(loop_))
      rounds_ = nullptr;
    if (const auto* c = llvm::dyn_cast_or_null<llvm::SCEVConstant>(unrolled_ ? nullptr : rounds_))
      if (c->getAPInt().ult(kUnrolledWhole)) return false;
    unsigned size = 0;
    for (llvm::BasicBlock* b : loop_.blocks()) size += b->size();
    if (size > kMostInstructions || (size < kSearch && Searches(loop_))) return false;
    FindAll();
    if (checks_.empty()) return false;
    Copy();
    return true;
  }

 private:
  struct Check {
    Value* condition;
    bool holds;                       // what it is in each round
    std::vector<const SCEV*> values;  // in the first and the last one; nothing if the condition does not change
    const SCEV* limit = nullptr;      // values are less, or
    int64_t bound = 0;                // from -bound to bound, or
    bool later = false;               // greater than the number of rounds, without sign
  };

  // What is only come to where a check fails asks nothing that has to hold.
  void FindAll() {
    llvm::SmallSetVector<llvm::BasicBlock*, 16> come_to;
    come_to.insert(loop_.getHeader());
    for (size_t i = 0; i < come_to.size(); ++i) {
      const llvm::Instruction* end = come_to[i]->getTerminator();
      const std::optional<bool> usual = UsualWay(*end);
      for (unsigned k = 0; k < end->getNumSuccessors(); ++k) {
        llvm::BasicBlock* to = end->getSuccessor(k);
        if (!loop_.contains(to) || (usual && (k == 0) != *usual)) continue;
        come_to.insert(to);
        if (usual && come_to[i] != loop_.getLoopLatch())
          Condition(llvm::cast<llvm::BranchInst>(end)->getCondition(), *usual);
      }
    }
  }

  // All that has to hold for `c` to be `holds`.
  void Condition(Value* c, bool holds) {
    Value *a, *b;
    if (loop_.isLoopInvariant(c)) {
      if (!llvm::isa<llvm::Constant>(c)) checks_.push_back({c, holds, {}});
    } else if (holds ? match(c, m_LogicalAnd(m_Value(a), m_Value(b))) : match(c, m_LogicalOr(m_Value(a), m_Value(b)))) {
      Condition(a, holds);
      Condition(b, holds);
    } else if (match(c, m_Not(m_Value(a)))) {
      Condition(a, !holds);
    } else if (auto* compare = llvm::dyn_cast<llvm::ICmpInst>(c)) {
      Compare(*compare, holds);
    } else if (auto* part = llvm::dyn_cast<llvm::ExtractValueInst>(c); part && !holds && part->getIndices()[0] == 1) {
      Overflow(*part);
    }
  }

  // Gives the values of `e` in the first and in the last round, or nothing if they are not known or may go round.
  std::vector<const SCEV*> Ends(const SCEV* e) {
    const llvm::Instruction* at = loop_.getLoopPreheader()->getTerminator();
    if (e->getType() != i64_) return {};
    if (se_.isLoopInvariant(e, &loop_)) return Safe(e, at) ? std::vector{e} : std::vector<const SCEV*>();
    const auto* moves = llvm::dyn_cast<SCEVAddRecExpr>(e);
    if (!moves || moves->getLoop() != &loop_ || !moves->isAffine() || !rounds_) return {};
    const SCEV* step = moves->getStepRecurrence(se_);
    const auto* known = llvm::dyn_cast<llvm::SCEVConstant>(step);
    if (known ? known->getAPInt().abs().ugt(kMostStep) : !Safe(step, at)) return {};
    const SCEV* last = se_.getAddExpr(moves->getStart(), se_.getMulExpr(step, rounds_));
    if (!Safe(moves->getStart(), at) || !Safe(last, at) || !Safe(rounds_, at)) return {};
    if (!known) steps_.insert(step);
    return {moves->getStart(), last};
  }
  bool Safe(const SCEV* e, const llvm::Instruction* at) {
    return se_.isAvailableAtLoopEntry(e, &loop_) && Expander().isSafeToExpandAt(e, at);
  }

  llvm::SCEVExpander& Expander() {
    if (!expander_) expander_.emplace(se_, loop_.getHeader()->getDataLayout(), "versioned");
    return *expander_;
  }

  void Compare(llvm::ICmpInst& c, bool holds) {
    const SCEV *x = se_.getSCEV(c.getOperand(0)), *y = se_.getSCEV(c.getOperand(1));
    auto less = holds ? c.getPredicate() : c.getInversePredicate();
    if (less == llvm::ICmpInst::ICMP_NE) return Differ(c, holds, x, y);
    if (less == llvm::ICmpInst::ICMP_UGT) std::swap(x, y), less = llvm::ICmpInst::ICMP_ULT;
    if (less != llvm::ICmpInst::ICMP_ULT || x->getType() != i64_ || !se_.isLoopInvariant(y, &loop_)) return;
    // More than 2^63 values: then what moves by less than that cannot go round unseen.
    if (!se_.isKnownNonNegative(y) || !Safe(y, loop_.getLoopPreheader()->getTerminator())) return;
    auto ends = Ends(x);
    // What fails in the first or the last round is asked under a condition of the program's (`if j > 1`), and stays.
    const auto fails = [&](const SCEV* v) { return se_.isKnownPredicate(llvm::ICmpInst::ICMP_UGE, v, y); };
    if (!ends.empty() && llvm::none_of(ends, fails)) checks_.push_back({&c, holds, std::move(ends), y});
  }

  // What LLVM makes of a bound that a counter reaches: the round in which it does is none of the loop's.
  void Differ(llvm::ICmpInst& c, bool holds, const SCEV* x, const SCEV* y) {
    if (!llvm::isa<SCEVAddRecExpr>(x)) std::swap(x, y);
    const auto* moves = llvm::dyn_cast<SCEVAddRecExpr>(x);
    if (!moves || moves->getLoop() != &loop_ || !moves->isAffine() || x->getType() != i64_ || !rounds_) return;
    const auto* step = llvm::dyn_cast<llvm::SCEVConstant>(moves->getStepRecurrence(se_));
    const llvm::Instruction* at = loop_.getLoopPreheader()->getTerminator();
    if (!step || !step->getAPInt().abs().isOne() || !se_.isLoopInvariant(y, &loop_) || !Safe(rounds_, at)) return;
    const SCEV* start = moves->getStart();
    const SCEV* distance = step->getAPInt().isOne() ? se_.getMinusSCEV(y, start) : se_.getMinusSCEV(start, y);
    if (Safe(distance, at)) checks_.push_back({&c, holds, {distance}, nullptr, 0, true});
  }

  void Overflow(llvm::ExtractValueInst& part) {
    auto* sum = llvm::dyn_cast<llvm::WithOverflowInst>(part.getAggregateOperand());
    if (!sum || !sum->isSigned() || sum->getType()->getStructElementType(0) != i64_) return;
    const llvm::APInt* c;
    if (match(sum->getRHS(), m_APInt(c)) && c->abs().ule(1 << 30))
      if (auto ends = Ends(se_.getSCEV(sum->getLHS())); ends.size() == 2) {
        checks_.push_back({&part, false, std::move(ends), nullptr, int64_t{1} << 32});
        return;
      }
    Growth growth;
    if (rounds_ && Grows(sum, growth) && growth.seen.size() <= kMostAdditions) {
      few_rounds_ = true;
      checks_.push_back({&part, false, std::move(growth.starts), nullptr, kMostStart});
      for (const SCEV* e : growth.added) checks_.push_back({&part, false, {e}, nullptr, kMostAdded});
      return;
    }
    std::vector<const SCEV*> same;
    llvm::SmallPtrSet<Value*, 16> on_way;
    if (!Size(sum, same, on_way)) return;
    if (same.empty()) same.push_back(se_.getZero(i64_));  // nothing has to hold
    for (const SCEV* e : same) checks_.push_back({&part, false, {e}, nullptr, kMostSame});
  }

  // Gives how large an int can be that is made of small ones, and of what stays the same in the loop. Nothing if it may
  // be larger than kMostMade.
  std::optional<int64_t> Size(Value* v, std::vector<const SCEV*>& same, llvm::SmallPtrSetImpl<Value*>& on_way) {
    using Wide = __int128;
    const auto within = [](Wide size) {
      return size <= kMostMade ? std::optional(static_cast<int64_t>(size)) : std::nullopt;
    };
    if (v->getType() == i64_) {
      const SCEV* e = se_.getSCEV(v);
      const llvm::ConstantRange range = se_.getSignedRange(e);
      const llvm::APInt most(64, kMostAdded);
      if (range.getSignedMin().sgt(-most) && range.getSignedMax().slt(most))
        return std::max(range.getSignedMax().abs().getSExtValue(), range.getSignedMin().abs().getSExtValue());
      if (se_.isLoopInvariant(e, &loop_)) {
        if (!Safe(e, loop_.getLoopPreheader()->getTerminator())) return {};
        if (!llvm::is_contained(same, e)) same.push_back(e);
        return kMostSame;
      }
    }
    if (on_way.size() > kMostAdditions || !on_way.insert(v).second) return {};
    Value *a, *b;
    std::optional<int64_t> x, y;
    const auto both = [&](Value* p, Value* q) {
      x = Size(p, same, on_way);
      y = x ? Size(q, same, on_way) : std::nullopt;
      return y.has_value();
    };
    std::optional<int64_t> size;
    if (auto* part = llvm::dyn_cast<llvm::ExtractValueInst>(v)) {
      if (part->getIndices()[0] == 0) size = Size(part->getAggregateOperand(), same, on_way);
    } else if (auto* made = llvm::dyn_cast<llvm::WithOverflowInst>(v)) {
      if (made->isSigned() && both(made->getLHS(), made->getRHS()))
        size = within(made->getBinaryOp() == llvm::Instruction::Mul ? Wide{*x} * *y : Wide{*x} + *y);
    } else if (match(v, m_NSWMul(m_Value(a), m_Value(b)))) {
      if (both(a, b)) size = within(Wide{*x} * *y);
    } else if (match(v, m_NSWAdd(m_Value(a), m_Value(b))) || match(v, m_NSWSub(m_Value(a), m_Value(b)))) {
      if (both(a, b)) size = within(Wide{*x} + *y);
    } else if (match(v, m_Select(m_Value(), m_Value(a), m_Value(b))) || match(v, m_SMax(m_Value(a), m_Value(b))) ||
               match(v, m_SMin(m_Value(a), m_Value(b)))) {
      if (both(a, b)) size = std::max(*x, *y);
    }
    on_way.erase(v);
    return size;
  }

  // A number that the loop carries on, and all that is added to it: that is bounded by what one addition adds.
  struct Growth {
    llvm::SmallPtrSet<Value*, 16> seen;
    std::vector<const SCEV*> starts, added;
  };
  bool Grows(Value* v, Growth& growth) {
    if (!loop_.isLoopInvariant(v) && !growth.seen.insert(v).second) return true;
    if (loop_.isLoopInvariant(v)) {
      const SCEV* e = se_.getSCEV(v);
      if (!Safe(e, loop_.getLoopPreheader()->getTerminator())) return false;
      if (!llvm::is_contained(growth.starts, e)) growth.starts.push_back(e);
      return true;
    }
    Value *a, *b;
    if (auto* phi = llvm::dyn_cast<llvm::PHINode>(v))
      return llvm::all_of(phi->incoming_values(), [&](Value* x) { return Grows(x, growth); });
    if (match(v, m_Select(m_Value(), m_Value(a), m_Value(b)))) return Grows(a, growth) && Grows(b, growth);
    if (auto* part = llvm::dyn_cast<llvm::ExtractValueInst>(v))
      return part->getIndices()[0] == 0 && Grows(part->getAggregateOperand(), growth);
    auto* sum = llvm::dyn_cast<llvm::WithOverflowInst>(v);
    if (!sum || !sum->isSigned()) return false;
    if (sum->getBinaryOp() == llvm::Instruction::Sub)
      return Little(sum->getRHS(), growth) && Grows(sum->getLHS(), growth);
    if (sum->getBinaryOp() != llvm::Instruction::Add) return false;
    if (Little(sum->getRHS(), growth)) return Grows(sum->getLHS(), growth);
    return Little(sum->getLHS(), growth) && Grows(sum->getRHS(), growth);
  }
  bool Little(Value* v, Growth& growth) {
    const SCEV* e = se_.getSCEV(v);
    const llvm::APInt most(64, kMostAdded);
    const llvm::ConstantRange range = se_.getSignedRange(e);
    if (range.getSignedMin().sge(-most) && range.getSignedMax().slt(most)) return true;
    const std::vector<const SCEV*> ends = Ends(e);
    growth.added.insert(growth.added.end(), ends.begin(), ends.end());
    return !ends.empty();
  }

  void Copy() {
    CopyLoop(loop_, li_, dt_, se_, [&](llvm::BasicBlock& at) { return Ask(at); });
    for (const Check& c : checks_)
      c.condition->replaceUsesWithIf(llvm::ConstantInt::getBool(c.condition->getType(), c.holds), [&](llvm::Use& use) {
        auto* user = llvm::dyn_cast<llvm::Instruction>(use.getUser());
        return user && loop_.contains(user);
      });
    llvm::addStringMetadataToLoop(&loop_, kDone, 1);
  }

  Value* Ask(llvm::BasicBlock& at) {
    llvm::Instruction* end = at.getTerminator();
    llvm::IRBuilder<> b(end);
    const auto number = [&](const SCEV* e) { return Expander().expandCodeFor(e, i64_, end); };
    Value* all = b.getTrue();
    bool moves = false;
    for (const Check& c : checks_) {
      if (c.values.empty()) all = b.CreateAnd(all, c.holds ? c.condition : b.CreateNot(c.condition));
      moves |= c.values.size() > 1;
      for (const SCEV* e : c.values) {
        Value* v = number(e);
        if (c.later) {
          all = b.CreateAnd(all, b.CreateICmpUGT(v, number(rounds_)));
          continue;
        }
        all = b.CreateAnd(all, c.limit ? b.CreateICmpULT(v, number(c.limit))
                                       : b.CreateICmpULT(b.CreateAdd(v, b.getInt64(c.bound)), b.getInt64(2 * c.bound)));
      }
    }
    for (const SCEV* step : steps_)
      all = b.CreateAnd(all,
                        b.CreateICmpULT(b.CreateAdd(number(step), b.getInt64(kMostStep)), b.getInt64(2 * kMostStep)));
    if (moves || few_rounds_)
      all = b.CreateAnd(all, b.CreateICmpULT(number(rounds_), b.getInt64(few_rounds_ ? kFewRounds : kMostRounds)));
    return b.CreateFreeze(all);
  }

  llvm::Loop& loop_;
  llvm::LoopInfo& li_;
  llvm::DominatorTree& dt_;
  llvm::ScalarEvolution& se_;
  llvm::Type* i64_;
  const SCEV* rounds_ = nullptr;  // jumps back
  bool unrolled_, few_rounds_ = false;
  std::vector<Check> checks_;
  llvm::SmallSetVector<const SCEV*, 4> steps_;  // of what moves, where they are no constants
  std::optional<llvm::SCEVExpander> expander_;
};

}  // namespace

std::optional<bool> UsualWay(const llvm::Instruction& end) {
  const auto* branch = llvm::dyn_cast<llvm::BranchInst>(&end);
  uint64_t yes, no;
  if (!branch || !branch->isConditional() || !llvm::extractBranchWeights(*branch, yes, no)) return {};
  if (yes / kCold < no && no / kCold < yes) return {};
  return yes > no;
}

llvm::Loop* CopyLoop(llvm::Loop& loop, llvm::LoopInfo& li, llvm::DominatorTree& dt, llvm::ScalarEvolution& se,
                     llvm::function_ref<Value*(llvm::BasicBlock&)> ask) {
  llvm::formLCSSA(loop, dt, &li, &se);
  llvm::BasicBlock* at = loop.getLoopPreheader();
  Value* all = ask(*at);
  se.forgetLoop(&loop);
  llvm::SmallVector<llvm::BasicBlock*, 8> exits, copied;
  loop.getUniqueExitBlocks(exits);
  auto* fast = llvm::SplitBlock(at, at->getTerminator(), &dt, &li, nullptr, loop.getHeader()->getName() + ".fast");
  llvm::ValueToValueMapTy map;
  llvm::Loop* slow = llvm::cloneLoopWithPreheader(fast, at, &loop, map, ".slow", &li, &dt, copied);
  llvm::remapInstructionsInBlocks(copied, map);
  llvm::Instruction* jump = at->getTerminator();
  llvm::IRBuilder<> b(jump);
  b.CreateCondBr(all, fast, slow->getLoopPreheader(), llvm::MDBuilder(b.getContext()).createBranchWeights(kCold, 1));
  jump->eraseFromParent();
  for (llvm::BasicBlock* exit : exits)
    for (llvm::PHINode& phi : exit->phis())
      for (unsigned i = 0, n = phi.getNumIncomingValues(); i < n; ++i) {
        if (!loop.contains(phi.getIncomingBlock(i))) continue;
        Value* v = phi.getIncomingValue(i);
        const auto it = map.find(v);
        phi.addIncoming(it == map.end() ? v : static_cast<Value*>(it->second),
                        llvm::cast<llvm::BasicBlock>(map[phi.getIncomingBlock(i)]));
      }
  for (const char* what : {kDone, "llvm.loop.unroll.disable", "llvm.loop.isvectorized"})
    llvm::addStringMetadataToLoop(slow, what, 1);
  dt.recalculate(*at->getParent());
  se.forgetAllLoops();  // phis of the exits have more values now
  return slow;
}

llvm::PreservedAnalyses VersionLoopsPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  auto& li = fam.getResult<llvm::LoopAnalysis>(f);
  auto& dt = fam.getResult<llvm::DominatorTreeAnalysis>(f);
  auto& se = fam.getResult<llvm::ScalarEvolutionAnalysis>(f);
  bool changed = false;
  for (llvm::Loop* loop : li.getLoopsInPreorder())
    if (loop->isInnermost()) changed |= Versioner(*loop, li, dt, se, unrolled_).Run();
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

}  // namespace framejit::codegen
