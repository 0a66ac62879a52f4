#include "codegen/told_numbers.h"

#include <llvm/ADT/STLFunctionalExtras.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/Analysis/ScalarEvolutionExpressions.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/Module.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

namespace framejit::codegen {
namespace {

using llvm::BasicBlock;
using llvm::Value;

constexpr const char* kTold = "fj_told_";
constexpr int kMostSteps = 8;  // from a number to what is made of it

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
  return i && i->getParent() == block && i->getType()->isFloatingPointTy() &&
         llvm::isa<llvm::BinaryOperator, llvm::UnaryOperator, llvm::FPExtInst, llvm::FPTruncInst>(i);
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
    if (!loop || !llvm::isa<llvm::Instruction>(told.getArgOperand(0))) return false;
    return Reaches(told.getArgOperand(0), told.getParent(), kMostSteps,
                   [&](const llvm::Instruction& i, const Value* v) {
                     const auto* store = llvm::dyn_cast<llvm::StoreInst>(&i);
                     return store && store->getValueOperand() == v && Moves(*store, *loop) && !Overwritten(*store);
                   });
  }

  const llvm::SCEV* Place(const llvm::StoreInst& store) {
    return se_.getSCEV(const_cast<Value*>(store.getPointerOperand()));
  }
  bool Moves(const llvm::StoreInst& store, const llvm::Loop& loop) {
    const auto* moves = llvm::dyn_cast<llvm::SCEVAddRecExpr>(Place(store));
    return moves && moves->getLoop() == &loop && moves->isAffine() && !moves->getStepRecurrence(se_)->isZero();
  }
  bool Overwritten(const llvm::StoreInst& store) {
    return std::any_of(std::next(store.getIterator()), store.getParent()->end(), [&](const llvm::Instruction& i) {
      const auto* later = llvm::dyn_cast<llvm::StoreInst>(&i);
      return later && Place(*later) == Place(store);
    });
  }

  llvm::Function& f_;
  const llvm::LoopInfo& li_;
  const llvm::DominatorTree& dt_;
  llvm::ScalarEvolution& se_;
};

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
  for (llvm::CallInst* told : all) Erase(*told);
  return all.empty() ? llvm::PreservedAnalyses::all() : llvm::PreservedAnalyses::none();
}

}  // namespace framejit::codegen
