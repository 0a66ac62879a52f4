#include "codegen/sunk_checks.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/Analysis/ValueTracking.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/PatternMatch.h>

#include "codegen/versioned_loops.h"

namespace framejit::codegen {
namespace {

using namespace llvm::PatternMatch;  // NOLINT(google-build-using-namespace): the words of its patterns
using llvm::Value;

// Is x not the least int where c is `holds`?
bool NotLeast(Value* c, bool holds, Value* x) {
  Value *a, *b;
  if (match(c, m_Not(m_Value(a)))) return NotLeast(a, !holds, x);
  if (holds ? match(c, m_LogicalAnd(m_Value(a), m_Value(b))) : match(c, m_LogicalOr(m_Value(a), m_Value(b))))
    return NotLeast(a, holds, x) || NotLeast(b, holds, x);
  auto* compare = llvm::dyn_cast<llvm::ICmpInst>(c);
  if (!compare) return false;
  llvm::CmpInst::Predicate p = holds ? compare->getPredicate() : compare->getInversePredicate();
  a = compare->getOperand(0), b = compare->getOperand(1);
  if (b == x) std::swap(a, b), p = llvm::CmpInst::getSwappedPredicate(p);
  if (a != x) return false;
  if (p == llvm::CmpInst::ICMP_SGT) return true;
  const bool natural = llvm::isKnownNonNegative(b, llvm::SimplifyQuery(compare->getDataLayout()));
  return natural && (p == llvm::CmpInst::ICMP_ULT || p == llvm::CmpInst::ICMP_ULE || p == llvm::CmpInst::ICMP_SGE ||
                     p == llvm::CmpInst::ICMP_EQ);
}

bool Sink(llvm::BasicBlock& block) {
  auto* check = llvm::dyn_cast<llvm::BranchInst>(block.getTerminator());
  const std::optional<bool> usual = check ? UsualWay(*check) : std::nullopt;
  if (!usual) return false;
  Value* x;
  llvm::CmpInst::Predicate p;
  if (!match(check->getCondition(), m_ICmp(p, m_Value(x), m_SignMask())) || p != llvm::CmpInst::ICMP_EQ || *usual)
    return false;
  llvm::BasicBlock *exit = check->getSuccessor(0), *next = check->getSuccessor(1);
  auto* asked = llvm::dyn_cast<llvm::BranchInst>(next->getTerminator());
  if (next->getSinglePredecessor() != &block || !asked || !asked->isConditional()) return false;
  if (asked->getSuccessor(0) == asked->getSuccessor(1)) return false;
  for (llvm::Instruction& i : *next)
    if (llvm::isa<llvm::PHINode>(i) || (!i.isTerminator() && !llvm::isSafeToSpeculativelyExecute(&i))) return false;
  const bool first = NotLeast(asked->getCondition(), true, x);
  if (!first && !NotLeast(asked->getCondition(), false, x)) return false;
  llvm::BasicBlock* other = asked->getSuccessor(first);
  if (other == exit) return false;
  for (llvm::Instruction& i : *next) i.dropPoisonGeneratingFlags();  // they may be asked of the least int now
  auto* sunk = llvm::BasicBlock::Create(block.getContext(), "sunk", block.getParent(), other);
  llvm::IRBuilder<> b(sunk);
  auto* branch = b.CreateCondBr(check->getCondition(), exit, other);
  branch->copyMetadata(*check);
  asked->setSuccessor(first, sunk);
  other->replacePhiUsesWith(next, sunk);
  exit->replacePhiUsesWith(&block, sunk);
  b.SetInsertPoint(check);
  b.CreateBr(next);
  check->eraseFromParent();
  return true;
}

}  // namespace

llvm::PreservedAnalyses SunkChecksPass::run(llvm::Function& f, llvm::FunctionAnalysisManager&) {
  bool changed = false;
  for (llvm::BasicBlock& block : llvm::make_early_inc_range(f)) changed |= Sink(block);
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

}  // namespace framejit::codegen
