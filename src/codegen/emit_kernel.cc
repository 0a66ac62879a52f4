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
// In a column kernel the two inner levels swap: for each vector of the inner axis (`unroll` of them at a time) all stages
// run, a loop stage loops over the red axes, and there is no horizontal step.
//
// Float sums have two levels: f32 accumulators run over a bounded number of steps and are then added to f64 ones, so that
// long rows keep the error of short ones.
//
// Counters and accumulators are allocas; PromoteMemToReg turns them into SSA values at the end. It is the only pass.
#include "codegen/emit_kernel.h"

#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Transforms/Utils/PromoteMemToReg.h>

#include <functional>
#include <map>

#include "codegen/codegen.h"
#include "codegen/emit_scalar.h"

namespace framejit::codegen {
namespace {

using llvm::Value;
using loop::IKind;
using loop::Index;
using loop::Inst;
using loop::Kernel;
using loop::Stage;
using shape::Int;

constexpr int kSumSteps = 64;            // steps of one accumulator before it goes to the upper level
constexpr int64_t kStackScratch = 32768;

bool IsZero(Int v) { return v == Int(0); }
bool IsOne(Int v) { return v == Int(1); }

int Weight(const Inst& inst) {
  if (inst.kind != IKind::kOp) return 1;
  switch (inst.op) {
    case Op::kExp: case Op::kExp2: case Op::kExpm1: case Op::kLog: case Op::kLog2: case Op::kLog10: case Op::kLog1p:
    case Op::kSin: case Op::kCos: case Op::kTan: case Op::kAsin: case Op::kAcos: case Op::kAtan: case Op::kSinh:
    case Op::kCosh: case Op::kTanh: case Op::kAsinh: case Op::kAcosh: case Op::kAtanh: case Op::kErf: case Op::kErfc:
    case Op::kPow: case Op::kAtan2: case Op::kHypot: case Op::kFmod: case Op::kRem: case Op::kFloorDiv: case Op::kTruncDiv:
      return 16;
    default: return 1;
  }
}

// Copies of the body that run side by side (accumulators need them to hide latency).
int Unroll(const Kernel& k) {
  int unroll = 1;
  for (const Stage& stage : k.stages) {
    if (!stage.loop) continue;
    int cost = 0;
    bool reduces = false;
    for (int i : stage.insts) {
      cost += Weight(k.insts[i]);
      reduces = reduces || k.insts[i].kind == IKind::kReduce || k.insts[i].kind == IKind::kScan;
    }
    const int fits = reduces ? (cost <= 8 ? 4 : cost <= 24 ? 2 : 1) : (cost <= 5 ? 2 : 1);
    unroll = std::max(unroll, fits);
  }
  return unroll;
}

class Emitter {
 public:
  Emitter(llvm::Module& m, const Kernel& k, const Isa& isa, const Schedule& schedule)
      : k_(k), isa_(isa), schedule_(schedule), lanes_(schedule.lanes), m_(m), b_(m.getContext()), ops_(b_, isa) {}

  void Run(const std::string& symbol) {
    auto* type = llvm::FunctionType::get(b_.getVoidTy(), {b_.getPtrTy(), b_.getPtrTy(), b_.getInt64Ty(), b_.getInt64Ty()}, false);
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
    RowLoop(begin, end);
    for (Value* p : heap_) b_.CreateCall(m_.getOrInsertFunction("free", b_.getVoidTy(), b_.getPtrTy()), {p});
    b_.CreateBr(done);
    b_.SetInsertPoint(done);
    b_.CreateRetVoid();
    llvm::DominatorTree tree(*f_);
    llvm::PromoteMemToReg(slots_, tree);
  }

 private:
  struct Copy {            // one of the `unroll` bodies that run side by side
    int number = 0;
    Value* i = nullptr;    // inner index of lane 0
    Value* mask = nullptr; // lanes that exist; null: all
    Value* valid = nullptr;
    std::vector<Value*> values;
  };
  struct State {           // accumulators of one reduce instruction, by copy
    int inst;
    Op op;
    DType type;            // compute type of the value
    bool arg;
    std::vector<llvm::AllocaInst*> low, high, position;
  };

  // --- small things
  llvm::BasicBlock* Block(const char* name) { return llvm::BasicBlock::Create(m_.getContext(), name, f_); }
  Value* I64(int64_t v) { return b_.getInt64(static_cast<uint64_t>(v)); }
  Value* IntOf(Int e) {
    if (e.is_const()) return I64(e.value());
    auto s = e.as_symbol();
    if (!s || *s >= symbols_.size()) throw CodegenUnsupported("kernel sizes must be numbers or symbols");
    return symbols_[*s];
  }
  static std::optional<int64_t> Number(Value* v) {
    if (auto* c = llvm::dyn_cast<llvm::ConstantInt>(v)) return c->getSExtValue();
    return std::nullopt;
  }
  Value* Add(Value* a, Value* b) {
    if (Number(a) == 0) return b;
    if (Number(b) == 0) return a;
    return b_.CreateAdd(a, b, "", false, true);
  }
  Value* Mul(Value* a, Value* b) {
    if (Number(a) == 0 || Number(b) == 0) return I64(0);
    if (Number(a) == 1) return b;
    if (Number(b) == 1) return a;
    return b_.CreateMul(a, b, "", false, true);
  }
  Value* Min(Value* a, Value* b) { return b_.CreateSelect(b_.CreateICmpSLT(a, b), a, b); }
  llvm::AllocaInst* Slot(llvm::Type* t) {
    llvm::IRBuilder<> entry(entry_, entry_->begin());
    auto* slot = entry.CreateAlloca(t);
    slots_.push_back(slot);
    return slot;
  }
  llvm::AllocaInst* Memory(int64_t bytes) {
    llvm::IRBuilder<> entry(entry_, entry_->begin());
    auto* memory = entry.CreateAlloca(entry.getInt8Ty(), entry.getInt64(bytes));
    memory->setAlignment(llvm::Align(64));
    return memory;
  }
  Value* Get(llvm::AllocaInst* slot) { return b_.CreateLoad(slot->getAllocatedType(), slot); }
  void Set(llvm::AllocaInst* slot, Value* v) { b_.CreateStore(v, slot); }

  // for (i = from; i < to; i += step) body(i)
  void For(Value* from, Value* to, int64_t step, const std::function<void(Value*)>& body) {
    auto a = Number(from), z = Number(to);
    if (a && z && *a >= *z) return;
    if (a && z && *a + step >= *z) return body(from);
    auto* counter = Slot(b_.getInt64Ty());
    auto* loop = Block("loop");
    auto* after = Block("after");
    Set(counter, from);
    if (a && z) b_.CreateBr(loop);
    else b_.CreateCondBr(b_.CreateICmpSLT(from, to), loop, after);
    b_.SetInsertPoint(loop);
    Value* i = Get(counter);
    body(i);
    Value* next = b_.CreateAdd(i, I64(step), "", true, true);
    Set(counter, next);
    b_.CreateCondBr(b_.CreateICmpSLT(next, to), loop, after);
    b_.SetInsertPoint(after);
  }

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
        if (inst.kind == IKind::kStore) uniform = IsZero(inst.index.inner);
        uniform_[n] = uniform;
      }
    }
  }

  void LoadArguments() {
    for (int s = 0; s < k_.num_symbols; ++s) {
      symbols_.push_back(b_.CreateLoad(b_.getInt64Ty(), b_.CreateConstInBoundsGEP1_64(b_.getInt64Ty(), f_->getArg(1), s)));
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
    for (const Stage& stage : k_.stages) {
      if (stage.loop) RowLoopStage(stage);
      else Emit(stage, {});
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

  DType MemoryType(const Inst& inst) const {
    const int n = static_cast<int>(k_.buffers.size());
    return inst.buffer < n ? k_.buffers[inst.buffer].dtype : k_.scratch[inst.buffer - n];
  }
  Value* Element(const Inst& inst, Value* pointer, Value* offset) {
    if (Number(offset) == 0) return pointer;
    return b_.CreateGEP(ops_.StorageType(MemoryType(inst), 1), pointer, offset);
  }

  // --- stages
  std::vector<State> MakeStates(const Stage& stage, int copies) {
    std::vector<State> states;
    for (int n : stage.insts) {
      const Inst& inst = k_.insts[n];
      if (inst.kind == IKind::kScan) {  // floats in double
        const DType t = IsFloat(inst.dtype) ? DType::kFloat64 : inst.dtype;
        for (int u = 0; u < copies; ++u) {
          scans_[{n, u}] = Slot(ops_.RegisterType(t, lanes_));
          Set(scans_[{n, u}], ops_.Identity(Op::kSum, t, lanes_));
        }
      }
      if (inst.kind != IKind::kReduce) continue;
      State s{.inst = n, .op = inst.op, .type = ComputeType(inst.dtype), .arg = inst.op == Op::kArgMax || inst.op == Op::kArgMin};
      if (s.arg) s.type = ComputeType(k_.insts[inst.operands[0]].dtype);
      if (inst.op == Op::kAny || inst.op == Op::kAll) s.type = DType::kBool;
      for (int u = 0; u < copies; ++u) {
        s.low.push_back(Slot(ops_.RegisterType(s.type, lanes_)));
        Set(s.low[u], ops_.Identity(s.op, s.type, lanes_));
        if (s.arg) {
          s.position.push_back(Slot(ops_.RegisterType(DType::kInt64, lanes_)));
          Set(s.position[u], ops_.Constant(std::numeric_limits<int64_t>::max(), DType::kInt64, lanes_));
        }
      }
      states.push_back(std::move(s));
    }
    return states;
  }

  static bool Sums(const State& s) { return s.op == Op::kSum && IsFloat(s.type); }

  // The upper level of float sums.
  void MakeHigh(std::vector<State>& states) {
    for (State& s : states) {
      if (!Sums(s)) continue;
      for (size_t u = 0; u < s.low.size(); ++u) {
        s.high.push_back(Slot(ops_.RegisterType(DType::kFloat64, lanes_)));
        Set(s.high[u], ops_.Identity(Op::kSum, DType::kFloat64, lanes_));
      }
    }
  }
  void Flush(std::vector<State>& states) {
    for (State& s : states) {
      for (size_t u = 0; u < s.high.size(); ++u) {
        Set(s.high[u], b_.CreateFAdd(Get(s.high[u]), ops_.Cast(Get(s.low[u]), s.type, DType::kFloat64)));
        Set(s.low[u], ops_.Identity(Op::kSum, s.type, lanes_));
      }
    }
  }

  void Accumulate(State& s, int u, const Copy& copy) {
    const Inst& inst = k_.insts[s.inst];
    Value* x = In(inst.operands[0], copy);
    if (s.arg) {
      Value* position = In(inst.operands[1], copy);
      Value* wins = ops_.Better(s.op, s.type, x, position, Get(s.low[u]), Get(s.position[u]));
      if (copy.mask) wins = b_.CreateAnd(wins, copy.mask);
      Set(s.low[u], b_.CreateSelect(wins, x, Get(s.low[u])));
      Set(s.position[u], b_.CreateSelect(wins, position, Get(s.position[u])));
      return;
    }
    if (copy.mask) x = b_.CreateSelect(copy.mask, x, ops_.Identity(s.op, s.type, lanes_));
    Set(s.low[u], ops_.Combine(s.op, s.type, Get(s.low[u]), x));
  }

  // Halves until one lane is left.
  Value* Horizontal(const State& s, DType t, Value* v, Value* position) {
    for (int n = LanesOf(v); n > 1; n /= 2) {
      std::vector<int> low, high;
      for (int i = 0; i < n / 2; ++i) {
        low.push_back(i);
        high.push_back(i + n / 2);
      }
      auto half = [&](Value* x, const std::vector<int>& lanes) -> Value* {
        if (n == 2) return b_.CreateExtractElement(x, uint64_t(lanes[0]));
        return b_.CreateShuffleVector(x, lanes);
      };
      Value* a = half(v, low);
      Value* z = half(v, high);
      if (s.arg) {
        Value* pa = half(position, low);
        Value* pz = half(position, high);
        Value* wins = ops_.Better(s.op, t, a, pa, z, pz);
        v = b_.CreateSelect(wins, a, z);
        position = b_.CreateSelect(wins, pa, pz);
      } else {
        v = ops_.Combine(s.op, t, a, z);
      }
    }
    return s.arg ? position : v;
  }

  Value* Finish(const State& s, size_t from, size_t to) {  // of copies [from, to)
    const DType t = s.high.empty() ? s.type : DType::kFloat64;
    const auto& slots = s.high.empty() ? s.low : s.high;
    Value* v = Get(slots[from]);
    Value* position = s.arg ? Get(s.position[from]) : nullptr;
    for (size_t u = from + 1; u < to; ++u) {
      Value* x = Get(slots[u]);
      if (s.arg) {
        Value* p = Get(s.position[u]);
        Value* wins = ops_.Better(s.op, t, v, position, x, p);
        v = b_.CreateSelect(wins, v, x);
        position = b_.CreateSelect(wins, position, p);
      } else {
        v = ops_.Combine(s.op, t, v, x);
      }
    }
    if (!k_.column) v = Horizontal(s, t, v, position);
    else if (s.arg) v = position;
    return s.arg ? v : ops_.Cast(v, t, s.type);
  }

  void RowLoopStage(const Stage& stage) {
    int unroll = schedule_.unroll;
    const int64_t lanes = lanes_;
    const auto span = Number(span_);
    while (span && unroll > 1 && *span < lanes * unroll) unroll /= 2;
    const int64_t step = lanes * unroll, chunk = step * kSumSteps;
    auto states = MakeStates(stage, unroll);
    const bool sums = std::any_of(states.begin(), states.end(), Sums);
    const bool long_row = !(span && *span <= 2 * chunk);
    if (sums && (long_row || !k_.red.empty())) MakeHigh(states);
    Splats(stage);
    Nest(0, [&] {
      Value* limit = span && *span % step == 0 ? i1_ : Add(i0_, b_.CreateAnd(span_, I64(-step)));
      auto body = [&](Value* i) {
        std::vector<Copy> copies(unroll);
        for (int u = 0; u < unroll; ++u) {
          copies[u].number = u;
          copies[u].i = Add(i, I64(u * lanes));
        }
        Emit(stage, copies);
        for (State& s : states) {
          for (int u = 0; u < unroll; ++u) Accumulate(s, u, copies[u]);
        }
      };
      if (sums && long_row) {
        For(i0_, limit, chunk, [&](Value* c) {
          For(c, Min(Add(c, I64(chunk)), limit), step, body);
          Flush(states);
        });
      } else {
        For(i0_, limit, step, body);
      }
      if (!(span && *span % step == 0)) For(limit, i1_, lanes, [&](Value* i) {
        std::vector<Copy> copies(1);
        SetMask(copies[0], i, i1_);
        Emit(stage, copies);
        for (State& s : states) Accumulate(s, 0, copies[0]);
      });
      if (!states.empty() && !states[0].low.empty()) Flush(states);
    });
    for (State& s : states) scalar_[s.inst] = Finish(s, 0, unroll);
  }

  void SetMask(Copy& copy, Value* i, Value* end) {
    copy.i = i;
    copy.valid = b_.CreateSub(end, i);
    Value* lane = LaneNumbers(b_.getInt32Ty());
    Value* valid = b_.CreateTrunc(Min(copy.valid, I64(lanes_)), b_.getInt32Ty());
    copy.mask = b_.CreateICmpULT(lane, b_.CreateVectorSplat(lanes_, valid));
    copy.valid = Min(copy.valid, I64(lanes_));
  }

  llvm::Constant* LaneNumbers(llvm::Type* t) {
    std::vector<llvm::Constant*> lanes;
    for (int i = 0; i < lanes_; ++i) {
      lanes.push_back(t->isIntegerTy() ? llvm::ConstantInt::get(t, i) : llvm::ConstantFP::get(t, i));
    }
    return llvm::ConstantVector::get(lanes);
  }

  void Nest(size_t axis, const std::function<void()>& body) {
    if (axis == k_.red.size()) return body();
    For(I64(0), red_extent_[axis], 1, [&](Value* r) {
      red_[axis] = r;
      Nest(axis + 1, body);
    });
  }

  void Columns() {
    const int64_t full = int64_t{lanes_} * schedule_.unroll;
    auto run = [&](std::vector<Copy> copies) {
      for (Copy& c : copies) c.values.assign(k_.insts.size(), nullptr);
      scalar_.assign(k_.insts.size(), nullptr);
      for (const Stage& stage : k_.stages) {
        if (stage.loop) ColumnLoopStage(stage, copies);
        else Emit(stage, copies);
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
    const bool sums = std::any_of(states.begin(), states.end(), Sums);
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
      const bool short_axis = last == 0 && extent && *extent <= 2 * kSumSteps;
      if (sums && !short_axis) MakeHigh(states);
      std::function<void(size_t)> nest = [&](size_t axis) {
        auto one = [&](Value* r) {
          red_[axis] = r;
          if (axis == last) body();
          else nest(axis + 1);
        };
        if (axis != last || !sums || short_axis) {
          For(I64(0), red_extent_[axis], 1, one);
          if (axis == last) Flush(states);
          return;
        }
        For(I64(0), red_extent_[axis], kSumSteps, [&](Value* c) {
          For(c, Min(Add(c, I64(kSumSteps)), red_extent_[axis]), 1, one);
          Flush(states);
        });
      };
      nest(0);
    }
    for (State& s : states) {
      for (int u = 0; u < n; ++u) copies[u].values[s.inst] = Finish(s, u, u + 1);
    }
  }

  // --- instructions
  // Vectors of the scalars that the loop reads, before the loop.
  void Splats(const Stage& stage) {
    std::vector<bool> here(k_.insts.size(), false);
    for (int n : stage.insts) here[n] = true;
    for (int n : stage.insts) {
      if (uniform_[n] && k_.insts[n].kind != IKind::kReduce) continue;
      auto want = [&](int o) {
        if (o < 0 || !uniform_[o] || here[o] || splat_[o] || !scalar_[o]) return;
        if (lanes_ > 1) splat_[o] = b_.CreateVectorSplat(lanes_, scalar_[o]);
      };
      for (int o : k_.insts[n].operands) want(o);
    }
  }

  // Operand as the copy sees it; as a vector.
  Value* In(int n, const Copy& copy) {
    if (!uniform_[n]) return copy.values[n];
    if (lanes_ == 1) return scalar_[n];
    if (llvm::isa<llvm::Constant>(scalar_[n])) return b_.CreateVectorSplat(lanes_, scalar_[n]);
    if (!splat_[n]) return b_.CreateVectorSplat(lanes_, scalar_[n]);
    return splat_[n];
  }

  void Emit(const Stage& stage, std::vector<Copy>& copies) {
    for (Copy& c : copies) {
      if (c.values.empty()) c.values.assign(k_.insts.size(), nullptr);
    }
    for (int n : stage.insts) {
      const Inst& inst = k_.insts[n];
      if (inst.kind == IKind::kReduce) continue;
      if (uniform_[n]) {
        splat_[n] = nullptr;
        EmitScalar(n, inst, nullptr);
      } else {
        for (Copy& c : copies) c.values[n] = EmitVector(n, inst, c);
      }
    }
  }
  void Emit(const Stage& stage, std::vector<Copy>&& copies) { Emit(stage, copies); }

  Value* Position(int n, const Inst& inst, Value* i) {  // of iota, inbounds
    Value* v = base_[n];
    for (size_t d = 0; d < red_.size(); ++d) {
      if (!IsZero(inst.index.red[d])) v = Add(v, Mul(red_[d], IntOf(inst.index.red[d])));
    }
    if (i && !IsZero(inst.index.inner)) v = Add(v, Mul(i, IntOf(inst.index.inner)));
    return v;
  }
  // Elements from pointer_[n] to lane 0.
  Value* Offset(const Inst& inst, Value* i) {
    Value* v = I64(0);
    for (size_t d = 0; d < red_.size(); ++d) {
      if (!IsZero(inst.index.red[d])) v = Add(v, Mul(red_[d], IntOf(inst.index.red[d])));
    }
    if (i) v = Add(v, Mul(i, IntOf(inst.index.inner)));
    if (inst.kind == IKind::kLoadAt) {
      for (size_t o = 0; o < inst.operands.size(); ++o) {
        if (uniform_[inst.operands[o]] || lanes_ == 1) v = Add(v, Mul(scalar_[inst.operands[o]], IntOf(inst.strides[o])));
      }
    }
    return v;
  }

  Value* LoadScalar(int n, const Inst& inst, Value* offset, Value* predicate) {
    const DType t = MemoryType(inst);
    Value* p = Element(inst, pointer_[n], offset);
    if (predicate) p = b_.CreateSelect(predicate, p, zeros_);
    Value* v = b_.CreateAlignedLoad(ops_.StorageType(t, 1), p, llvm::Align(DTypeSize(t)));
    return ops_.FromStorage(v, t);
  }

  // One lane: of a uniform instruction (no i), or of a kernel without vectors.
  void EmitScalar(int n, const Inst& inst, Value* i) {
    auto operands = [&] {
      std::vector<Value*> v;
      for (int o : inst.operands) v.push_back(scalar_[o]);
      return v;
    };
    Value*& out = scalar_[n];
    switch (inst.kind) {
      case IKind::kConst: out = ops_.Constant(inst.scalar, inst.dtype, 1); break;
      case IKind::kSym: out = ops_.Cast(IntOf(inst.sym), DType::kInt64, ComputeType(inst.dtype)); break;
      case IKind::kIota: out = ops_.Cast(Position(n, inst, i), DType::kInt64, ComputeType(inst.dtype)); break;
      case IKind::kInBounds: out = b_.CreateICmpULT(Position(n, inst, i), IntOf(inst.sym)); break;
      case IKind::kOp: {
        auto v = operands();
        out = ops_.Emit(inst.op, inst.dtype, OperandType(inst), v);
        break;
      }
      case IKind::kLoad: case IKind::kLoadAt:
        out = LoadScalar(n, inst, Offset(inst, i), inst.predicate >= 0 ? scalar_[inst.predicate] : nullptr);
        break;
      case IKind::kStore: {
        const DType t = MemoryType(inst);
        Value* v = scalar_[inst.operands[0]];
        b_.CreateAlignedStore(ops_.ToStorage(v, t), Element(inst, pointer_[n], Offset(inst, i)), llvm::Align(DTypeSize(t)));
        break;
      }
      case IKind::kReduce: case IKind::kScan: break;
    }
  }

  DType OperandType(const Inst& inst) const {
    const int which = inst.op == Op::kWhere ? 1 : 0;
    return k_.insts[inst.operands[which]].dtype;
  }

  Value* EmitVector(int n, const Inst& inst, Copy& copy) {
    if (inst.kind == IKind::kScan) {
      auto* slot = scans_.at({n, copy.number});
      const DType t = IsFloat(inst.dtype) ? DType::kFloat64 : inst.dtype;
      Value* sum = ops_.Combine(Op::kSum, t, Get(slot), ops_.Cast(In(inst.operands[0], copy), ComputeType(inst.dtype), t));
      Set(slot, sum);
      return scalar_[n] = ops_.Cast(sum, t, ComputeType(inst.dtype));
    }
    if (lanes_ == 1) {
      EmitScalar(n, inst, copy.i);
      return scalar_[n];
    }
    switch (inst.kind) {
      case IKind::kOp: {
        std::vector<Value*> v;
        for (int o : inst.operands) v.push_back(In(o, copy));
        return ops_.Emit(inst.op, inst.dtype, OperandType(inst), v);
      }
      case IKind::kIota: return Iota(n, inst, copy);
      case IKind::kInBounds: {
        if (IsOne(inst.index.inner)) {  // lanes [-at, bound - at): compared in 32 bits
          Value* at = Position(n, inst, copy.i);
          Value* low = Clamp(b_.CreateNeg(at));
          Value* high = Clamp(b_.CreateSub(IntOf(inst.sym), at));
          Value* lane = LaneNumbers(b_.getInt32Ty());
          return b_.CreateAnd(b_.CreateICmpSGE(lane, b_.CreateVectorSplat(lanes_, low)),
                              b_.CreateICmpSLT(lane, b_.CreateVectorSplat(lanes_, high)));
        }
        return b_.CreateICmpULT(Lanes64(Position(n, inst, copy.i), inst), b_.CreateVectorSplat(lanes_, IntOf(inst.sym)));
      }
      case IKind::kLoad: case IKind::kLoadAt: return LoadVector(n, inst, copy);
      case IKind::kStore:
        StoreVector(n, inst, copy);
        return nullptr;
      default: throw CodegenUnsupported("instruction in a vector");
    }
  }

  Value* Clamp(Value* v) {  // to [0, lanes], as i32
    Value* low = b_.CreateSelect(b_.CreateICmpSLT(v, I64(0)), I64(0), v);
    return b_.CreateTrunc(Min(low, I64(lanes_)), b_.getInt32Ty());
  }
  Value* Lanes64(Value* first, const Inst& inst) {
    Value* steps = b_.CreateMul(LaneNumbers(b_.getInt64Ty()), b_.CreateVectorSplat(lanes_, IntOf(inst.index.inner)));
    return b_.CreateAdd(b_.CreateVectorSplat(lanes_, first), steps);
  }

  Value* Iota(int n, const Inst& inst, const Copy& copy) {
    Value* first = Position(n, inst, copy.i);
    if (!IsFloat(inst.dtype)) return ops_.Cast(Lanes64(first, inst), DType::kInt64, inst.dtype);
    // Exact in f64 and cheaper than converting 64-bit lanes.
    Value* at = b_.CreateVectorSplat(lanes_, b_.CreateSIToFP(first, b_.getDoubleTy()));
    Value* step = b_.CreateVectorSplat(lanes_, b_.CreateSIToFP(IntOf(inst.index.inner), b_.getDoubleTy()));
    Value* v = b_.CreateFAdd(at, b_.CreateFMul(LaneNumbers(b_.getDoubleTy()), step));
    return ops_.Cast(v, DType::kFloat64, ComputeType(inst.dtype));
  }

  // --- memory
  bool NativeMask(DType t) const { return isa_.avx512 || DTypeSize(t) >= 4; }
  Value* And(Value* a, Value* b) { return !a ? b : !b ? a : b_.CreateAnd(a, b); }
  bool IndirectVector(const Inst& inst) const {
    if (inst.kind != IKind::kLoadAt) return false;
    return std::any_of(inst.operands.begin(), inst.operands.end(), [&](int o) { return !uniform_[o]; });
  }

  Value* LoadVector(int n, const Inst& inst, const Copy& copy) {
    const DType t = MemoryType(inst);
    const llvm::Align align(DTypeSize(t));
    Value* predicate = inst.predicate >= 0 ? In(inst.predicate, copy) : nullptr;
    Value* offset = Offset(inst, copy.i);
    if (!IndirectVector(inst)) {
      if (IsZero(inst.index.inner)) {  // under a predicate that varies
        Value* any = b_.CreateOrReduce(And(copy.mask, predicate));
        return b_.CreateSelect(predicate, b_.CreateVectorSplat(lanes_, LoadScalar(n, inst, offset, any)),
                               llvm::Constant::getNullValue(ops_.RegisterType(t, lanes_)));
      }
      llvm::Type* type = ops_.StorageType(t, lanes_);
      if (IsOne(inst.index.inner)) {
        Value* p = Element(inst, pointer_[n], offset);
        if (predicate && uniform_[inst.predicate]) {  // the whole row or nothing of it
          p = b_.CreateSelect(scalar_[inst.predicate], p, zeros_);
          predicate = nullptr;
        }
        Value* mask = And(copy.mask, predicate);
        if (!mask) return ops_.FromStorage(b_.CreateAlignedLoad(type, p, align), t);
        if (!predicate && !NativeMask(t)) return ops_.FromStorage(LoadThroughMemory(type, t, p, copy), t);
        if (!NativeMask(t)) return ops_.FromStorage(LoadSome(type, p, align, mask), t);
        return ops_.FromStorage(b_.CreateMaskedLoad(type, p, align, mask, llvm::Constant::getNullValue(type)), t);
      }
      if (inst.index.inner == Int(-1) && !copy.mask && !predicate) {
        Value* p = Element(inst, pointer_[n], b_.CreateSub(offset, I64(lanes_ - 1)));
        std::vector<int> reverse;
        for (int i = lanes_; i-- > 0;) reverse.push_back(i);
        return ops_.FromStorage(b_.CreateShuffleVector(b_.CreateAlignedLoad(type, p, align), reverse), t);
      }
    }
    return ops_.FromStorage(Gather(n, inst, copy, offset, predicate), t);
  }

  // 8- and 16-bit elements have no masked moves before AVX-512: the rest of the row goes through memory.
  Value* LoadThroughMemory(llvm::Type* type, DType t, Value* p, const Copy& copy) {
    auto* memory = Memory(DTypeSize(t) * lanes_);
    b_.CreateAlignedStore(llvm::Constant::getNullValue(type), memory, llvm::Align(64));
    b_.CreateMemCpy(memory, llvm::Align(64), p, llvm::Align(DTypeSize(t)), Mul(copy.valid, I64(DTypeSize(t))));
    return b_.CreateAlignedLoad(type, memory, llvm::Align(64));
  }

  // Elements without masked moves under any mask. Most vectors of a pad or cat are all or none.
  Value* LoadSome(llvm::Type* type, Value* p, llvm::Align align, Value* mask) {
    auto* all = Block("all");
    auto* check = Block("check");
    auto* some = Block("some");
    auto* join = Block("join");
    auto* result = Slot(type);
    b_.CreateCondBr(b_.CreateAndReduce(mask), all, check);
    b_.SetInsertPoint(all);
    Set(result, b_.CreateAlignedLoad(type, p, align));
    b_.CreateBr(join);
    b_.SetInsertPoint(check);
    Set(result, llvm::Constant::getNullValue(type));
    b_.CreateCondBr(b_.CreateOrReduce(mask), some, join);
    b_.SetInsertPoint(some);
    Value* v = llvm::Constant::getNullValue(type);
    for (int lane = 0; lane < lanes_; ++lane) {
      Value* at = b_.CreateConstGEP1_64(type->getScalarType(), p, lane);
      at = b_.CreateSelect(b_.CreateExtractElement(mask, uint64_t(lane)), at, zeros_);
      v = b_.CreateInsertElement(v, b_.CreateAlignedLoad(type->getScalarType(), at, align), uint64_t(lane));
    }
    Set(result, v);
    b_.CreateBr(join);
    b_.SetInsertPoint(join);
    return Get(result);
  }

  Value* IndirectIndex(const Inst& inst, const Copy& copy) {  // i64 vector, 0 in lanes that do not exist
    Value* index = nullptr;
    for (size_t o = 0; o < inst.operands.size(); ++o) {
      if (uniform_[inst.operands[o]]) continue;
      Value* v = In(inst.operands[o], copy);
      if (!IsOne(inst.strides[o])) v = b_.CreateMul(v, b_.CreateVectorSplat(lanes_, IntOf(inst.strides[o])));
      index = index ? b_.CreateAdd(index, v) : v;
    }
    if (index && copy.mask) index = b_.CreateSelect(copy.mask, index, llvm::Constant::getNullValue(index->getType()));
    return index;
  }

  Value* Gather(int n, const Inst& inst, const Copy& copy, Value* offset, Value* predicate) {
    const DType t = MemoryType(inst);
    const llvm::Align align(DTypeSize(t));
    llvm::Type* type = ops_.StorageType(t, lanes_);
    Value* indirect = IndirectIndex(inst, copy);
    Value* stride = IntOf(inst.index.inner);
    if (isa_.avx512 && DTypeSize(t) >= 4) {
      Value* at = Lanes64(offset, inst);
      if (indirect) at = b_.CreateAdd(at, indirect);
      Value* pointers = b_.CreateGEP(type->getScalarType(), pointer_[n], at);
      Value* mask = And(copy.mask, predicate);
      if (!mask) mask = llvm::Constant::getAllOnesValue(llvm::FixedVectorType::get(b_.getInt1Ty(), lanes_));
      return b_.CreateMaskedGather(type, pointers, align, mask, llvm::Constant::getNullValue(type));
    }
    Value* v = llvm::PoisonValue::get(type);
    for (int lane = 0; lane < lanes_; ++lane) {
      Value* p = LanePointer(n, inst, copy, offset, stride, indirect, lane);
      if (predicate) p = b_.CreateSelect(b_.CreateExtractElement(predicate, uint64_t(lane)), p, zeros_);
      v = b_.CreateInsertElement(v, b_.CreateAlignedLoad(type->getScalarType(), p, align), uint64_t(lane));
    }
    return v;
  }

  // Lanes past the end repeat the last one that exists.
  Value* LanePointer(int n, const Inst& inst, const Copy& copy, Value* offset, Value* stride, Value* indirect, int lane) {
    Value* number = I64(lane);
    if (copy.mask && lane > 0) number = Min(number, b_.CreateSub(copy.valid, I64(1)));
    Value* at = Add(Add(offset, Mul(number, stride)), I64(0));
    if (indirect) at = b_.CreateAdd(at, b_.CreateExtractElement(indirect, uint64_t(lane)));
    return Element(inst, pointer_[n], at);
  }

  void StoreVector(int n, const Inst& inst, const Copy& copy) {
    const DType t = MemoryType(inst);
    const llvm::Align align(DTypeSize(t));
    Value* v = ops_.ToStorage(In(inst.operands[0], copy), t);
    Value* offset = Offset(inst, copy.i);
    if (IsOne(inst.index.inner)) {
      Value* p = Element(inst, pointer_[n], offset);
      if (!copy.mask) {
        b_.CreateAlignedStore(v, p, align);
      } else if (NativeMask(t)) {
        b_.CreateMaskedStore(v, p, align, copy.mask);
      } else {
        auto* memory = Memory(DTypeSize(t) * lanes_);
        b_.CreateAlignedStore(v, memory, llvm::Align(64));
        b_.CreateMemCpy(p, align, memory, llvm::Align(64), Mul(copy.valid, I64(DTypeSize(t))));
      }
      return;
    }
    Value* stride = IntOf(inst.index.inner);
    if (isa_.avx512 && DTypeSize(t) >= 4) {
      Value* pointers = b_.CreateGEP(v->getType()->getScalarType(), pointer_[n], Lanes64(offset, inst));
      Value* mask = copy.mask ? copy.mask : llvm::Constant::getAllOnesValue(llvm::FixedVectorType::get(b_.getInt1Ty(), lanes_));
      b_.CreateMaskedScatter(v, pointers, align, mask);
      return;
    }
    // Backwards, so that the last lane that exists is the last to write where the ones past the end point to as well.
    for (int lane = lanes_; lane-- > 0;) {
      Value* p = LanePointer(n, inst, copy, offset, stride, nullptr, lane);
      if (copy.mask && lane > 0) {
        if (!sink_) sink_ = Memory(64);
        p = b_.CreateSelect(b_.CreateICmpSLT(I64(lane), copy.valid), p, sink_);
      }
      b_.CreateAlignedStore(b_.CreateExtractElement(v, uint64_t(lane)), p, align);
    }
  }

  const Kernel& k_;
  const Isa& isa_;
  const Schedule& schedule_;
  const int lanes_;
  llvm::Module& m_;
  llvm::IRBuilder<> b_;
  OpEmitter ops_;
  llvm::Function* f_ = nullptr;
  llvm::BasicBlock* entry_ = nullptr;
  std::vector<llvm::AllocaInst*> slots_;
  std::vector<Value*> symbols_, buffers_, heap_, outer_, red_, red_extent_;
  Value *inner_ = nullptr, *i0_ = nullptr, *i1_ = nullptr, *span_ = nullptr, *zeros_ = nullptr, *sink_ = nullptr;
  std::vector<bool> uniform_;
  std::map<std::pair<int, int>, llvm::AllocaInst*> scans_;  // sum so far, by instruction and copy
  std::vector<Value*> base_, pointer_;        // by instruction, of this row
  std::vector<Value*> scalar_, splat_;        // uniform instructions
};

}  // namespace

Schedule MakeSchedule(const Kernel& k, const Isa& isa) {
  // 32-bit lanes if any value has 32 bits, else what the widest value needs.
  bool four = false, eight = false, two = false;
  for (const Inst& inst : k.insts) {
    const int size = IsBool(inst.dtype) ? 1 : DTypeSize(ComputeType(inst.dtype));
    four = four || size == 4;
    eight = eight || size == 8;
    two = two || size == 2;
  }
  Schedule s;
  const int bytes = four ? 4 : eight ? 8 : two ? 2 : 1;
  s.lanes = isa.vector_bytes / bytes;
  s.unroll = Unroll(k);
  const bool scans = std::any_of(k.insts.begin(), k.insts.end(), [](const Inst& i) { return i.kind == IKind::kScan; });
  if (scans && !k.column) s.lanes = s.unroll = 1;  // one after the other
  if (k.column) {
    if (s.unroll == 4) s.unroll = 8;  // a row of memory is read in few lines
    while (s.unroll > 1 && k.inner.is_const() && k.inner.value() < s.lanes * s.unroll) s.unroll /= 2;
    s.block = int64_t{s.lanes} * s.unroll;
  } else {
    s.block = k.block;
  }
  return s;
}

void EmitKernel(llvm::Module& m, const Kernel& k, const Isa& isa, const Schedule& schedule, const std::string& symbol) {
  Emitter(m, k, isa, schedule).Run(symbol);
}

}  // namespace framejit::codegen
