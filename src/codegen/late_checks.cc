#include "codegen/late_checks.h"

#include <llvm/ADT/SmallSet.h>
#include <llvm/Analysis/AssumptionCache.h>
#include <llvm/Analysis/DemandedBits.h>
#include <llvm/Analysis/LoopAccessAnalysis.h>
#include <llvm/Analysis/OptimizationRemarkEmitter.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/Analysis/ScalarEvolutionExpressions.h>
#include <llvm/Analysis/TargetLibraryInfo.h>
#include <llvm/Analysis/TargetTransformInfo.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/PatternMatch.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#include <llvm/Transforms/Utils/Local.h>
#include <llvm/Transforms/Utils/LoopSimplify.h>
#include <llvm/Transforms/Utils/LoopUtils.h>
#include <llvm/Transforms/Utils/PromoteMemToReg.h>
#include <llvm/Transforms/Utils/ScalarEvolutionExpander.h>
#include <llvm/Transforms/Vectorize/LoopVectorizationLegality.h>

#include <optional>
#include <vector>

#include "codegen/versioned_loops.h"

namespace framejit::codegen {
namespace {

using namespace llvm::PatternMatch;  // NOLINT(google-build-using-namespace): the words of its patterns
using llvm::BasicBlock;
using llvm::SCEV;
using llvm::SCEVAddRecExpr;
using llvm::Value;

constexpr unsigned kMostInstructions = 400;
constexpr size_t kMostPlaces = 4, kMostParts = 2;
constexpr int64_t kMostKept = 8192;  // bytes of a part
// Of a loop, and a function that is asked with its number before the loop: is it one that can be vectorised?
constexpr const char *kNumber = "framejit.vectorised", *kVectorised = "fj_vectorised";
constexpr const char* kSlow = "framejit.unvectorised";  // of the loop that runs where that one does not

// What is special in an operand of these is special in the result.
void Stays(Value* v, const llvm::Loop& loop, llvm::SmallPtrSetImpl<Value*>& all) {
  auto* i = llvm::dyn_cast<llvm::Instruction>(v);
  if (!all.insert(v).second || !i || !loop.contains(i)) return;
  switch (i->getOpcode()) {
    case llvm::Instruction::FAdd:
    case llvm::Instruction::FSub:
    case llvm::Instruction::FMul: Stays(i->getOperand(1), loop, all); [[fallthrough]];
    case llvm::Instruction::FDiv:
    case llvm::Instruction::FNeg:
    case llvm::Instruction::FPExt:
    case llvm::Instruction::FPTrunc: return Stays(i->getOperand(0), loop, all);
    default: return;
  }
}

}  // namespace

Value* CarriedOn(Value* x, const llvm::Loop& loop) {
  for (llvm::PHINode& phi : loop.getHeader()->phis()) {
    if (!phi.getType()->isFloatingPointTy()) continue;
    Value* last = phi.getIncomingValueForBlock(loop.getLoopLatch());
    llvm::SmallPtrSet<Value*, 16> all;
    Stays(last, loop, all);
    if (last != &phi && all.contains(&phi) && all.contains(x)) return last;
  }
  return nullptr;
}

namespace {

// Gives the numbers of which `v` is not-a-number if one is special, as sums of their differences to themselves. It is
// false if `v` is something else.
bool Numbers(Value* v, llvm::SmallSetVector<Value*, 4>& numbers) {
  Value *a, *b;
  if (match(v, m_AnyZeroFP())) return true;
  if (match(v, m_FSub(m_Value(a), m_Deferred(a)))) return numbers.insert(a), true;
  return match(v, m_FAdd(m_Value(a), m_Value(b))) && Numbers(a, numbers) && Numbers(b, numbers);
}

// Of a condition that holds if a check failed.
bool Checked(Value* failed, const Value* before, llvm::SmallSetVector<Value*, 4>& numbers) {
  Value *a, *b;
  if (failed == before) return true;
  if (match(failed, m_LogicalOr(m_Value(a), m_Value(b))))
    return Checked(a, before, numbers) && Checked(b, before, numbers);
  const auto* compare = llvm::dyn_cast<llvm::FCmpInst>(failed);
  return compare && compare->getPredicate() == llvm::FCmpInst::FCMP_UNO && Numbers(compare->getOperand(0), numbers) &&
         Numbers(compare->getOperand(1), numbers);
}

// Of the condition of a branch. One of which passes have made one with another check's asks more than this.
bool AsksForNumbersOnly(Value* condition, bool usual) {
  Value *a, *b;
  if (usual ? match(condition, m_LogicalAnd(m_Value(a), m_Value(b)))
            : match(condition, m_LogicalOr(m_Value(a), m_Value(b))))
    return AsksForNumbersOnly(a, usual) && AsksForNumbersOnly(b, usual);
  const auto* compare = llvm::dyn_cast<llvm::FCmpInst>(condition);
  return compare && compare->getPredicate() == (usual ? llvm::FCmpInst::FCMP_ORD : llvm::FCmpInst::FCMP_UNO);
}

}  // namespace

llvm::SmallVector<Value*, 4> Last(const llvm::SmallSetVector<Value*, 4>& numbers, const llvm::Loop& loop) {
  llvm::SmallPtrSet<Value*, 16> told;
  for (Value* x : numbers) {
    llvm::SmallPtrSet<Value*, 16> all;
    Stays(x, loop, all);
    all.erase(x);
    told.insert(all.begin(), all.end());
  }
  llvm::SmallVector<Value*, 4> last;
  for (Value* x : numbers)
    if (!told.contains(x)) last.push_back(x);
  return last;
}

bool NumbersAsked(Value* condition, bool usual, llvm::SmallSetVector<Value*, 4>& numbers) {
  Value *a, *b;
  if (usual ? match(condition, m_LogicalAnd(m_Value(a), m_Value(b)))
            : match(condition, m_LogicalOr(m_Value(a), m_Value(b))))
    return NumbersAsked(a, usual, numbers) && NumbersAsked(b, usual, numbers);
  const auto* compare = llvm::dyn_cast<llvm::FCmpInst>(condition);
  return compare && compare->getPredicate() == (usual ? llvm::FCmpInst::FCMP_ORD : llvm::FCmpInst::FCMP_UNO) &&
         Numbers(compare->getOperand(0), numbers) && Numbers(compare->getOperand(1), numbers);
}

namespace {

// Gives the values that tell of all numbers behind the loop, or nothing if some are not carried on.
std::optional<llvm::SmallSetVector<Value*, 4>> Tell(const llvm::SmallSetVector<Value*, 4>& numbers,
                                                    const llvm::Loop& loop) {
  llvm::SmallSetVector<Value*, 4> told;
  for (Value* x : numbers) {
    Value* last = CarriedOn(x, loop);
    if (!last) return std::nullopt;
    told.insert(last);
  }
  return told;
}

class LateChecks {
 public:
  LateChecks(llvm::Loop& loop, llvm::LoopInfo& li, llvm::DominatorTree& dt, llvm::ScalarEvolution& se,
             std::vector<llvm::AllocaInst*>& kept, unsigned& numbers)
      : loop_(loop),
        li_(li),
        dt_(dt),
        se_(se),
        kept_(kept),
        numbers_(numbers),
        i64_(llvm::Type::getInt64Ty(loop.getHeader()->getContext())) {}

  bool Run() {
    if (!loop_.isLoopSimplifyForm() || !loop_.isSafeToClone() ||
        llvm::findStringMetadataForLoop(&loop_, "llvm.loop.isvectorized"))
      return false;
    const SCEV* rounds = se_.getExitCount(&loop_, loop_.getLoopLatch());
    if (llvm::isa<llvm::SCEVCouldNotCompute>(rounds) || rounds->getType() != i64_ || !Safe(rounds)) return false;
    if (!Find() || !Undoable()) return false;
    Change();
    return true;
  }

 private:
  // What the loop writes: one element of `type`, or one in each round, `step` bytes behind that of the round before.
  struct Written {
    Value* pointer;
    llvm::Type* type;
    int64_t step;
  };

  bool Safe(const SCEV* e) {
    llvm::SCEVExpander expander(se_, loop_.getHeader()->getDataLayout(), "late");
    return se_.isAvailableAtLoopEntry(e, &loop_) &&
           expander.isSafeToExpandAt(e, loop_.getLoopPreheader()->getTerminator());
  }

  // The blocks that are left without the checks, the checks, and where the loop is left then.
  bool Find() {
    unsigned size = 0;
    live_.insert(loop_.getHeader());
    for (size_t k = 0; k < live_.size(); ++k) {
      BasicBlock* b = live_[k];
      size += b->size();
      auto* branch = llvm::dyn_cast<llvm::BranchInst>(b->getTerminator());
      if (!branch) return false;
      std::optional<bool> usual = branch->getMetadata(kLateCheck) ? UsualWay(*branch) : std::nullopt;
      if (usual && !AsksForNumbersOnly(branch->getCondition(), *usual)) usual = {};
      if (usual) late_.push_back(branch);
      for (unsigned way = 0; way < branch->getNumSuccessors(); ++way) {
        if (usual && (way == 0) != *usual) continue;
        BasicBlock* to = branch->getSuccessor(way);
        if (loop_.contains(to))
          live_.insert(to);
        else if (usual)
          return false;
        else
          exits_.emplace_back(b, to);
      }
    }
    return !late_.empty() && size <= kMostInstructions;
  }

  bool Undoable() {
    size_t parts = 0;
    for (BasicBlock* b : live_)
      for (llvm::Instruction& i : *b) {
        if (!i.mayWriteToMemory() || llvm::isa<llvm::AssumeInst>(i)) continue;
        auto* store = llvm::dyn_cast<llvm::StoreInst>(&i);
        if (!store || !store->isSimple() || !Place(*store)) return false;
        parts += written_.back().step != 0;
      }
    // What is kept is copied: that pays where the loop is vectorised then. One that carries a sum on is not, and waits
    // for the sum in each round, which leaves time for checks.
    if (parts && AllCarriedOn()) return false;
    if (parts) number_ = ++numbers_;
    return written_.size() <= kMostPlaces && parts <= kMostParts;
  }

  // An address that each round writes to is one that can be read before.
  bool Place(llvm::StoreInst& store) {
    const bool always = dt_.dominates(store.getParent(), loop_.getLoopLatch()) && exits_.size() == 1 &&
                        exits_[0].first == loop_.getLoopLatch();
    Value* pointer = store.getPointerOperand();
    llvm::Type* type = store.getValueOperand()->getType();
    const SCEV* at = se_.getSCEV(pointer);
    if (!always) return false;
    if (se_.isLoopInvariant(at, &loop_)) return Safe(at) && (written_.push_back({pointer, type, 0}), true);
    const auto* moves = llvm::dyn_cast<SCEVAddRecExpr>(at);
    if (!moves || moves->getLoop() != &loop_ || !moves->isAffine() || !Safe(moves->getStart())) return false;
    const auto* step = llvm::dyn_cast<llvm::SCEVConstant>(moves->getStepRecurrence(se_));
    const uint64_t size = loop_.getHeader()->getDataLayout().getTypeStoreSize(type);
    if (!step || step->getAPInt().abs() != size) return false;
    written_.push_back({pointer, type, step->getAPInt().getSExtValue()});
    return true;
  }

  bool AllCarriedOn() {
    llvm::SmallSetVector<Value*, 4> numbers;
    for (llvm::BranchInst* branch : late_) {
      const auto* c = llvm::dyn_cast<llvm::FCmpInst>(branch->getCondition());
      if (!c || !Numbers(c->getOperand(0), numbers) || !Numbers(c->getOperand(1), numbers)) return false;
    }
    return Tell(numbers, loop_).has_value();
  }

  // With the address of the first byte, and how many there are.
  struct Kept {
    Value *at, *copy, *bytes;
    llvm::Type* type;
  };

  void Change() {
    llvm::Loop* slow = CopyLoop(loop_, li_, dt_, se_, [&](BasicBlock& at) { return Ask(at); });
    llvm::Function& f = *loop_.getHeader()->getParent();
    llvm::IRBuilder<> b(&*f.getEntryBlock().begin());
    auto* failed = b.CreateAlloca(b.getInt1Ty(), nullptr, "failed");
    b.SetInsertPoint(loop_.getLoopPreheader()->getTerminator());
    b.CreateStore(b.getFalse(), failed);
    const std::vector<Kept> kept = Keep(b);
    const std::vector<Reread> reread = number_ ? ReadBefore(b) : std::vector<Reread>();
    std::vector<BasicBlock*> behind;
    for (auto [from, to] : exits_) behind.push_back(llvm::SplitEdge(from, to, &dt_, &li_));
    for (llvm::BranchInst* branch : late_) {
      const bool usual = *UsualWay(*branch);
      b.SetInsertPoint(branch);
      Value* now = Failed(b, branch->getCondition(), usual);
      b.CreateStore(b.CreateOr(b.CreateLoad(b.getInt1Ty(), failed), now), failed);
      branch->setCondition(b.getInt1(usual));
    }
    auto* again = BasicBlock::Create(f.getContext(), "again", &f);
    if (llvm::Loop* around = loop_.getParentLoop()) around->addBasicBlockToLoop(again, li_);
    for (BasicBlock* left : behind) {
      llvm::Instruction* jump = left->getTerminator();
      b.SetInsertPoint(jump);
      Value* wrong = b.CreateLoad(b.getInt1Ty(), failed);
      for (const Reread& r : reread) wrong = b.CreateOr(wrong, Changed(b, r));
      b.CreateCondBr(wrong, again, jump->getSuccessor(0),
                     llvm::MDBuilder(b.getContext()).createBranchWeights(1, 1 << 16));
      jump->eraseFromParent();
    }
    b.SetInsertPoint(again);
    for (const Kept& k : kept) {
      if (k.bytes)
        b.CreateMemCpy(k.at, llvm::MaybeAlign(1), k.copy, llvm::MaybeAlign(8), k.bytes);
      else
        b.CreateAlignedStore(k.copy, k.at, llvm::Align(1));
    }
    b.CreateBr(slow->getLoopPreheader());
    if (number_) llvm::addStringMetadataToLoop(&loop_, kNumber, number_);
    if (number_) llvm::addStringMetadataToLoop(slow, kSlow, number_);
    dt_.recalculate(f);
    llvm::PromoteMemToReg({failed}, dt_);
    se_.forgetAllLoops();
  }

  Value* Ask(BasicBlock& at) {
    llvm::SCEVExpander expander(se_, at.getDataLayout(), "late");
    llvm::IRBuilder<> b(at.getTerminator());
    Value* few = b.getTrue();
    if (number_) {
      llvm::FunctionCallee ask = at.getModule()->getOrInsertFunction(kVectorised, b.getInt1Ty(), b.getInt64Ty());
      auto* f = llvm::cast<llvm::Function>(ask.getCallee());
      for (auto attribute : {llvm::Attribute::NoUnwind, llvm::Attribute::WillReturn, llvm::Attribute::Speculatable})
        f->addFnAttr(attribute);
      f->setDoesNotAccessMemory();
      few = b.CreateCall(ask, {b.getInt64(number_)});
    }
    for (const Written& w : written_)
      if (w.step) {
        Value* rounds =
            expander.expandCodeFor(se_.getExitCount(&loop_, loop_.getLoopLatch()), i64_, at.getTerminator());
        few = b.CreateAnd(few, b.CreateICmpULT(rounds, b.getInt64(kMostKept / std::abs(w.step))));
      }
    return few;
  }

  // Holds where the check fails.
  Value* Failed(llvm::IRBuilder<>& b, Value* condition, bool usual) {
    Value *x, *y;
    if (usual && match(condition, m_LogicalAnd(m_Value(x), m_Value(y))))
      return b.CreateOr(Failed(b, x, true), Failed(b, y, true));
    auto* compare = llvm::dyn_cast<llvm::FCmpInst>(condition);
    if (usual && compare)
      return b.CreateFCmp(compare->getInversePredicate(), compare->getOperand(0), compare->getOperand(1));
    return usual ? b.CreateNot(condition) : condition;
  }

  std::vector<Kept> Keep(llvm::IRBuilder<>& b) {
    std::vector<Kept> kept;
    llvm::Instruction* end = loop_.getLoopPreheader()->getTerminator();
    llvm::SCEVExpander expander(se_, end->getDataLayout(), "late");
    size_t parts = 0;
    for (const Written& w : written_) {
      const SCEV* at = se_.getSCEV(w.pointer);
      if (!w.step) {
        Value* address = expander.expandCodeFor(at, w.pointer->getType(), end);
        b.SetInsertPoint(end);
        kept.push_back({address, b.CreateAlignedLoad(w.type, address, llvm::Align(1)), nullptr, w.type});
        continue;
      }
      const SCEV* rounds = se_.getExitCount(&loop_, loop_.getLoopLatch());
      const auto* moves = llvm::cast<SCEVAddRecExpr>(at);
      const SCEV* first = w.step > 0 ? moves->getStart() : moves->evaluateAtIteration(rounds, se_);
      Value* address = expander.expandCodeFor(first, w.pointer->getType(), end);
      Value* count = expander.expandCodeFor(rounds, i64_, end);
      b.SetInsertPoint(end);
      Value* bytes = b.CreateMul(b.CreateAdd(count, b.getInt64(1)), b.getInt64(std::abs(w.step)));
      llvm::AllocaInst* memory = Memory(parts++);
      b.CreateMemCpy(memory, llvm::MaybeAlign(8), address, llvm::MaybeAlign(1), bytes);
      kept.push_back({address, memory, bytes, w.type});
    }
    return kept;
  }

  // An element that each round reads from one place, and what it was before the loop.
  struct Reread {
    Value *at, *was;
    llvm::Align align;
  };

  // Where the one part that the loop writes may hold such an element, it is taken to stay as it is, and looked at
  // behind the loop: no byte of the part is written twice.
  std::vector<Reread> ReadBefore(llvm::IRBuilder<>& b) {
    std::vector<Reread> all;
    if (written_.size() != 1 || !written_[0].step) return all;
    llvm::Instruction* end = loop_.getLoopPreheader()->getTerminator();
    llvm::SCEVExpander expander(se_, end->getDataLayout(), "late");
    for (BasicBlock* block : live_) {
      if (!dt_.dominates(block, loop_.getLoopLatch())) continue;
      for (llvm::Instruction& i : llvm::make_early_inc_range(*block)) {
        auto* load = llvm::dyn_cast<llvm::LoadInst>(&i);
        if (!load || !load->isSimple()) continue;
        const SCEV* place = se_.getSCEV(load->getPointerOperand());
        if (!se_.isLoopInvariant(place, &loop_) || !Safe(place)) continue;
        Value* at = expander.expandCodeFor(place, load->getPointerOperandType(), end);
        b.SetInsertPoint(end);
        all.push_back({at, b.CreateAlignedLoad(load->getType(), at, load->getAlign()), load->getAlign()});
        load->replaceAllUsesWith(all.back().was);
        load->eraseFromParent();
      }
    }
    return all;
  }

  static Value* Changed(llvm::IRBuilder<>& b, const Reread& r) {
    llvm::Type* type = r.was->getType();
    if (type->isPointerTy()) return b.CreateICmpNE(b.CreateAlignedLoad(type, r.at, r.align), r.was);
    llvm::Type* bits = b.getIntNTy(type->getPrimitiveSizeInBits());
    return b.CreateICmpNE(b.CreateAlignedLoad(bits, r.at, r.align), b.CreateBitCast(r.was, bits));
  }

  // All innermost loops share it.
  llvm::AllocaInst* Memory(size_t k) {
    llvm::BasicBlock& entry = loop_.getHeader()->getParent()->getEntryBlock();
    llvm::IRBuilder<> b(&*entry.begin());
    if (k == kept_.size()) {
      kept_.push_back(b.CreateAlloca(llvm::ArrayType::get(b.getInt8Ty(), kMostKept), nullptr, "kept"));
      kept_.back()->setAlignment(llvm::Align(8));
    }
    return kept_[k];
  }

  llvm::Loop& loop_;
  llvm::LoopInfo& li_;
  llvm::DominatorTree& dt_;
  llvm::ScalarEvolution& se_;
  std::vector<llvm::AllocaInst*>& kept_;
  unsigned& numbers_;
  unsigned number_ = 0;  // not 0: only where it is vectorised
  llvm::Type* i64_;
  llvm::SmallSetVector<BasicBlock*, 16> live_;
  std::vector<llvm::BranchInst*> late_;
  std::vector<std::pair<BasicBlock*, BasicBlock*>> exits_;
  std::vector<Written> written_;
};

// A flag that is set in rounds in which a check fails, of a loop that is left at its end alone.
bool CarryOn(llvm::PHINode& flag, llvm::Loop& loop) {
  BasicBlock *latch = loop.getLoopLatch(), *behind = loop.getUniqueExitBlock();
  Value* next = flag.getIncomingValueForBlock(latch);
  llvm::SmallSetVector<Value*, 4> numbers;
  if (!match(flag.getIncomingValueForBlock(loop.getLoopPreheader()), m_Zero()) || next == &flag || !flag.hasOneUse() ||
      !Checked(next, &flag, numbers))
    return false;
  const auto told = Tell(numbers, loop);
  if (!told || told->empty()) return false;
  llvm::IRBuilder<> b(behind, behind->getFirstInsertionPt());
  Value* failed = b.getFalse();
  for (Value* x : *told) {
    auto* last = llvm::PHINode::Create(x->getType(), 1, "", behind->begin());
    last->addIncoming(x, latch);
    Value* nothing = b.CreateFSub(last, last);
    failed = b.CreateOr(failed, b.CreateFCmpUNO(nothing, nothing));
  }
  for (llvm::PHINode& phi : llvm::make_early_inc_range(behind->phis()))
    if (phi.getIncomingValueForBlock(latch) == next) {  // it keeps the loop from being vectorised
      phi.replaceAllUsesWith(failed);
      phi.eraseFromParent();
    }
  flag.replaceAllUsesWith(b.getFalse());
  flag.eraseFromParent();
  return true;
}

// The flag as sums that are not-a-number if a check has failed. All that stands behind the loop comes from its latch.
bool AddUp(llvm::PHINode& flag, llvm::Loop& loop) {
  constexpr size_t kMostSums = 3;
  BasicBlock *latch = loop.getLoopLatch(), *behind = loop.getUniqueExitBlock();
  Value* next = flag.getIncomingValueForBlock(latch);
  llvm::SmallSetVector<Value*, 4> numbers;
  if (!match(flag.getIncomingValueForBlock(loop.getLoopPreheader()), m_Zero()) || next == &flag || !flag.hasOneUse() ||
      !Checked(next, &flag, numbers))
    return false;
  const llvm::SmallVector<Value*, 4> last = Last(numbers, loop);
  const auto behind_alone = [&](llvm::User* user) {
    const auto* phi = llvm::dyn_cast<llvm::PHINode>(user);
    return phi && (phi == &flag || phi->getParent() == behind);
  };
  if (last.empty() || last.size() > kMostSums || !llvm::all_of(next->users(), behind_alone)) return false;
  Value* failed = nullptr;
  llvm::IRBuilder<> b(flag.getContext());
  for (Value* x : last) {
    llvm::Constant* nothing = llvm::ConstantFP::getZero(x->getType());
    auto* sum = llvm::PHINode::Create(x->getType(), 2, "nothing", loop.getHeader()->begin());
    b.SetInsertPoint(latch->getTerminator());
    Value* more = b.CreateIntrinsic(llvm::Intrinsic::fmuladd, {x->getType()}, {x, nothing, sum});
    sum->addIncoming(nothing, loop.getLoopPreheader());
    sum->addIncoming(more, latch);
    auto* all = llvm::PHINode::Create(x->getType(), 1, "", behind->begin());
    all->addIncoming(more, latch);
    b.SetInsertPoint(behind, behind->getFirstInsertionPt());
    if (failed) b.SetInsertPoint(llvm::cast<llvm::Instruction>(failed)->getNextNode());
    Value* special = b.CreateFCmpUNO(all, all);
    failed = failed ? b.CreateOr(failed, special) : special;
  }
  for (llvm::PHINode& phi : llvm::make_early_inc_range(behind->phis()))
    if (phi.getIncomingValueForBlock(latch) == next) {
      phi.replaceAllUsesWith(failed);
      phi.eraseFromParent();
    }
  flag.replaceAllUsesWith(b.getFalse());
  flag.eraseFromParent();
  llvm::RecursivelyDeleteTriviallyDeadInstructions(next);
  return true;
}

// Into loads and stores of what lies side by side.
bool CanBeVectorised(llvm::Loop& loop, llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  if (!loop.isLoopSimplifyForm()) return false;
  auto& ore = fam.getResult<llvm::OptimizationRemarkEmitterAnalysis>(f);
  auto& tti = fam.getResult<llvm::TargetIRAnalysis>(f);
  llvm::PredicatedScalarEvolution pse(fam.getResult<llvm::ScalarEvolutionAnalysis>(f), loop);
  llvm::LoopVectorizationRequirements requirements;
  llvm::LoopVectorizeHints hints(&loop, /*InterleaveOnlyWhenForced=*/true, ore, &tti);
  llvm::LoopVectorizationLegality legality(
      &loop, pse, &fam.getResult<llvm::DominatorTreeAnalysis>(f), &tti, &fam.getResult<llvm::TargetLibraryAnalysis>(f),
      &f, fam.getResult<llvm::LoopAccessAnalysis>(f), &fam.getResult<llvm::LoopAnalysis>(f), &ore, &requirements,
      &hints, &fam.getResult<llvm::DemandedBitsAnalysis>(f), &fam.getResult<llvm::AssumptionAnalysis>(f), nullptr,
      nullptr);
  if (!legality.canVectorize(/*UseVPlanNativePath=*/false) || requirements.getExactFPInst()) return false;
  for (llvm::BasicBlock* block : loop.blocks())
    for (llvm::Instruction& i : *block) {
      Value* at = llvm::getLoadStorePointerOperand(&i);
      if (at && !loop.isLoopInvariant(at) && !legality.isConsecutivePtr(llvm::getLoadStoreType(&i), at)) return false;
    }
  return true;
}

}  // namespace

llvm::PreservedAnalyses LateChecksPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  auto& li = fam.getResult<llvm::LoopAnalysis>(f);
  auto& dt = fam.getResult<llvm::DominatorTreeAnalysis>(f);
  auto& se = fam.getResult<llvm::ScalarEvolutionAnalysis>(f);
  std::vector<llvm::AllocaInst*> kept;
  unsigned numbers = 0;
  bool changed = false;
  for (llvm::Loop* loop : li.getLoopsInPreorder())
    if (loop->isInnermost()) changed |= LateChecks(*loop, li, dt, se, kept, numbers).Run();
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

llvm::PreservedAnalyses VectorisedChecksPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  llvm::Function* ask = f.getParent()->getFunction(kVectorised);
  if (!ask) return llvm::PreservedAnalyses::all();
  llvm::SmallSet<uint64_t, 8> good;
  for (llvm::Loop* loop : fam.getResult<llvm::LoopAnalysis>(f).getLoopsInPreorder())
    if (const auto number = llvm::getOptionalIntLoopAttribute(loop, kNumber); number && CanBeVectorised(*loop, f, fam))
      good.insert(*number);
  for (llvm::Loop* loop : fam.getResult<llvm::LoopAnalysis>(f).getLoopsInPreorder())  // those that run always now
    if (const auto number = llvm::getOptionalIntLoopAttribute(loop, kSlow); number && !good.contains(*number))
      loop->setLoopID(llvm::makePostTransformationMetadata(f.getContext(), loop->getLoopID(),
                                                           {"llvm.loop.isvectorized", "llvm.loop.unroll.disable"}, {}));
  for (llvm::User* user : llvm::make_early_inc_range(ask->users())) {
    auto* call = llvm::cast<llvm::CallInst>(user);
    const uint64_t number = llvm::cast<llvm::ConstantInt>(call->getArgOperand(0))->getZExtValue();
    call->replaceAllUsesWith(llvm::ConstantInt::getBool(call->getType(), good.contains(number)));
    call->eraseFromParent();
  }
  ask->eraseFromParent();
  return llvm::PreservedAnalyses::none();
}

llvm::PreservedAnalyses CarriedChecksPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  auto& li = fam.getResult<llvm::LoopAnalysis>(f);
  bool changed = false;
  for (llvm::Loop* loop : li.getLoopsInPreorder()) {
    BasicBlock* behind = loop->getUniqueExitBlock();
    if (!loop->isInnermost() || !loop->isLoopSimplifyForm() || loop->getExitingBlock() != loop->getLoopLatch() ||
        !behind || behind->getSinglePredecessor() != loop->getLoopLatch())
      continue;
    for (llvm::PHINode& phi : llvm::make_early_inc_range(loop->getHeader()->phis()))
      if (phi.getType()->isIntegerTy(1)) changed |= CarryOn(phi, *loop);
  }
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

llvm::PreservedAnalyses AddedChecksPass::run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
  auto& li = fam.getResult<llvm::LoopAnalysis>(f);
  auto& dt = fam.getResult<llvm::DominatorTreeAnalysis>(f);
  auto& se = fam.getResult<llvm::ScalarEvolutionAnalysis>(f);
  bool changed = false;
  for (llvm::Loop* loop : li.getLoopsInPreorder()) {
    if (!loop->isInnermost() || llvm::findStringMetadataForLoop(loop, "llvm.loop.isvectorized")) continue;
    changed |= llvm::simplifyLoop(loop, &dt, &li, &se, &fam.getResult<llvm::AssumptionAnalysis>(f), nullptr,
                                  /*PreserveLCSSA=*/false);
    if (!loop->isLoopSimplifyForm() || loop->getExitingBlock() != loop->getLoopLatch()) continue;
    changed |= llvm::formLCSSA(*loop, dt, &li, &se);
    for (llvm::PHINode& phi : llvm::make_early_inc_range(loop->getHeader()->phis()))
      if (phi.getType()->isIntegerTy(1)) changed |= AddUp(phi, *loop);
  }
  return changed ? llvm::PreservedAnalyses::none() : llvm::PreservedAnalyses::all();
}

}  // namespace framejit::codegen
