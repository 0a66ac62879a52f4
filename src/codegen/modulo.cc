#include "codegen/modulo.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/Analysis/AssumptionCache.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/SimplifyQuery.h>
#include <llvm/Analysis/ValueTracking.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/Transforms/Utils/Cloning.h>

#include <algorithm>
#include <vector>

namespace framejit::codegen {
namespace {

using llvm::Value;

constexpr const char* kModulo[] = {"fj_modulo", "fj_modulo_by_natural", "fj_modulo_of_naturals"};

// A divisor that is another one in each round is as likely the larger number: then nothing is asked before the
// division.
void Divide(llvm::CallInst* call, const llvm::SimplifyQuery& known) {
  llvm::IRBuilder<> b(call);
  Value* by = call->getArgOperand(1);
  if (!llvm::isGuaranteedNotToBeUndefOrPoison(by, known.AC, known.CxtI, known.DT)) by = b.CreateFreeze(by);
  if (!llvm::isKnownNonZero(by, known)) by = b.CreateBinaryIntrinsic(llvm::Intrinsic::umax, by, b.getInt64(1));
  call->replaceAllUsesWith(b.CreateURem(call->getArgOperand(0), by));
  call->eraseFromParent();
}

}  // namespace

llvm::Function* Modulo(llvm::Module& m, Signs signs) {
  const char* const name = kModulo[static_cast<int>(signs)];
  if (llvm::Function* f = m.getFunction(name)) return f;
  llvm::LLVMContext& c = m.getContext();
  llvm::IRBuilder<> b(c);
  auto* type = llvm::FunctionType::get(b.getInt64Ty(), {b.getInt64Ty(), b.getInt64Ty()}, false);
  auto* f = llvm::Function::Create(type, llvm::Function::InternalLinkage, name, m);
  for (auto attribute : {llvm::Attribute::NoUnwind, llvm::Attribute::WillReturn, llvm::Attribute::Speculatable})
    f->addFnAttr(attribute);
  f->setDoesNotAccessMemory();
  auto* entry = llvm::BasicBlock::Create(c, "modulo", f);
  auto* divide = llvm::BasicBlock::Create(c, "divide", f);
  auto* done = llvm::BasicBlock::Create(c, "divided", f);
  // A call may have come to where what it is given means nothing (poison), and is asked for nothing there: so may a
  // branch or a divisor not be.
  b.SetInsertPoint(entry);
  Value *x = b.CreateFreeze(f->getArg(0)), *y = b.CreateFreeze(f->getArg(1));
  Value* within = signs == Signs::kAny ? b.CreateAnd(b.CreateICmpSGE(x, b.getInt64(0)), b.CreateICmpSLT(x, y))
                                       : b.CreateICmpULT(x, y);
  b.CreateCondBr(within, done, divide, llvm::MDBuilder(c).createBranchWeights(1 << 16, 1));
  b.SetInsertPoint(divide);  // of 0 and -1 it is 0
  Value* any = signs == Signs::kAny ? b.CreateICmpULE(b.CreateAdd(y, b.getInt64(1)), b.getInt64(1))
                                    : b.CreateICmpEQ(y, b.getInt64(0));
  Value* by = b.CreateSelect(any, b.getInt64(1), y);
  Value* divided = signs == Signs::kNatural ? b.CreateURem(x, by) : b.CreateSRem(x, by);
  if (signs != Signs::kNatural) {
    Value* wrong = b.CreateICmpSLT(divided, b.getInt64(0));
    if (signs == Signs::kAny)
      wrong =
          b.CreateAnd(b.CreateICmpNE(divided, b.getInt64(0)), b.CreateICmpSLT(b.CreateXor(divided, y), b.getInt64(0)));
    divided = b.CreateAdd(divided, b.CreateSelect(wrong, y, b.getInt64(0)));
  }
  b.CreateBr(done);
  b.SetInsertPoint(done);
  auto* both = b.CreatePHI(b.getInt64Ty(), 2);
  both->addIncoming(x, entry);
  both->addIncoming(divided, divide);
  b.CreateRet(both);
  return f;
}

bool IsRemainderOf(const Value* v, const Value* divisor) {
  const auto* call = llvm::dyn_cast<llvm::CallInst>(v);
  const llvm::Function* f = call ? call->getCalledFunction() : nullptr;
  return f && (f->getName() == kModulo[1] || f->getName() == kModulo[2]) && call->getArgOperand(1) == divisor;
}

llvm::PreservedAnalyses ExpandModuloPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  auto& li = fam.getResult<llvm::LoopAnalysis>(f);
  std::vector<llvm::CallInst*> calls;
  for (const char* name : kModulo)
    if (llvm::Function* modulo = f.getParent()->getFunction(name))
      for (llvm::User* user : modulo->users())
        if (auto* call = llvm::cast<llvm::CallInst>(user); call->getFunction() == &f) calls.push_back(call);
  const auto varies = [&](const llvm::CallInst* call) {
    const llvm::Loop* loop = li.getLoopFor(call->getParent());
    return call->getCalledFunction()->getName() == kModulo[static_cast<int>(Signs::kNatural)] && loop &&
           !loop->isLoopInvariant(call->getArgOperand(1));
  };
  const auto others = std::partition(calls.begin(), calls.end(), varies);
  auto& dt = fam.getResult<llvm::DominatorTreeAnalysis>(f);
  auto& assumed = fam.getResult<llvm::AssumptionAnalysis>(f);
  for (auto call = calls.begin(); call != others; ++call)
    Divide(*call, llvm::SimplifyQuery(f.getDataLayout(), &dt, &assumed, *call));
  for (auto call = others; call != calls.end(); ++call) {
    llvm::InlineFunctionInfo how;
    llvm::InlineFunction(**call, how);
  }
  return calls.empty() ? llvm::PreservedAnalyses::all() : llvm::PreservedAnalyses::none();
}

void EraseModulo(llvm::Module& m) {
  for (const char* name : kModulo)
    if (llvm::Function* f = m.getFunction(name)) f->eraseFromParent();
}

}  // namespace framejit::codegen
