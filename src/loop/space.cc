#include "loop/space.h"

#include <algorithm>
#include <cmath>

#include "framejit/compile.h"
#include "graph/device.h"

namespace framejit::loop {
namespace {

const char* const kEmpty = "a reshape of nothing";

bool IsOne(Int v) {
  return v == Int(1);
}
bool IsZero(Int v) {
  return v == Int(0);
}
bool IsZero(const Scalar& s) {  // all its bits
  return s.AsDouble() == 0 && !std::signbit(s.AsDouble());
}

bool Divides(Int by, Int a) {
  if (IsOne(by) || IsZero(a)) return true;
  if (a == by) return true;
  if (by.is_const() && by.value() == 0) return false;
  if (a.is_const() && by.is_const()) return a.value() % by.value() == 0;
  return FloorDiv(a, by) * by == a;
}

bool AtLeastZero(Int v) {
  return v.is_const() && v.value() >= 0;
}

// The Status that is noted where an index is out of range.
int CheckOf(const Node& n) {
  if (!n.attrs.flag || !TraitsOf(n.type.device).checks) return 0;
  return n.attrs.name.empty() ? kBadIndex : kOverflow;
}

// By axis of what a reduction reduces: the axis of its result, or -1 if it is reduced.
std::vector<int> ResultAxes(const Node& n, size_t rank) {
  std::vector<int> to(rank, -1);
  int next = 0;
  for (size_t d = 0; d < rank; ++d) {
    const bool reduced =
        std::find(n.attrs.axes.begin(), n.attrs.axes.end(), static_cast<int64_t>(d)) != n.attrs.axes.end();
    if (!reduced) to[d] = next;
    next += !reduced || n.attrs.flag;  // flag: what is reduced is left as an axis of size 1
  }
  return to;
}

// The index of a reduction's result at which the element of its operand at `operand` counts.
Lins ResultIndex(const Node& n, const Lins& operand) {
  Lins out(n.type.shape.size());
  const std::vector<int> to = ResultAxes(n, operand.size());
  for (size_t d = 0; d < to.size(); ++d)
    if (to[d] >= 0) out[to[d]] = operand[d];
  return out;
}

// Does the node put elements elsewhere or choose some, and nothing more, so that complex ones are only bits?
bool Moves(const Graph& g, const Node& n) {
  if (n.op == Op::kPad) return IsZero(n.attrs.scalar);
  if (n.op == Op::kCast) return n.type.dtype == g.nodes[n.operands[0]].type.dtype;  // a copy
  return Info(n.op).kind == 'V' || n.op == Op::kTake || n.op == Op::kGather || n.op == Op::kWhere;
}

// Arithmetic of complex128, which the CPU's code has.
bool ComputesParts(const Graph& g, const Node& n) {
  if (n.type.dtype != DType::kComplex128 || n.type.device.kind != DeviceKind::kCpu) return false;
  switch (n.op) {
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kDiv:
    case Op::kNeg:
    case Op::kConstant: return true;
    case Op::kCast: return Computes(g.nodes[n.operands[0]].type.dtype);
    default: return false;
  }
}

}  // namespace

Space::Space(const Graph& g, const std::vector<ValueId>& group, const std::vector<ValueId>& stored,
             const std::vector<Layout>* layouts)
    : g_(g), group_(group), stored_(stored), layouts_(layouts), single_(group.size() == 1) {
  for (ValueId v : group) Enter(v);
  num_members_ = static_cast<int>(values_.size());
  int heavy = 0;
  for (ValueId v : group) {
    if (g.nodes[v].op != Op::kConstant && g.nodes[v].op != Op::kIota) ++heavy;
    for (ValueId o : g.nodes[v].operands) {
      if (Local(o) < 0) Enter(o);
    }
  }
  single_ = heavy <= 1;
}

bool Space::CheckNode(ValueId v) {
  const Node& n = g_.nodes[v];
  const char kind = Info(n.op).kind;
  if (n.op == Op::kInput) return Fail("an input is no member");
  if (!(kind == 'P' || kind == 'R' || kind == 'V' || n.op == Op::kConstant || n.op == Op::kIota || n.op == Op::kTake ||
        n.op == Op::kGather || n.op == Op::kCumSum)) {
    return Fail(std::string(Info(n.op).name) + " is no kernel operation");
  }
  auto supported = [&](DType t) { return Computes(t) || (IsComplex(t) && (Moves(g_, n) || ComputesParts(g_, n))); };
  if (n.type.device.kind == DeviceKind::kMeta || !supported(n.type.dtype)) return Fail("type not supported");
  for (ValueId o : n.operands) {
    if (!supported(g_.nodes[o].type.dtype)) return Fail("operand type not supported");
  }
  if (IsSequential(n.op) && !Computes(n.attrs.dtype)) return Fail("type not supported");
  return true;
}

bool Space::ChooseSeed() {
  for (ValueId v : group_) {
    if (!CheckNode(v)) return false;
    if (IsSequential(g_.nodes[v].op) && !has_reduction_) {
      has_reduction_ = true;
      seed_ = g_.nodes[v].operands[0];
      for (int64_t a : g_.nodes[v].attrs.axes) seed_reduced_ |= uint64_t{1} << a;
    }
  }
  if (stored_.empty()) return Fail("nothing is stored");
  if (!has_reduction_) {
    seed_ = stored_.back();
    for (ValueId v : stored_) {
      if (g_.nodes[v].type.rank() > g_.nodes[seed_].type.rank()) seed_ = v;
    }
  }
  for (Int d : g_.nodes[seed_].type.shape) factors_.push_back({d});
  return true;
}

void Space::MakeSeedIndex() {
  extents_.clear();
  origin_.clear();
  reduced_ = 0;
  indices_.clear();
  dynamics_.clear();
  predicates_.assign(1, Predicate{});
  needed_.clear();
  by_key_.clear();
  canonical_.assign(values_.size(), -1);
  Lins index;
  for (int d = 0; d < factors_.size(); ++d) {
    Lin lin;
    Int stride = 1;
    for (int f = static_cast<int>(factors_[d].size()) - 1; f >= 0; --f) {
      const Int e = factors_[d][f];
      if (!IsOne(e)) {
        const int var = static_cast<int>(extents_.size());
        lin.terms.push_back({var, stride});
        if (seed_reduced_ >> d & 1) reduced_ |= uint64_t{1} << var;
        extents_.push_back(e);
        origin_.push_back({d, f});
      }
      stride = stride * e;
    }
    index.push_back(std::move(lin));
  }
  canonical_[Local(seed_)] = Intern(std::move(index));
}

bool Space::Analyze() {
  if (!ChooseSeed()) return false;
  for (int attempt = 0; attempt < 16; ++attempt) {
    split_var_ = -1;
    MakeSeedIndex();
    if (extents_.size() > kMostVars) return Fail("too many dimensions");
    if (Propagate() && CheckRoots() && VisitRoots()) return true;
    if (split_var_ < 0) return false;
    why_.clear();
    auto [dim, factor] = origin_[split_var_];
    auto& factors = factors_[dim];
    const Int e = factors[factor];
    factors[factor] = FloorDiv(e, split_by_);
    factors.insert(factors.begin() + factor + 1, split_by_);
  }
  return Fail("reshapes do not fit together");
}

int Space::Intern(Lins index) {
  for (int i = 0; i < indices_.size(); ++i) {
    if (indices_[i] == index) return i;
  }
  indices_.push_back(std::move(index));
  return static_cast<int>(indices_.size()) - 1;
}

int Space::InternPredicate(Predicate p) {
  for (int i = 1; i < predicates_.size(); ++i) {
    if (predicates_[i] == p) return i;
  }
  predicates_.push_back(std::move(p));
  return static_cast<int>(predicates_.size()) - 1;
}

int Space::AddDynamic(Dynamic d) {
  for (int i = 0; i < dynamics_.size(); ++i) {
    if (dynamics_[i] == d) return ~i;
  }
  dynamics_.push_back(std::move(d));
  return ~(static_cast<int>(dynamics_.size()) - 1);
}

Lin Space::Scale(const Lin& a, Int by) {
  Lin out;
  out.offset = a.offset * by;
  if (IsZero(by)) return out;
  for (const Term& t : a.terms) out.terms.push_back({t.id, t.coef * by});
  return out;
}

void Space::AddTo(Lin& a, const Lin& b, Int times) {
  a.offset = a.offset + b.offset * times;
  for (const Term& t : b.terms) {
    const Int c = t.coef * times;
    auto it = std::lower_bound(a.terms.begin(), a.terms.end(), t.id, [](const Term& x, int id) { return x.id < id; });
    if (it != a.terms.end() && it->id == t.id) {
      it->coef = it->coef + c;
      if (IsZero(it->coef)) a.terms.erase(it);
    } else if (!IsZero(c)) {
      a.terms.insert(it, {t.id, c});
    }
  }
}

uint64_t Space::Vars(const Lin& lin) const {
  uint64_t vars = 0;
  for (const Term& t : lin.terms) {
    if (t.id >= 0) {
      vars |= uint64_t{1} << t.id;
      continue;
    }
    const Dynamic& d = dynamics_[~t.id];
    if (d.kind != Dynamic::Kind::kValue) {
      vars |= Vars(d.lin);
    } else {
      auto it = by_key_.find(Key(d.value, d.index, d.pred));
      if (it != by_key_.end()) vars |= needed_[it->second].vars;
    }
  }
  return vars;
}

int Space::Level(const Lin& lin) const {
  int level = 0;
  for (const Term& t : lin.terms) {
    if (t.id >= 0) continue;
    const Dynamic& d = dynamics_[~t.id];
    if (d.kind != Dynamic::Kind::kValue) {
      level = std::max(level, Level(d.lin));
    } else {
      auto it = by_key_.find(Key(d.value, d.index, d.pred));
      if (it != by_key_.end()) level = std::max(level, needed_[it->second].level);
    }
  }
  return level;
}

uint64_t Space::PredVars(int pred) const {
  uint64_t vars = 0;
  for (; pred; pred = predicates_[pred].parent) vars |= Vars(predicates_[pred].lin);
  return vars;
}

// lin = quotient * size + rest with 0 <= rest < size, if the terms say so. Otherwise a variable that straddles `size`
// is cut (Analyze starts again), and if none can be, a group of one node divides at run time.
bool Space::Split(const Lin& lin, Int size, Lin* quotient, Lin* rest) {
  *quotient = Lin{};
  *rest = Lin{};
  if (IsOne(size)) {
    *quotient = lin;
    return true;
  }
  Int low = 0, high = 0;  // bounds of the rest
  if (lin.offset.is_const() && size.is_const() && size.value() > 0) {
    quotient->offset = FloorDiv(lin.offset, size);
    rest->offset = Mod(lin.offset, size);
  } else if (Divides(size, lin.offset)) {
    quotient->offset = FloorDiv(lin.offset, size);
  } else {
    rest->offset = lin.offset;
  }
  low = high = rest->offset;
  bool known = true;
  for (const Term& t : lin.terms) {
    if (Divides(size, t.coef)) {
      quotient->terms.push_back({t.id, FloorDiv(t.coef, size)});
      continue;
    }
    rest->terms.push_back(t);
    if (t.id < 0) {
      known = false;
    } else if (t.coef.is_const() && t.coef.value() < 0) {
      low = low + t.coef * (extents_[t.id] - Int(1));
    } else {
      high = high + t.coef * (extents_[t.id] - Int(1));
    }
  }
  if (rest->terms.empty() && (IsZero(rest->offset) || (rest->offset.is_const() && size.is_const()))) return true;
  if (known && AtLeastZero(low) && AtLeastZero(size - Int(1) - high)) return true;
  for (const Term& t : rest->terms) {
    if (t.id < 0 || (t.coef.is_const() && t.coef.value() <= 0)) continue;
    if (!Divides(t.coef, size)) continue;
    const Int by = FloorDiv(size, t.coef);
    const Int extent = extents_[t.id];
    if (extent != by && Divides(by, extent) && !(extent.is_const() && by.is_const() && by.value() >= extent.value())) {
      split_var_ = t.id;
      split_by_ = by;
      return Fail("cut");
    }
  }
  if (!single_) return Fail("a reshape cuts a dimension unevenly");
  *quotient = *rest = Lin{};
  Dynamic d{.kind = Dynamic::Kind::kDiv, .lin = lin, .size = size};
  quotient->terms.push_back({AddDynamic(d), Int(1)});
  d.kind = Dynamic::Kind::kMod;
  rest->terms.push_back({AddDynamic(d), Int(1)});
  return true;
}

// The index of `to` that is at the same row-major position as `index` of `from`. Dimensions are grouped, innermost
// first, into chunks of equal products. Where nothing is at any position, none says which index of a dimension of
// another size is meant, and a reduction that keeps that dimension would be stored at one index only.
bool Space::Reshape(const Lins& index, const Ints& from, const Ints& to, Lins* out) {
  out->assign(to.size(), Lin{});
  int i = static_cast<int>(from.size()), j = static_cast<int>(to.size());
  auto skip = [](const Ints& s, int& k) {
    while (k > 0 && IsOne(s[k - 1])) --k;
  };
  while (true) {
    skip(from, i);
    skip(to, j);
    if (i == 0 || j == 0) break;
    const int i_end = i, j_end = j;
    Int a = from[--i], b = to[--j];
    while (a != b && (i > 0 || j > 0)) {
      bool grow_from;
      if (i == 0)
        grow_from = false;
      else if (j == 0)
        grow_from = true;
      else if (a.is_const() && b.is_const())
        grow_from = a.value() < b.value();
      else
        grow_from = Divides(a, b) || !Divides(b, a);
      if (grow_from)
        a = a * from[--i];
      else
        b = b * to[--j];
    }
    if (i_end - i == 1 && j_end - j == 1) {
      (*out)[j] = index[i];
      continue;
    }
    if (IsZero(a) && !single_) return Fail(kEmpty);
    Lin lin;
    Int stride = 1;
    for (int k = i_end - 1; k >= i; --k) {
      AddTo(lin, index[k], stride);
      stride = stride * from[k];
    }
    Int size = 1;
    for (int k = j + 1; k < j_end; ++k) size = size * to[k];
    for (int k = j; k < j_end; ++k) {
      Lin quotient, rest;
      if (!Split(lin, size, &quotient, &rest)) return false;
      (*out)[k] = std::move(quotient);
      lin = std::move(rest);
      if (k + 1 < j_end) size = FloorDiv(size, to[k + 1]);
    }
  }
  return single_ || (i == 0 && j == 0) || Fail(kEmpty);
}

Space::At Space::OperandAt(ValueId v, int k, int index, int pred) {
  const Node& n = g_.nodes[v];
  if (Info(n.op).kind == 'P' || n.op == Op::kCumSum) return {index, pred};
  const TensorType& operand = g_.nodes[n.operands[k]].type;
  const Lins at = indices_[index];  // It is a copy, since Intern may move the table.
  Lins in(operand.shape.size());
  const auto& axes = n.attrs.axes;
  const auto& syms = n.attrs.syms;
  switch (n.op) {
    case Op::kBroadcast:
      for (size_t d = 0; d < in.size(); ++d) {
        if (!IsOne(operand.shape[d]) || IsOne(n.type.shape[axes[d]])) in[d] = at[axes[d]];
      }
      break;
    case Op::kReshape:
      if (!Reshape(at, n.type.shape, operand.shape, &in)) return {};
      break;
    case Op::kPermute:
      for (size_t d = 0; d < in.size(); ++d) in[axes[d]] = at[d];
      break;
    case Op::kSlice:
      in = at;
      in[axes[0]] = Scale(at[axes[0]], syms[2]);
      in[axes[0]].offset = in[axes[0]].offset + syms[0];
      break;
    case Op::kFlip:
      in = at;
      for (int64_t a : axes) {
        in[a] = Scale(at[a], Int(-1));
        in[a].offset = in[a].offset + operand.shape[a] - Int(1);
      }
      break;
    case Op::kPad:
      in = at;
      for (size_t d = 0; d < in.size(); ++d) {
        const Int lo = syms[2 * d], hi = syms[2 * d + 1];
        in[d].offset = in[d].offset - lo;
        const bool crops = lo.is_const() && lo.value() <= 0 && hi.is_const() && hi.value() <= 0;
        if (!crops) pred = InternPredicate({pred, in[d], operand.shape[d]});
      }
      break;
    case Op::kCat: {
      in = at;
      const int64_t a = axes[0];
      Int start = 0;
      for (int j = 0; j < k; ++j) start = start + g_.nodes[n.operands[j]].type.shape[a];
      in[a].offset = in[a].offset - start;
      if (n.operands.size() > 1) pred = InternPredicate({pred, in[a], operand.shape[a]});
      break;
    }
    case Op::kTake: {
      const int64_t a = axes[0];
      const int rank = g_.nodes[n.operands[1]].type.rank();
      if (k == 1) {
        for (int d = 0; d < rank; ++d) in[d] = at[a + d];
        break;
      }
      for (int d = 0; d < a; ++d) in[d] = at[d];
      for (int d = a + 1; d < in.size(); ++d) in[d] = at[d - 1 + rank];
      const At where = OperandAt(v, 1, index, pred);
      Dynamic dyn{.kind = Dynamic::Kind::kValue, .value = n.operands[1], .index = where.index, .pred = where.pred};
      dyn.size = operand.shape[a];
      dyn.check = CheckOf(n);
      in[a].terms = {{AddDynamic(dyn), Int(1)}};
      break;
    }
    case Op::kGather:
      if (k == 1) return {index, pred};
      in = at;
      for (int64_t a : axes) {
        Dynamic dyn{.kind = Dynamic::Kind::kValue, .value = n.operands[1], .index = index, .pred = pred};
        dyn.size = operand.shape[a];
        dyn.check = CheckOf(n);
        in[a] = Lin{};
        in[a].terms = {{AddDynamic(dyn), Int(1)}};
      }
      break;
    default: {  // A reduction: of what it reduces, the elements of its own row, and not those that others read.
      pred = 0;
      in = indices_[canonical(n.operands[0])];
      const std::vector<int> to = ResultAxes(n, in.size());
      for (size_t d = 0; d < to.size(); ++d)
        if (to[d] >= 0) in[d] = at[to[d]];
    }
  }
  return {Intern(std::move(in)), pred};
}

void Space::SetCanonical(ValueId v, Lins index, bool* changed) {
  const int l = Local(v);
  if (l < 0 || canonical_[l] >= 0) return;
  canonical_[l] = Intern(std::move(index));
  *changed = true;
}

bool Space::Reduced(ValueId r, uint64_t* vars) const {
  const Node& n = g_.nodes[r];
  const int c = canonical(n.op == Op::kCumSum ? r : n.operands[0]);  // A scan reads its operand where it is itself.
  if (c < 0) return false;
  *vars = 0;
  for (int64_t a : n.attrs.axes) *vars |= Vars(indices_[c][a]);
  return true;
}

// Carries index vectors over edges that are one to one.
bool Space::PropagateNode(ValueId v, bool* changed) {
  const Node& n = g_.nodes[v];
  if (n.operands.empty()) return true;
  const ValueId o = n.operands[0];
  const char kind = Info(n.op).kind;
  if (kind == 'P' || n.op == Op::kCumSum) {
    int known = canonical(v);
    for (ValueId x : n.operands) {
      if (known < 0) known = canonical(x);
    }
    if (known < 0) return true;
    const auto same = [&](ValueId x) {  // Members and what they read are all here.
      if (int& its = canonical_[Local(x)]; its < 0) its = known, *changed = true;
    };
    std::for_each(n.operands.begin(), n.operands.end(), same);
    same(v);
    return true;
  }
  if (canonical(v) < 0 && canonical(o) >= 0) {  // forward
    const Lins at = indices_[canonical(o)];
    const Ints& from = g_.nodes[o].type.shape;
    Lins out(n.type.shape.size());
    if (n.op == Op::kPermute) {
      for (size_t d = 0; d < out.size(); ++d) out[d] = at[n.attrs.axes[d]];
    } else if (n.op == Op::kReshape) {
      if (!Reshape(at, from, n.type.shape, &out)) return split_var_ < 0;
    } else if (n.op == Op::kFlip) {
      out = at;
      for (int64_t a : n.attrs.axes) {
        out[a] = Scale(at[a], Int(-1));
        out[a].offset = out[a].offset + from[a] - Int(1);
      }
    } else if (kind == 'R') {
      out = ResultIndex(n, at);
    } else if (n.op == Op::kBroadcast && n.type.numel() == g_.nodes[o].type.numel()) {
      for (size_t d = 0; d < at.size(); ++d) out[n.attrs.axes[d]] = at[d];
    } else {
      return true;
    }
    SetCanonical(v, std::move(out), changed);
  } else if (canonical(v) >= 0 && canonical(o) < 0) {  // backward
    if (n.op == Op::kPermute || n.op == Op::kFlip || n.op == Op::kReshape || n.op == Op::kBroadcast) {
      const At at = OperandAt(v, 0, canonical(v), 0);
      if (at.index < 0) return split_var_ < 0;
      if (n.op == Op::kBroadcast) {
        uint64_t vars = 0;
        for (const Lin& lin : indices_[at.index]) vars |= Vars(lin);
        if (vars != all_vars() && !(reduced_ && vars == (all_vars() & ~reduced_))) return true;
      }
      SetCanonical(o, Lins(indices_[at.index]), changed);
    }
  }
  return true;
}

bool Space::Propagate() {
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = group_.size(); i-- > 0;) {
      if (!PropagateNode(group_[i], &changed)) return false;
    }
    for (ValueId v : group_) {
      if (changed && !PropagateNode(v, &changed)) return false;
    }
    if (!changed) ReduceAlongside(&changed);
  }
  why_.clear();
  return true;
}

// Nothing but its result connects a reduction with the others, and it is over the seed's space: it joins their loop.
// Only where launches cost more than memory: long reductions side by side read more at once than they gain.
void Space::ReduceAlongside(bool* changed) {
  constexpr int64_t kFew = 1 << 16;
  const shape::Int size = shape::Product(g_.nodes[seed_].type.shape);
  if (!size.is_const() || size.value() > kFew) return;
  const Lins seed = indices_[canonical(seed_)];
  for (ValueId v : group_) {
    const Node& n = g_.nodes[v];
    if (!IsReduction(n.op) || canonical(v) < 0 || canonical(n.operands[0]) >= 0) continue;
    if (g_.nodes[n.operands[0]].type.shape != g_.nodes[seed_].type.shape) continue;
    uint64_t axes = 0;
    for (int64_t a : n.attrs.axes) axes |= uint64_t{1} << a;
    if (axes == seed_reduced_ && ResultIndex(n, seed) == indices_[canonical(v)])
      return SetCanonical(n.operands[0], seed, changed);
  }
}

bool Space::CheckRoots() {
  const uint64_t kept = all_vars() & ~reduced_;
  for (ValueId v : group_) {
    if (!IsSequential(g_.nodes[v].op)) continue;
    uint64_t vars;
    if (!Reduced(v, &vars)) return Fail("a reduction over another space");
    if (vars != reduced_) return Fail("reductions over different axes");
    if (g_.nodes[v].op != Op::kCumSum || !vars) continue;
    const Lin& along = indices_[canonical(v)][g_.nodes[v].attrs.axes[0]];
    if (along.terms.size() != 1 || !IsOne(along.terms[0].coef)) return Fail("a scan in another order");
  }
  for (ValueId v : stored_) {
    if (!member(v)) return Fail("stored value is no member");
    const int c = canonical(v);
    if (c < 0) return Fail("a stored value does not cover the space");
    uint64_t vars = 0;
    for (const Lin& lin : indices_[c]) {
      vars |= Vars(lin);
      for (const Term& t : lin.terms) {
        if (t.id < 0) return Fail("a store at a divided index");
      }
    }
    if (vars != all_vars() && !(has_reduction_ && vars == kept))
      return Fail("a stored value covers only a part of the space");
  }
  return true;
}

bool Space::VisitRoots() {
  for (ValueId v : stored_) {
    if (Visit(v, canonical(v), 0) < 0) return false;
  }
  return true;
}

int Space::Visit(ValueId v, int index, int pred) {
  const uint64_t key = Key(v, index, pred);
  if (auto it = by_key_.find(key); it != by_key_.end()) return it->second;
  if (needed_.size() > 4 * group_.size() + 64 || indices_.size() > 4000) {
    Fail("too many values");
    return -1;
  }
  const Node& n = g_.nodes[v];
  Needed need{.value = v, .index = index, .pred = pred};
  if (!member(v)) {
    need.cost = 1;
    for (size_t d = 0; d < indices_[index].size(); ++d) {
      const Lin& lin = indices_[index][d];
      const bool matters = !layouts_ || (*layouts_)[v].strides.size() <= d || !IsZero((*layouts_)[v].strides[d]);
      if (matters) need.vars |= Vars(lin);
      need.level = std::max(need.level, Level(lin));
    }
  } else if (n.op == Op::kConstant) {
  } else if (n.op == Op::kIota) {
    const Lin& lin = indices_[index][n.attrs.axes[0]];
    need.vars = Vars(lin);
    need.level = Level(lin);
    need.cost = 1;
  } else if (IsReduction(n.op)) {
    if (index != canonical(v) || pred != 0) {
      Fail("a reduction read at another index");
      return -1;
    }
    const At at = OperandAt(v, 0, index, 0);
    const int o = Visit(n.operands[0], at.index, 0);
    if (o < 0) return -1;
    need.vars = needed_[o].vars & ~reduced_;
    need.level = needed_[o].level + (reduced_ ? 1 : 0);  // Where all its axes have size 1, it is no reduction.
  } else {
    if (n.op == Op::kCumSum && (index != canonical(v) || pred != 0)) {
      Fail("a scan read at another index");
      return -1;
    }
    // Index tensors come first, since the dependences of what is read through them follow from them.
    need.cost = Info(n.op).cost;
    for (int k = static_cast<int>(n.operands.size()) - 1; k >= 0; --k) {
      const At at = OperandAt(v, k, index, pred);
      if (at.index < 0) return -1;
      const int o = Visit(n.operands[k], at.index, at.pred);
      if (o < 0) return -1;
      need.vars |= needed_[o].vars;
      need.level = std::max(need.level, needed_[o].level);
      need.cost += needed_[o].cost;
      if (at.pred != pred) {
        need.vars |= PredVars(at.pred);
        for (int p = at.pred; p; p = predicates_[p].parent)
          need.level = std::max(need.level, Level(predicates_[p].lin));
      }
    }
  }
  if (pred && (!member(v) || n.op == Op::kIota)) {
    need.vars |= PredVars(pred);
    for (int p = pred; p; p = predicates_[p].parent) need.level = std::max(need.level, Level(predicates_[p].lin));
  }
  if (n.op == Op::kCumSum && member(v)) need.vars |= reduced_;
  const int number = static_cast<int>(needed_.size());
  needed_.push_back(need);
  by_key_.emplace(key, number);
  return number;
}

}  // namespace framejit::loop
