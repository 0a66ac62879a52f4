// This file has the order in which the passes over scalar code run, and the small ones that nothing else wants.
#include "codegen/scalar_passes.h"

#include <llvm/Analysis/AliasAnalysis.h>
#include <llvm/Analysis/AssumptionCache.h>
#include <llvm/Analysis/BasicAliasAnalysis.h>
#include <llvm/Analysis/BlockFrequencyInfo.h>
#include <llvm/Analysis/BranchProbabilityInfo.h>
#include <llvm/Analysis/DemandedBits.h>
#include <llvm/Analysis/IVUsers.h>
#include <llvm/Analysis/LoopAccessAnalysis.h>
#include <llvm/Analysis/MemoryDependenceAnalysis.h>
#include <llvm/Analysis/MemorySSA.h>
#include <llvm/Analysis/OptimizationRemarkEmitter.h>
#include <llvm/Analysis/PostDominators.h>
#include <llvm/Analysis/ProfileSummaryInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/Analysis/ScopedNoAliasAA.h>
#include <llvm/Analysis/TargetLibraryInfo.h>
#include <llvm/Analysis/TargetTransformInfo.h>
#include <llvm/Analysis/TypeBasedAliasAnalysis.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/PassManager.h>
#include <llvm/IR/PatternMatch.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar/ConstraintElimination.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/GVN.h>
#include <llvm/Transforms/Scalar/IndVarSimplify.h>
#include <llvm/Transforms/Scalar/LICM.h>
#include <llvm/Transforms/Scalar/LoopPassManager.h>
#include <llvm/Transforms/Scalar/LoopRotation.h>
#include <llvm/Transforms/Scalar/LoopStrengthReduce.h>
#include <llvm/Transforms/Scalar/LoopUnrollPass.h>
#include <llvm/Transforms/Scalar/SROA.h>
#include <llvm/Transforms/Scalar/SimpleLoopUnswitch.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>
#include <llvm/Transforms/Utils/Local.h>
#include <llvm/Transforms/Utils/LoopUtils.h>
#include <llvm/Transforms/Vectorize/LoopVectorize.h>

#include "codegen/carried_elements.h"
#include "codegen/counted_bits.h"
#include "codegen/grouped_rounds.h"
#include "codegen/late_checks.h"
#include "codegen/modulo.h"
#include "codegen/quotients.h"
#include "codegen/repeats.h"
#include "codegen/scalar_lanes.h"
#include "codegen/selects.h"
#include "codegen/several_rounds.h"
#include "codegen/sunk_checks.h"
#include "codegen/sunk_counters.h"
#include "codegen/sure_loads.h"
#include "codegen/told_numbers.h"
#include "codegen/undone_checks.h"
#include "codegen/versioned_loops.h"

namespace framejit::codegen {
namespace {

// Inner loops of programs have few rounds as a rule: one vector at once leaves fewer of them for the end.
struct OneVectorPass : llvm::PassInfoMixin<OneVectorPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager& fam) {
    for (llvm::Loop* loop : fam.getResult<llvm::LoopAnalysis>(f).getLoopsInPreorder())
      if (loop->isInnermost() && loop->getLoopLatch())
        llvm::addStringMetadataToLoop(loop, "llvm.loop.interleave.count", 1);
    return llvm::PreservedAnalyses::all();
  }
};

// Counters and products of counters become one addition in each round.
struct StrengthReducePass : llvm::PassInfoMixin<StrengthReducePass> {
  llvm::PreservedAnalyses run(llvm::Loop& loop, llvm::LoopAnalysisManager& lam,
                              llvm::LoopStandardAnalysisResults& known, llvm::LPMUpdater& updater) {
    return loop.isInnermost() ? llvm::LoopStrengthReducePass().run(loop, lam, known, updater)
                              : llvm::PreservedAnalyses::all();
  }
};

// What was taken for granted has told all it can: its conditions would count as work of loops.
struct DropAssumesPass : llvm::PassInfoMixin<DropAssumesPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager&) {
    for (llvm::BasicBlock& block : f)
      for (llvm::Instruction& i : llvm::make_early_inc_range(block)) {
        auto* assume = llvm::dyn_cast<llvm::AssumeInst>(&i);
        if (!assume) continue;
        llvm::Value* condition = assume->getArgOperand(0);
        assume->eraseFromParent();
        llvm::RecursivelyDeleteTriviallyDeadInstructions(condition);
      }
    return llvm::PreservedAnalyses::none();
  }
};

// An address as that of an element `x` of memory, where it is made by a shift of `x`: so GVN follows it from round to
// round, and finds that one has read already what the next one reads.
struct ElementAddressesPass : llvm::PassInfoMixin<ElementAddressesPass> {
  llvm::PreservedAnalyses run(llvm::Function& f, llvm::FunctionAnalysisManager&) {
    using namespace llvm::PatternMatch;
    constexpr uint64_t kMostShift = 3;
    for (llvm::BasicBlock& block : f)
      for (llvm::Instruction& i : llvm::make_early_inc_range(block)) {
        auto* at = llvm::dyn_cast<llvm::GetElementPtrInst>(&i);
        if (!at || !at->getSourceElementType()->isIntegerTy(8) || at->getNumIndices() != 1) continue;
        llvm::Value *offset = at->getOperand(1), *base = at->getPointerOperand(), *rest = nullptr, *x = nullptr;
        uint64_t by = 0;
        const auto shift = m_Shl(m_Value(x), m_ConstantInt(by));
        if (!match(offset, shift) && !match(offset, m_c_Add(shift, m_Value(rest)))) continue;
        if (by > kMostShift) continue;
        llvm::IRBuilder<> b(at);
        if (rest) base = b.CreateGEP(b.getInt8Ty(), base, rest);
        at->replaceAllUsesWith(b.CreateGEP(b.getIntNTy(8U << by), base, x));
        at->eraseFromParent();
        llvm::RecursivelyDeleteTriviallyDeadInstructions(offset);
      }
    return llvm::PreservedAnalyses::none();
  }
};

// Whole loops alone: a first round that stands before its loop costs more than flags that become true in it.
llvm::LoopUnrollPass UnrollWhole() {
  return llvm::LoopUnrollPass(
      llvm::LoopUnrollOptions(3).setPartial(false).setRuntime(false).setPeeling(false).setUpperBound(true));
}

void HoistFromLoops(llvm::FunctionPassManager& fpm) {
  llvm::LoopPassManager loops;
  loops.addPass(llvm::LICMPass(llvm::LICMOptions()));
  fpm.addPass(llvm::createFunctionToLoopPassAdaptor(std::move(loops), /*UseMemorySSA=*/true));
}

// A loop whose number of rounds is known once the loop around it is none is unrolled, too.
void UnrollFewRounds(llvm::FunctionPassManager& fpm) {
  fpm.addPass(UnrollWhole());
  fpm.addPass(llvm::InstCombinePass());
  fpm.addPass(llvm::SimplifyCFGPass());
  fpm.addPass(UnrollWhole());
  fpm.addPass(llvm::EarlyCSEPass(true));
  fpm.addPass(llvm::ConstraintEliminationPass());
  fpm.addPass(llvm::SimplifyCFGPass());
}

void ComputeOnce(llvm::FunctionPassManager& fpm) {
  fpm.addPass(CountedBitsPass());
  fpm.addPass(SameIndicesPass());
  fpm.addPass(llvm::SimplifyCFGPass());
  fpm.addPass(llvm::InstCombinePass());
  fpm.addPass(ElementAddressesPass());
  fpm.addPass(llvm::GVNPass());
  fpm.addPass(CarriedValuesPass());
}

}  // namespace

// The analyses that the passes below ask for, and no others: LLVM's registry of all of them would link all of them.
void OptimizeScalar(llvm::Module& m, llvm::TargetMachine& machine) {
  llvm::LoopAnalysisManager lam;
  llvm::FunctionAnalysisManager fam;
  llvm::ModuleAnalysisManager mam;
  fam.registerPass([&] { return llvm::PassInstrumentationAnalysis(); });
  lam.registerPass([&] { return llvm::PassInstrumentationAnalysis(); });
  mam.registerPass([&] { return llvm::PassInstrumentationAnalysis(); });
  mam.registerPass([&] { return llvm::ProfileSummaryAnalysis(); });
  fam.registerPass([&] { return machine.getTargetIRAnalysis(); });
  fam.registerPass([&] { return llvm::TargetLibraryAnalysis(); });
  fam.registerPass([&] { return llvm::AssumptionAnalysis(); });
  fam.registerPass([&] { return llvm::DominatorTreeAnalysis(); });
  fam.registerPass([&] { return llvm::PostDominatorTreeAnalysis(); });
  fam.registerPass([&] { return llvm::LoopAnalysis(); });
  fam.registerPass([&] { return llvm::ScalarEvolutionAnalysis(); });
  fam.registerPass([&] { return llvm::MemorySSAAnalysis(); });
  fam.registerPass([&] { return llvm::MemoryDependenceAnalysis(); });
  fam.registerPass([&] { return llvm::OptimizationRemarkEmitterAnalysis(); });
  fam.registerPass([&] { return llvm::BlockFrequencyAnalysis(); });
  fam.registerPass([&] { return llvm::BranchProbabilityAnalysis(); });
  fam.registerPass([&] { return llvm::BasicAA(); });
  fam.registerPass([&] { return llvm::TypeBasedAA(); });
  fam.registerPass([&] { return llvm::ScopedNoAliasAA(); });
  fam.registerPass([&] { return llvm::LoopAccessAnalysis(); });
  fam.registerPass([&] { return llvm::DemandedBitsAnalysis(); });
  fam.registerPass([&] { return llvm::ShouldRunExtraVectorPasses(); });
  fam.registerPass([&] {
    llvm::AAManager aa;
    aa.registerFunctionAnalysis<llvm::BasicAA>();
    aa.registerFunctionAnalysis<llvm::TypeBasedAA>();
    aa.registerFunctionAnalysis<llvm::ScopedNoAliasAA>();
    return aa;
  });
  fam.registerPass([&] { return llvm::ModuleAnalysisManagerFunctionProxy(mam); });
  fam.registerPass([&] { return llvm::LoopAnalysisManagerFunctionProxy(lam); });
  lam.registerPass([&] { return llvm::FunctionAnalysisManagerLoopProxy(fam); });
  lam.registerPass([&] { return llvm::ShouldRunExtraSimpleLoopUnswitch(); });
  lam.registerPass([&] { return llvm::IVUsersAnalysis(); });
  mam.registerPass([&] { return llvm::FunctionAnalysisManagerModuleProxy(fam); });
  llvm::FunctionPassManager fpm;
  fpm.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
  fpm.addPass(SureLoadsPass());
  fpm.addPass(llvm::EarlyCSEPass(true));
  fpm.addPass(llvm::InstCombinePass());
  fpm.addPass(llvm::SimplifyCFGPass());
  fpm.addPass(SunkChecksPass());
  llvm::LoopPassManager loops;
  loops.addPass(llvm::LoopRotatePass());
  loops.addPass(llvm::LICMPass(llvm::LICMOptions()));
  fpm.addPass(llvm::createFunctionToLoopPassAdaptor(std::move(loops), /*UseMemorySSA=*/true));
  llvm::LoopPassManager counted;
  counted.addPass(llvm::SimpleLoopUnswitchPass(/*NonTrivial=*/false, /*Trivial=*/true));
  counted.addPass(llvm::IndVarSimplifyPass());
  fpm.addPass(llvm::EarlyCSEPass(true));
  fpm.addPass(llvm::ConstraintEliminationPass());  // an index below a bound that is below a size
  fpm.addPass(llvm::createFunctionToLoopPassAdaptor(std::move(counted)));
  UnrollFewRounds(fpm);
  fpm.addPass(VersionLoopsPass(/*unrolled=*/false));
  fpm.addPass(UnrollWhole());
  fpm.addPass(llvm::EarlyCSEPass(true));
  HoistFromLoops(fpm);
  fpm.addPass(VersionLoopsPass(/*unrolled=*/true));  // of loops that are innermost now
  ComputeOnce(fpm);
  HoistFromLoops(fpm);
  fpm.addPass(CarriedElementsPass());
  fpm.addPass(ExpandModuloPass());
  fpm.addPass(ToldNumbersPass());
  fpm.addPass(LateChecksPass());
  fpm.addPass(HoistChecksPass());
  // What all ways of a branch end with stands behind them once: then ways that only choose a number are no branches.
  fpm.addPass(llvm::SimplifyCFGPass(llvm::SimplifyCFGOptions().hoistCommonInsts(true).sinkCommonInsts(true)));
  fpm.addPass(SelectsPass());
  fpm.addPass(llvm::SimplifyCFGPass());
  fpm.addPass(UndoneChecksPass());
  fpm.addPass(CarriedElementsPass());  // of writes that stood on all ways of a branch
  HoistFromLoops(fpm);
  fpm.addPass(CarriedChecksPass());
  fpm.addPass(VectorisedChecksPass());
  fpm.addPass(OneVectorPass());
  fpm.addPass(llvm::LoopVectorizePass());
  fpm.addPass(llvm::InstCombinePass());
  fpm.addPass(ScalarLanesPass());
  fpm.addPass(llvm::SimplifyCFGPass());
  fpm.addPass(DropAssumesPass());
  fpm.addPass(EraseToldPass());
  fpm.addPass(AddedChecksPass());
  fpm.addPass(SunkCountersPass());
  fpm.addPass(GroupedRoundsPass());
  fpm.addPass(SeveralRoundsPass());
  llvm::LoopPassManager reduced;
  reduced.addPass(StrengthReducePass());
  fpm.addPass(llvm::createFunctionToLoopPassAdaptor(std::move(reduced)));
  fpm.addPass(UnfoldSelectsPass());
  fpm.addPass(QuotientsPass());
  for (llvm::Function& f : m)
    if (!f.isDeclaration() && !f.hasInternalLinkage()) fpm.run(f, fam);
  EraseModulo(m);
}

}  // namespace framejit::codegen
