#include "surface/objects.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "graph/rewrite.h"
#include "graph/views.h"
#include "shape/typical.h"
#include "surface/layout.h"

namespace framejit::surface {

using shape::Int;

// Constants have no device of their own: they are on that of the tensor that they become.
void Objects::Place(TraceId t, ValueId value) {
  if (value != kNoValue) PutOn(builder_.graph(), value, meta(t).device);
}

TraceId Objects::New(TensorMeta meta, ValueId value) {
  TraceTensor t;
  t.id = static_cast<TraceId>(trace_.tensors.size());
  t.base = t.id;
  t.meta = std::move(meta);
  const TraceId id = t.id;
  trace_.tensors.push_back(std::move(t));
  Object o;
  o.value = value;
  o.root = o.parent = o.domain = id;
  all_.push_back(std::move(o));
  versions_.push_back(0);
  Place(id, value);
  return id;
}

void Objects::BecomeView(TraceId t, TraceId of) {
  Object& o = all_[t];
  o.parent = of;
  o.root = all_[of].root;
  o.version = versions_[o.root];
  trace_.tensors[t].base = o.root;
  trace_.tensors[t].view_call = static_cast<int>(trace_.calls.size());
}

void Objects::Set(TraceId t, ValueId value, int version) {
  journal_.push_back({t, all_[t].value, all_[t].version});
  all_[t].value = value;
  all_[t].version = version;
  Place(t, value);
}

ValueId Objects::Value(TraceId t) {
  const int now = versions_[all_[t].root];
  if (all_[t].version != now) Set(t, all_[t].view.forward(builder_, Value(all_[t].parent)), now);
  return all_[t].value;
}

Operand Objects::Read(TraceId t) {
  Operand o;
  o.id = t;
  o.value = Value(t);
  o.meta = &meta(t);
  return o;
}

void Objects::Write(TraceId t, ValueId v) {
  TraceId root = all_[t].root;
  int next = versions_[root] + 1;
  trace_.tensors[t].mutated = trace_.tensors[root].mutated = true;
  for (TraceId at = t;; at = all_[at].parent) {
    Set(at, v, next);
    if (at == root) break;
    TraceId parent = all_[at].parent;
    ValueId old = Value(parent);
    if (all_[at].view.inverse) {
      v = all_[at].view.inverse(builder_, old, v);
    } else {
      BecomeUnusable("a write through a view that has no functional form");
      v = old;
    }
    if (all_[at].domain == at) v = builder_.Barrier(v);
  }
  versions_[root] = next;
}

void Objects::Renew(TraceId t, ValueId of_root) {
  const Object& o = all_[t];
  if (t != o.root) Renew(o.parent, of_root);
  Set(t, t == o.root ? of_root : o.view.forward(builder_, all_[o.parent].value), versions_[o.root]);
}

namespace {

// An identity that no builder folds away.
ValueId Copied(Graph& g, ValueId v, shape::Ints strides) {
  Node copy;
  copy.op = Op::kCast;
  copy.operands = {v};
  copy.type = g.nodes[v].type;
  copy.attrs.dtype = copy.type.dtype;
  copy.strides = std::move(strides);
  g.nodes.push_back(std::move(copy));
  return static_cast<ValueId>(g.nodes.size() - 1);
}

// How a view lies in every run: nothing where a kernel makes what is viewed, which may store another form of it.
std::optional<Layout> ViewedInMemory(const Graph& g, ValueId v) {
  const Node& n = g.nodes[v];
  const char kind = Info(n.op).kind;
  if (kind == 'V') {
    if (n.operands.size() != 1) return std::nullopt;
    const auto from = ViewedInMemory(g, n.operands[0]);
    return from ? ViewLayout(n, g.nodes[n.operands[0]].type, *from) : std::nullopt;
  }
  const bool there = n.op == Op::kInput || kind == 'X' || kind == 'M' || kind == 'W';
  return there ? std::optional(LaidBy(g, v)) : std::nullopt;
}

// How it lies whatever is promised of it from now on, if that is known.
std::optional<shape::Ints> FixedStrides(const Graph& g, ValueId v) {
  const Node& n = g.nodes[v];
  if (n.op == Op::kMatMul || n.op == Op::kLinear) return RowMajor(n.type.shape);
  return n.strides.empty() ? std::nullopt : std::optional(n.strides.list());
}

// Does a view lie row by row in every run? What no strides express is made so. But strides may express it once a size
// that is a symbol here is found to be 1, or that of another array.
bool StaysRowMajor(const Graph& g, ValueId v) {
  if (!framejit::IsRowMajor(g.nodes[v].type.shape, LaidBy(g, v).strides)) return false;
  const auto known = [](const shape::Ints& sizes) {
    return std::all_of(sizes.begin(), sizes.end(), [](const Int& size) { return size.as_const().has_value(); });
  };
  static constexpr Op kStrided[] = {Op::kReshape, Op::kBroadcast, Op::kSlice, Op::kPermute};
  for (;; v = g.nodes[v].operands[0]) {
    const Node& n = g.nodes[v];
    if (std::find(std::begin(kStrided), std::end(kStrided), n.op) == std::end(kStrided)) return true;
    const TensorType& from = g.nodes[n.operands[0]].type;
    if (known(n.type.shape) && known(from.shape)) continue;
    if (!ViewLayout(n, from, LaidBy(g, n.operands[0]))) return false;
  }
}

}  // namespace

ValueId RowByRow(Graph& g, ValueId v) {
  const Node& n = g.nodes[v];
  if (Info(n.op).kind != 'V' || StaysRowMajor(g, v)) return v;
  return Copied(g, v, RowMajor(n.type.shape));
}

ValueId Objects::WithLayout(ValueId v, const shape::Ints& strides) {
  Graph& g = builder_.graph();
  Node& n = g.nodes[v];
  if (n.op != Op::kInput && (n.strides.empty() || n.strides == strides) && !claimed_.contains(v)) {
    n.strides = strides;
    claimed_.insert(v);
    return v;
  }
  return Copied(g, v, strides);  // two results never share a buffer, nor a result an input's
}

// NumPy goes by the strides: its sums take what lies side by side together. So the operand lies as the program's does,
// with gaps where a view has some. Its value alone does not say so: that of a copy is that of what was copied.
ValueId Objects::AsItLies(ValueId v, const TensorMeta& m) {
  Graph& g = builder_.graph();
  const auto moves = [&](size_t d) { return m.sizes[d] == Int(1) || builder_.env().Hint(m.strides[d]) != 0; };
  bool storable = true;
  for (size_t d = 0; d < m.sizes.size(); ++d) storable = storable && moves(d);
  if (Info(g.nodes[v].op).kind == 'V') {
    if (const auto lies = ViewedInMemory(g, v); lies && SameStrides(m.sizes, lies->strides, m.strides)) return v;
    const bool rows = framejit::IsRowMajor(m.sizes, m.strides);
    if (rows && StaysRowMajor(g, v)) return v;
  } else if (const auto lies = FixedStrides(g, v); !lies && storable) {
    g.nodes[v].strides = m.strides;
    return v;
  } else if (lies && SameStrides(m.sizes, *lies, m.strides)) {
    return v;
  }
  return Copied(g, v, storable ? m.strides.list() : PreserveFormat(builder_.env(), m));
}

ValueId Objects::Materialised(TraceId t) {
  ValueId v = Value(t);
  const TensorMeta& m = meta(t);
  if (m.framework == Framework::kNumpy && m.device.kind == DeviceKind::kCpu) return AsItLies(v, m);
  Node& n = builder_.graph().nodes[v];
  if (n.op == Op::kInput || !n.strides.empty()) return v;
  // Pictures of one channel or one pixel lie both ways at once; the framework goes by the strides.
  const auto one = [&](size_t d) { return m.sizes[d] == shape::Int(1); };
  const bool either = m.sizes.size() == 4 && (one(1) || (one(2) && one(3)));
  const shape::Env::Typical typical(builder_.env());  // what the kernel gives lies as its call was asked
  const shape::Ints before = shape::TakenForGranted();
  const bool contiguous = IsContiguous(builder_.env(), m);
  if (!contiguous)
    n.strides = PreserveFormat(builder_.env(), m);
  else if (either && LikesChannelsLast(builder_.env(), m))
    n.strides = m.strides;
  const bool promised = !n.strides.empty();
  shape::TakenForGranted();
  std::for_each(before.begin(), before.end(), shape::TakeForGranted);
  return contiguous && !promised ? RowByRow(builder_.graph(), v) : v;
}

Objects::Mark Objects::Begin() {
  journal_.clear();
  return {builder_.graph().nodes.size(), unusable_};
}

void Objects::RollBack(const Mark& mark) {
  for (; !journal_.empty(); journal_.pop_back()) {
    const Undo& u = journal_.back();
    all_[u.id].value = u.value;
    all_[u.id].version = u.version;
  }
  builder_.graph().nodes.resize(mark.nodes);
  unusable_ = mark.unusable;
}

void Objects::Truncate(size_t tensors) {
  trace_.tensors.resize(tensors);
  all_.resize(tensors);
  versions_.resize(tensors);
}

std::optional<Int> Objects::Between(const Region& a, const Region& b) {
  std::vector<TraceId> above = {a.of};
  while (above.back() != all_[above.back()].root) above.push_back(all_[above.back()].parent);
  TraceId common = b.of;
  while (std::find(above.begin(), above.end(), common) == above.end()) common = all_[common].parent;
  const auto behind = [&](const Region& r) -> std::optional<Int> {
    Int offset = r.offset;
    for (TraceId t = r.of; t != common; t = all_[t].parent) {
      if (!all_[t].view.offset || DTypeSize(meta(t).dtype) != DTypeSize(meta(common).dtype)) return {};
      offset = offset + *all_[t].view.offset;
    }
    return offset;
  };
  const std::optional<Int> at_a = behind(a), at_b = behind(b);
  if (!at_a || !at_b) return {};
  return *at_b - *at_a;
}

namespace {

// One of the numbers that add up to how far two elements lie apart: stride times what is between least and most.
struct Term {
  int64_t stride, least, most;
};

// Can they add up to `rest`? Strides become smaller. It gives up, with a yes, after so many steps.
bool AddUp(std::span<const Term> terms, int64_t rest, int* steps) {
  if (terms.empty()) return rest == 0;
  if (--*steps < 0) return true;
  int64_t low = 0, high = 0;  // of all behind the first
  for (const Term& t : terms.subspan(1)) {
    low += t.stride * t.least;
    high += t.stride * t.most;
  }
  const Term& t = terms[0];
  const auto floor = [&](int64_t x) { return x / t.stride - (x % t.stride < 0); };
  const int64_t from = std::max(t.least, -floor(high - rest)), to = std::min(t.most, floor(rest - low));
  for (int64_t k = from; k <= to; ++k)
    if (AddUp(terms.subspan(1), rest - k * t.stride, steps)) return true;
  return false;
}

// The same with sizes that are symbols.
struct SymbolicTerm {
  Int stride, least, most;
};

// a < b, by algebra or by a guard that holds now.
bool Below(shape::Env& env, Int a, Int b) {
  if (env.AtRun(a) || env.AtRun(b)) return env.Prove(shape::Cmp::kLt, a, b).value_or(false);
  return env.Hint(a) < env.Hint(b) && env.Lt(a, b);
}

// Can the terms not add up to `rest`? Of the largest stride no multiple, or one alone, is as near to `rest` as the
// others reach.
bool CannotAddUp(shape::Env& env, std::span<const SymbolicTerm> terms, Int rest) {
  Int low = 0, high = 0;  // of all behind the first
  for (const SymbolicTerm& t : terms.subspan(std::min<size_t>(terms.size(), 1))) {
    low = low + t.stride * t.least;
    high = high + t.stride * t.most;
  }
  if (terms.empty()) return Below(env, 0, rest) || Below(env, rest, 0);
  const SymbolicTerm& t = terms[0];
  const Int from = rest - high, to = rest - low;
  if (Below(env, t.stride * t.most, from) || Below(env, to, t.stride * t.least)) return true;
  const int64_t stride = env.Hint(t.stride), least = env.Hint(from);
  const int64_t k = least / stride + (least % stride > 0);  // the first multiple that is not below `from`
  if (!Below(env, Int(k - 1) * t.stride, from)) return false;
  if (Below(env, to, Int(k) * t.stride)) return true;
  return Below(env, to, Int(k + 1) * t.stride) && CannotAddUp(env, terms.subspan(1), rest - Int(k) * t.stride);
}

}  // namespace

bool Objects::Disjoint(const Region& a, const Region& b) {
  constexpr int64_t kAny = int64_t{1} << 30;
  constexpr int kSteps = 256;
  shape::Env& env = builder_.env();
  const std::optional<Int> between = Between(a, b);
  if (!between) return false;
  std::vector<SymbolicTerm> terms;  // how far elements of b begin behind those of a
  for (const Region* r : {&a, &b}) {
    for (size_t d = 0; d < r->sizes.size(); ++d) {
      const Int stride = r->strides[d], last = r->sizes[d] - Int(1);
      if (last.is_const() && last.value() < 0) return true;
      if (last == Int(0) || stride == Int(0)) continue;
      if (env.Hint(stride) <= 0 || env.Hint(stride) > kAny || !Below(env, 0, stride)) return false;
      auto known = std::find_if(terms.begin(), terms.end(), [&](const auto& x) { return x.stride == stride; });
      if (known == terms.end()) known = terms.insert(terms.end(), {stride, 0, 0});
      Int& end = r == &a ? known->most : known->least;
      end = r == &a ? end + last : end - last;
    }
  }
  std::sort(terms.begin(), terms.end(),
            [&](const auto& x, const auto& y) { return env.Hint(x.stride) > env.Hint(y.stride); });
  std::vector<Term> constant;
  for (const SymbolicTerm& t : terms)
    if (t.stride.is_const() && t.least.is_const() && t.most.is_const())
      constant.push_back({t.stride.value(), t.least.value(), t.most.value()});
  if (constant.size() < terms.size() || !between->is_const()) return CannotAddUp(env, terms, *between);
  int steps = kSteps;
  return !AddUp(constant, between->value(), &steps);
}

bool Objects::Same(const Region& a, const Region& b) {
  const shape::Env& env = builder_.env();
  const auto equal = [&](Int x, Int y) { return env.Prove(shape::Cmp::kEq, x, y).value_or(false); };
  const auto axes = [](const Region& r) {  // sizes and strides of those that have more than one place
    std::vector<std::pair<Int, Int>> found;
    for (size_t d = 0; d < r.sizes.size(); ++d)
      if (r.sizes[d] != Int(1)) found.emplace_back(r.sizes[d], r.strides[d]);
    return found;
  };
  const std::optional<Int> between = Between(a, b);
  const auto of_a = axes(a), of_b = axes(b);
  return between && equal(*between, 0) &&
         std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                    [&](const auto& x, const auto& y) { return equal(x.first, y.first) && equal(x.second, y.second); });
}

bool Objects::LieAlike(TraceId a, TraceId b) {
  const TensorMeta &m = meta(a), &n = meta(b);
  if (all_[a].root != all_[b].root || m.dtype != n.dtype || m.lazy() || n.lazy()) return false;
  const auto equal = [&](Int x, Int y) { return builder_.env().Prove(shape::Cmp::kEq, x, y).value_or(false); };
  return std::ranges::equal(m.sizes, n.sizes, equal) && std::ranges::equal(m.strides, n.strides, equal) &&
         Same(Whole(a), Whole(b));
}

}  // namespace framejit::surface
