// One thread's program. What it computes at once is a *site*: `vector` neighbours of the inner axis at one outer point,
// under a condition that holds or not for all of them (`active`; loads then read zeros instead of memory and stores are
// skipped, so that no thread leaves the common path before a shuffle or a barrier).
//
//   row kernel, resident:                        not resident:
//     sites = this thread's vectors of the row     stage loop: for chunks of the row: fresh sites: loads, ops,
//     stage loop: ops of all sites                             accumulators
//                 tree over the sites' values                  shuffles, shared memory
//                 shuffles, shared memory          stage loop: for chunks of the row: loads again ...
//     stage loop: ops; what an earlier stage
//                 computed is still in registers
//
// "What an earlier stage computed" is found by value numbers: instructions of equal meaning share one.
#include "codegen/gpu_emit.h"

#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsNVPTX.h>
#include <llvm/Transforms/Utils/PromoteMemToReg.h>

#include <functional>
#include <map>

#include "codegen/codegen.h"
#include "codegen/gpu_thread.h"

namespace framejit::codegen {
namespace {

class GpuEmitter : public GpuThread {
 public:
  GpuEmitter(llvm::Module& m, const Kernel& k, const Isa& isa, const GpuSchedule& schedule)
      : GpuThread(m, k, isa, schedule) {}

  void Run(const std::string& symbol) {
    if (!k_.scratch.empty()) throw CodegenUnsupported("a kernel with scratch rows on a GPU");
    std::vector<llvm::Type*> types(k_.buffers.size(), llvm::PointerType::get(m_.getContext(), kGlobal));
    types.resize(types.size() + k_.num_symbols, b_.getInt64Ty());
    f_ = llvm::Function::Create(llvm::FunctionType::get(b_.getVoidTy(), types, false), llvm::Function::ExternalLinkage,
                                symbol, m_);
    f_->setDoesNotThrow();
    Annotate("kernel", 1);
    Annotate("maxntidx", s_.threads);
    if (s_.blocks > 1) Annotate("minctasm", s_.blocks);
    entry_ = llvm::BasicBlock::Create(m_.getContext(), "entry", f_);
    b_.SetInsertPoint(entry_);
    auto* start = Block("start");  // allocas stay in entry
    llvm::BranchInst* jump = b_.CreateBr(start);
    b_.SetInsertPoint(start);
    for (size_t i = 0; i < k_.buffers.size(); ++i) buffers_.push_back(f_->getArg(i));
    for (int i = 0; i < k_.num_symbols; ++i) {
      Value* v = f_->getArg(k_.buffers.size() + i);
      symbols64_.push_back(v);
      symbols_.push_back(s_.narrow ? b_.CreateTrunc(v, index_) : v);
    }
    thread_ = Register(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
    block_ = Register(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x);
    (void)jump;
    switch (s_.mode) {
      case GpuSchedule::kPoint: Points(); break;
      case GpuSchedule::kRow: Rows(); break;
      case GpuSchedule::kColumn: Columns(); break;
      case GpuSchedule::kTile: Tiles(); break;
    }
    b_.CreateRetVoid();
    llvm::DominatorTree tree(*f_);
    llvm::PromoteMemToReg(slots_, tree);
  }

 private:
  // --- point kernels
  void Points() {
    Value* vectors = NumVectors();
    Value* total = Mul(Product(k_.outer), vectors);
    Value* first = Add(Mul(block_, I(int64_t{s_.threads} * s_.unroll)), thread_);
    row_.assign(k_.insts.size(), {});
    const auto constant = Const(total);
    const bool exact = constant && *constant % (int64_t{s_.threads} * s_.unroll) == 0;
    std::vector<Site> sites(s_.unroll);
    std::vector<Int> extents = k_.outer;
    for (int u = 0; u < s_.unroll; ++u) {
      Site& site = sites[u];
      Value* c = Add(first, I(int64_t{u} * s_.threads));
      if (!exact) site.active = b_.CreateICmpSLT(c, total);
      Value* row = c;
      if (!k_.outer.empty()) {
        Value* at = b_.CreateURem(c, vectors);
        row = b_.CreateUDiv(c, vectors);
        site.i = Mul(at, I(vector_));
        site.outer = Unflatten(row, extents);
      } else {
        site.i = Mul(c, I(vector_));
      }
    }
    if (!s_.tail) return PointStages(sites);
    // Whole vectors, and one thread with what is left.
    Site& site = sites[0];
    auto* whole = Block("whole");
    auto* part = Block("part");
    auto* done = Block("done");
    Value* fits = b_.CreateICmpSLE(Add(site.i, I(vector_)), IntOf(k_.inner));
    b_.CreateCondBr(fits, whole, part);
    b_.SetInsertPoint(whole);
    site.active = nullptr;
    PointStages(sites);
    b_.CreateBr(done);
    b_.SetInsertPoint(part);
    const int vector = std::exchange(vector_, 1);
    const std::vector<bool> uniform = std::exchange(uniform_, GpuUniform(k_, 1));
    For(site.i, IntOf(k_.inner), I(1), [&](Value* i) {
      std::vector<Site> one(1);
      one[0].i = i;
      PointStages(one);
    });
    vector_ = vector;
    uniform_ = uniform;
    b_.CreateBr(done);
    b_.SetInsertPoint(done);
  }
  void PointStages(std::vector<Site>& sites) {
    for (const Stage& stage : k_.stages) Emit(stage, sites);
  }

  // --- tiles: what is contiguous along the other axis crosses shared memory, on its way in or out
  bool Staged(int n) const override { return s_.mode == GpuSchedule::kTile && s_.staged[n]; }
  void Tiles() {
    constexpr int kTile = 32, kPitch = kTile + 1;  // an odd pitch: a column of the tile meets every bank once
    row_.assign(k_.insts.size(), {});
    Value* inner = IntOf(k_.inner);
    Value* last = IntOf(k_.outer.back());
    auto tiles = [&](Value* n) { return b_.CreateUDiv(Add(n, I(kTile - 1)), I(kTile)); };
    Value* rest = block_;
    Value* first_i = Mul(b_.CreateURem(rest, tiles(inner)), I(kTile));
    rest = b_.CreateUDiv(rest, tiles(inner));
    Value* first_o = Mul(b_.CreateURem(rest, tiles(last)), I(kTile));
    rest = b_.CreateUDiv(rest, tiles(last));
    const Values above = Unflatten(rest, {k_.outer.begin(), k_.outer.end() - 1});
    Value* x = b_.CreateAnd(thread_, I(kTile - 1));
    std::vector<Site> sites(s_.unroll), turned(s_.unroll);
    Values y;
    for (int u = 0; u < s_.unroll; ++u) {
      y.push_back(Add(b_.CreateLShr(thread_, 5), I(int64_t{u} * s_.threads / kTile)));
      auto place = [&](Site& site, Value* i, Value* o) {
        site.i = Add(first_i, i);
        site.outer = above;
        site.outer.push_back(Add(first_o, o));
        site.active = b_.CreateAnd(b_.CreateICmpSLT(site.i, inner), b_.CreateICmpSLT(site.outer.back(), last));
        site.values.resize(k_.insts.size());
      };
      place(sites[u], x, y[u]);
      place(turned[u], y[u], x);
    }
    auto along = [&](int u) { return Add(Mul(y[u], I(kPitch)), x); };
    auto across = [&](int u) { return Add(Mul(x, I(kPitch)), y[u]); };
    auto memory = [&](const Inst& inst) {
      return Shared(SharedType(ops_.RegisterType(k_.buffers[inst.buffer].dtype, 1)), kTile * kPitch);
    };
    std::map<int, llvm::GlobalVariable*> loaded;  // by value number
    for (int n = 0; n < k_.insts.size(); ++n) {
      const Inst& inst = k_.insts[n];
      if (inst.kind != IKind::kLoad || !Staged(n) || loaded.count(number_[n])) continue;
      auto* g = loaded[number_[n]] = memory(inst);
      for (int u = 0; u < s_.unroll; ++u) turned[u].values[number_[n]] = Evaluate(n, inst, turned[u]);
      for (int u = 0; u < s_.unroll; ++u) PutShared(g, along(u), turned[u].values[number_[n]][0]);
    }
    if (!loaded.empty()) Barrier();
    for (auto& [n, g] : loaded) {
      llvm::Type* type = ops_.RegisterType(k_.buffers[k_.insts[n].buffer].dtype, 1);
      for (int u = 0; u < s_.unroll; ++u) sites[u].values[n] = {GetShared(g, across(u), type)};
    }
    PointStages(sites);
    std::vector<std::pair<int, llvm::GlobalVariable*>> stores;
    for (int n = 0; n < k_.insts.size(); ++n) {
      const Inst& inst = k_.insts[n];
      if (inst.kind != IKind::kStore || !Staged(n)) continue;
      stores.push_back({n, memory(inst)});
      for (int u = 0; u < s_.unroll; ++u)
        PutShared(stores.back().second, along(u), Lane(sites[u], inst.operands[0], 0));
    }
    if (!stores.empty()) Barrier();
    for (auto& [n, g] : stores) {
      const Inst& inst = k_.insts[n];
      const DType t = k_.buffers[inst.buffer].dtype;
      for (int u = 0; u < s_.unroll; ++u) {
        Value* v = GetShared(g, across(u), ops_.RegisterType(t, 1));
        If(turned[u].active, [&] {
          b_.CreateAlignedStore(ops_.ToStorage(v, t), Address(inst, turned[u], 0), llvm::Align(DTypeSize(t)));
        });
      }
    }
  }

  // --- reductions
  struct State {
    int inst;
    Op op;
    DType type;  // of the accumulator
    bool arg;
    Values value, position;                              // in registers: by lane in a column kernel, else one
    std::vector<llvm::AllocaInst*> lost;                 // of float sums in a loop: what rounding has taken (Kahan)
    std::vector<llvm::AllocaInst*> slot, position_slot;  // while a loop runs
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
  using Pair = std::pair<Value*, Value*>;  // value, position
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
        Pair now = Tree(s, all);
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

  void AcrossThreads(std::vector<State>& states) {
    const int width = std::min(32, s_.row_threads), warps = s_.row_threads / 32;
    for (State& s : states) {
      Pair p = Butterfly(s, {s.value[0], s.arg ? s.position[0] : nullptr}, width);
      s.value[0] = p.first;
      if (s.arg) s.position[0] = p.second;
    }
    if (warps <= 1) return;
    struct Place {
      llvm::GlobalVariable *value, *position;
    };
    std::vector<Place> places;
    Value* lane = b_.CreateAnd(thread_, I(31));
    Value* warp = b_.CreateLShr(thread_, 5);
    for (State& s : states) {  // memory of its own for every reduction: no barrier before the next one is needed
      places.push_back({Shared(SharedType(s.value[0]->getType()), 32), s.arg ? Shared(b_.getInt64Ty(), 32) : nullptr});
    }
    If(b_.CreateICmpEQ(lane, I(0)), [&] {
      for (size_t i = 0; i < states.size(); ++i) {
        PutShared(places[i].value, warp, states[i].value[0]);
        if (states[i].arg) PutShared(places[i].position, warp, states[i].position[0]);
      }
    });
    Barrier();
    for (size_t i = 0; i < states.size(); ++i) {
      State& s = states[i];
      auto load = [&](Value* at) {
        return Pair{GetShared(places[i].value, at, s.value[0]->getType()),
                    s.arg ? GetShared(places[i].position, at, b_.getInt64Ty()) : nullptr};
      };
      Pair p;
      if (warps <= 4) {
        std::vector<Pair> all;
        for (int w = 0; w < warps; ++w) all.push_back(load(I(w)));
        p = Tree(s, all);
      } else {
        p = Butterfly(s, load(b_.CreateAnd(lane, I(warps - 1))), warps);
      }
      s.value[0] = p.first;
      if (s.arg) s.position[0] = p.second;
    }
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

  // --- row kernels
  void Rows() {
    row_.assign(k_.insts.size(), {});
    const int rows_of_block = s_.threads / s_.row_threads;
    Value* rows = Product(k_.outer);
    Value* row = Add(Mul(block_, I(rows_of_block)), b_.CreateUDiv(thread_, I(s_.row_threads)));
    lane_in_row_ = b_.CreateURem(thread_, I(s_.row_threads));
    Site base;
    const auto constant = Const(rows);
    if (rows_of_block > 1 && !(constant && *constant % rows_of_block == 0)) {
      base.active = b_.CreateICmpSLT(row, rows);  // a row past the end is the last one again, and stores nothing
      row = Min(row, b_.CreateSub(rows, I(1)));
    }
    base.outer = Unflatten(row, k_.outer);
    Value* leader = s_.row_threads == 1 ? nullptr : b_.CreateICmpEQ(lane_in_row_, I(0));
    Value* vectors = NumVectors();
    Value* total = Mul(Product(k_.red), vectors);
    std::vector<Site> resident;
    if (s_.resident) resident = RowSites(base, I(0), total, vectors, s_.unroll);
    for (const Stage& stage : k_.stages) {
      if (!stage.loop) {
        EmitRow(stage, base, leader);
        continue;
      }
      std::vector<State> states = MakeStates(stage);
      if (s_.resident) {
        Emit(stage, resident);
        Accumulate(states, resident);
      } else {
        ToSlots(states);
        StartScans(stage);
        For(I(0), total, I(int64_t{s_.row_threads} * s_.unroll), [&](Value* chunk) {
          std::vector<Site> sites = RowSites(base, chunk, total, vectors, s_.unroll);
          Emit(stage, sites);
          Accumulate(states, sites);
        });
        FromSlots(states);
      }
      FinishStates(states);
    }
  }

  // This thread's vectors [chunk, chunk + count * row_threads) of the row.
  std::vector<Site> RowSites(const Site& base, Value* chunk, Value* total, Value* vectors, int count) {
    std::vector<Site> sites(count, base);
    for (int u = 0; u < count; ++u) {
      Site& site = sites[u];
      Value* e = Add(chunk, Add(lane_in_row_, I(int64_t{u} * s_.row_threads)));
      const auto known = Const(total);
      const bool inside = s_.resident && known && *known >= int64_t{u + 1} * s_.row_threads;
      site.active = inside ? nullptr : b_.CreateICmpSLT(e, total);
      if (!k_.red.empty()) {
        site.red = Unflatten(b_.CreateUDiv(e, vectors), k_.red);
        e = b_.CreateURem(e, vectors);
      }
      site.i = Mul(e, I(vector_));
      site.active = And(site.active, base.active);
    }
    return sites;
  }

  // --- column kernels
  void Columns() {
    row_.assign(k_.insts.size(), {});
    Value* blocks = b_.CreateUDiv(Add(NumVectors(), I(31)), I(32));
    Site base;
    base.outer = Unflatten(b_.CreateUDiv(block_, blocks), k_.outer);
    Value* column = Add(Mul(b_.CreateURem(block_, blocks), I(32)), b_.CreateAnd(thread_, I(31)));
    Value* exists = b_.CreateICmpSLT(column, NumVectors());
    base.i = Mul(b_.CreateSelect(exists, column, I(0)), I(vector_));
    base.active = exists;
    Value* slice = b_.CreateLShr(thread_, 5);
    Value* leader = s_.slices == 1 ? nullptr : b_.CreateICmpEQ(slice, I(0));
    Value* total = Product(k_.red);
    for (const Stage& stage : k_.stages) {
      if (!stage.loop) {
        EmitRow(stage, base, leader);
        continue;
      }
      std::vector<State> states = MakeStates(stage);
      ToSlots(states);
      StartScans(stage);
      For(slice, total, I(int64_t{s_.slices} * s_.unroll), [&](Value* e) {
        std::vector<Site> sites(s_.unroll, base);
        for (int u = 0; u < s_.unroll; ++u) {
          Value* at = Add(e, I(int64_t{u} * s_.slices));
          if (u) sites[u].active = And(base.active, b_.CreateICmpSLT(at, total));
          sites[u].red = Unflatten(at, k_.red);
        }
        Emit(stage, sites);
        Accumulate(states, sites);
      });
      FromSlots(states);
      FinishStates(states);
    }
  }

  // --- scans: in a row kernel by one warp a row, an element a lane; in a column kernel one thread a column
  void StartScans(const Stage& stage) {
    for (int n : stage.insts) {
      const Inst& inst = k_.insts[n];
      if (inst.kind != IKind::kScan) continue;
      const DType t = IsFloat(inst.dtype) ? DType::kFloat64 : inst.dtype;
      for (int lane = 0; lane < vector_; ++lane) {
        scans_[{n, lane}] = Slot(ops_.RegisterType(t, 1), ops_.Identity(Op::kSum, t, 1));
      }
    }
  }
  Values Scan(int n, const Inst& inst, const Site& site) override {
    const DType t = IsFloat(inst.dtype) ? DType::kFloat64 : inst.dtype;
    Values out;
    for (int lane = 0; lane < vector_; ++lane) {
      auto* carry = scans_.at({n, lane});
      Value* x = ops_.Cast(Lane(site, inst.operands[0], lane), ComputeType(inst.dtype), t);
      if (site.active) x = b_.CreateSelect(site.active, x, ops_.Identity(Op::kSum, t, 1));
      if (!k_.column) {
        Value* position = b_.CreateTrunc(b_.CreateAnd(thread_, I(31)), b_.getInt32Ty());
        for (int step = 1; step < 32; step *= 2) {
          Value* before = Shuffle(llvm::Intrinsic::nvvm_shfl_sync_up_i32, x, b_.getInt32(step), 0);
          Value* sum = ops_.Combine(Op::kSum, t, before, x);
          x = b_.CreateSelect(b_.CreateICmpSGE(position, b_.getInt32(step)), sum, x);
        }
      }
      x = ops_.Combine(Op::kSum, t, Get(carry), x);
      Set(carry, k_.column ? x : Shuffle(llvm::Intrinsic::nvvm_shfl_sync_idx_i32, x, b_.getInt32(31), 31));
      out.push_back(ops_.Cast(x, t, ComputeType(inst.dtype)));
    }
    return out;
  }

  std::map<std::pair<int, int>, llvm::AllocaInst*> scans_;
};

}  // namespace

void EmitGpuKernel(llvm::Module& m, const Kernel& k, const Isa& isa, const GpuSchedule& schedule,
                   const std::string& symbol) {
  GpuEmitter(m, k, isa, schedule).Run(symbol);
}

}  // namespace framejit::codegen
