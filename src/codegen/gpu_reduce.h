// Reductions of a GPU kernel: what a thread has so far, over the loop, and what threads tell each other, by shuffles
// and shared memory.
#pragma once

#include <limits>
#include <utility>
#include <vector>

#include "codegen/gpu_held.h"

namespace framejit::codegen {

class GpuReducer : public GpuHeld {
 protected:
  using GpuHeld::GpuHeld;

  struct State {
    int inst;
    Op op;
    DType type;  // The type of the accumulator.
    bool arg;
    Values value, position;                              // in registers: by lane in a column kernel, else one
    std::vector<llvm::AllocaInst*> lost;                 // of float sums in a loop: what rounding has taken (Kahan)
    std::vector<llvm::AllocaInst*> slot, position_slot;  // Where the values lie while a loop runs.
  };
  int StateLanes() const { return k_.column ? vector_ : 1; }

  std::vector<State> MakeStates(const Stage& stage) {
    std::vector<State> states;
    for (int n : stage.insts) {
      const Inst& inst = k_.insts[n];
      if (inst.kind != IKind::kReduce) continue;
      State s{.inst = n, .op = inst.op, .type = ComputeType(inst.dtype)};
      s.arg = inst.op == Op::kArgMax || inst.op == Op::kArgMin;
      if (s.arg) s.type = ComputeType(k_.insts[inst.operands[0]].dtype);
      if (inst.op == Op::kAny || inst.op == Op::kAll) s.type = DType::kBool;
      s.value.assign(StateLanes(), ops_.Identity(s.op, s.type, 1));
      if (s.arg) s.position.assign(StateLanes(), b_.getInt64(std::numeric_limits<int64_t>::max()));
      states.push_back(std::move(s));
    }
    return states;
  }
  void ToSlots(std::vector<State>& states) {
    for (State& s : states) {
      for (Value* v : s.value) {
        s.slot.push_back(Slot(v->getType(), v));
        if (s.op == Op::kSum && s.type == DType::kFloat32)
          s.lost.push_back(Slot(v->getType(), llvm::Constant::getNullValue(v->getType())));
      }
      for (Value* v : s.position) s.position_slot.push_back(Slot(v->getType(), v));
    }
  }
  void FromSlots(std::vector<State>& states) {
    for (State& s : states) {
      for (size_t i = 0; i < s.slot.size(); ++i) s.value[i] = Get(s.slot[i]);
      for (size_t i = 0; i < s.position_slot.size(); ++i) s.position[i] = Get(s.position_slot[i]);
      s.slot.clear();
      s.position_slot.clear();
    }
  }
  using Pair = std::pair<Value*, Value*>;  // The value and its position.
  Pair Combine(const State& s, Pair a, Pair b) {
    if (!s.arg) return {ops_.Combine(s.op, s.type, a.first, b.first), nullptr};
    Value* wins = ops_.Better(s.op, s.type, a.first, a.second, b.first, b.second);
    return {b_.CreateSelect(wins, a.first, b.first), b_.CreateSelect(wins, a.second, b.second)};
  }
  Pair Tree(const State& s, std::vector<Pair> all) {
    while (all.size() > 1) {
      std::vector<Pair> next;
      for (size_t i = 0; i + 1 < all.size(); i += 2) next.push_back(Combine(s, all[i], all[i + 1]));
      if (all.size() % 2) next.push_back(all.back());
      all = std::move(next);
    }
    return all[0];
  }
  Pair SumOf(const State& s, const std::vector<Pair>& all) {  // it may take products in unrounded
    llvm::IRBuilder<>::FastMathFlagGuard guard(b_);
    Values terms;
    for (const Pair& p : all) terms.push_back(p.first);
    AllowContract(terms);
    return Tree(s, all);
  }
  // What the sites contribute, into s.value or the slots.
  void Accumulate(std::vector<State>& states, const std::vector<Site>& sites) {
    for (State& s : states) {
      const Inst& inst = k_.insts[s.inst];
      for (int to = 0; to < StateLanes(); ++to) {
        std::vector<Pair> all;
        for (const Site& site : sites) {
          for (int lane = k_.column ? to : 0; lane < (k_.column ? to + 1 : vector_); ++lane) {
            Value* x = Lane(site, inst.operands[0], lane);
            Value* p = s.arg ? Lane(site, inst.operands[1], lane) : nullptr;
            if (site.active) {
              x = b_.CreateSelect(site.active, x, ops_.Identity(s.op, s.type, 1));
              if (p) p = b_.CreateSelect(site.active, p, b_.getInt64(std::numeric_limits<int64_t>::max()));
            }
            all.push_back({x, p});
          }
        }
        if (all.empty()) continue;

        Pair old{s.slot.empty() ? s.value[to] : Get(s.slot[to]), !s.arg                    ? nullptr
                                                                 : s.position_slot.empty() ? s.position[to]
                                                                                           : Get(s.position_slot[to])};
        const bool first = s.slot.empty() && !s.arg;  // an identity adds nothing: -0.0 stays itself all the same
        Pair now = s.op == Op::kSum && IsFloat(s.type) ? SumOf(s, all) : Tree(s, all);
        if (!s.lost.empty() && !s.slot.empty()) {
          Value* y = b_.CreateFSub(now.first, Get(s.lost[to]));
          Value* sum = b_.CreateFAdd(old.first, y);
          Value* lost = b_.CreateFSub(b_.CreateFSub(sum, old.first), y);
          Value* finite = b_.CreateFCmpOLT(b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, lost),
                                           llvm::ConstantFP::getInfinity(lost->getType()));
          Set(s.lost[to], b_.CreateSelect(finite, lost, llvm::Constant::getNullValue(lost->getType())));
          Set(s.slot[to], sum);
          continue;
        }
        if (!first || s.op == Op::kSum) now = Combine(s, old, now);
        if (s.slot.empty()) {
          s.value[to] = now.first;
          if (s.arg) s.position[to] = now.second;
        } else {
          Set(s.slot[to], now.first);
          if (s.arg) Set(s.position_slot[to], now.second);
        }
      }
    }
  }

  // A register of another lane. `how`: shfl mode intrinsic of 32-bit values.
  Value* Shuffle(llvm::Intrinsic::ID id, Value* v, Value* lane, int clamp) {
    llvm::Type* type = v->getType();
    const int bits = type->getScalarSizeInBits();
    if (bits == 64) {
      Value* whole = b_.CreateBitCast(v, b_.getInt64Ty());
      Value* low = Shuffle(id, b_.CreateTrunc(whole, b_.getInt32Ty()), lane, clamp);
      Value* high = Shuffle(id, b_.CreateTrunc(b_.CreateLShr(whole, 32), b_.getInt32Ty()), lane, clamp);
      whole = b_.CreateOr(b_.CreateZExt(low, b_.getInt64Ty()), b_.CreateShl(b_.CreateZExt(high, b_.getInt64Ty()), 32));
      return b_.CreateBitCast(whole, type);
    }
    Value* word = bits == 32 ? b_.CreateBitCast(v, b_.getInt32Ty())
                             : b_.CreateZExt(b_.CreateBitCast(v, b_.getIntNTy(bits)), b_.getInt32Ty());
    word = b_.CreateIntrinsic(id, {}, {b_.getInt32(~0u), word, lane, b_.getInt32(clamp)});
    if (bits == 32) return b_.CreateBitCast(word, type);
    return b_.CreateBitCast(b_.CreateTrunc(word, b_.getIntNTy(bits)), type);
  }
  Pair Butterfly(const State& s, Pair p, int width) {
    for (int mask = width / 2; mask > 0; mask /= 2) {
      Pair other{Shuffle(llvm::Intrinsic::nvvm_shfl_sync_bfly_i32, p.first, b_.getInt32(mask), 31), nullptr};
      if (s.arg) other.second = Shuffle(llvm::Intrinsic::nvvm_shfl_sync_bfly_i32, p.second, b_.getInt32(mask), 31);
      p = Combine(s, p, other);
    }
    return p;
  }
  llvm::GlobalVariable* Shared(llvm::Type* element, int count) {
    auto* type = llvm::ArrayType::get(element, count);
    auto* g = new llvm::GlobalVariable(m_, type, false, llvm::GlobalValue::InternalLinkage, llvm::UndefValue::get(type),
                                       "shared", nullptr, llvm::GlobalValue::NotThreadLocal, kShared);
    g->setAlignment(llvm::Align(16));
    return g;
  }
  // Registers of type i1 travel as bytes.
  llvm::Type* SharedType(llvm::Type* t) { return t->isIntegerTy(1) ? b_.getInt8Ty() : t; }
  void PutShared(llvm::GlobalVariable* g, Value* at, Value* v) {
    if (v->getType()->isIntegerTy(1)) v = b_.CreateZExt(v, b_.getInt8Ty());
    b_.CreateStore(v, b_.CreateGEP(v->getType(), g, Wide(at)));
  }
  Value* GetShared(llvm::GlobalVariable* g, Value* at, llvm::Type* type) {
    Value* v = b_.CreateLoad(SharedType(type), b_.CreateGEP(SharedType(type), g, Wide(at)));
    return type->isIntegerTy(1) ? b_.CreateICmpNE(v, b_.getInt8(0)) : v;
  }

  void FinishStates(std::vector<State>& states) {
    if (states.empty()) return;
    if (k_.column)
      AcrossSlices(states);
    else
      AcrossThreads(states);
    for (State& s : states) row_[s.inst] = s.arg ? s.position : s.value;
  }

  // --- clusters. Warps push what they have into every block's shared memory, and a barrier there counts the bytes: no
  // fence, which would wait for all that was stored before. No block may push before all have begun and made their
  // barriers. A round has a barrier and memory of its own: it is used once.
  void StartCluster() {
    if (s_.cluster == 1) return;
    for (const Stage& stage : k_.stages)
      rounds_ += stage.loop && std::any_of(stage.insts.begin(), stage.insts.end(),
                                           [&](int n) { return k_.insts[n].kind == IKind::kReduce; });
    barriers_ = Shared(b_.getInt64Ty(), std::max(1, rounds_));
    If(b_.CreateICmpEQ(thread_, I(0)), [&] {
      for (int i = 0; i < rounds_; ++i) WithBarrier("mbarrier.init.shared.b64 [$0], 1;", i);
      Asm("fence.mbarrier_init.release.cluster;");
    });
    Asm("barrier.cluster.arrive.relaxed.aligned;");
    begun_ = false;
  }
  void EndCluster() {  // a block that never pushed waits all the same: others may
    if (s_.cluster > 1) BeginCluster();
  }
  void BeginCluster() {
    if (!begun_) Asm("barrier.cluster.wait.aligned;");
    begun_ = true;
  }
  Value* RankInCluster() { return b_.CreateURem(block_, I(s_.cluster)); }
  Value* SharedAddress(llvm::Type* type, llvm::GlobalVariable* g, Value* at) {
    return b_.CreateTrunc(b_.CreatePtrToInt(b_.CreateGEP(type, g, Wide(at)), b_.getInt64Ty()), b_.getInt32Ty());
  }
  void WithBarrier(const std::string& code, int round) {
    auto* f = llvm::FunctionType::get(b_.getVoidTy(), {b_.getInt32Ty()}, false);
    b_.CreateCall(llvm::InlineAsm::get(f, code, "r,~{memory}", /*hasSideEffects=*/true),
                  {SharedAddress(b_.getInt64Ty(), barriers_, I(round))});
  }
  // Numbers of less than 32 bits travel as those.
  llvm::Type* PushedType(llvm::Type* t) { return t->getScalarSizeInBits() < 32 ? b_.getInt32Ty() : t; }
  // Into element `at` of `g` in the shared memory of block `rank` (i32); that block's barrier hears of it.
  void Push(llvm::GlobalVariable* g, Value* at, Value* rank, int round, Value* v) {
    const unsigned bits = v->getType()->getScalarSizeInBits();
    Value* word = b_.CreateBitCast(v, b_.getIntNTy(bits));
    if (bits < 32) word = b_.CreateZExt(word, b_.getInt32Ty());
    const std::string code =
        "{ .reg .b32 a, b; mapa.shared::cluster.u32 a, $0, $2; mapa.shared::cluster.u32 b, $1, $2; "
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b" +
        std::to_string(std::max(bits, 32u)) + " [a], $3, [b]; }";
    llvm::Type* i32 = b_.getInt32Ty();
    auto* f = llvm::FunctionType::get(b_.getVoidTy(), {i32, i32, i32, word->getType()}, false);
    b_.CreateCall(
        llvm::InlineAsm::get(f, code, std::string("r,r,r,") + (bits == 64 ? "l" : "r") + ",~{memory}",
                             /*hasSideEffects=*/true),
        {SharedAddress(word->getType(), g, at), SharedAddress(b_.getInt64Ty(), barriers_, I(round)), rank, word});
  }
  struct Board {  // in shared memory: what the warps of a row tell one another
    llvm::GlobalVariable *value, *position;
  };
  // Memory of its own for every reduction: no barrier before the next one is needed.
  std::vector<Board> Boards(const std::vector<State>& states, int count) {
    std::vector<Board> boards;
    for (const State& s : states) {
      llvm::Type* type = s.value[0]->getType();
      boards.push_back({Shared(s_.cluster > 1 ? PushedType(type) : SharedType(type), count),
                        s.arg ? Shared(b_.getInt64Ty(), count) : nullptr});
    }
    return boards;
  }
  Pair ReadBoard(const Board& p, const State& s, Value* at) {
    llvm::Type* type = s.value[0]->getType();
    Value* v = GetShared(p.value, at, s_.cluster > 1 ? PushedType(type) : type);
    if (v->getType() != type) v = b_.CreateTruncOrBitCast(v, type);
    return {v, s.arg ? GetShared(p.position, at, b_.getInt64Ty()) : nullptr};
  }

  // Values of a row come together in two steps: those of a warp's lanes, then those of all the row's warps, which lie
  // in the shared memory of every block.
  int RowWarps() const { return s_.row_threads / 32 * s_.cluster; }
  static void SetState(State& s, Pair p) {
    s.value[0] = p.first;
    if (s.arg) s.position[0] = p.second;
  }
  Pair OverWarp(const State& s) {
    return Butterfly(s, {s.value[0], s.arg ? s.position[0] : nullptr}, std::min(32, s_.row_threads));
  }
  void AcrossThreads(std::vector<State>& states) {
    for (State& s : states) SetState(s, OverWarp(s));
    if (RowWarps() <= 1) return;
    const std::vector<Board> boards = Exchange(states);
    for (size_t i = 0; i < states.size(); ++i) SetState(states[i], OverWarps(states[i], OfWarps(states[i], boards[i])));
  }
  std::vector<Board> Exchange(const std::vector<State>& states) {
    Value* lane = b_.CreateAnd(thread_, I(31));
    Value* warp = b_.CreateLShr(thread_, 5);
    const std::vector<Board> boards = Boards(states, std::max(32, RowWarps()));
    if (s_.cluster > 1) {
      PushAll(states, boards, lane, warp);
      return boards;
    }
    If(b_.CreateICmpEQ(lane, I(0)), [&] {
      for (size_t i = 0; i < states.size(); ++i) {
        PutShared(boards[i].value, warp, states[i].value[0]);
        if (states[i].arg) PutShared(boards[i].position, warp, states[i].position[0]);
      }
    });
    Barrier();
    return boards;
  }
  // Every warp tells every block, one lane each. (A step within the block before was slower.)
  void PushAll(const std::vector<State>& states, const std::vector<Board>& boards, Value* lane, Value* warp) {
    int64_t bytes = 0;
    for (const State& s : states)
      bytes += RowWarps() * (PushedType(s.value[0]->getType())->getScalarSizeInBits() / 8 + (s.arg ? 8 : 0));
    const int round = next_round_++;
    BeginCluster();
    If(b_.CreateICmpEQ(thread_, I(0)), [&] {
      WithBarrier("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared.b64 s, [$0], " + std::to_string(bytes) + "; }",
                  round);
    });
    If(b_.CreateICmpULT(lane, I(s_.cluster)), [&] {
      Value* to = b_.CreateTrunc(lane, b_.getInt32Ty());
      Value* at = Add(Mul(RankInCluster(), I(s_.row_threads / 32)), warp);
      for (size_t i = 0; i < states.size(); ++i) {
        Push(boards[i].value, at, to, round, states[i].value[0]);
        if (states[i].arg) Push(boards[i].position, at, to, round, states[i].position[0]);
      }
    });
    WithBarrier("{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [$0], 0; @!p bra again; }", round);
  }
  // By lane: all of a few, or those that fall to the lane.
  std::vector<Pair> OfWarps(const State& s, const Board& board) {
    Value* lane = b_.CreateAnd(thread_, I(31));
    std::vector<Pair> out;
    if (RowWarps() <= 4) {
      for (int w = 0; w < RowWarps(); ++w) out.push_back(ReadBoard(board, s, I(w)));
      return out;
    }
    for (int first = 0; first < RowWarps(); first += 32)
      out.push_back(ReadBoard(board, s, RowWarps() < 32 ? b_.CreateAnd(lane, I(RowWarps() - 1)) : Add(lane, I(first))));
    return out;
  }
  Pair OverWarps(const State& s, const std::vector<Pair>& parts) {
    Pair p = Tree(s, parts);
    return RowWarps() <= 4 ? p : Butterfly(s, p, std::min(32, RowWarps()));
  }

  void AcrossSlices(std::vector<State>& states) {
    if (s_.slices == 1) return;
    const int columns = 32 * vector_;
    Value* x = b_.CreateAnd(thread_, I(31));
    Value* y = b_.CreateLShr(thread_, 5);
    for (State& s : states) {
      llvm::Type* type = s.value[0]->getType();
      llvm::GlobalVariable* values = Shared(SharedType(type), columns * s_.slices);
      llvm::GlobalVariable* positions = s.arg ? Shared(b_.getInt64Ty(), columns * s_.slices) : nullptr;
      auto at = [&](Value* slice, int lane) { return Add(Mul(slice, I(columns)), Add(Mul(I(lane), I(32)), x)); };
      for (int lane = 0; lane < vector_; ++lane) {
        PutShared(values, at(y, lane), s.value[lane]);
        if (s.arg) PutShared(positions, at(y, lane), s.position[lane]);
      }
      Barrier();
      for (int lane = 0; lane < vector_; ++lane) {
        std::vector<Pair> all;
        for (int slice = 0; slice < s_.slices; ++slice) {
          all.push_back({GetShared(values, at(I(slice), lane), type),
                         s.arg ? GetShared(positions, at(I(slice), lane), b_.getInt64Ty()) : nullptr});
        }
        Pair p = Tree(s, all);
        s.value[lane] = p.first;
        if (s.arg) s.position[lane] = p.second;
      }
    }
  }

  bool begun_ = true;                         // Have all blocks of the cluster begun?
  llvm::GlobalVariable* barriers_ = nullptr;  // Those of a cluster's rounds.
  int rounds_ = 0, next_round_ = 0;
};

}  // namespace framejit::codegen
