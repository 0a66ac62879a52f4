#include "codegen/selects.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/SmallPtrSet.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ValueTracking.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/PatternMatch.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>

#include <optional>

#include "codegen/told_numbers.h"
#include "codegen/undone_checks.h"
#include "codegen/versioned_loops.h"

namespace framejit::codegen {
namespace {

using namespace llvm::PatternMatch;  // NOLINT(google-build-using-namespace): the words of its patterns
using llvm::BasicBlock;
using llvm::Value;

constexpr size_t kMostComputed = 6;  // instructions of a way
constexpr int64_t kMostChosen = 3;   // numbers

// Is `v` made of a float that the loop carries on, and not of an element? Then a select would have to wait for what the
// round before has chosen, which a branch does not.
bool Carried(const Value* v, const llvm::Loop& loop, llvm::SmallPtrSetImpl<const Value*>& seen) {
  const auto* i = llvm::dyn_cast<llvm::Instruction>(v);
  if (!i || !loop.contains(i) || !seen.insert(i).second || llvm::isa<llvm::LoadInst>(i)) return false;
  if (llvm::isa<llvm::PHINode>(i) && i->getParent() == loop.getHeader()) return i->getType()->isFloatingPointTy();
  return llvm::any_of(i->operands(), [&](const llvm::Use& use) { return Carried(use, loop, seen); });
}

bool ComparesFloats(Value* condition) {
  Value *a, *b;
  if (match(condition, m_LogicalAnd(m_Value(a), m_Value(b))) || match(condition, m_LogicalOr(m_Value(a), m_Value(b))))
    return ComparesFloats(a) || ComparesFloats(b);
  return match(condition, m_Not(m_Value(a))) ? ComparesFloats(a) : llvm::isa<llvm::FCmpInst>(condition);
}

// A way from `from` to `to` through a block that only computes; nothing if there is none.
bool OnlyComputes(const BasicBlock& way, const BasicBlock& from, const BasicBlock& to) {
  if (way.getSinglePredecessor() != &from || way.getSingleSuccessor() != &to || way.size() > kMostComputed + 1)
    return false;
  return llvm::all_of(way, [](const llvm::Instruction& i) {
    return i.isTerminator() || IsTold(i) ||
           (!llvm::isa<llvm::PHINode, llvm::LoadInst, llvm::CallBase>(i) && i.getOpcode() != llvm::Instruction::FDiv &&
            llvm::isSafeToSpeculativelyExecute(&i));
  });
}

// Where both ways meet again, if each is either empty or a block that only computes.
BasicBlock* Meet(const llvm::BranchInst& branch) {
  BasicBlock *from = branch.getSuccessor(0), *other = branch.getSuccessor(1);
  const auto computes = [&](const BasicBlock& way, const BasicBlock& to) {
    return OnlyComputes(way, *branch.getParent(), to);
  };
  if (from == other) return nullptr;
  if (computes(*from, *other)) return other;
  if (computes(*other, *from)) return from;
  BasicBlock* to = from->getSingleSuccessor();
  return to && computes(*from, *to) && computes(*other, *to) ? to : nullptr;
}

// What has to be added to `base` to get `v`, or of flags or-ed; nothing if it is no such sum.
Value* Addend(llvm::IRBuilder<>& b, Value* v, Value* base) {
  Value* x;
  if (v == base) return llvm::ConstantInt::get(v->getType(), 0);
  if (v->getType()->isIntegerTy(1))
    return match(v, m_One()) ? v : match(v, m_c_Or(m_Specific(base), m_Value(x))) ? x : nullptr;
  if (match(v, m_c_Add(m_Specific(base), m_Value(x)))) return x;
  return match(v, m_Sub(m_Specific(base), m_Value(x))) ? b.CreateNeg(x) : nullptr;
}

// Sums of one number, and flags that are set, are seen to be carried on only if all that is chosen is what is added.
Value* Chosen(llvm::IRBuilder<>& b, Value* condition, Value* yes, Value* no) {
  if (yes == no) return yes;
  if (!yes->getType()->isIntegerTy()) return b.CreateSelect(condition, yes, no);
  llvm::SmallVector<Value*, 4> bases = {no, yes};
  if (auto* sum = llvm::dyn_cast<llvm::BinaryOperator>(yes)) bases.append(sum->value_op_begin(), sum->value_op_end());
  for (Value* base : bases) {
    if (llvm::isa<llvm::Constant>(base)) continue;
    Value *one = Addend(b, yes, base), *other = one ? Addend(b, no, base) : nullptr;
    if (!other) continue;
    Value* added = b.CreateSelect(condition, one, other);
    return yes->getType()->isIntegerTy(1) ? b.CreateOr(base, added) : b.CreateAdd(base, added);
  }
  return b.CreateSelect(condition, yes, no);
}

// A way from a branch on which numbers are computed, and looked at: where a check fails the loop is left.
struct CheckedWay {
  llvm::SmallVector<BasicBlock*, 4> blocks;
  BasicBlock* to = nullptr;
  size_t computed = 0, checks = 0;
};

std::optional<CheckedWay> OnlyChecks(BasicBlock* first, BasicBlock* from, const llvm::Loop& loop) {
  CheckedWay way;
  way.to = first;
  for (BasicBlock* before = from; way.to->getSinglePredecessor() == before; before = way.blocks.back()) {
    if (way.to == loop.getHeader() || !loop.contains(way.to) || way.blocks.size() > kMostComputed) return {};
    way.blocks.push_back(way.to);
    for (const llvm::Instruction& i : *way.to) {
      if (i.isTerminator() || llvm::isa<llvm::AssumeInst>(i)) continue;
      if (!i.getType()->isIntOrIntVectorTy() && !i.getType()->isStructTy()) return {};
      if (llvm::isa<llvm::PHINode>(i) || i.mayReadOrWriteMemory() || !llvm::isSafeToSpeculativelyExecute(&i)) return {};
      ++way.computed;
    }
    const auto* end = llvm::dyn_cast<llvm::BranchInst>(way.to->getTerminator());
    if (!end) return {};
    if (end->isUnconditional()) {
      way.to = end->getSuccessor(0);
      continue;
    }
    const std::optional<bool> usual = UsualWay(*end);
    if (!usual || loop.contains(end->getSuccessor(*usual))) return {};
    ++way.checks;
    way.to = end->getSuccessor(!*usual);
  }
  return way;
}

// Of what fails if a number is huge: it hardly ever is, whichever way the branch takes.
bool AsksForHuge(Value* fails) {
  const llvm::APInt* most;
  constexpr uint64_t kHuge = uint64_t{1} << 48;
  llvm::CmpInst::Predicate than;
  return match(fails, m_ICmp(than, m_Value(), m_APInt(most))) && than == llvm::CmpInst::ICMP_UGT && most->uge(kHuge);
}

// Is a transaction undone there?
bool Undoes(const BasicBlock& exit) {
  const auto* end = llvm::dyn_cast<llvm::ReturnInst>(&exit.front());
  const auto* number = end ? llvm::dyn_cast<llvm::ConstantInt>(end->getReturnValue()) : nullptr;
  int64_t undone;
  return number && !exit.getParent()->getFnAttribute(kUndoes).getValueAsString().getAsInteger(10, undone) &&
         number->getSExtValue() == undone;
}

// Where both ways of a branch only compute and check, what they check is asked before the branch, together with which
// way it takes: nothing is left on the ways then but numbers, one of which is chosen. (Neither way is known to be the
// usual one, so the branch may depend on data that nobody foresees.)
bool HoistChecks(llvm::BranchInst& branch, const llvm::Loop& loop, llvm::DominatorTree& dt, llvm::LoopInfo& li) {
  BasicBlock* from = branch.getParent();
  std::optional<CheckedWay> ways[2];
  for (unsigned k = 0; k < 2; ++k)
    if (!(ways[k] = OnlyChecks(branch.getSuccessor(k), from, loop))) return false;
  BasicBlock* to = ways[0]->to;
  if (branch.getSuccessor(0) == branch.getSuccessor(1) || to != ways[1]->to || to == loop.getHeader() ||
      !loop.contains(to) || ways[0]->checks + ways[1]->checks == 0 ||
      ways[0]->computed + ways[1]->computed > 2 * kMostComputed ||
      std::distance(to->phis().begin(), to->phis().end()) > kMostChosen)
    return false;
  llvm::IRBuilder<> b(&branch);
  llvm::Instruction* end = &branch;
  for (unsigned k = 0; k < 2; ++k)
    for (BasicBlock* block : ways[k]->blocks) {
      for (llvm::Instruction& i : llvm::make_early_inc_range(*block)) {
        if (llvm::isa<llvm::AssumeInst>(i)) {
          i.eraseFromParent();
        } else if (!i.isTerminator()) {
          i.moveBefore(end);
        }
      }
      auto* check = llvm::cast<llvm::BranchInst>(block->getTerminator());
      if (check->isUnconditional()) continue;
      const bool usual = *UsualWay(*check);
      BasicBlock *exit = check->getSuccessor(usual), *on = check->getSuccessor(!usual), *here = end->getParent();
      b.SetInsertPoint(end);
      Value* taken = k == 0 ? branch.getCondition() : b.CreateNot(branch.getCondition());
      Value* fails = usual ? b.CreateNot(check->getCondition()) : check->getCondition();
      Value* leaves = AsksForHuge(fails) && Undoes(*exit) ? fails : b.CreateLogicalAnd(taken, fails, "checked.first");
      BasicBlock* next = llvm::SplitBlock(here, end, &dt, &li);
      llvm::Instruction* jump = here->getTerminator();
      b.SetInsertPoint(jump);
      b.CreateCondBr(leaves, exit, next, llvm::MDBuilder(b.getContext()).createBranchWeights(1, 1 << 16));
      jump->eraseFromParent();
      for (llvm::PHINode& phi : exit->phis()) phi.addIncoming(phi.getIncomingValueForBlock(block), here);
      exit->removePredecessor(block, /*KeepOneInputPHIs=*/true);
      b.SetInsertPoint(check);
      b.CreateBr(on);
      check->eraseFromParent();
    }
  return true;
}

bool Choose(llvm::BranchInst& branch, const llvm::Loop& loop) {
  BasicBlock *from = branch.getParent(), *to = Meet(branch);
  if (!to || to == loop.getHeader() || !loop.contains(to)) return false;
  if (llvm::count_if(to->phis(), [](auto& phi) { return !phi.getType()->isIntegerTy(1); }) > kMostChosen) return false;
  llvm::IRBuilder<> b(&branch);
  BasicBlock* ends[2];  // from which `to` is come to
  for (unsigned way = 0; way < 2; ++way) {
    BasicBlock* through = branch.getSuccessor(way);
    ends[way] = through == to ? from : through;
    while (through != to && !through->front().isTerminator()) through->front().moveBefore(&branch);
  }
  for (llvm::PHINode& phi : to->phis()) {
    Value *yes = phi.getIncomingValueForBlock(ends[0]), *no = phi.getIncomingValueForBlock(ends[1]);
    Value* chosen = Chosen(b, branch.getCondition(), yes, no);
    for (BasicBlock* end : ends) phi.setIncomingValueForBlock(end, chosen);
  }
  if (ends[0] != from && ends[1] != from)
    for (llvm::PHINode& phi : to->phis()) phi.addIncoming(phi.getIncomingValueForBlock(ends[0]), from);
  b.CreateBr(to);
  branch.eraseFromParent();
  for (BasicBlock* end : ends) {
    if (end == from) continue;
    to->removePredecessor(end, /*KeepOneInputPHIs=*/true);
    end->getTerminator()->eraseFromParent();
    llvm::IRBuilder<>(end).CreateUnreachable();
  }
  return true;
}

}  // namespace

llvm::PreservedAnalyses HoistChecksPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  auto& li = fam.getResult<llvm::LoopAnalysis>(f);
  auto& dt = fam.getResult<llvm::DominatorTreeAnalysis>(f);
  bool changed = false;
  for (llvm::Loop* loop : li.getLoopsInPreorder()) {
    if (!loop->isInnermost() || llvm::findStringMetadataForLoop(loop, "llvm.loop.isvectorized")) continue;
    const llvm::SmallVector<BasicBlock*, 16> blocks(loop->blocks());
    for (BasicBlock* block : blocks) {
      auto* branch = llvm::dyn_cast<llvm::BranchInst>(block->getTerminator());
      if (branch && branch->isConditional() && !UsualWay(*branch) && HoistChecks(*branch, *loop, dt, li)) {
        changed = true;
        dt.recalculate(f);
      }
    }
  }
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

llvm::PreservedAnalyses SelectsPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  auto& li = fam.getResult<llvm::LoopAnalysis>(f);
  bool changed = false;
  for (llvm::Loop* loop : li.getLoopsInPreorder()) {
    if (!loop->isInnermost() || llvm::findStringMetadataForLoop(loop, "llvm.loop.isvectorized")) continue;
    for (bool again = true; again;) {  // what has become a select may lie on a way of another branch
      again = false;
      for (BasicBlock* block : loop->blocks()) {
        auto* branch = llvm::dyn_cast<llvm::BranchInst>(block->getTerminator());
        if (!branch || !branch->isConditional() || UsualWay(*branch) || !ComparesFloats(branch->getCondition()))
          continue;
        llvm::SmallPtrSet<const Value*, 16> seen;
        if (!Carried(branch->getCondition(), *loop, seen)) again |= Choose(*branch, *loop);
      }
      changed |= again;
    }
  }
  if (!changed) return llvm::PreservedAnalyses::all();
  llvm::EliminateUnreachableBlocks(f);
  return llvm::PreservedAnalyses::none();
}

// Numbers of this block that `v` is made of in a few steps.
static void Sources(const Value* v, const BasicBlock& block, int steps, llvm::SmallPtrSetImpl<const Value*>& found) {
  const auto* i = llvm::dyn_cast<llvm::Instruction>(v);
  if (!i || i->getParent() != &block || !found.insert(i).second || llvm::isa<llvm::PHINode, llvm::LoadInst>(i)) return;
  if (steps > 0)
    for (const llvm::Use& use : i->operands()) Sources(use, block, steps - 1, found);
}

// y ^ (c ? z : 0), c being made of what y is made of: the longest way through it is one step shorter if y ^ z is there
// when it is chosen.
static bool Unfold(llvm::BinaryOperator& op) {
  const auto code = op.getOpcode();
  using Code = llvm::Instruction;
  const bool turns = code == Code::Xor || code == Code::Or || code == Code::Add;
  if ((!turns && code != Code::Sub) || !op.getType()->isIntegerTy() || op.getType()->isIntegerTy(1)) return false;
  for (unsigned side : {1U, 0U}) {
    if (side == 0 && !turns) continue;
    auto* select = llvm::dyn_cast<llvm::SelectInst>(op.getOperand(side));
    if (!select || !select->hasOneUse() || select->getParent() != op.getParent()) continue;
    const bool none_if_true = match(select->getTrueValue(), m_Zero());
    if (!none_if_true && !match(select->getFalseValue(), m_Zero())) continue;
    Value *z = none_if_true ? select->getFalseValue() : select->getTrueValue(), *y = op.getOperand(1 - side);
    if (llvm::isa<llvm::Constant>(z)) continue;  // a flag or a mask
    constexpr int kSteps = 4;
    llvm::SmallPtrSet<const Value*, 16> of_condition, of_y;
    Sources(select->getCondition(), *op.getParent(), kSteps, of_condition);
    Sources(y, *op.getParent(), kSteps, of_y);
    if (llvm::none_of(of_y, [&](const Value* v) { return of_condition.contains(v) && !llvm::isa<llvm::LoadInst>(v); }))
      continue;
    llvm::IRBuilder<> b(&op);
    Value* both = b.CreateBinOp(code, y, z, "unfolded");
    op.replaceAllUsesWith(b.CreateSelect(select->getCondition(), none_if_true ? y : both, none_if_true ? both : y));
    op.eraseFromParent();
    select->eraseFromParent();
    return true;
  }
  return false;
}

llvm::PreservedAnalyses UnfoldSelectsPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  const llvm::LoopInfo& loops = fam.getResult<llvm::LoopAnalysis>(f);
  bool changed = false;
  for (BasicBlock& block : f)
    if (loops.getLoopFor(&block))
      for (llvm::Instruction& i : llvm::make_early_inc_range(block))
        if (auto* op = llvm::dyn_cast<llvm::BinaryOperator>(&i)) changed |= Unfold(*op);
  if (!changed) return llvm::PreservedAnalyses::all();
  llvm::PreservedAnalyses kept;
  kept.preserveSet<llvm::CFGAnalyses>();
  return kept;
}

}  // namespace framejit::codegen
