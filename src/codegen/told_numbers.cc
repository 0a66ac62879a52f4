#include "codegen/told_numbers.h"

#include <llvm/ADT/MapVector.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/STLFunctionalExtras.h>
#include <llvm/ADT/SmallPtrSet.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/Analysis/ScalarEvolutionExpressions.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#include <llvm/Transforms/Utils/Local.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "codegen/late_checks.h"

namespace framejit::codegen {
namespace {

using llvm::BasicBlock;
using llvm::Value;

constexpr const char* kTold = "fj_told_";
constexpr int kMostSteps = 24;  // from a number to what is made of it

std::vector<llvm::CallInst*> AllTold(llvm::Function& f) {
  std::vector<llvm::CallInst*> all;
  for (BasicBlock& block : f)
    for (llvm::Instruction& i : block)
      if (IsTold(i)) all.push_back(llvm::cast<llvm::CallInst>(&i));
  return all;
}

// Does the operation run wherever this one does that takes its result? A select may become a branch.
bool Computes(const llvm::User* user, const BasicBlock* block) {
  const auto* i = llvm::dyn_cast<llvm::Instruction>(user);
  const auto* call = llvm::dyn_cast<llvm::IntrinsicInst>(user);
  return i && i->getParent() == block && i->getType()->isFloatingPointTy() &&
         (llvm::isa<llvm::BinaryOperator, llvm::UnaryOperator, llvm::FPExtInst, llvm::FPTruncInst>(i) ||
          (call && call->getIntrinsicID() == llvm::Intrinsic::sqrt));
}

// Is the number, or one that is made of it in this block, taken there by what holds for `takes`?
bool Reaches(const Value* number, const BasicBlock* block, int steps,
             llvm::function_ref<bool(const llvm::Instruction&, const Value*)> takes) {
  for (const llvm::User* user : number->users()) {
    const auto* i = llvm::dyn_cast<llvm::Instruction>(user);
    if (!i || i->getParent() != block) continue;
    if (takes(*i, number)) return true;
    if (steps > 0 && Computes(i, block) && Reaches(i, block, steps - 1, takes)) return true;
  }
  return false;
}

class ToldNumbers {
 public:
  ToldNumbers(llvm::Function& f, const llvm::LoopInfo& li, const llvm::DominatorTree& dt, llvm::ScalarEvolution& se)
      : f_(f), li_(li), dt_(dt), se_(se) {}

  bool Run() {
    std::vector<llvm::CallInst*> all = AllTold(f_);
    if (all.empty()) return false;
    for (llvm::CallInst* told : all)
      if (!Needed(*told)) told->eraseFromParent();
    for (llvm::CallInst* told : AllTold(f_)) Move(*told);
    for (llvm::CallInst* told : AllTold(f_))
      if (Stored(*told)) told->eraseFromParent();
    for (auto& [loop, told] : OfLoops())
      if (!Gathers(*loop)) LookAt(told);
    return true;
  }

 private:
  bool Needed(const llvm::CallInst& told) const {
    const Value* number = told.getArgOperand(0);
    if (const auto* c = llvm::dyn_cast<llvm::ConstantFP>(number)) return !c->getValueAPF().isFinite();
    if (llvm::isa<llvm::Constant>(number)) return true;
    for (const llvm::User* user : number->users()) {
      const auto* other = llvm::dyn_cast<llvm::Instruction>(user);
      if (other && other != &told && IsTold(*other) && dt_.dominates(other, &told)) return false;
    }
    const auto others = [&](const llvm::Instruction& i, const Value* v) { return IsTold(i) && v != number; };
    return !Reaches(number, told.getParent(), kMostSteps, others);
  }

  // To where the number is made, if that is before the loop, or to where one of two ways has chosen it.
  void Move(llvm::CallInst& told) {
    auto* number = llvm::dyn_cast<llvm::Instruction>(told.getArgOperand(0));
    if (!number) return;
    const llvm::Loop* loop = li_.getLoopFor(told.getParent());
    if (loop && !loop->contains(number)) {
      if (auto at = number->getInsertionPointAfterDef()) told.moveBefore(*(*at)->getParent(), *at);
      return;
    }
    BasicBlock *way = told.getParent(), *to = way->getSingleSuccessor();
    if (!to || !way->getSinglePredecessor() || to->getSinglePredecessor() || li_.getLoopFor(to) != loop ||
        (loop && to == loop->getHeader()))
      return;
    for (llvm::PHINode& phi : to->phis()) {
      if (phi.getIncomingValueForBlock(way) != number) continue;
      told.setArgOperand(0, &phi);
      told.moveBefore(*to, to->getFirstInsertionPt());
      return;
    }
  }

  // Does each round write it, or what is made of it, to another place? Then no later write makes that one needless.
  bool Stored(const llvm::CallInst& told) {
    const llvm::Loop* loop = li_.getLoopFor(told.getParent());
    if (!loop || !loop->isInnermost() || !llvm::isa<llvm::Instruction>(told.getArgOperand(0))) return false;
    return Reaches(
        told.getArgOperand(0), told.getParent(), kMostSteps, [&](const llvm::Instruction& i, const Value* v) {
          const auto* store = llvm::dyn_cast<llvm::StoreInst>(&i);
          return store && store->getValueOperand() == v && Moves(*store, *loop) && !Overwritten(*store, *loop);
        });
  }

  // Is a float made of what it was in the round before? LLVM vectorises no such loop.
  static bool Gathers(const llvm::Loop& loop) {
    return llvm::any_of(loop.getHeader()->phis(), [&](llvm::PHINode& phi) {
      llvm::SmallPtrSet<const Value*, 16> seen;
      return phi.getType()->isFloatingPointTy() &&
             MadeOf(phi.getIncomingValueForBlock(loop.getLoopLatch()), phi, loop, seen);
    });
  }
  static bool MadeOf(const Value* v, const llvm::PHINode& of, const llvm::Loop& loop,
                     llvm::SmallPtrSetImpl<const Value*>& seen) {
    const auto* i = llvm::dyn_cast<llvm::Instruction>(v);
    if (!i || !loop.contains(i) || llvm::isa<llvm::LoadInst>(i) || !seen.insert(i).second) return false;
    return i == &of || llvm::any_of(i->operands(), [&](const llvm::Use& use) { return MadeOf(use, of, loop, seen); });
  }

  // What is left in innermost loops.
  llvm::MapVector<const llvm::Loop*, std::vector<llvm::CallInst*>> OfLoops() const {
    llvm::MapVector<const llvm::Loop*, std::vector<llvm::CallInst*>> all;
    for (llvm::CallInst* told : AllTold(f_))
      if (const llvm::Loop* loop = li_.getLoopFor(told->getParent()))
        if (loop->isInnermost() && loop->isLoopSimplifyForm()) all[loop].push_back(told);
    return all;
  }

  // Where nothing is carried on the loop may be vectorised once late_checks.h has had its numbers looked at behind it.
  // If it is not, Skip takes these checks back. They are made at the end of what a block tells of.
  static void LookAt(const std::vector<llvm::CallInst*>& told) {
    for (size_t k = 0; k < told.size();) {
      BasicBlock* block = told[k]->getParent();
      const size_t first = k;
      while (k < told.size() && told[k]->getParent() == block) ++k;
      BasicBlock* next = llvm::SplitBlock(block, std::next(told[k - 1]->getIterator()));
      auto* special = BasicBlock::Create(block->getContext(), "special", block->getParent(), next);
      llvm::IRBuilder<> b(block->getTerminator());
      Value* good = nullptr;
      for (llvm::Type* type : {b.getFloatTy(), b.getDoubleTy()}) {
        Value* nothing = nullptr;
        for (size_t n = first; n < k; ++n) {
          Value* number = told[n]->getArgOperand(0);
          if (number->getType() != type) continue;
          Value* none = b.CreateFSub(number, number);
          nothing = nothing ? b.CreateFAdd(nothing, none) : none;
        }
        if (!nothing) continue;
        Value* finite = b.CreateFCmpORD(nothing, nothing);
        good = good ? b.CreateAnd(good, finite) : finite;
      }
      auto* branch =
          b.CreateCondBr(good, next, special, llvm::MDBuilder(b.getContext()).createBranchWeights(1 << 16, 1));
      branch->setMetadata(kLateCheck, llvm::MDNode::get(b.getContext(), {}));
      block->getTerminator()->eraseFromParent();
      b.SetInsertPoint(special);
      llvm::Instruction* jump = b.CreateBr(next);
      for (size_t n = first; n < k; ++n) told[n]->moveBefore(jump);
    }
  }

  const llvm::SCEV* Place(const llvm::StoreInst& store) {
    return se_.getSCEV(const_cast<Value*>(store.getPointerOperand()));
  }
  bool Moves(const llvm::StoreInst& store, const llvm::Loop& loop) {
    const auto* moves = llvm::dyn_cast<llvm::SCEVAddRecExpr>(Place(store));
    return moves && moves->getLoop() == &loop && moves->isAffine() && !moves->getStepRecurrence(se_)->isZero();
  }
  bool Overwritten(const llvm::StoreInst& store, const llvm::Loop& loop) {
    return llvm::any_of(loop.blocks(), [&](const BasicBlock* block) {
      return llvm::any_of(*block, [&](const llvm::Instruction& i) {
        const auto* other = llvm::dyn_cast<llvm::StoreInst>(&i);
        return other && other != &store && Place(*other) == Place(store);
      });
    });
  }

  llvm::Function& f_;
  const llvm::LoopInfo& li_;
  const llvm::DominatorTree& dt_;
  llvm::ScalarEvolution& se_;
};

// A check behind which numbers are only told of is none.
void Skip(BasicBlock& special) {
  BasicBlock *from = special.getSinglePredecessor(), *to = special.getSingleSuccessor();
  auto* branch = from ? llvm::dyn_cast<llvm::BranchInst>(from->getTerminator()) : nullptr;
  const auto tells = [](const llvm::Instruction& i) { return IsTold(i) || i.isTerminator(); };
  if (!to || !branch || !branch->isConditional() || !branch->getMetadata(kLateCheck) || !llvm::all_of(special, tells) ||
      !llvm::is_contained(branch->successors(), to))
    return;
  while (!special.front().isTerminator()) special.front().moveBefore(branch);
  to->removePredecessor(&special, /*KeepOneInputPHIs=*/true);
  special.getTerminator()->eraseFromParent();
  llvm::IRBuilder<>(&special).CreateUnreachable();
  Value* condition = branch->getCondition();
  llvm::BranchInst::Create(to, branch);
  branch->eraseFromParent();
  llvm::RecursivelyDeleteTriviallyDeadInstructions(condition);
}

// Of a constant no operation is left that would have been noted: one is made, of a number that LLVM does not know.
void Erase(llvm::CallInst& told) {
  Value* number = told.getArgOperand(0);
  llvm::IRBuilder<> b(&told);
  if (llvm::isa<llvm::Constant>(number)) {
    auto* type = llvm::FunctionType::get(number->getType(), {number->getType()}, false);
    Value* zero =
        b.CreateCall(llvm::InlineAsm::get(type, "", "=x,0", true), {llvm::ConstantFP::getZero(number->getType())});
    number = b.CreateFDiv(zero, zero);
  }
  auto* type = llvm::FunctionType::get(b.getVoidTy(), {number->getType()}, false);
  b.CreateCall(llvm::InlineAsm::get(type, "", "x", true), {number});
  told.eraseFromParent();
}

}  // namespace

void TellOf(llvm::IRBuilder<>& b, Value* number) {
  llvm::Module& m = *b.GetInsertBlock()->getModule();
  llvm::Type* type = number->getType();
  const std::string name = std::string(kTold) + (type->isDoubleTy() ? "f64" : "f32");
  llvm::FunctionCallee told = m.getOrInsertFunction(name, b.getVoidTy(), type);
  auto* f = llvm::cast<llvm::Function>(told.getCallee());
  for (auto attribute : {llvm::Attribute::NoUnwind, llvm::Attribute::WillReturn, llvm::Attribute::NoFree,
                         llvm::Attribute::NoSync, llvm::Attribute::NoCallback})
    f->addFnAttr(attribute);
  f->setMemoryEffects(llvm::MemoryEffects::inaccessibleMemOnly(llvm::ModRefInfo::Mod));
  b.CreateCall(told, {number});
}

bool IsTold(const llvm::Instruction& i) {
  const auto* call = llvm::dyn_cast<llvm::CallInst>(&i);
  const llvm::Function* f = call ? call->getCalledFunction() : nullptr;
  return f && f->getName().starts_with(kTold);
}

llvm::PreservedAnalyses ToldNumbersPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  const bool changed =
      ToldNumbers(f, fam.getResult<llvm::LoopAnalysis>(f), fam.getResult<llvm::DominatorTreeAnalysis>(f),
                  fam.getResult<llvm::ScalarEvolutionAnalysis>(f))
          .Run();
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

llvm::PreservedAnalyses EraseToldPass::run(llvm::Function& f, llvm::FunctionAnalysisManager&) {
  const std::vector<llvm::CallInst*> all = AllTold(f);
  for (llvm::CallInst* told : all) Skip(*told->getParent());
  for (llvm::CallInst* told : all) Erase(*told);
  llvm::EliminateUnreachableBlocks(f);
  return all.empty() ? llvm::PreservedAnalyses::all() : llvm::PreservedAnalyses::none();
}

}  // namespace framejit::codegen
