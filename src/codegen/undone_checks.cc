#include "codegen/undone_checks.h"

#include <llvm/ADT/SetVector.h>
#include <llvm/Analysis/AssumptionCache.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/Analysis/ScalarEvolutionExpressions.h>
#include <llvm/Analysis/ValueTracking.h>
#include <llvm/IR/ConstantRange.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Operator.h>
#include <llvm/IR/PatternMatch.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#include <llvm/Transforms/Utils/LoopSimplify.h>
#include <llvm/Transforms/Utils/LoopUtils.h>
#include <llvm/Transforms/Utils/PromoteMemToReg.h>
#include <llvm/Transforms/Utils/ScalarEvolutionExpander.h>

#include <optional>
#include <vector>

#include "codegen/told_numbers.h"
#include "codegen/versioned_loops.h"

namespace framejit::codegen {
namespace {

using namespace llvm::PatternMatch;  // NOLINT(google-build-using-namespace): the words of its patterns
using llvm::BasicBlock;
using llvm::Value;

constexpr unsigned kMostInstructions = 200;
constexpr size_t kMostLoads = 4;

// The number with which the function returns on the way `from` -> `to`, if nothing else happens on it.
std::optional<int64_t> Returned(BasicBlock* from, BasicBlock* to) {
  constexpr int kMostSteps = 4;
  llvm::SmallVector<std::pair<llvm::PHINode*, Value*>, 8> known;
  for (int step = 0; step < kMostSteps; ++step) {
    const auto value = [&](Value* v) {
      for (auto [phi, is] : known)
        if (phi == v) return is;
      return v;
    };
    llvm::SmallVector<std::pair<llvm::PHINode*, Value*>, 8> next;
    for (llvm::PHINode& phi : to->phis()) next.emplace_back(&phi, value(phi.getIncomingValueForBlock(from)));
    known.append(next);
    if (to->getFirstNonPHIOrDbg() != to->getTerminator()) return {};
    if (auto* end = llvm::dyn_cast<llvm::ReturnInst>(to->getTerminator())) {
      auto* number = end->getReturnValue() ? llvm::dyn_cast<llvm::ConstantInt>(value(end->getReturnValue())) : nullptr;
      return number ? std::optional(number->getSExtValue()) : std::nullopt;
    }
    from = to;
    to = to->getSingleSuccessor();
    if (!to) return {};
  }
  return {};
}

class UndoneChecks {
 public:
  UndoneChecks(llvm::Loop& loop, int64_t exit, llvm::LoopInfo& li, llvm::DominatorTree& dt, llvm::ScalarEvolution& se)
      : loop_(loop), exit_(exit), li_(li), dt_(dt), se_(se) {}

  bool Run() {
    BasicBlock* latch = loop_.getLoopLatch();
    if (!loop_.isLoopSimplifyForm() || !loop_.isLoopExiting(latch) ||
        llvm::isa<llvm::SCEVCouldNotCompute>(se_.getExitCount(&loop_, latch)))
      return false;
    unsigned size = 0;
    for (BasicBlock* b : loop_.blocks()) {
      size += b->size();
      if (size > kMostInstructions || !Checks(*b) || !llvm::all_of(*b, [&](auto& i) { return GoesOn(i); }))
        return false;
    }
    if (checks_.empty() || !llvm::all_of(loop_.getHeader()->phis(), [&](auto& phi) { return Gathers(phi); }))
      return false;
    FindStore();
    if (store_) CopyLoop(loop_, li_, dt_, se_, [&](BasicBlock& at) { return Apart(at); });
    Change();
    return true;
  }

 private:
  // Where a branch leaves the loop if one of these holds. They are looked at in a row, and each is asked for alone.
  struct Check {
    llvm::BranchInst* branch;
    bool stays;  // on this way
    llvm::SmallVector<Value*, 4> failed;
  };

  bool Checks(BasicBlock& b) {
    auto* branch = llvm::dyn_cast<llvm::BranchInst>(b.getTerminator());
    if (!branch) return false;
    if (!branch->isConditional() || &b == loop_.getLoopLatch() || !loop_.isLoopExiting(&b)) return true;
    const bool stays = loop_.contains(branch->getSuccessor(0));
    if (Returned(&b, branch->getSuccessor(stays ? 1 : 0)) != exit_) return false;
    Check check{branch, stays, {}};
    if (stays || !Split(branch->getCondition(), check.failed)) return false;
    checks_.push_back(std::move(check));
    return true;
  }

  bool Split(Value* failed, llvm::SmallVectorImpl<Value*>& all) {
    Value *a, *b;
    if (match(failed, m_LogicalOr(m_Value(a), m_Value(b)))) return Split(a, all) && Split(b, all);
    all.push_back(failed);
    return OfNumbers(failed);
  }

  // Does it ask about a number that was computed of elements, and compare it with a constant? Nothing that such a
  // number says decides how often the loop goes round or what it reads and writes: that is all made of its counter.
  bool OfNumbers(Value* failed) {
    auto* compare = llvm::dyn_cast<llvm::ICmpInst>(failed);
    Value *x, *y;
    if (!compare)
      return match(failed,
                   m_ExtractValue<1>(m_Intrinsic<llvm::Intrinsic::sadd_with_overflow>(m_Value(x), m_Value(y)))) &&
             !(Counts(x) && Counts(y));
    x = compare->getOperand(0);
    return llvm::isa<llvm::ConstantInt>(compare->getOperand(1)) && !Counts(x);
  }

  // Is it made of the loop's counter, and of what stays the same in it?
  bool Counts(Value* v) {
    if (!se_.isSCEVable(v->getType())) return loop_.isLoopInvariant(v);
    const llvm::SCEV* e = se_.getSCEV(v);
    if (se_.isLoopInvariant(e, &loop_)) return true;
    const auto* moves = llvm::dyn_cast<llvm::SCEVAddRecExpr>(e);
    return moves && moves->getLoop() == &loop_ && moves->isAffine();
  }

  // Can it run in rounds that would not have come to it?
  bool GoesOn(llvm::Instruction& i) {
    if (Value* at = llvm::getLoadStorePointerOperand(&i)) return !i.isVolatile() && !i.isAtomic() && Counts(at);
    if (llvm::isa<llvm::PHINode, llvm::AssumeInst>(i) || i.isTerminator() || IsTold(i)) return true;
    return !i.mayReadOrWriteMemory() && llvm::isSafeToSpeculativelyExecute(&i) &&
           !llvm::canCreatePoison(llvm::cast<llvm::Operator>(&i), /*ConsiderFlagsAndMetadata=*/false);
  }

  // Is it a counter, or a number to which rounds add, or of which they choose the greatest, or alike?
  bool Gathers(llvm::PHINode& phi) {
    if (!phi.getType()->isIntegerTy()) return false;
    if (Counts(&phi)) return true;
    Value* last = phi.getIncomingValueForBlock(loop_.getLoopLatch());
    llvm::SmallPtrSet<Value*, 8> seen;
    llvm::SmallVector<Value*, 8> todo{&phi};
    bool found = false;
    while (!todo.empty()) {
      Value* v = todo.pop_back_val();
      if (!seen.insert(v).second) continue;
      for (llvm::User* user : v->users()) {
        auto* i = llvm::cast<llvm::Instruction>(user);
        if (i == &phi) continue;
        found |= i == last;
        if (!loop_.contains(i) || llvm::isa<llvm::ICmpInst, llvm::BranchInst, llvm::StoreInst>(i)) continue;
        const auto* call = llvm::dyn_cast<llvm::IntrinsicInst>(i);
        const bool over = call && call->getIntrinsicID() == llvm::Intrinsic::sadd_with_overflow;
        if (!llvm::isa<llvm::SExtInst, llvm::ZExtInst, llvm::TruncInst, llvm::ExtractValueInst, llvm::MinMaxIntrinsic>(
                i) &&
            !over && i->getOpcode() != llvm::Instruction::Add)
          return false;
        todo.push_back(i);
      }
    }
    return found;
  }

  // How a place moves from round to round. Null: it stays, though it may move in a loop around this one.
  const llvm::SCEVAddRecExpr* Moves(const llvm::SCEV* at) const {
    const auto* moves = llvm::dyn_cast<llvm::SCEVAddRecExpr>(at);
    return moves && moves->getLoop() == &loop_ ? moves : nullptr;
  }

  // A single write, of one element in all rounds, stands behind the loop where no round reads that element.
  void FindStore() {
    BasicBlock* latch = loop_.getLoopLatch();
    llvm::SCEVExpander expander(se_, latch->getDataLayout(), "undone");
    const llvm::Instruction* end = loop_.getLoopPreheader()->getTerminator();
    const auto safe = [&](const llvm::SCEV* e) {
      return se_.isAvailableAtLoopEntry(e, &loop_) && expander.isSafeToExpandAt(e, end);
    };
    const llvm::SCEV* rounds = se_.getExitCount(&loop_, latch);
    llvm::StoreInst* only = nullptr;
    for (BasicBlock* b : loop_.blocks())
      for (llvm::Instruction& i : *b) {
        if (auto* store = llvm::dyn_cast<llvm::StoreInst>(&i)) {
          if (only || !dt_.dominates(b, latch)) return;
          only = store;
        } else if (auto* load = llvm::dyn_cast<llvm::LoadInst>(&i)) {
          const llvm::SCEV* at = se_.getSCEV(load->getPointerOperand());
          const auto* moves = Moves(at);
          if (!safe(moves ? moves->getStart() : at) || (moves && !safe(moves->getStepRecurrence(se_)))) return;
          loads_.push_back(load);
        }
      }
    if (!only || loads_.size() > kMostLoads || !loop_.isSafeToClone() || !rounds->getType()->isIntegerTy(64) ||
        !safe(rounds) || !safe(se_.getSCEV(only->getPointerOperand())))
      return;
    store_ = only;
  }

  // Holds where no round reads what is written.
  Value* Apart(BasicBlock& at) {
    llvm::Instruction* end = at.getTerminator();
    const llvm::DataLayout& layout = at.getDataLayout();
    llvm::SCEVExpander expander(se_, layout, "undone");
    llvm::IRBuilder<> b(end);
    const auto number = [&](const llvm::SCEV* e) {
      Value* v = expander.expandCodeFor(e, e->getType(), end);
      return v->getType()->isPointerTy() ? b.CreatePtrToInt(v, b.getInt64Ty()) : v;
    };
    const auto size = [&](llvm::Type* type) { return b.getInt64(layout.getTypeStoreSize(type)); };
    Value *apart = b.getTrue(), *to = number(se_.getSCEV(store_->getPointerOperand()));
    Value* behind = b.CreateAdd(to, size(store_->getValueOperand()->getType()));
    const llvm::SCEV* rounds = se_.getExitCount(&loop_, loop_.getLoopLatch());
    for (llvm::LoadInst* load : loads_) {
      const llvm::SCEV* place = se_.getSCEV(load->getPointerOperand());
      const auto* moves = Moves(place);
      Value* first = number(moves ? moves->getStart() : place);
      Value* last = moves ? number(moves->evaluateAtIteration(rounds, se_)) : first;
      Value* low = b.CreateBinaryIntrinsic(llvm::Intrinsic::umin, first, last);
      Value* high = b.CreateAdd(b.CreateBinaryIntrinsic(llvm::Intrinsic::umax, first, last), size(load->getType()));
      apart = b.CreateAnd(apart, b.CreateOr(b.CreateICmpULE(behind, low), b.CreateICmpULE(high, to)));
    }
    return apart;
  }

  // The elements' type, where nothing but that `x` is a number of this type is asked.
  static llvm::Type* Narrow(llvm::ICmpInst& failed, Value*& x, bool& natural) {
    x = failed.getOperand(0);
    const llvm::APInt* moved = nullptr;
    const auto bits = x->getType()->getIntegerBitWidth();
    auto good = llvm::ConstantRange::makeExactICmpRegion(
        failed.getInversePredicate(), llvm::cast<llvm::ConstantInt>(failed.getOperand(1))->getValue());
    Value* inner;
    if (match(x, m_Add(m_Value(inner), m_APInt(moved)))) {
      good = good.subtract(*moved);
      x = inner;
    }
    for (unsigned n : {8U, 16U, 32U}) {
      if (n >= bits) break;
      const auto all = llvm::ConstantRange::getFull(n);
      natural = good == all.zeroExtend(bits);
      if (natural || good == all.signExtend(bits)) return llvm::IntegerType::get(x->getContext(), n);
    }
    return nullptr;
  }

  void Change() {
    llvm::Function& f = *loop_.getHeader()->getParent();
    llvm::IRBuilder<> b(&*f.getEntryBlock().begin());
    Forget();
    auto* failed = b.CreateAlloca(b.getInt1Ty(), nullptr, "failed");
    all_.push_back(failed);
    b.SetInsertPoint(loop_.getLoopPreheader()->getTerminator());
    b.CreateStore(b.getFalse(), failed);
    for (const Check& check : checks_)
      for (Value* one : check.failed) {
        b.SetInsertPoint(check.branch);
        if (auto* sum = Sum(b, one)) {
          AddTo(b, Signs(sum->getType()), sum);
          continue;
        }
        AddTo(b, failed, one);
        Value* x;
        bool natural = false;
        auto* compare = llvm::dyn_cast<llvm::ICmpInst>(one);
        if (!compare || !dt_.dominates(check.branch->getParent(), loop_.getLoopLatch())) continue;  // not always asked
        if (llvm::Type* type = Narrow(*compare, x, natural)) Replace(b, *compare, x, type, natural);
      }
    BasicBlock* latch = loop_.getLoopLatch();
    auto* end = llvm::cast<llvm::BranchInst>(latch->getTerminator());
    BasicBlock* behind =
        llvm::SplitEdge(latch, end->getSuccessor(loop_.contains(end->getSuccessor(0)) ? 1 : 0), &dt_, &li_);
    llvm::Instruction* jump = behind->getTerminator();
    b.SetInsertPoint(jump);
    if (store_) {
      store_->moveBefore(jump);
      auto* last = llvm::PHINode::Create(store_->getValueOperand()->getType(), 1, "", behind->begin());
      last->addIncoming(store_->getValueOperand(), latch);
      store_->setOperand(0, last);
      MoveOut(llvm::dyn_cast<llvm::Instruction>(store_->getPointerOperand()));
    }
    Value* wrong = nullptr;
    for (llvm::AllocaInst* flag : all_) {
      Value* v = b.CreateLoad(flag->getAllocatedType(), flag);
      if (flag != failed) v = b.CreateICmpSLT(v, llvm::Constant::getNullValue(v->getType()));
      wrong = wrong ? b.CreateOr(wrong, v) : v;
    }
    auto* undone = BasicBlock::Create(f.getContext(), "undone", &f);
    llvm::ReturnInst::Create(f.getContext(), b.getInt64(exit_), undone);
    b.CreateCondBr(wrong, undone, jump->getSuccessor(0),
                   llvm::MDBuilder(b.getContext()).createBranchWeights(1, 1 << 16));
    jump->eraseFromParent();
    for (const Check& check : checks_) {
      BasicBlock *from = check.branch->getParent(), *stays = check.branch->getSuccessor(1);
      check.branch->getSuccessor(0)->removePredecessor(from);
      llvm::BranchInst::Create(stays, check.branch);
      check.branch->eraseFromParent();
    }
    CountBytes();
    dt_.recalculate(f);
    llvm::PromoteMemToReg(all_, dt_);
    se_.forgetAllLoops();
  }

  // What was known of numbers since a check had not failed is not known any more.
  void Forget() {
    llvm::SmallSetVector<llvm::Instruction*, 32> made;
    llvm::SmallVector<llvm::Instruction*, 4> assumes;
    for (BasicBlock* b : loop_.blocks())
      for (llvm::Instruction& i : *b) {
        if (llvm::isa<llvm::LoadInst>(i)) made.insert(&i);
        if (llvm::isa<llvm::AssumeInst>(i)) assumes.push_back(&i);
      }
    for (llvm::PHINode& phi : loop_.getHeader()->phis())
      if (!Counts(&phi)) made.insert(&phi);
    for (size_t k = 0; k < made.size(); ++k)
      for (llvm::User* user : made[k]->users())
        if (auto* i = llvm::dyn_cast<llvm::Instruction>(user); i && loop_.contains(i)) made.insert(i);
    for (llvm::Instruction* i : made) {
      i->dropPoisonGeneratingFlags();
      for (unsigned kind : {llvm::LLVMContext::MD_range, llvm::LLVMContext::MD_noundef}) i->setMetadata(kind, nullptr);
    }
    for (llvm::Instruction* i : assumes) i->eraseFromParent();
  }

  // Of a sum of two numbers of one type that must be one of this type: a number below zero where it is none. What was
  // computed of the sum is then computed of one of this type.
  static Value* Sum(llvm::IRBuilder<>& b, Value* failed) {
    Value *x, *y, *over;
    const auto is_part = [](llvm::User* user) { return llvm::isa<llvm::ExtractValueInst>(user); };
    if (match(failed, m_ExtractValue<1>(m_CombineAnd(
                          m_Value(over), m_Intrinsic<llvm::Intrinsic::sadd_with_overflow>(m_Value(x), m_Value(y)))))) {
      if (!llvm::all_of(over->users(), is_part)) return nullptr;
      b.SetInsertPoint(llvm::cast<llvm::Instruction>(over));
      Value* sum = b.CreateAdd(x, y);
      for (llvm::User* user : llvm::make_early_inc_range(over->users())) {
        auto* part = llvm::cast<llvm::ExtractValueInst>(user);
        if (part->getIndices()[0] == 0) part->replaceAllUsesWith(sum);
      }
      return Left(b, x, y, sum);
    }
    bool natural = false;
    auto* compare = llvm::dyn_cast<llvm::ICmpInst>(failed);
    llvm::Type* type = compare ? Narrow(*compare, over, natural) : nullptr;
    if (!type || natural || !match(over, m_Add(m_SExt(m_Value(x)), m_SExt(m_Value(y)))) || x->getType() != type ||
        y->getType() != type)
      return nullptr;
    b.SetInsertPoint(llvm::cast<llvm::Instruction>(over));
    Value* sum = b.CreateAdd(x, y);
    over->replaceAllUsesWith(b.CreateSExt(sum, over->getType()));
    return Left(b, x, y, sum);
  }
  static Value* Left(llvm::IRBuilder<>& b, Value* x, Value* y, Value* sum) {
    return b.CreateAnd(b.CreateXor(sum, x), b.CreateXor(sum, y));
  }

  // Uses of `x` that do not ask whether it is of the type.
  static void Replace(llvm::IRBuilder<>& b, llvm::ICmpInst& asks, Value* x, llvm::Type* type, bool natural) {
    auto* made = llvm::dyn_cast<llvm::Instruction>(x);
    if (!made || llvm::isa<llvm::PHINode>(made)) return;
    b.SetInsertPoint(made->getNextNode());
    Value* narrow = b.CreateTrunc(x, type);
    Value* wide = natural ? b.CreateZExt(narrow, x->getType()) : b.CreateSExt(narrow, x->getType());
    x->replaceUsesWithIf(wide, [&](llvm::Use& use) {
      return use.getUser() != narrow && use.getUser() != &asks && use.getUser() != asks.getOperand(0);
    });
  }

  // Places that lie apart by what only the run knows are counted in bytes, which LLVM adds up in vectors of rounds,
  // too, where it would multiply.
  void CountBytes() {
    BasicBlock *latch = loop_.getLoopLatch(), *before = loop_.getLoopPreheader();
    llvm::Instruction* end = before->getTerminator();
    llvm::SCEVExpander expander(se_, latch->getDataLayout(), "bytes");
    for (BasicBlock* block : loop_.blocks())
      for (llvm::Instruction& i : *block) {
        auto* load = llvm::dyn_cast<llvm::LoadInst>(&i);
        const auto* moves = load ? Moves(se_.getSCEV(load->getPointerOperand())) : nullptr;
        if (!moves || !moves->isAffine()) continue;
        const llvm::SCEV* step = moves->getStepRecurrence(se_);
        if (llvm::isa<llvm::SCEVConstant>(step) || !expander.isSafeToExpandAt(moves->getStart(), end) ||
            !expander.isSafeToExpandAt(step, end))
          continue;
        Value* first = expander.expandCodeFor(moves->getStart(), load->getPointerOperandType(), end);
        Value* more = expander.expandCodeFor(step, step->getType(), end);
        llvm::IRBuilder<> b(loop_.getHeader(), loop_.getHeader()->begin());
        llvm::PHINode* bytes = b.CreatePHI(more->getType(), 2, "bytes");
        b.SetInsertPoint(latch->getTerminator());
        bytes->addIncoming(llvm::Constant::getNullValue(more->getType()), before);
        bytes->addIncoming(b.CreateAdd(bytes, more), latch);
        b.SetInsertPoint(load);
        load->setOperand(0, b.CreateGEP(b.getInt8Ty(), first, bytes));
      }
  }

  // What stays the same in the loop is computed before it.
  void MoveOut(llvm::Instruction* i) {
    bool changed = false;
    if (i) loop_.makeLoopInvariant(i, changed);
  }

  // One flag for each type.
  llvm::AllocaInst* Signs(llvm::Type* type) {
    for (llvm::AllocaInst* flag : all_)
      if (flag->getAllocatedType() == type) return flag;
    llvm::IRBuilder<> b(&*loop_.getHeader()->getParent()->getEntryBlock().begin());
    all_.push_back(b.CreateAlloca(type, nullptr, "signs"));
    b.SetInsertPoint(loop_.getLoopPreheader()->getTerminator());
    b.CreateStore(llvm::Constant::getNullValue(type), all_.back());
    return all_.back();
  }
  static void AddTo(llvm::IRBuilder<>& b, llvm::AllocaInst* flag, Value* more) {
    b.CreateStore(b.CreateOr(b.CreateLoad(flag->getAllocatedType(), flag), more), flag);
  }

  llvm::Loop& loop_;
  int64_t exit_;
  llvm::LoopInfo& li_;
  llvm::DominatorTree& dt_;
  llvm::ScalarEvolution& se_;
  std::vector<Check> checks_;
  std::vector<llvm::LoadInst*> loads_;
  llvm::StoreInst* store_ = nullptr;
  std::vector<llvm::AllocaInst*> all_;
};

std::optional<int64_t> UndoingExit(const llvm::Function& f) {
  int64_t exit;
  if (f.getFnAttribute(kUndoes).getValueAsString().getAsInteger(10, exit)) return {};
  return exit;
}

}  // namespace

bool EndsUndone(const llvm::Loop& loop) {
  BasicBlock* latch = loop.getLoopLatch();
  const std::optional<int64_t> exit = UndoingExit(*loop.getHeader()->getParent());
  if (!exit || !latch || !loop.isLoopExiting(latch)) return false;
  const llvm::Instruction* end = latch->getTerminator();
  for (unsigned k = 0; k < end->getNumSuccessors(); ++k)
    if (BasicBlock* to = end->getSuccessor(k); !loop.contains(to) && Returned(latch, to) == exit) return true;
  return false;
}

llvm::PreservedAnalyses UndoneChecksPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  const std::optional<int64_t> exit = UndoingExit(f);
  if (!exit) return llvm::PreservedAnalyses::all();
  auto& li = fam.getResult<llvm::LoopAnalysis>(f);
  auto& dt = fam.getResult<llvm::DominatorTreeAnalysis>(f);
  auto& se = fam.getResult<llvm::ScalarEvolutionAnalysis>(f);
  bool changed = false;
  for (llvm::Loop* loop : li.getLoopsInPreorder()) {
    if (!loop->isInnermost() || llvm::findStringMetadataForLoop(loop, "llvm.loop.isvectorized")) continue;
    llvm::simplifyLoop(loop, &dt, &li, &se, &fam.getResult<llvm::AssumptionAnalysis>(f), nullptr,
                       /*PreserveLCSSA=*/false);
    changed |= UndoneChecks(*loop, *exit, li, dt, se).Run();
  }
  if (!changed) return llvm::PreservedAnalyses::none();
  llvm::EliminateUnreachableBlocks(f);
  fam.invalidate(f, llvm::PreservedAnalyses::none());
  llvm::InstCombinePass().run(f, fam);  // Whether a loop can be vectorised is asked of all that stands in it.
  return llvm::PreservedAnalyses::none();
}

}  // namespace framejit::codegen
