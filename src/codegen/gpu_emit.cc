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
#include "codegen/gpu_reduce.h"

namespace framejit::codegen {
namespace {

class GpuEmitter : public GpuReducer {
 public:
  GpuEmitter(llvm::Module& m, const Kernel& k, const Isa& isa, const GpuSchedule& schedule)
      : GpuReducer(m, k, isa, schedule) {}

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
    if (s_.cluster > 1) Annotate("maxclusterrank", s_.cluster);  // gpu_jit.cc makes it the size
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
    // When all blocks have begun the next kernel may be sent to where some have ended. It waits until this one has
    // ended, which waits for what runs before.
    if (s_.dependent) Asm("griddepcontrol.launch_dependents;");
    StartCluster();
    switch (s_.mode) {
      case GpuSchedule::kPoint: Points(); break;
      case GpuSchedule::kRow: Rows(); break;
      case GpuSchedule::kColumn: Columns(); break;
      case GpuSchedule::kTile: Tiles(); break;
    }
    EndCluster();
    if (!depends_) throw std::logic_error("a GPU kernel that does not wait");
    b_.CreateRetVoid();
    llvm::DominatorTree tree(*f_);
    llvm::PromoteMemToReg(slots_, tree);
  }

 private:
  // Before memory is touched, by every thread: until what runs before has ended and its writes are seen. In the
  // meantime what the first blocks are about to read comes to the L2 cache, where writes are seen, too. (Tiles are
  // slower by it.)
  void Depend(const std::vector<std::vector<Site>>& steps) {
    if (std::exchange(depends_, true) || !s_.dependent) return;
    If(b_.CreateICmpULT(block_, I(s_.first_blocks)), [&] {
      for (int n : First()) {
        for (const std::vector<Site>& sites : steps) {
          for (const Site& site : sites) Prefetch(n, site);
        }
      }
    });
    Asm("griddepcontrol.wait;");
  }
  // Loads of neighbours that differ from block to block, each once.
  std::vector<int> First() const {
    std::vector<int> out;
    for (const Stage& stage : k_.stages) {
      for (int n : stage.insts) {
        const Inst& inst = k_.insts[n];
        if (!stage.loop || inst.kind != IKind::kLoad || inst.predicate >= 0 || k_.buffers[inst.buffer].written ||
            inst.index.inner != Int(1))
          continue;
        auto moves = [](const shape::Ints& coefs) {
          return std::any_of(coefs.begin(), coefs.end(), [](Int c) { return c != Int(0); });
        };
        if (!k_.outer.empty() && !moves(inst.index.outer) && !moves(inst.index.red)) continue;
        auto same = [&](int m) { return number_[m] == number_[n]; };
        if (std::none_of(out.begin(), out.end(), same)) out.push_back(n);
      }
    }
    return out;
  }
  // Nothing where nothing is read: all who have nothing would meet at one address.
  void Prefetch(int n, const Site& site) {
    Value* operands[] = {Address(k_.insts[n], site, 0),
                         b_.CreateZExt(site.active ? site.active : b_.getTrue(), b_.getInt32Ty())};
    auto* f = llvm::FunctionType::get(b_.getVoidTy(), {operands[0]->getType(), operands[1]->getType()}, false);
    b_.CreateCall(llvm::InlineAsm::get(f, "{ .reg .pred p; setp.ne.u32 p, $1, 0; @p prefetch.global.L2 [$0]; }", "l,r",
                                       /*hasSideEffects=*/true),
                  operands);
  }

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
    Depend({sites});
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
  // The first positions of this block's tile along the inner and the last outer axis. above: which of the tiles of all
  // other axes it is.
  std::pair<Value*, Value*> TileOfBlock(Value* inner, Value* last, Value** above) {
    auto tiles = [&](Value* n) { return b_.CreateUDiv(Add(n, I(s_.tile - 1)), I(s_.tile)); };
    auto groups = [&](Value* n) { return s_.group == 1 ? tiles(n) : b_.CreateUDiv(tiles(n), I(s_.group)); };
    Value* on_curve = b_.CreateURem(block_, I(int64_t{s_.group} * s_.group));
    Value*& rest = *above;
    rest = b_.CreateUDiv(block_, I(int64_t{s_.group} * s_.group));
    auto place = [&](Value* group, int axis) {  // on the Z-curve every other bit counts along an axis
      Value* tile = Mul(group, I(s_.group));
      for (int bit = 0; 1 << bit < s_.group; ++bit) {
        const int from = 2 * bit + axis;
        Value* part = b_.CreateAnd(b_.CreateLShr(on_curve, I(from - bit)), I(int64_t{1} << bit));
        tile = b_.CreateOr(tile, part);
      }
      return Mul(tile, I(s_.tile));
    };
    Value *first_i, *first_o;
    if (s_.mirrored) {
      // First the diagonal, then (c, c + q) and (c + q, c) for all c, q = 1, 2, ..: every group of the square once.
      Value* n = groups(inner);
      Value* at = b_.CreateURem(rest, Mul(n, n));
      rest = b_.CreateUDiv(rest, Mul(n, n));
      Value* diagonal = b_.CreateICmpULT(at, n);
      Value* off = b_.CreateSub(at, n);
      Value* q = Add(b_.CreateUDiv(off, Mul(n, I(2))), I(1));
      Value* pair = b_.CreateURem(off, Mul(n, I(2)));
      Value* c = b_.CreateLShr(pair, 1);
      Value* d = b_.CreateURem(Add(c, q), n);
      Value* turned = b_.CreateICmpNE(b_.CreateAnd(pair, I(1)), I(0));
      first_i = place(b_.CreateSelect(diagonal, at, b_.CreateSelect(turned, d, c)), 0);
      first_o = place(b_.CreateSelect(diagonal, at, b_.CreateSelect(turned, c, d)), 1);
    } else {
      first_i = place(b_.CreateURem(rest, groups(inner)), 0);
      rest = b_.CreateUDiv(rest, groups(inner));
      first_o = place(b_.CreateURem(rest, groups(last)), 1);
      rest = b_.CreateUDiv(rest, groups(last));
    }
    return {first_i, first_o};
  }
  void Tiles() {
    const int side = s_.tile, pitch = GpuSchedule::Pitch(side), across_vectors = side / vector_;
    row_.assign(k_.insts.size(), {});
    Value* inner = IntOf(k_.inner);
    Value* last = IntOf(k_.outer.back());
    Value* rest;
    const auto [first_i, first_o] = TileOfBlock(inner, last, &rest);
    const Values above = Unflatten(rest, {k_.outer.begin(), k_.outer.end() - 1});
    std::vector<Site> sites(s_.unroll), turned(s_.unroll);
    Values x, y;
    for (int u = 0; u < s_.unroll; ++u) {
      Value* at = Add(thread_, I(int64_t{u} * s_.threads));
      x.push_back(Mul(b_.CreateURem(at, I(across_vectors)), I(vector_)));
      y.push_back(b_.CreateUDiv(at, I(across_vectors)));
      auto place = [&](Site& site, Value* i, Value* o) {
        site.i = Add(first_i, i);
        site.outer = above;
        site.outer.push_back(Add(first_o, o));
        site.active = b_.CreateAnd(b_.CreateICmpSLT(site.i, inner), b_.CreateICmpSLT(site.outer.back(), last));
        site.values.resize(k_.insts.size());
      };
      place(sites[u], x[u], y[u]);
      place(turned[u], y[u], x[u]);
    }
    auto along = [&](int u, int lane) { return Add(Mul(y[u], I(pitch)), Add(x[u], I(lane))); };
    auto across = [&](int u, int lane) { return Add(Add(Mul(x[u], I(pitch)), y[u]), I(int64_t{lane} * pitch)); };
    auto memory = [&](DType t) { return Shared(ops_.StorageType(t, 1), side * pitch); };
    Depend({});
    for (int n = 0; n < k_.insts.size(); ++n) {  // all loads are in flight before the barrier
      const Inst& inst = k_.insts[n];
      if (inst.kind != IKind::kLoad || Staged(n) || inst.predicate >= 0 || k_.buffers[inst.buffer].written) continue;
      for (Site& site : sites) {
        if (site.values[number_[n]].empty()) site.values[number_[n]] = Evaluate(n, inst, site);
      }
    }
    std::map<int, llvm::GlobalVariable*> loaded;  // by value number
    for (int n = 0; n < k_.insts.size(); ++n) {
      const Inst& inst = k_.insts[n];
      if (inst.kind != IKind::kLoad || !Staged(n) || loaded.count(number_[n])) continue;
      const DType t = k_.buffers[inst.buffer].dtype;
      auto* g = loaded[number_[n]] = memory(t);
      std::vector<Values> lanes;
      for (int u = 0; u < s_.unroll; ++u)
        lanes.push_back(LoadLanes(inst, OrZeros(Address(inst, turned[u], 0), turned[u].active)));
      for (int u = 0; u < s_.unroll; ++u) {
        for (int lane = 0; lane < vector_; ++lane) PutShared(g, along(u, lane), lanes[u][lane]);
      }
    }
    if (!loaded.empty()) Barrier();
    for (auto& [n, g] : loaded) {
      const DType t = k_.buffers[k_.insts[n].buffer].dtype;
      for (int u = 0; u < s_.unroll; ++u) {
        for (int lane = 0; lane < vector_; ++lane)
          sites[u].values[n].push_back(ops_.FromStorage(GetShared(g, across(u, lane), ops_.StorageType(t, 1)), t));
      }
    }
    PointStages(sites);
    std::vector<std::pair<int, llvm::GlobalVariable*>> stores;
    for (int n = 0; n < k_.insts.size(); ++n) {
      const Inst& inst = k_.insts[n];
      if (inst.kind != IKind::kStore || !Staged(n)) continue;
      const DType t = k_.buffers[inst.buffer].dtype;
      stores.push_back({n, memory(t)});
      for (int u = 0; u < s_.unroll; ++u) {
        for (int lane = 0; lane < vector_; ++lane)
          PutShared(stores.back().second, along(u, lane), ops_.ToStorage(Lane(sites[u], inst.operands[0], lane), t));
      }
    }
    if (!stores.empty()) Barrier();
    for (auto& [n, g] : stores) {
      const Inst& inst = k_.insts[n];
      const DType t = k_.buffers[inst.buffer].dtype;
      for (int u = 0; u < s_.unroll; ++u) {
        Values lanes;
        for (int lane = 0; lane < vector_; ++lane)
          lanes.push_back(GetShared(g, across(u, lane), ops_.StorageType(t, 1)));
        If(turned[u].active, [&] { StoreLanes(t, Address(inst, turned[u], 0), lanes); });
      }
    }
  }

  // For(from, to, step) over sites; those up to `reach` after a step's first are all there where `sites_at` is told so.
  // What the stage reads in whole vectors is asked for one step ahead: it is on its way while this step computes.
  void Stream(const Stage& stage, Value* from, Value* to, int64_t step, int64_t reach,
              const std::function<std::vector<Site>(Value*, bool all)>& sites_at,
              const std::function<void(std::vector<Site>&)>& body) {
    struct Ahead {
      int inst;
      std::vector<llvm::AllocaInst*> words;  // of all sites
    };
    std::vector<Ahead> ahead;
    std::vector<bool> seen(k_.insts.size(), false);
    for (int n : stage.insts) {
      const Inst& inst = k_.insts[n];
      if (!s_.ahead || inst.kind != IKind::kLoad || inst.predicate >= 0 || !s_.wide_access[n] || vector_ == 1 ||
          k_.buffers[inst.buffer].written || seen[number_[n]] || !row_[number_[n]].empty())
        continue;
      seen[number_[n]] = true;
      ahead.push_back({n, {}});
    }
    auto load = [&](Value* at, bool first) {
      std::vector<Site> sites = sites_at(at, false);
      for (Ahead& a : ahead) {
        size_t next = 0;
        for (Site& site : sites) {
          const Inst& inst = k_.insts[a.inst];
          for (Value* word : LoadWords(inst, OrZeros(Address(inst, site, 0), site.active))) {
            if (first)
              a.words.push_back(Slot(word->getType(), word));
            else
              Set(a.words[next++], word);
          }
        }
      }
    };
    if (!ahead.empty()) load(from, true);
    auto one = [&](Value* at, bool all) {
      std::vector<Site> sites = sites_at(at, all);
      for (Site& site : sites) site.values.resize(k_.insts.size());
      for (const Ahead& a : ahead) {
        const DType t = k_.buffers[k_.insts[a.inst].buffer].dtype;
        const size_t count = a.words.size() / sites.size();
        for (size_t s = 0; s < sites.size(); ++s) {
          Values words;
          for (size_t w = 0; w < count; ++w) words.push_back(Get(a.words[s * count + w]));
          for (Value* v : LanesOf(t, words)) sites[s].values[number_[a.inst]].push_back(ops_.FromStorage(v, t));
        }
      }
      if (!ahead.empty()) load(Add(at, I(step)), false);
      body(sites);
    };
    const auto first = Const(from), last = Const(to);
    if (s_.held && !AllHere()) {  // the first loop over what is held begins when its first step is there
      for (int i = 0; i < HeldSteps(); ++i) {
        Await(i);
        one(I(i * step), (i + 1) * step <= *last);
      }
      return;
    }
    auto* at = Slot(index_, from);
    if (!first || !last || *last - *first > reach)
      ForOn(at, b_.CreateSub(to, I(reach)), I(step), [&](Value* at) { one(at, true); });
    if (first && last && (*last - *first) % step == 0 && reach == step - 1) return;
    ForOn(at, to, I(step), [&](Value* at) { one(at, false); });
  }

  // --- row kernels
  void Rows() {
    row_.assign(k_.insts.size(), {});
    const int rows_of_block = s_.threads / s_.row_threads;
    Value* rows = Product(k_.outer);
    Value* row = Add(Mul(block_, I(rows_of_block)), b_.CreateUDiv(thread_, I(s_.row_threads)));
    lane_in_row_ = b_.CreateURem(thread_, I(s_.row_threads));
    if (s_.cluster > 1) {  // one row
      row = b_.CreateUDiv(block_, I(s_.cluster));
      lane_in_row_ = Add(Mul(RankInCluster(), I(s_.row_threads)), thread_);
    }
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
    const int64_t step = RowThreads() * s_.unroll;
    std::vector<std::vector<Site>> first;
    for (int i = 0; i < (s_.held ? static_cast<int>((*Const(total) + step - 1) / step) : 1); ++i)
      first.push_back(RowSites(base, I(i * step), total, vectors, s_.unroll));
    Depend(first);
    if (s_.held) {
      Hold(static_cast<int>((*Const(total) + step - 1) / step), [&](int i) {
        return RowSites(base, I(i * step), total, vectors, s_.unroll, (i + 1) * step <= *Const(total));
      });
    }
    std::vector<Site> resident;
    if (s_.resident) resident = RowSites(base, I(0), total, vectors, s_.unroll);
    for (size_t n = 0; n < k_.stages.size(); ++n) {
      const Stage& stage = k_.stages[n];
      if (!stage.loop) {
        EmitRow(stage, base, leader);
        continue;
      }
      std::vector<State> states = MakeStates(stage);
      const bool between = n + 2 < k_.stages.size() && !k_.stages[n + 1].loop;
      const size_t second = n + (between ? 2 : 1);
      if (!s_.resident && second < k_.stages.size() && IsMaximumAndSum(stage, k_.stages[second]) &&
          !(between && Uses(k_.stages[second], k_.stages[n + 1]))) {
        MaximumAndSum(states, stage, k_.stages[second], base, total, vectors);
        if (between) EmitRow(k_.stages[n + 1], base, leader);
        n = second;
        continue;
      }
      if (s_.resident) {
        Emit(stage, resident);
        Accumulate(states, resident);
      } else {
        ToSlots(states);
        StartScans(stage);
        auto sites_at = [&](Value* chunk, bool all) { return RowSites(base, chunk, total, vectors, s_.unroll, all); };
        Stream(stage, I(0), total, step, step - 1, sites_at, [&](std::vector<Site>& sites) {
          Emit(stage, sites);
          Accumulate(states, sites);
        });
        FromSlots(states);
      }
      FinishStates(states);
    }
  }

  bool Uses(const Stage& stage, const Stage& earlier) const {
    for (int n : stage.insts) {
      for (int o : k_.insts[n].operands) {
        if (std::find(earlier.insts.begin(), earlier.insts.end(), o) != earlier.insts.end()) return true;
      }
    }
    return false;
  }

  // One stage looks for the maximum m of some x, the next sums exp(x - m) and nothing else: one pass over the row can
  // do both, with the maximum so far. What was summed for a smaller one is scaled when a larger one comes.
  bool IsMaximumAndSum(const Stage& first, const Stage& second) const {
    int maximum = -1;
    for (int n : first.insts) {
      const Inst& inst = k_.insts[n];
      if (inst.kind == IKind::kStore || inst.kind == IKind::kScan || inst.kind == IKind::kCheck) return false;
      if (inst.kind != IKind::kReduce) continue;
      if (inst.op != Op::kMax || maximum >= 0 || !IsFloat(inst.dtype)) return false;
      maximum = n;
    }
    if (maximum < 0 || !second.loop) return false;
    auto difference = [&](const Inst& inst) {
      return inst.kind == IKind::kOp && inst.op == Op::kSub && inst.operands[1] == maximum &&
             number_[inst.operands[0]] == number_[k_.insts[maximum].operands[0]];
    };
    auto exponential = [&](const Inst& inst) {
      return inst.kind == IKind::kOp && inst.op == Op::kExp && difference(k_.insts[inst.operands[0]]);
    };
    bool sums = false;
    for (int n : second.insts) {
      const Inst& inst = k_.insts[n];
      if (inst.kind == IKind::kStore || inst.kind == IKind::kScan || inst.kind == IKind::kCheck) return false;
      if (inst.kind == IKind::kReduce) {
        if (inst.op != Op::kSum || !exponential(k_.insts[inst.operands[0]])) return false;
        sums = true;
        continue;
      }
      for (int o : inst.operands) {
        if (o == maximum && !difference(inst)) return false;
        if (difference(k_.insts[o]) && !exponential(inst)) return false;
        if (exponential(k_.insts[o])) return false;
      }
    }
    return sums;
  }
  void MaximumAndSum(std::vector<State>& maxima, const Stage& first, const Stage& second, const Site& base,
                     Value* total, Value* vectors) {
    State& m = maxima[0];
    std::vector<State> sums = MakeStates(second);
    llvm::Type* type = m.value[0]->getType();
    Value* nothing = ops_.Identity(Op::kMax, m.type, 1);  // -inf: no element yet, or none that is larger
    auto shift = [&](Value* v) {
      return b_.CreateSelect(b_.CreateFCmpOEQ(v, nothing), llvm::Constant::getNullValue(type), v);
    };
    auto exp = [&](Value* v) {
      Value* operands[] = {v};
      return ops_.Emit(Op::kExp, m.type, m.type, operands);
    };
    ToSlots(maxima);
    ToSlots(sums);
    auto sites_at = [&](Value* chunk, bool all) { return RowSites(base, chunk, total, vectors, s_.unroll, all); };
    const int64_t step = RowThreads() * s_.unroll;
    Stream(first, I(0), total, step, step - 1, sites_at, [&](std::vector<Site>& sites) {
      Emit(first, sites);
      Value* before = Get(m.slot[0]);
      Accumulate(maxima, sites);
      Value* now = shift(Get(m.slot[0]));
      Value* scale = exp(b_.CreateFSub(before, now));
      for (State& s : sums) {
        for (auto* slots : {&s.slot, &s.lost}) {
          for (llvm::AllocaInst* slot : *slots) Set(slot, b_.CreateFMul(Get(slot), scale));
        }
      }
      row_[m.inst] = {now};
      Emit(second, sites);
      Accumulate(sums, sites);
      row_[m.inst].clear();
    });
    FromSlots(maxima);
    FromSlots(sums);
    // Told together: each maximum, and the sums for that one.
    auto scaled = [&](Value* sum, Value* from, Value* to) {  // from may be that of no element: nothing is left
      return b_.CreateFMul(sum, exp(b_.CreateFSub(from, shift(to))));
    };
    Value* mine = m.value[0];
    m.value[0] = OverWarp(m).first;
    for (State& s : sums) {
      s.value[0] = scaled(s.value[0], mine, m.value[0]);
      s.value[0] = OverWarp(s).first;
    }
    if (RowWarps() > 1) {
      std::vector<State> all = {m};
      all.insert(all.end(), sums.begin(), sums.end());
      const std::vector<Board> boards = Exchange(all);
      const std::vector<Pair> of_warps = OfWarps(m, boards[0]);
      m.value[0] = OverWarps(m, of_warps).first;
      for (size_t i = 0; i < sums.size(); ++i) {
        std::vector<Pair> parts = OfWarps(sums[i], boards[i + 1]);
        for (size_t w = 0; w < parts.size(); ++w)
          parts[w].first = scaled(parts[w].first, of_warps[w].first, m.value[0]);
        sums[i].value[0] = OverWarps(sums[i], parts).first;
      }
    }
    row_[m.inst] = m.value;
    for (State& s : sums)  // exp(-inf + inf)
      row_[s.inst] = {
          b_.CreateSelect(b_.CreateFCmpOEQ(m.value[0], nothing), llvm::ConstantFP::getNaN(type), s.value[0])};
  }

  // This thread's vectors [chunk, chunk + count * row_threads) of the row.
  std::vector<Site> RowSites(const Site& base, Value* chunk, Value* total, Value* vectors, int count,
                             bool all = false) {
    std::vector<Site> sites(count, base);
    for (int u = 0; u < count; ++u) {
      Site& site = sites[u];
      site.chunk = chunk;
      site.number = u;
      Value* e = Add(chunk, Add(lane_in_row_, I(u * RowThreads())));
      const auto known = Const(total);
      const bool inside = all || (s_.resident && known && *known >= (u + 1) * RowThreads());
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
    auto sites_at = [&](Value* e, bool all) {
      std::vector<Site> sites(s_.unroll, base);
      for (int u = 0; u < s_.unroll; ++u) {
        Value* at = Add(e, I(int64_t{u} * s_.slices));
        if (!all) sites[u].active = And(base.active, b_.CreateICmpSLT(at, total));
        sites[u].red = Unflatten(at, k_.red);
      }
      return sites;
    };
    Depend({sites_at(slice, false)});
    for (const Stage& stage : k_.stages) {
      if (!stage.loop) {
        EmitRow(stage, base, leader);
        continue;
      }
      std::vector<State> states = MakeStates(stage);
      ToSlots(states);
      StartScans(stage);
      const int64_t step = int64_t{s_.slices} * s_.unroll;
      Stream(stage, slice, total, step, step - s_.slices, sites_at, [&](std::vector<Site>& sites) {
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
      out.push_back(ops_.Cast(x, t, inst.dtype));
    }
    return out;
  }

  std::map<std::pair<int, int>, llvm::AllocaInst*> scans_;
  bool depends_ = false;
};

}  // namespace

void EmitGpuKernel(llvm::Module& m, const Kernel& k, const Isa& isa, const GpuSchedule& schedule,
                   const std::string& symbol) {
  GpuEmitter(m, k, isa, schedule).Run(symbol);
}

}  // namespace framejit::codegen
