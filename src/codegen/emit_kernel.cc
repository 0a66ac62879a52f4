// The shape of the code, for a row kernel (softmax over the last axis):
//
//   for r in [begin, end):                  outer coordinates kept as counters, one odometer step a row
//     base pointers of all accesses
//     stage row:   scalars
//     stage loop:  accumulators = identity
//                  for red axes: for i in steps of lanes * unroll: loads, ops, accumulators += ...
//                                for the rest, in steps of lanes: the same under a mask
//                  horizontal combination: the reductions' scalars
//
// In a column kernel the two inner levels swap: for each vector of the inner axis (`unroll` of them at a time) all
// stages run, a loop stage loops over the red axes, and there is no horizontal step. Where that would be a single cache
// line of each row, and there is one loop only, a strip of several vectors runs row by row, its accumulators in memory.
//
// Counters and accumulators are allocas; PromoteMemToReg turns them into SSA values at the end. It is the only pass.
#include "codegen/emit_kernel.h"

#include <absl/functional/function_ref.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Transforms/Utils/PromoteMemToReg.h>

#include <map>
#include <set>
#include <utility>

#include "codegen/rare_rows.h"
#include "codegen/reduction_emitter.h"

namespace framejit::codegen {
namespace {

constexpr int kSumSteps = 64;     // steps of one accumulator before it goes to the upper level
constexpr int kColumnSteps = 16;  // likewise of a column, which is summed by one accumulator, a row by many
constexpr int64_t kStackScratch = 32768;
constexpr int64_t kShortRow = 1024, kLongRow = 262144;  // bytes of rows whose successor is fetched early
constexpr int64_t kAhead = 2048;                        // bytes

int Weight(const Inst& inst) {
  return inst.kind == IKind::kOp && Info(inst.op).cost >= 16 ? 16 : 1;
}

// Copies of the body that run side by side: accumulators and long chains of operations need them to hide latency, if
// there are registers enough.
int Unroll(const Kernel& k, const Isa& isa) {
  int unroll = 1;
  for (const Stage& stage : k.stages) {
    if (!stage.loop) continue;
    int cost = 0;
    bool reduces = false;
    for (int i : stage.insts) {
      cost += Weight(k.insts[i]);
      reduces = reduces || k.insts[i].kind == IKind::kReduce || k.insts[i].kind == IKind::kScan;
    }
    const int fits = reduces ? (cost <= 8 ? 4 : cost <= 24 ? 2 : 1) : (cost <= 5 || (cost >= 16 && isa.avx512) ? 2 : 1);
    unroll = std::max(unroll, fits);
  }
  return unroll;
}

class Emitter : ReductionEmitter {
 public:
  Emitter(llvm::Module& m, const Kernel& k, const Isa& isa, const Schedule& schedule)
      : ReductionEmitter(m, k, isa, schedule) {}

  void Run(const std::string& symbol) {
    auto* type = llvm::FunctionType::get(b_.getVoidTy(),
                                         {b_.getPtrTy(), b_.getPtrTy(), b_.getInt64Ty(), b_.getInt64Ty()}, false);
    f_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, symbol, m_);
    f_->setDoesNotThrow();
    if (isa_.avx512) {
      f_->addFnAttr("prefer-vector-width", "512");
      f_->addFnAttr("min-legal-vector-width", "512");
    }
    entry_ = llvm::BasicBlock::Create(m_.getContext(), "entry", f_);
    auto* start = Block("start");
    auto* done = Block("done");
    b_.SetInsertPoint(entry_);
    Value* begin = f_->getArg(2);
    Value* end = f_->getArg(3);
    b_.CreateCondBr(b_.CreateICmpSLT(begin, end), start, done);
    b_.SetInsertPoint(start);
    FindUniform();
    LoadArguments();
    const auto rows = [&] { RowLoop(begin, end); };
    if (Value* streams = CanStream()) {
      const auto streaming = [&] {
        stream_ = true;
        rows();
        stream_ = false;
#if defined(__x86_64__)
        b_.CreateIntrinsic(llvm::Intrinsic::x86_sse_sfence, {}, {});
#endif
      };
      Either(streams, streaming, rows);
    } else if (Value* few = SumsFew()) {
      const auto short_rows = [&] {
        few_ = true;
        rows();
        few_ = false;
      };
      Either(few, short_rows, rows);
    } else {
      rows();
    }
    for (Value* p : heap_) b_.CreateCall(m_.getOrInsertFunction("free", b_.getVoidTy(), b_.getPtrTy()), {p});
    b_.CreateBr(done);
    b_.SetInsertPoint(done);
    b_.CreateRetVoid();
    llvm::DominatorTree tree(*f_);
    llvm::PromoteMemToReg(slots_, tree);
  }

 private:
  // --- set-up
  // Does the instruction have one value for all lanes? Then it is a scalar.
  void FindUniform() {
    uniform_.assign(k_.insts.size(), false);
    for (const Stage& stage : k_.stages) {
      for (int n : stage.insts) {
        const Inst& inst = k_.insts[n];
        bool uniform = IsZero(inst.index.inner);
        for (int o : inst.operands) uniform = uniform && uniform_[o];
        if (inst.predicate >= 0) uniform = uniform && uniform_[inst.predicate];
        if (inst.kind == IKind::kReduce) uniform = !k_.column;
        if (inst.kind == IKind::kScan) uniform = false;
        // Only nothing at all is stored with a stride of 0 but another value in each lane: an array of size 0.
        if (inst.kind == IKind::kStore) uniform = IsZero(inst.index.inner) && uniform_[inst.operands[0]];
        uniform_[n] = uniform;
      }
    }
  }

  void Either(Value* condition, absl::FunctionRef<void()> yes, absl::FunctionRef<void()> no) {
    auto* then = Block("then");
    auto* otherwise = Block("otherwise");
    auto* joined = Block("joined");
    b_.CreateCondBr(condition, then, otherwise);
    b_.SetInsertPoint(then);
    yes();
    b_.CreateBr(joined);
    b_.SetInsertPoint(otherwise);
    no();
    b_.CreateBr(joined);
    b_.SetInsertPoint(joined);
  }

  // Is so little summed that sums need no upper level? That counts where short rows have short code. It is null where
  // the answer is known now.
  Value* SumsFew() {
    constexpr size_t kShortCode = 48;
    const bool sums = std::any_of(k_.insts.begin(), k_.insts.end(), [](const Inst& inst) {
      return inst.kind == IKind::kReduce && inst.op == Op::kSum && IsFloat(inst.dtype) && !inst.numpys;
    });
    if (!sums || k_.insts.size() > kShortCode || k_.red.size() != (k_.column ? 1 : 0)) return nullptr;
    Value* length = k_.column ? red_extent_[0] : inner_;
    if (Number(length) || (!k_.column && schedule_.block)) return nullptr;
    return b_.CreateICmpSLE(length, I64(MostSummed()));
  }
  int64_t MostSummed() const {  // along an axis without an upper level
    return 2 * (k_.column ? kColumnSteps : kSumSteps * int64_t{lanes_} * schedule_.unroll);
  }
  bool few_ = false;  // this code is for no more

  void LoadArguments() {
    for (int s = 0; s < k_.num_symbols; ++s) {
      symbols_.push_back(
          b_.CreateLoad(b_.getInt64Ty(), b_.CreateConstInBoundsGEP1_64(b_.getInt64Ty(), f_->getArg(1), s)));
    }
    for (size_t i = 0; i < k_.buffers.size(); ++i) {
      buffers_.push_back(b_.CreateLoad(b_.getPtrTy(), b_.CreateConstInBoundsGEP1_64(b_.getPtrTy(), f_->getArg(0), i)));
    }
    for (DType t : k_.scratch) {
      if (k_.inner.is_const() && k_.inner.value() * DTypeSize(t) <= kStackScratch) {
        buffers_.push_back(Memory(k_.inner.value() * DTypeSize(t) + 64));
      } else {
        Value* bytes = b_.CreateAdd(b_.CreateMul(IntOf(k_.inner), I64(DTypeSize(t))), I64(64));
        Value* p = b_.CreateCall(m_.getOrInsertFunction("malloc", b_.getPtrTy(), b_.getInt64Ty()), {bytes});
        buffers_.push_back(p);
        heap_.push_back(p);
      }
    }
    inner_ = IntOf(k_.inner);
    for (Int r : k_.red) red_extent_.push_back(IntOf(r));
    red_.resize(k_.red.size());
    bool predicated = false;
    for (const Inst& inst : k_.insts) predicated = predicated || inst.predicate >= 0;
    if (predicated) {
      zeros_ = Memory(64);
      b_.CreateMemSet(zeros_, b_.getInt8(0), 64, llvm::Align(64));
    }
  }

  void RowLoop(Value* begin, Value* end) {
    std::vector<Value*> extents;
    for (Int o : k_.outer) extents.push_back(IntOf(o));
    if (schedule_.block) {
      Value* blocks = b_.CreateUDiv(b_.CreateAdd(inner_, I64(schedule_.block - 1)), I64(schedule_.block));
      extents.push_back(blocks);
      if (k_.tiled) std::swap(extents.back(), extents[extents.size() - 2]);
    }
    if (extents.size() <= 1) {  // the row number is the coordinate
      For(begin, end, 1, [&](Value* r) {
        outer_.clear();
        if (!k_.outer.empty()) outer_.push_back(r);
        Row(schedule_.block ? r : nullptr);
      });
      return;
    }
    std::vector<llvm::AllocaInst*> at;
    for (size_t d = 0; d < extents.size(); ++d) at.push_back(Slot(b_.getInt64Ty()));
    Value* rest = begin;
    for (size_t d = extents.size(); d-- > 0;) {
      if (d == 0) {
        Set(at[0], rest);
      } else {
        Set(at[d], b_.CreateURem(rest, extents[d]));
        rest = b_.CreateUDiv(rest, extents[d]);
      }
    }
    For(begin, end, 1, [&](Value*) {
      outer_.clear();
      for (auto* slot : at) outer_.push_back(Get(slot));
      std::vector<Value*> now = outer_;
      Value* block = nullptr;
      if (schedule_.block) {
        if (k_.tiled) std::swap(outer_.back(), outer_[outer_.size() - 2]);
        block = outer_.back();
        outer_.pop_back();
      }
      Row(block);
      Value* carry = I64(1);
      for (size_t d = extents.size(); d-- > 0;) {
        Value* next = b_.CreateAdd(now[d], carry);
        if (d == 0) {
          Set(at[0], next);
          break;
        }
        Value* wraps = b_.CreateICmpEQ(next, extents[d]);
        Set(at[d], b_.CreateSelect(wraps, I64(0), next));
        carry = b_.CreateZExt(wraps, b_.getInt64Ty());
      }
    });
  }

  void Row(Value* block) {
    Bases();
    next_row_.clear();
    scalar_.assign(k_.insts.size(), nullptr);
    splat_.assign(k_.insts.size(), nullptr);
    i0_ = block ? Mul(block, I64(schedule_.block)) : I64(0);
    if (!block) {
      i1_ = span_ = inner_;
    } else if (k_.inner.is_const() && k_.inner.value() % schedule_.block == 0) {
      span_ = I64(schedule_.block);
      i1_ = Add(i0_, span_);
    } else {
      span_ = Min(I64(schedule_.block), b_.CreateSub(inner_, i0_));
      i1_ = Add(i0_, span_);
    }
    if (k_.column) return Columns();
    bool first = true;
    for (const Stage& stage : k_.stages) {
      if (!stage.loop) {
        Emit(stage, {});
        continue;
      }
      ChooseFetched(stage, first);
      first = false;
      if (SumsInPairs(k_, stage))
        PairwiseLoopStage(
            stage, i0_, span_, [&](absl::FunctionRef<void()> body) { Nest(0, body); }, [&](Value* i) { Prefetch(i); });
      else
        RowLoopStage(stage);
    }
  }

  struct Fetch {
    int inst;  // a load
    Value* ahead;
  };

  // The hardware fetches memory early for loops that only read. Where functions are computed beside, it falls behind,
  // and a row that is read twice keeps it waiting the second time. So costly loops ask for what they read next, the
  // loop behind the first one for the next row.
  void ChooseFetched(const Stage& stage, bool first) {
    fetched_ = std::exchange(next_row_, {});
    const bool alone = k_.stages.size() == 1;
    const bool costly =
        std::any_of(stage.insts.begin(), stage.insts.end(), [&](int n) { return Weight(k_.insts[n]) > 1; });
    if (!first || (alone && !costly) || !k_.red.empty() || lanes_ == 1) return;
    std::set<Value*> seen;
    for (int n : stage.insts) {
      const Inst& inst = k_.insts[n];
      if (inst.kind != IKind::kLoad || inst.predicate >= 0 || inst.buffer >= k_.buffers.size()) continue;
      if (!IsOne(inst.index.inner) || !seen.insert(pointer_[n]).second) continue;
      const int64_t size = DTypeSize(MemoryType(inst));
      const auto length = Number(inner_);
      const bool fits = !length || (*length * size >= kShortRow && *length * size <= kLongRow);
      if (alone)
        fetched_.push_back({n, I64(kAhead / size)});
      else if (fits && !outer_.empty() && !IsZero(inst.index.outer.back()))
        next_row_.push_back({n, IntOf(inst.index.outer.back())});
    }
  }

  void Prefetch(Value* i) {
    for (const Fetch& f : fetched_) {
      Value* next = Element(k_.insts[f.inst], pointer_[f.inst], Add(i, f.ahead));
      b_.CreateIntrinsic(llvm::Intrinsic::prefetch, {next->getType()},
                         {next, b_.getInt32(0), b_.getInt32(2), b_.getInt32(1)});  // to read, into the second cache
    }
  }

  // offset + outer part of every access, once a row. Equal ones share the value.
  void Bases() {
    base_.assign(k_.insts.size(), nullptr);
    pointer_.assign(k_.insts.size(), nullptr);
    std::vector<int> done;
    for (int n = 0; n < k_.insts.size(); ++n) {
      const Inst& inst = k_.insts[n];
      const bool memory = inst.kind == IKind::kLoad || inst.kind == IKind::kLoadAt || inst.kind == IKind::kStore;
      if (!memory && inst.kind != IKind::kIota && inst.kind != IKind::kInBounds) continue;
      for (int o : done) {
        if (k_.insts[o].index.outer == inst.index.outer && k_.insts[o].index.offset == inst.index.offset) {
          base_[n] = base_[o];
          if (memory && pointer_[o] && k_.insts[o].buffer == inst.buffer) pointer_[n] = pointer_[o];
        }
      }
      if (!base_[n]) {
        Value* v = IntOf(inst.index.offset);
        for (size_t d = 0; d < outer_.size(); ++d) v = Add(v, Mul(outer_[d], IntOf(inst.index.outer[d])));
        base_[n] = v;
      }
      if (memory && !pointer_[n]) pointer_[n] = Element(inst, buffers_[inst.buffer], base_[n]);
      done.push_back(n);
    }
  }

  // --- stages
  // Most rows of sums of pads, as of the gradients of many parts of one array, are constants.
  void RowLoopStage(const Stage& stage) {
    const std::vector<int> rare = RareConditions(k_, stage, uniform_);
    if (rare.empty()) return LoopOverRow(stage);
    Value* any = b_.getFalse();
    for (int n : rare) any = b_.CreateOr(any, scalar_[n]);
    const auto splats = splat_;
    const auto without = [&] {
      const auto scalars = scalar_;
      for (int n : rare) scalar_[n] = b_.getFalse();
      splat_ = splats;
      for (int n : rare) splat_[n] = nullptr;
      LoopOverRow(stage);
      scalar_ = scalars;
    };
    Either(any, [&] { LoopOverRow(stage); }, without);
    splat_ = splats;
  }

  void LoopOverRow(const Stage& stage) {
    int unroll = schedule_.unroll;
    const int64_t lanes = lanes_;
    const auto span = Number(span_);
    while (span && unroll > 1 && *span < lanes * unroll) unroll /= 2;
    const int64_t step = lanes * unroll, chunk = step * kSumSteps;
    auto states = MakeStates(stage, unroll);
    const bool sums = std::any_of(states.begin(), states.end(), [&](const State& s) { return Sums(s); });
    const bool long_row = !(few_ || (span && *span <= 2 * chunk));
    if (sums && (long_row || !k_.red.empty())) MakeHigh(states);
    Splats(stage);
    Nest(0, [&] {
      auto masked = [&](Value* from, Value* to) {
        For(from, to, lanes, [&](Value* i) {
          std::vector<Copy> copies(1);
          SetMask(copies[0], i, to);
          Emit(stage, copies);
          for (State& s : states) Accumulate(s, 0, copies[0]);
        });
      };
      Value* first = FirstLine(stage, i0_, i1_);
      const bool whole = span && *span % step == 0 && !first;
      if (first)
        masked(i0_, first);
      else
        first = i0_;
      Value* length = first == i0_ ? span_ : b_.CreateSub(i1_, first);
      Value* limit = whole ? i1_ : Add(first, b_.CreateAnd(length, I64(-step)));
      auto body = [&](Value* i) {
        std::vector<Copy> copies(unroll);
        for (int u = 0; u < unroll; ++u) {
          copies[u].number = u;
          copies[u].i = Add(i, I64(u * lanes));
        }
        for (const Copy& copy : copies) Prefetch(copy.i);
        Emit(stage, copies);
        for (State& s : states) {
          for (int u = 0; u < unroll; ++u) Accumulate(s, u, copies[u]);
        }
      };
      if (sums && long_row) {
        For(first, limit, chunk, [&](Value* c) {
          For(c, Min(Add(c, I64(chunk)), limit), step, body);
          Flush(states);
        });
      } else {
        For(first, limit, step, body);
      }
      if (!whole) masked(limit, i1_);
      if (!states.empty() && !states[0].low.empty()) Flush(states);
    });
    for (State& s : states) scalar_[s.inst] = Finish(s, 0, unroll);
  }

  std::vector<Fetch> fetched_, next_row_;  // by the loop that is emitted; by the one behind the first

  void Nest(size_t axis, absl::FunctionRef<void()> body) {
    if (axis == k_.red.size()) return body();
    For(I64(0), red_extent_[axis], 1, [&](Value* r) {
      red_[axis] = r;
      Nest(axis + 1, body);
    });
  }

  // For (i = i0; i < i1; i += lanes * unroll) body(the copies there, which of the strip's groups they are)
  void Groups(absl::FunctionRef<void(std::vector<Copy>&, Value*)> body) {
    const int64_t full = int64_t{lanes_} * schedule_.unroll;
    For(I64(0), I64(schedule_.strip), 1, [&](Value* group) {
      std::vector<Copy> copies(schedule_.unroll);
      for (int u = 0; u < schedule_.unroll; ++u) {
        copies[u].number = u;
        copies[u].i = Add(i0_, Add(Mul(group, I64(full)), I64(u * lanes_)));
        copies[u].values.assign(k_.insts.size(), nullptr);
      }
      body(copies, group);
    });
  }

  void Strip() {
    const int n = schedule_.unroll;
    scalar_.assign(k_.insts.size(), nullptr);
    std::vector<State> states;
    struct Array {  // the accumulators of all groups, while they are not in the slot
      llvm::AllocaInst *memory, *slot;
    };
    std::vector<Array> low, high;
    auto arrays = [&](std::vector<Array>* out, const std::vector<llvm::AllocaInst*>& slots) {
      const auto& layout = m_.getDataLayout();
      for (llvm::AllocaInst* slot : slots)
        out->push_back({Memory(layout.getTypeAllocSize(slot->getAllocatedType()) * schedule_.strip), slot});
    };
    auto place = [&](const Array& a, Value* group) {
      return b_.CreateGEP(a.slot->getAllocatedType(), a.memory, group);
    };
    auto take = [&](const std::vector<Array>& list, Value* group) {
      for (const Array& a : list) Set(a.slot, b_.CreateLoad(a.slot->getAllocatedType(), place(a, group)));
    };
    auto keep = [&](const std::vector<Array>& list, Value* group) {
      for (const Array& a : list) b_.CreateStore(Get(a.slot), place(a, group));
    };
    auto flush = [&] {
      if (high.empty()) return;
      Groups([&](std::vector<Copy>&, Value* group) {
        take(low, group);
        take(high, group);
        Flush(states);
        keep(low, group);
        keep(high, group);
      });
    };
    for (const Stage& stage : k_.stages) {
      if (!stage.loop && states.empty()) {  // numbers
        Emit(stage, {});
      } else if (!stage.loop) {
        Groups([&](std::vector<Copy>& copies, Value* group) {
          take(low, group);
          take(high, group);
          for (State& s : states) {
            for (int u = 0; u < n; ++u) copies[u].values[s.inst] = Finish(s, u, u + 1);
          }
          Emit(stage, copies);
        });
      } else {
        states = MakeStates(stage, n);
        const size_t last = k_.red.size() - 1;
        const auto extent = Number(red_extent_[last]);
        const bool one_level = last == 0 && (few_ || (extent && *extent <= 2 * kColumnSteps));
        const bool sums = std::any_of(states.begin(), states.end(), [&](const State& s) { return Sums(s); });
        if (sums && !one_level) MakeHigh(states);
        for (const State& s : states) {
          arrays(&low, s.low);
          arrays(&high, s.high);
        }
        Groups([&](std::vector<Copy>&, Value* group) {
          keep(low, group);
          keep(high, group);
        });
        Splats(stage);
        RedNest(0, sums && !one_level, flush, [&] {
          Groups([&](std::vector<Copy>& copies, Value* group) {
            take(low, group);
            Emit(stage, copies);
            for (State& s : states) {
              for (int u = 0; u < n; ++u) Accumulate(s, u, copies[u]);
            }
            keep(low, group);
          });
        });
      }
    }
  }

  // The loops over the red axes; `flush` runs every kColumnSteps steps of the last one if there are `chunks`, else at
  // its end.
  void RedNest(size_t axis, bool chunks, absl::FunctionRef<void()> flush, absl::FunctionRef<void()> body) {
    const bool last = axis + 1 == k_.red.size();
    auto one = [&](Value* r) {
      red_[axis] = r;
      if (last)
        body();
      else
        RedNest(axis + 1, chunks, flush, body);
    };
    if (!last || !chunks) {
      For(I64(0), red_extent_[axis], 1, one);
      if (last) flush();
      return;
    }
    For(I64(0), red_extent_[axis], kColumnSteps, [&](Value* c) {
      For(c, Min(Add(c, I64(kColumnSteps)), red_extent_[axis]), 1, one);
      flush();
    });
  }

  void Columns() {
    if (schedule_.strip > 1) return Strip();
    const int64_t full = int64_t{lanes_} * schedule_.unroll;
    auto run = [&](std::vector<Copy> copies) {
      for (Copy& c : copies) c.values.assign(k_.insts.size(), nullptr);
      scalar_.assign(k_.insts.size(), nullptr);
      for (const Stage& stage : k_.stages) {
        if (stage.loop)
          ColumnLoopStage(stage, copies);
        else
          Emit(stage, copies);
      }
    };
    auto masked = [&] {
      For(i0_, i1_, lanes_, [&](Value* i) {
        std::vector<Copy> copies(1);
        SetMask(copies[0], i, i1_);
        run(std::move(copies));
      });
    };
    auto unmasked = [&] {
      std::vector<Copy> copies(schedule_.unroll);
      for (int u = 0; u < schedule_.unroll; ++u) {
        copies[u].number = u;
        copies[u].i = Add(i0_, I64(u * lanes_));
      }
      run(std::move(copies));
    };
    if (k_.inner.is_const() && k_.inner.value() % full == 0) return unmasked();
    if (k_.inner.is_const() && k_.inner.value() < full) return masked();
    auto* whole = Block("whole");
    auto* part = Block("part");
    auto* joined = Block("joined");
    b_.CreateCondBr(b_.CreateICmpEQ(b_.CreateSub(i1_, i0_), I64(full)), whole, part);
    b_.SetInsertPoint(whole);
    unmasked();
    b_.CreateBr(joined);
    b_.SetInsertPoint(part);
    masked();
    b_.CreateBr(joined);
    b_.SetInsertPoint(joined);
  }

  void ColumnLoopStage(const Stage& stage, std::vector<Copy>& copies) {
    const int n = static_cast<int>(copies.size());
    auto states = MakeStates(stage, n);
    const bool sums = std::any_of(states.begin(), states.end(), [&](const State& s) { return Sums(s); });
    Splats(stage);
    auto body = [&] {
      Emit(stage, copies);
      for (State& s : states) {
        for (int u = 0; u < n; ++u) {
          Copy all = copies[u];  // lanes past the end have accumulators of their own: no mask
          all.mask = nullptr;
          Accumulate(s, u, all);
        }
      }
    };
    if (k_.red.empty()) {
      body();
    } else {
      const size_t last = k_.red.size() - 1;
      auto extent = Number(red_extent_[last]);
      const bool one_level = last == 0 && (few_ || (extent && *extent <= 2 * kColumnSteps));
      if (sums && !one_level) MakeHigh(states);
      RedNest(0, sums && !one_level, [&] { Flush(states); }, body);
    }
    for (State& s : states) {
      for (int u = 0; u < n; ++u) copies[u].values[s.inst] = Finish(s, u, u + 1);
    }
  }
};

// How many groups of vectors a column kernel runs side by side: a row of memory is read in several lines, but there are
// blocks enough for threads.
int Strip(const Kernel& k, const Schedule& s) {
  constexpr int kVectors = 8, kBlocks = 4;
  int loops = 0;
  for (const Stage& stage : k.stages) {
    loops += stage.loop;
    for (int i : stage.insts) {
      const Inst& inst = k.insts[i];
      if (loops == 0 && inst.kind != IKind::kConst) return 1;
      if (inst.kind == IKind::kScan || inst.op == Op::kArgMax || inst.op == Op::kArgMin) return 1;
      if (stage.loop || loops == 0) continue;
      if (inst.kind != IKind::kOp && inst.kind != IKind::kStore && inst.kind != IKind::kConst) return 1;
      for (int o : inst.operands) {  // made in the same stage or reduced
        const bool here = std::find(stage.insts.begin(), stage.insts.end(), o) != stage.insts.end();
        if (!here && k.insts[o].kind != IKind::kReduce && k.insts[o].kind != IKind::kConst) return 1;
      }
    }
  }
  if (loops != 1 || k.red.empty() || !k.inner.is_const() || !k.scratch.empty()) return 1;
  const int64_t groups = k.inner.value() / (int64_t{s.lanes} * s.unroll);
  if (k.inner.value() % (int64_t{s.lanes} * s.unroll)) return 1;
  for (int strip = kVectors / s.unroll; strip > 1; --strip) {
    if (groups % strip == 0 && groups / strip >= kBlocks) return strip;
  }
  return 1;
}

}  // namespace

Schedule MakeSchedule(const Kernel& k, const Isa& isa) {
  // 32-bit lanes if any value has 32 bits, else what the widest value needs.
  bool four = false, eight = false, two = false, sixteen = false;
  for (const Inst& inst : k.insts) {
    const int size = IsBool(inst.dtype) ? 1 : DTypeSize(ComputeType(inst.dtype));
    four = four || size == 4;
    eight = eight || size == 8;
    two = two || size == 2;
    sixteen = sixteen || size == 16;
  }
  Schedule s;
  const int bytes = four ? 4 : eight ? 8 : two ? 2 : 1;
  s.lanes = isa.vector_bytes / bytes;
  s.unroll = Unroll(k, isa);
  const bool scans = std::any_of(k.insts.begin(), k.insts.end(), [](const Inst& i) { return i.kind == IKind::kScan; });
  if (scans && !k.column) s.lanes = s.unroll = 1;  // one after the other
  if (sixteen) s.lanes = s.unroll = 1;             // such an element is a vector of its own
  const bool sums =
      std::any_of(k.stages.begin(), k.stages.end(), [&](const Stage& stage) { return SumsInPairs(k, stage); });
  const bool cheap = std::all_of(k.insts.begin(), k.insts.end(), [](const Inst& i) { return Weight(i) == 1; });
  if (sums && cheap) s.lanes = std::min(s.lanes, 8);  // as many as there are accumulators
  if (k.column) {
    if (s.unroll == 4) s.unroll = 8;  // a row of memory is read in few lines
    while (s.unroll > 1 && k.inner.is_const() && k.inner.value() < s.lanes * s.unroll) s.unroll /= 2;
    s.strip = Strip(k, s);
    s.block = int64_t{s.lanes} * s.unroll * s.strip;
  } else {
    s.block = k.block;
  }
  return s;
}

void EmitKernel(llvm::Module& m, const Kernel& k, const Isa& isa, const Schedule& schedule, const std::string& symbol) {
  Emitter(m, k, isa, schedule).Run(symbol);
}

}  // namespace framejit::codegen
