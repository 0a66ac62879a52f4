// From the iteration space to the kernel, in four steps.
//   1. uses:     every access as an affine function of the variables, with the layouts' strides.
//   2. merge:    variables a, b of the same class (kept, reduced) become one where all accesses step a by extent(b) *
//   b.
//   3. axes:     the inner (vector) axis is the variable that makes accesses contiguous. If it is a reduced one, a row
//                kernel; if it is a kept one and there are reductions, a column kernel.
//   4. emit:     one loop stage per level of reductions; values are evaluated on demand, once per stage. What does not
//                depend on the variables of the loop goes to a row stage. What is expensive and needed in a later stage
//                again is kept in a row of scratch.
#include <algorithm>
#include <set>
#include <stdexcept>

#include "graph/same.h"
#include "loop/finish.h"
#include "loop/order.h"
#include "loop/space.h"

namespace framejit::loop {
namespace {

constexpr int64_t kBlock = 4096;  // elements of a parallel piece of a long row
constexpr int64_t kTile = 16;     // the same where accesses run across rows: lines must stay in the first cache
// Computing again costs more than a store and a load. From 6 to 12 nine programs of rows take the same time but a layer
// norm of a quotient, which is 1.25 times as slow at 12; at 24 softmax is 1.3 and that of tanh 1.7 times as slow.
constexpr int kKeepCost = 6;

bool IsZero(Int v) {
  return v == Int(0);
}
bool IsOne(Int v) {
  return v == Int(1);
}

struct Affine {
  Int offset;
  Ints coef;                                 // by variable
  std::vector<std::pair<int, Int>> dynamic;  // dynamic number, stride
};

class KernelBuilder {
 public:
  KernelBuilder(const Graph& g, const std::vector<ValueId>& group, const std::vector<ValueId>& stored,
                const std::vector<Layout>& layouts, const Costs& costs)
      : g_(g), stored_(stored), layouts_(layouts), space_(g, group, stored, &layouts), costs_(costs) {
    if (!space_.Analyze()) throw std::logic_error("BuildKernel: " + space_.why());
    for (ValueId v : group) {
      if (!space_.reduced_vars()) continue;
      sequential_ = sequential_ || IsSequential(g.nodes[v].op);
      scans_ = scans_ || g.nodes[v].op == Op::kCumSum;
      pairs_ = pairs_ || IsNumpysSum(g.nodes[v]);
      if (IsReduction(g.nodes[v].op)) reductions_.push_back(v);
    }
  }

  bool SumsInOrder() {
    CollectUses();
    MergeVariables();
    return FindOrder();
  }
  BuiltKernel Build() {
    SumsInOrder();
    ChooseAxes();
    EmitStages();
    Finish(g_, inputs_, stored_, &built_);
    return std::move(built_);
  }

 private:
  // --- uses
  void AddLin(Affine& a, const Lin& lin, Int stride) const {
    if (IsZero(stride)) return;
    a.offset = a.offset + lin.offset * stride;
    for (const Term& t : lin.terms) {
      if (t.id >= 0)
        a.coef[t.id] = a.coef[t.id] + t.coef * stride;
      else
        a.dynamic.push_back({~t.id, t.coef * stride});
    }
  }
  Affine Empty() const { return {0, Ints(space_.extents().size(), Int(0)), {}}; }
  Affine OfLin(const Lin& lin) const {
    Affine a = Empty();
    AddLin(a, lin, 1);
    return a;
  }
  Affine OfAccess(ValueId v, int index) const {
    const Layout& layout = layouts_[v];
    const Lins& at = space_.index(index);
    if (layout.strides.size() != at.size()) throw std::logic_error("BuildKernel: no layout of an operand");
    Affine a = Empty();
    a.offset = layout.offset;
    for (size_t d = 0; d < at.size(); ++d) AddLin(a, at[d], layout.strides[d]);
    return a;
  }

  struct Use {
    Affine at;
    bool memory;  // else it is a number that the kernel computes
    bool store;
  };

  void CollectDynamic(const Affine& a) {
    for (const auto& [d, stride] : a.dynamic) {
      const Dynamic& dyn = space_.dynamic(d);
      if (dyn.kind == Dynamic::Kind::kValue || !dynamics_seen_.insert(d).second) continue;
      Affine inner = OfLin(dyn.lin);
      CollectDynamic(inner);
      uses_.push_back({std::move(inner), false, false});
    }
  }
  void AddUse(Affine a, bool memory, bool store) {
    CollectDynamic(a);
    uses_.push_back({std::move(a), memory, store});
  }

  void CollectUses() {
    for (const Needed& n : space_.needed()) {
      const Node& node = g_.nodes[n.value];
      if (!space_.member(n.value)) {
        AddUse(OfAccess(n.value, n.index), true, false);
      } else if (node.op == Op::kIota) {
        AddUse(OfLin(space_.index(n.index)[node.attrs.axes[0]]), false, false);
      } else if (node.op == Op::kArgMax || node.op == Op::kArgMin) {
        AddUse(OfLin(Position(n.value)), false, false);
      }
      for (int p = n.pred; p; p = space_.predicate(p).parent) {
        AddUse(OfLin(space_.predicate(p).lin), false, false);
      }
    }
    for (ValueId v : stored_) AddUse(OfAccess(v, space_.canonical(v)), true, true);
    for (ValueId v : reductions_) {
      if (!IsNumpys(g_.nodes[v])) continue;
      orders_.push_back(uses_.size());
      AddUse(RowByRow(v), false, false);
    }
  }

  // Where an element of what a reduction reduces would lie, if that had memory.
  Affine RowByRow(ValueId reduction) {
    const Ints& sizes = g_.nodes[g_.nodes[reduction].operands[0]].type.shape;
    const Lins& at = space_.index(space_.OperandAt(reduction, 0, space_.canonical(reduction), 0).index);
    Affine a = Empty();
    Int stride = 1;
    for (size_t d = at.size(); d-- > 0; stride = stride * sizes[d]) AddLin(a, at[d], stride);
    return a;
  }

  // The order of NumPy's sums, if one kernel can keep it. A scan has it by itself, but takes one element at a time.
  bool FindOrder() {
    if (orders_.empty() || (pairs_ && scans_)) return orders_.empty();
    const Ints& first = RowByRow(reductions_[0]).coef;
    if (std::any_of(orders_.begin(), orders_.end(), [&](size_t n) { return uses_[n].at.coef != first; })) return false;
    order_ = OrderOf(first, extents_, alive_, space_.reduced_vars(), g_.symbols.size(), pairs_);
    return order_.has_value();
  }

  // Gives the row-major position along the reduced axes of an arg reduction.
  Lin Position(ValueId r) const {
    const Node& n = g_.nodes[r];
    const Lins& at = space_.index(space_.canonical(n.operands[0]));
    std::vector<int64_t> axes = n.attrs.axes;
    std::sort(axes.begin(), axes.end());
    Lin out;
    Int stride = 1;
    for (size_t i = axes.size(); i-- > 0;) {
      Space::AddTo(out, at[axes[i]], stride);
      stride = stride * g_.nodes[n.operands[0]].type.shape[axes[i]];
    }
    return out;
  }

  // --- merge
  void MergeVariables() {
    extents_ = space_.extents();
    const size_t n = extents_.size();
    alive_.assign(n, true);
    bits_.resize(n);
    for (size_t v = 0; v < n; ++v) bits_[v] = uint64_t{1} << v;
    auto reduced = [&](size_t v) { return (space_.reduced_vars() >> v & 1) != 0; };
    for (bool again = true; again;) {
      again = false;
      for (size_t a = 0; a < n && !again; ++a) {
        for (size_t b = 0; b < n && !again; ++b) {
          if (a == b || !alive_[a] || !alive_[b] || reduced(a) != reduced(b)) continue;
          bool fits = true;
          for (const Use& u : uses_) fits = fits && u.at.coef[a] == u.at.coef[b] * extents_[b];
          if (!fits) continue;
          extents_[b] = extents_[b] * extents_[a];
          bits_[b] |= bits_[a];
          alive_[a] = false;
          again = true;
        }
      }
    }
  }

  // --- axes
  void ChooseAxes() {
    Kernel& k = built_.kernel;
    const uint64_t reduced = space_.reduced_vars();
    double best = 0;
    int inner = -1;
    for (int v = static_cast<int>(extents_.size()) - 1; v >= 0; --v) {
      if (!alive_[v] || (order_ && !order_->MayBeInner(v))) continue;
      double cost = 0;
      for (const Use& u : uses_) {
        if (!u.memory) continue;
        bool gathers = false;
        for (const auto& [d, stride] : u.at.dynamic) gathers = gathers || (DynamicVars(d) & bits_[v]);
        const Int c = u.at.coef[v];
        if (gathers)
          cost += 1;
        else if (IsZero(c))
          cost += 0.02;
        else if (IsOne(c))
          cost += 0.125;
        else
          cost += u.store ? 1.5 : 1;
      }
      if (order_ && !pairs_ && v == order_->fastest) cost += 4;  // each product waits for the one before
      if (extents_[v].is_const()) {
        const int64_t elements = std::max<int64_t>(1, extents_[v].value());
        const int64_t vectors = (elements + costs_.lanes - 1) / costs_.lanes;
        const auto lanes = static_cast<double>(vectors * costs_.lanes);
        // Lanes that are idle count, and so does beginning a row.
        cost = (cost * lanes + 8) / static_cast<double>(elements);
      }
      if (inner < 0 || cost < best) best = cost, inner = v;
    }
    inner_ = inner;
    const bool inner_reduced = inner >= 0 && (reduced >> inner & 1);
    k.column = sequential_ && inner >= 0 && !inner_reduced;
    for (int v = 0; v < extents_.size(); ++v) {
      if (!alive_[v] || v == inner) continue;
      (reduced >> v & 1 ? red_ : outer_).push_back(v);
    }
    if (order_) std::ranges::stable_sort(red_, std::greater(), [this](int v) { return order_->steps[v]; });
    loop_vars_ = 0;
    if (!sequential_) {
      if (inner >= 0) loop_vars_ = bits_[inner];
    } else {
      loop_vars_ = reduced;
    }
    Tile();
    if (inner >= 0) k.inner = extents_[inner];
    for (int v : outer_) k.outer.push_back(extents_[v]);
    for (int v : red_) k.red.push_back(extents_[v]);
    if (k.tiled)
      k.block = kTile;
    else if (!sequential_ && !(k.inner.is_const() && k.inner.value() <= kBlock))
      k.block = kBlock;
  }

  // A transposing copy: what is strided along the inner axis is contiguous along another one, which becomes the fastest
  // of the outer ones.
  void Tile() {
    if (sequential_ || inner_ < 0) return;
    if (extents_[inner_].is_const() && extents_[inner_].value() <= kTile) return;
    for (const Use& u : uses_) {
      const Int c = u.at.coef[inner_];
      if (!u.memory || IsZero(c) || IsOne(c)) continue;
      for (size_t i = 0; i < outer_.size(); ++i) {
        const int v = outer_[i];
        if (!IsOne(u.at.coef[v]) || (extents_[v].is_const() && extents_[v].value() < 4)) continue;
        outer_.erase(outer_.begin() + i);
        outer_.push_back(v);
        built_.kernel.tiled = true;
        return;
      }
    }
  }

  uint64_t DynamicVars(int d) const {
    Lin lin;
    lin.terms.push_back({~d, Int(1)});
    return space_.Vars(lin);
  }

  Index MakeIndex(const Affine& a) const {
    Index out;
    out.offset = a.offset;
    for (int v : outer_) out.outer.push_back(a.coef[v]);
    for (int v : red_) out.red.push_back(a.coef[v]);
    out.inner = inner_ >= 0 ? a.coef[inner_] : Int(0);
    return out;
  }

  // --- emit
  struct Key {
    ValueId value;
    int index, pred;
    auto operator<=>(const Key&) const = default;
  };
  struct Made {
    int inst;
    int stage;
  };  // Stage -1 is that of the row.

  int Add(Inst inst, uint64_t vars, int level) {
    if (inst.index.outer.empty()) inst.index = MakeIndexOrEmpty(inst);
    const int number = static_cast<int>(insts().size());
    insts().push_back(std::move(inst));
    (vars & loop_vars_ ? loop_[stage_] : row_[level]).push_back(number);
    return number;
  }
  Index MakeIndexOrEmpty(const Inst& inst) const {
    if (inst.index.outer.size() == outer_.size() && inst.index.red.size() == red_.size()) return inst.index;
    return {0, Ints(outer_.size(), Int(0)), Ints(red_.size(), Int(0)), 0};
  }
  std::vector<Inst>& insts() { return built_.kernel.insts; }

  int AddOp(Op op, DType dtype, std::vector<int> operands, uint64_t vars, int level) {
    Inst inst{.kind = IKind::kOp, .op = op, .dtype = dtype};
    inst.operands = std::move(operands);
    return Add(std::move(inst), vars, level);
  }
  int AddConst(Scalar value, DType dtype) {
    for (const auto& [number, c] : constants_) {
      if (insts()[number].dtype == dtype && SameBits(c, value)) return number;
    }
    Inst inst{.kind = IKind::kConst, .dtype = dtype, .scalar = value};
    const int number = Add(std::move(inst), 0, 0);
    constants_.push_back({number, value});
    return number;
  }
  int AddSize(Int value, DType dtype) {
    if (value.is_const()) return AddConst(Scalar(value.value()), dtype);
    for (const auto& [number, v] : sizes_) {
      if (v == value && insts()[number].dtype == dtype) return number;
    }
    Inst inst{.kind = IKind::kSym, .dtype = dtype, .sym = value};
    const int number = Add(std::move(inst), 0, 0);
    sizes_.push_back({number, value});
    return number;
  }

  // Gives the number that a Lin evaluates to, as dtype.
  int EvalLin(const Lin& lin, DType dtype) {
    const uint64_t vars = space_.Vars(lin);
    const int level = space_.Level(lin);
    for (const auto& m : lins_) {
      if (m.lin == lin && m.dtype == dtype && (m.stage < 0 || m.stage == stage_)) return m.inst;
    }
    Affine a = OfLin(lin);
    int out;
    if (a.dynamic.empty()) {
      Inst inst{.kind = IKind::kIota, .dtype = dtype};
      inst.index = MakeIndex(a);
      out = Add(std::move(inst), vars, level);
    } else {
      Lin affine = lin;
      std::erase_if(affine.terms, [](const Term& t) { return t.id < 0; });
      out = affine.terms.empty() && IsZero(affine.offset) ? -1 : EvalLin(affine, DType::kInt64);
      for (const auto& [d, stride] : a.dynamic) {
        int term = EvalDynamic(d);
        if (!IsOne(stride)) term = AddOp(Op::kMul, DType::kInt64, {term, AddSize(stride, DType::kInt64)}, vars, level);
        out = out < 0 ? term : AddOp(Op::kAdd, DType::kInt64, {out, term}, vars, level);
      }
      if (dtype != DType::kInt64) out = AddOp(Op::kCast, dtype, {out}, vars, level);
    }
    lins_.push_back({lin, dtype, out, vars & loop_vars_ ? stage_ : -1});
    return out;
  }

  int EvalDynamic(int d) {
    const Dynamic dyn = space_.dynamic(d);
    const uint64_t vars = DynamicVars(d);
    if (dyn.kind != Dynamic::Kind::kValue) {
      const int level = space_.Level(dyn.lin);
      const int lin = EvalLin(dyn.lin, DType::kInt64);
      const Op op = dyn.kind == Dynamic::Kind::kDiv ? Op::kFloorDiv : Op::kRem;
      return AddOp(op, DType::kInt64, {lin, AddSize(dyn.size, DType::kInt64)}, vars, level);
    }
    for (const auto& m : clamped_) {
      if (m.dynamic == d && (m.stage < 0 || m.stage == stage_)) return m.inst;
    }
    // An index out of range is noted, and clamped all the same, so that nothing can be read outside of the buffer.
    const int level = space_.Find(dyn.value, dyn.index, dyn.pred).level;
    int at = Eval(dyn.value, dyn.index, dyn.pred);
    if (g_.nodes[dyn.value].type.dtype != DType::kInt64) at = AddOp(Op::kCast, DType::kInt64, {at}, vars, level);
    if (dyn.check) {
      const int low = AddOp(Op::kLt, DType::kBool, {at, AddConst(0, DType::kInt64)}, vars, level);
      const int high = AddOp(Op::kLe, DType::kBool, {AddSize(dyn.size, DType::kInt64), at}, vars, level);
      int bad = AddOp(Op::kOr, DType::kBool, {low, high}, vars, level);
      uint64_t all = vars;
      int deepest = level;
      if (dyn.pred) {  // outside of its part what an index is computed from is another one's
        all |= space_.PredVars(dyn.pred);
        deepest = std::max(level, PredLevel(dyn.pred));
        bad = AddOp(Op::kAnd, DType::kBool, {EvalPredicate(dyn.pred), bad}, all, deepest);
      }
      Inst check{.kind = IKind::kCheck, .dtype = DType::kBool, .scalar = int64_t{dyn.check}};
      check.operands = {bad};
      Add(std::move(check), all, deepest);
    }
    at = AddOp(Op::kMinimum, DType::kInt64, {at, AddSize(dyn.size - Int(1), DType::kInt64)}, vars, level);
    at = AddOp(Op::kMaximum, DType::kInt64, {at, AddConst(0, DType::kInt64)}, vars, level);
    clamped_.push_back({d, at, vars & loop_vars_ ? stage_ : -1});
    return at;
  }

  int EvalPredicate(int pred) {
    if (!pred) return -1;
    for (const auto& m : predicates_) {
      if (m.dynamic == pred && (m.stage < 0 || m.stage == stage_)) return m.inst;
    }
    const Predicate p = space_.predicate(pred);
    const uint64_t vars = space_.Vars(p.lin);
    const int level = space_.Level(p.lin);
    Affine a = OfLin(p.lin);
    int out;
    if (a.dynamic.empty()) {
      Inst inst{.kind = IKind::kInBounds, .dtype = DType::kBool, .sym = p.bound};
      inst.index = MakeIndex(a);
      out = Add(std::move(inst), vars, level);
    } else {
      const int at = EvalLin(p.lin, DType::kInt64);
      const int low = AddOp(Op::kLe, DType::kBool, {AddConst(0, DType::kInt64), at}, vars, level);
      const int high = AddOp(Op::kLt, DType::kBool, {at, AddSize(p.bound, DType::kInt64)}, vars, level);
      out = AddOp(Op::kAnd, DType::kBool, {low, high}, vars, level);
    }
    uint64_t all = vars;
    if (p.parent) {
      const int parent = EvalPredicate(p.parent);
      all |= space_.PredVars(p.parent);
      out = AddOp(Op::kAnd, DType::kBool, {parent, out}, all, std::max(level, PredLevel(p.parent)));
    }
    predicates_.push_back({pred, out, all & loop_vars_ ? stage_ : -1});
    return out;
  }
  int PredLevel(int pred) const {
    int level = 0;
    for (; pred; pred = space_.predicate(pred).parent)
      level = std::max(level, space_.Level(space_.predicate(pred).lin));
    return level;
  }

  int InputBuffer(ValueId v) {
    auto it = std::find(inputs_.begin(), inputs_.end(), v);
    if (it != inputs_.end()) return static_cast<int>(it - inputs_.begin());
    inputs_.push_back(v);
    return static_cast<int>(inputs_.size()) - 1;
  }
  int OutputBuffer(ValueId v) {
    return kOutput + static_cast<int>(std::find(stored_.begin(), stored_.end(), v) - stored_.begin());
  }

  int Load(ValueId v, int index, int pred, const Needed& need) {
    // Where there are no elements, there may be no memory either. With a constant size all of it would be read in front
    // of the loop, which then has no rounds. Such a value is taken to be 1, because no operation raises of a 1.
    const Ints& sizes = g_.nodes[v].type.shape;
    if (std::find(sizes.begin(), sizes.end(), Int(0)) != sizes.end()) return AddConst(1, g_.nodes[v].type.dtype);
    Affine a = OfAccess(v, index);
    Inst inst{.kind = IKind::kLoad, .dtype = g_.nodes[v].type.dtype};
    std::erase_if(a.dynamic, [](const auto& d) { return IsZero(d.second); });
    for (const auto& [d, stride] : a.dynamic) {
      inst.operands.push_back(EvalDynamic(d));
      inst.strides.push_back(stride);
      inst.kind = IKind::kLoadAt;
    }
    inst.index = MakeIndex(a);
    inst.predicate = EvalPredicate(pred);
    inst.buffer = InputBuffer(v);
    return Add(std::move(inst), need.vars, need.level);
  }

  int Eval(ValueId v, int index, int pred) {
    const Needed need = space_.Find(v, index, pred);
    const Key key{v, index, pred};
    const bool row = !(need.vars & loop_vars_);
    if (auto it = made_.find(key); it != made_.end()) {
      if (row || it->second.stage == stage_) return it->second.inst;
      if (int again = Reload(key, need, it->second); again >= 0) {
        it->second = {again, stage_};
        return again;
      }
    }
    const int inst = Compute(v, index, pred, need);
    made_[key] = {inst, row ? -1 : stage_};
    return inst;
  }

  // A value of an earlier stage: from an output that holds it, or from scratch if that is cheaper than computing it
  // again.
  int Reload(const Key& key, const Needed& need, const Made& made) {
    if (!costs_.keeps_rows || !space_.member(key.value) || key.pred || built_.kernel.column || !red_.empty() ||
        inner_ < 0)
      return -1;
    if (need.cost < kKeepCost) return -1;
    const DType dtype = ComputeType(g_.nodes[key.value].type.dtype);
    Inst load{.kind = IKind::kLoad, .dtype = dtype};
    load.index = MakeIndexOrEmpty({});
    load.index.inner = 1;
    auto stored = std::find(stored_.begin(), stored_.end(), key.value);
    if (stored != stored_.end() && key.index == space_.canonical(key.value) &&
        dtype == g_.nodes[key.value].type.dtype) {
      load.buffer = OutputBuffer(key.value);
      load.index = MakeIndex(OfAccess(key.value, key.index));
    } else if (auto it = kept_.find(key); it != kept_.end()) {
      load.buffer = it->second;
    } else {
      load.buffer = kept_[key] = kScratch + static_cast<int>(built_.kernel.scratch.size());
      built_.kernel.scratch.push_back(dtype);
      Inst store{.kind = IKind::kStore, .dtype = dtype, .buffer = load.buffer};
      store.operands = {made.inst};
      store.index = load.index;
      loop_[made.stage].push_back(static_cast<int>(insts().size()));
      insts().push_back(std::move(store));
    }
    return Add(std::move(load), need.vars, need.level);
  }

  int Compute(ValueId v, int index, int pred, const Needed& need) {
    const Node& n = g_.nodes[v];
    if (!space_.member(v)) return Load(v, index, pred, need);
    auto operand = [&](int k) {
      const Space::At at = space_.OperandAt(v, k, index, pred);
      return Eval(n.operands[k], at.index, at.pred);
    };
    switch (Info(n.op).kind) {
      case 'P': {
        std::vector<int> operands;
        for (int k = 0; k < n.operands.size(); ++k) operands.push_back(operand(k));
        int made = AddOp(n.op, n.type.dtype, std::move(operands), need.vars, need.level);
        // What the program gets of this value, rounded to its type, is what is computed with here, too.
        if (ComputeType(n.type.dtype) != n.type.dtype && n.op != Op::kCast && Stored(v))
          made = AddOp(Op::kCast, n.type.dtype, {made}, need.vars, need.level);
        return made;
      }
      case 'C':
        if (n.op == Op::kIota) {
          const int at = EvalLin(space_.index(index)[n.attrs.axes[0]], n.type.dtype);
          if (!pred) return at;
          // Where it is not asked for it is taken to be 1, as what is not loaded is: no operation raises of a 1.
          return AddOp(Op::kWhere, n.type.dtype, {EvalPredicate(pred), at, AddConst(1, n.type.dtype)}, need.vars,
                       need.level);
        }
        if (n.attrs.sym_scalar) return AddSize(*n.attrs.sym_scalar, n.type.dtype);
        return AddConst(n.attrs.scalar, n.type.dtype);
      case 'R': {
        if (space_.reduced_vars()) throw std::logic_error("BuildKernel: reduction out of order");
        if (n.op == Op::kArgMax || n.op == Op::kArgMin) return AddConst(0, n.type.dtype);  // Such axes have size 1.
        int value = operand(0);
        if (n.type.dtype != g_.nodes[n.operands[0]].type.dtype)
          value = AddOp(Op::kCast, n.type.dtype, {value}, need.vars, need.level);
        if (n.op != Op::kSum || !IsFloat(n.type.dtype) || n.attrs.axes.empty()) return value;
        const int zero = AddConst(0.0, n.type.dtype);  // Sums begin with it, which makes 0.0 of -0.0.
        return AddOp(Op::kAdd, n.type.dtype, {value, zero}, need.vars, need.level);
      }
      default: break;
    }
    if (n.op == Op::kPad) {
      const Space::At at = space_.OperandAt(v, 0, index, pred);
      const int value = Eval(n.operands[0], at.index, at.pred);
      if (at.pred == pred) return value;
      const int fill = AddConst(n.attrs.scalar, n.type.dtype);
      return AddOp(Op::kWhere, n.type.dtype, {EvalPredicate(at.pred), value, fill}, need.vars, need.level);
    }
    if (n.op == Op::kCat) {
      int out = -1;
      for (int k = static_cast<int>(n.operands.size()) - 1; k >= 0; --k) {
        const Space::At at = space_.OperandAt(v, k, index, pred);
        const int value = Eval(n.operands[k], at.index, at.pred);
        out = out < 0 ? value
                      : AddOp(Op::kWhere, n.type.dtype, {EvalPredicate(at.pred), value, out}, need.vars, need.level);
      }
      return out;
    }
    if (n.op == Op::kCumSum) {
      int value = operand(0);
      if (n.type.dtype != g_.nodes[n.operands[0]].type.dtype) {
        value = AddOp(Op::kCast, n.type.dtype, {value}, need.vars, need.level);
      }
      if (!space_.reduced_vars()) return value;  // The axis has size 1.
      Inst inst{.kind = IKind::kScan, .op = Op::kSum, .dtype = n.type.dtype};
      inst.numpys = IsNumpys(n);
      inst.operands = {value};
      return Add(std::move(inst), need.vars, need.level);
    }
    // The index is checked even if only one element can be meant.
    if ((n.op == Op::kTake || n.op == Op::kGather) && n.attrs.flag) {
      const Space::At at = space_.OperandAt(v, 0, index, pred);
      const Lin lin = space_.index(at.index)[n.attrs.axes[0]];  // a copy: the table may move
      for (const Term& t : lin.terms) {
        if (t.id < 0) EvalDynamic(~t.id);
      }
    }
    return operand(0);  // Views, takes and gathers are their operand at another index.
  }

  void EmitReduction(ValueId v) {
    const Node& n = g_.nodes[v];
    const int c = space_.OperandAt(v, 0, space_.canonical(v), 0).index;
    const Needed& need = space_.Find(n.operands[0], c, 0);
    const DType from = g_.nodes[n.operands[0]].type.dtype;
    int value = Eval(n.operands[0], c, 0);
    DType dtype = n.type.dtype;
    const bool arg = n.op == Op::kArgMax || n.op == Op::kArgMin;
    if (!arg && dtype != from) value = AddOp(Op::kCast, dtype, {value}, need.vars, need.level);
    if (arg && ComputeType(from) != from) value = AddOp(Op::kCast, from, {value}, need.vars, need.level);  // equal ones
    const bool adds = n.op == Op::kSum || n.op == Op::kProd;  // rounded once
    Inst inst{.kind = IKind::kReduce, .op = n.op, .dtype = adds ? ComputeType(dtype) : dtype};
    inst.operands = {value};
    inst.numpys = IsNumpys(n);
    if (arg) inst.operands.push_back(EvalLin(Position(v), DType::kInt64));
    int number = Add(std::move(inst), space_.reduced_vars(), 0);
    if (adds && ComputeType(dtype) != dtype) number = AddOp(Op::kCast, dtype, {number}, 0, stage_ + 1);
    made_[{v, space_.canonical(v), 0}] = {number, -1};
  }

  void EmitStages() {
    int levels = 0;
    for (const Needed& n : space_.needed()) levels = std::max(levels, n.level);
    row_.resize(levels + 1);
    loop_.resize(levels + 1);
    for (stage_ = 0; stage_ <= levels; ++stage_) {
      for (ValueId v : reductions_) {
        const int c = space_.canonical(v);
        if (Reached(v, c) && space_.Find(v, c, 0).level == stage_ + 1) EmitReduction(v);
      }
      for (ValueId v : stored_) {
        const int c = space_.canonical(v);
        const Needed need = space_.Find(v, c, 0);
        if (need.level != stage_) continue;
        Inst store{.kind = IKind::kStore, .dtype = g_.nodes[v].type.dtype, .buffer = OutputBuffer(v)};
        store.operands = {Eval(v, c, 0)};
        Affine at = OfAccess(v, c);
        uint64_t vars = 0;
        for (const Lin& lin : space_.index(c)) vars |= space_.Vars(lin);
        store.index = MakeIndex(at);
        Add(std::move(store), vars, need.level);
      }
    }
    for (int s = 0; s <= levels; ++s) {
      if (!row_[s].empty()) built_.kernel.stages.push_back({false, row_[s]});
      if (!loop_[s].empty()) built_.kernel.stages.push_back({true, loop_[s]});
    }
  }
  bool Stored(ValueId v) const { return std::find(stored_.begin(), stored_.end(), v) != stored_.end(); }
  bool Reached(ValueId v, int index) const {
    for (const Needed& n : space_.needed()) {
      if (n.value == v && n.index == index && n.pred == 0) return true;
    }
    return false;
  }

  const Graph& g_;
  const std::vector<ValueId>& stored_;
  const std::vector<Layout>& layouts_;
  Space space_;
  const Costs& costs_;
  std::vector<ValueId> reductions_;
  bool sequential_ = false;             // Are there reductions or scans?
  bool scans_ = false, pairs_ = false;  // Are there scans, sums of NumPy's?
  std::vector<Use> uses_;
  std::vector<size_t> orders_;  // those that say where what NumPy sums would lie ...
  std::optional<Order> order_;  // ... and what that asks of the axes
  std::set<int> dynamics_seen_;
  Ints extents_;  // by variable, after merging
  std::vector<bool> alive_;
  std::vector<uint64_t> bits_;  // variables merged into this one
  int inner_ = -1;
  std::vector<int> outer_, red_;
  uint64_t loop_vars_ = 0;
  std::vector<std::vector<int>> row_, loop_;  // instructions by stage
  int stage_ = 0;
  std::map<Key, Made> made_;
  std::map<Key, int> kept_;  // scratch buffers
  struct MadeLin {
    Lin lin;
    DType dtype;
    int inst, stage;
  };
  std::vector<MadeLin> lins_;
  struct MadeDynamic {
    int dynamic, inst, stage;
  };
  std::vector<MadeDynamic> clamped_, predicates_;
  std::vector<std::pair<int, Scalar>> constants_;
  std::vector<std::pair<int, Int>> sizes_;
  std::vector<ValueId> inputs_;
  BuiltKernel built_;
};

}  // namespace

BuiltKernel BuildKernel(const Graph& g, const std::vector<ValueId>& group, const std::vector<ValueId>& stored,
                        const std::vector<Layout>& layouts, const Costs& costs) {
  return KernelBuilder(g, group, stored, layouts, costs).Build();
}

bool SumsInOrder(const Graph& g, const std::vector<ValueId>& group, const std::vector<ValueId>& stored,
                 const std::vector<Layout>& layouts) {
  if (std::none_of(group.begin(), group.end(), [&](ValueId v) { return IsNumpys(g.nodes[v]); })) return true;
  return KernelBuilder(g, group, stored, layouts, {}).SumsInOrder();
}

}  // namespace framejit::loop
