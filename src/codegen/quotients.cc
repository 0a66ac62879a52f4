#include "codegen/quotients.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/SmallPtrSet.h>
#include <llvm/Analysis/DomTreeUpdater.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace framejit::codegen {
namespace {

using llvm::BasicBlock;
using llvm::Value;

// The quotient of x and y is x * high + x * low, rounded once, where high + low is 1 / y with twice the bits of a
// number. What is added before that has an error of less than 2^-52 of the quotient's last place. If y is an odd number
// of less than 2^48, times a power of two, no quotient that is not a number itself lies as near as 2^-49 of a last
// place to the middle between two numbers, so both are rounded alike. x and y are so far from the largest and least
// numbers that nothing overflows or underflows.
constexpr int kFraction = 52, kBias = 1023;
constexpr uint64_t kLastBits = 0x1f;  // of y: these are 0
constexpr int kMostPowerOfY = 100, kMostPowerOfX = 700;

// A number's bits, twice, so that its sign is lost: of 2 to this power.
constexpr uint64_t Twice(int power) {
  return static_cast<uint64_t>(kBias + power) << (kFraction + 1);
}
constexpr uint64_t Between(int power) {
  return Twice(power) - Twice(-power);
}

struct Divisor {
  Value *high, *low;
  Value* width;  // how far above the least one the dividend may lie; 0 if y is none of these
};

Value* Fma(llvm::IRBuilder<>& b, Value* x, Value* y, Value* z) {
  return b.CreateIntrinsic(llvm::Intrinsic::fma, {b.getDoubleTy()}, {x, y, z});
}

// Does its magnitude lie between these powers?
Value* Lies(llvm::IRBuilder<>& b, Value* x, int power, Value* width) {
  Value* bits = b.CreateShl(b.CreateBitCast(x, b.getInt64Ty()), 1);
  return b.CreateICmpULT(b.CreateSub(bits, b.getInt64(Twice(-power))), width);
}

class Quotients {
 public:
  Quotients(llvm::Loop& loop, llvm::LoopInfo& li, llvm::DominatorTree& dt) : loop_(loop), li_(li), dt_(dt) {}

  bool Run() {
    std::vector<llvm::BinaryOperator*> all;
    if (!loop_.getLoopPreheader() || !loop_.getLoopLatch()) return false;
    for (BasicBlock* block : loop_.blocks())
      for (llvm::Instruction& i : *block)
        if (i.getOpcode() == llvm::Instruction::FDiv && i.getType()->isDoubleTy() &&
            loop_.isLoopInvariant(i.getOperand(1)) && Carried(i))
          all.push_back(llvm::cast<llvm::BinaryOperator>(&i));
    bool changed = false;
    for (llvm::BinaryOperator* quotient : all) changed |= Replace(*quotient);
    return changed;
  }

 private:
  // Is the dividend made of what the round before has made of this quotient?
  bool Carried(llvm::Instruction& quotient) const {
    return llvm::any_of(loop_.getHeader()->phis(), [&](llvm::PHINode& phi) {
      llvm::SmallPtrSet<const Value*, 16> seen, seen_next;
      return phi.getType()->isDoubleTy() && MadeOf(quotient.getOperand(0), &phi, seen) &&
             MadeOf(phi.getIncomingValueForBlock(loop_.getLoopLatch()), &quotient, seen_next);
    });
  }
  bool MadeOf(const Value* v, const Value* of, llvm::SmallPtrSetImpl<const Value*>& seen) const {
    if (v == of) return true;
    const auto* i = llvm::dyn_cast<llvm::Instruction>(v);
    if (!i || !loop_.contains(i) || !i->getType()->isDoubleTy() || llvm::isa<llvm::LoadInst>(i) ||
        (llvm::isa<llvm::PHINode>(i) && i->getParent() == loop_.getHeader()) || !seen.insert(i).second)
      return false;
    return llvm::any_of(i->operands(), [&](const llvm::Use& use) { return MadeOf(use, of, seen); });
  }

  Divisor Of(Value* y) const {
    if (const auto* c = llvm::dyn_cast<llvm::ConstantFP>(y)) return OfConstant(c->getValueAPF().convertToDouble());
    const llvm::Loop* outer = &loop_;
    for (const llvm::Loop* next = outer->getParentLoop(); next && next->getLoopPreheader() && next->isLoopInvariant(y);
         next = next->getParentLoop())
      outer = next;
    llvm::IRBuilder<> b(outer->getLoopPreheader()->getTerminator());
    Value* last = b.CreateAnd(b.CreateBitCast(y, b.getInt64Ty()), kLastBits);
    Value* good =
        b.CreateAnd(b.CreateICmpEQ(last, b.getInt64(0)), Lies(b, y, kMostPowerOfY, b.getInt64(Between(kMostPowerOfY))));
    Value* one = llvm::ConstantFP::get(b.getDoubleTy(), 1.0);
    y = b.CreateSelect(good, y, one);  // no division by 0 is to be noted
    Value* high = b.CreateFDiv(one, y);
    Value* low = b.CreateFDiv(Fma(b, b.CreateFNeg(y), high, one), y);
    return {high, low, b.CreateSelect(good, b.getInt64(Between(kMostPowerOfX)), b.getInt64(0))};
  }
  Divisor OfConstant(double y) const {
    const auto bits = std::bit_cast<uint64_t>(y);
    if ((bits & kLastBits) || 2 * bits - Twice(-kMostPowerOfY) >= Between(kMostPowerOfY)) return {};
    llvm::LLVMContext& c = loop_.getHeader()->getContext();
    llvm::Type* type = llvm::Type::getDoubleTy(c);
    const double high = 1 / y, low = std::fma(-y, high, 1) / y;
    return {llvm::ConstantFP::get(type, high), llvm::ConstantFP::get(type, low),
            llvm::ConstantInt::get(llvm::Type::getInt64Ty(c), Between(kMostPowerOfX))};
  }

  bool Replace(llvm::BinaryOperator& quotient) {
    Value* x = quotient.getOperand(0);
    const Divisor y = Of(quotient.getOperand(1));
    if (!y.high) return false;
    llvm::IRBuilder<> b(&quotient);
    Value* lies = Lies(b, x, kMostPowerOfX, y.width);
    llvm::Instruction *products = nullptr, *division = nullptr;
    llvm::DomTreeUpdater updater(dt_, llvm::DomTreeUpdater::UpdateStrategy::Eager);
    llvm::SplitBlockAndInsertIfThenElse(lies, &quotient, &products, &division,
                                        llvm::MDBuilder(b.getContext()).createBranchWeights(1 << 16, 1), &updater,
                                        &li_);
    b.SetInsertPoint(products);
    Value* made = Fma(b, x, y.high, b.CreateFMul(x, y.low));
    b.SetInsertPoint(&quotient);
    llvm::PHINode* phi = b.CreatePHI(quotient.getType(), 2);
    quotient.replaceAllUsesWith(phi);
    quotient.moveBefore(division);
    phi->addIncoming(made, products->getParent());
    phi->addIncoming(&quotient, division->getParent());
    return true;
  }

  llvm::Loop& loop_;
  llvm::LoopInfo& li_;
  llvm::DominatorTree& dt_;
};

}  // namespace

llvm::PreservedAnalyses QuotientsPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  if (!f.getFnAttribute("target-features").getValueAsString().contains("+fma")) return llvm::PreservedAnalyses::all();
  auto& li = fam.getResult<llvm::LoopAnalysis>(f);
  auto& dt = fam.getResult<llvm::DominatorTreeAnalysis>(f);
  bool changed = false;
  for (llvm::Loop* loop : li.getLoopsInPreorder())
    if (loop->isInnermost()) changed |= Quotients(*loop, li, dt).Run();
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

}  // namespace framejit::codegen
