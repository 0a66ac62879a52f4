#include "surface/views.h"

#include <algorithm>
#include <cmath>

#include "rules/decompose.h"

namespace framejit::surface {

using shape::Int;
using shape::Ints;

namespace {

// base with [start, start + length*step) along axis replaced by fresh.
ValueId PutSlice(Builder& b, ValueId base, ValueId fresh, int axis, Int start, Int length, Int step) {
  TensorType t = b.type(base);
  Int size = t.shape[axis];
  if (start == Int(0) && length == size) return fresh;
  if (length == Int(0)) return base;
  if (step == Int(1)) {
    std::vector<ValueId> parts;
    if (start != Int(0)) parts.push_back(b.Slice(base, axis, 0, start));
    parts.push_back(fresh);
    Int rest = size - start - length;
    if (rest != Int(0)) parts.push_back(b.Slice(base, axis, start + length, rest));
    Attrs attrs;
    attrs.axes = {axis};
    return b.Add(Op::kCat, parts, attrs);
  }
  // Every step-th element: where the position belongs to the slice take fresh[(i - start) / step].
  Ints line = {size};
  auto number = [&](Int v) { return b.SymConstant(v, DType::kInt64, line); };
  ValueId offset = b.Binary(Op::kSub, b.Iota(DType::kInt64, line, 0), number(start));
  ValueId inside =
      b.Binary(Op::kAnd, b.Binary(Op::kLe, number(0), offset), b.Binary(Op::kLt, offset, number(length * step)));
  inside = b.Binary(Op::kAnd, inside, b.Binary(Op::kEq, b.Binary(Op::kRem, offset, number(step)), number(0)));
  ValueId index = b.Binary(Op::kFloorDiv, offset, number(step));
  index = b.Binary(Op::kMinimum, b.Binary(Op::kMaximum, index, number(0)), number(length - Int(1)));
  Attrs attrs;
  attrs.axes = {axis};
  ValueId spread = b.Add(Op::kTake, {fresh, index}, attrs);
  return b.Where(b.BroadcastInDim(inside, t.shape, {axis}), spread, base);
}

ValueId FlipAxis(Builder& b, ValueId v, int axis) {
  Attrs attrs;
  attrs.axes = {axis};
  return b.Add(Op::kFlip, {v}, attrs);
}

}  // namespace

ViewChain::ViewChain(Scope& s, const Operand& parent)
    : s_(s), parent_(parent.id), parent_value_(parent.value), value_(parent.value), meta_(*parent.meta) {}

void ViewChain::Push(std::function<ValueId(Builder&, ValueId)> forward,
                     std::function<ValueId(Builder&, ValueId, ValueId)> inverse) {
  value_ = forward(s_.b, value_);
  steps_.push_back({std::move(forward), std::move(inverse)});
}

void ViewChain::Reshape(const Ints& sizes, Ints strides) {
  Ints before = meta_.sizes;
  meta_.sizes = sizes;
  meta_.strides = std::move(strides);
  Push([sizes](Builder& b, ValueId v) { return b.Reshape(v, sizes); },
       [before](Builder& b, ValueId, ValueId fresh) { return b.Reshape(fresh, before); });
}

void ViewChain::Permute(const std::vector<int64_t>& perm) {
  std::vector<int64_t> back(perm.size());
  Ints sizes(perm.size()), strides(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) {
    back[perm[i]] = static_cast<int64_t>(i);
    sizes[i] = meta_.sizes[perm[i]];
    strides[i] = meta_.strides[perm[i]];
  }
  meta_.sizes = sizes;
  meta_.strides = strides;
  Push([perm](Builder& b, ValueId v) { return b.Permute(v, perm); },
       [back](Builder& b, ValueId, ValueId fresh) { return b.Permute(fresh, back); });
}

void ViewChain::Slice(int axis, Int start, Int length, Int step) {
  offset_ = offset_ + start * meta_.strides[axis];
  meta_.sizes.Set(axis, length);
  meta_.strides.Set(axis, meta_.strides[axis] * step);
  Push([=](Builder& b, ValueId v) { return b.Slice(v, axis, start, length, step); },
       [=](Builder& b, ValueId base, ValueId fresh) { return PutSlice(b, base, fresh, axis, start, length, step); });
}

void ViewChain::Flip(int axis) {
  offset_ = offset_ + (meta_.sizes[axis] - Int(1)) * meta_.strides[axis];
  meta_.strides.Set(axis, -meta_.strides[axis]);
  Push([axis](Builder& b, ValueId v) { return FlipAxis(b, v, axis); },
       [axis](Builder& b, ValueId, ValueId fresh) { return FlipAxis(b, fresh, axis); });
}

void ViewChain::Select(int axis, Int index) {
  Slice(axis, index, 1, 1);
  meta_.strides.Set(axis, 0);  // of no consequence: the axis goes away
  Squeeze(axis);
}

void ViewChain::Unsqueeze(int axis, Int stride) {
  Ints sizes = meta_.sizes, strides = meta_.strides;
  sizes.insert(sizes.begin() + axis, Int(1));
  strides.insert(strides.begin() + axis, stride);
  Reshape(sizes, strides);
}

void ViewChain::Squeeze(int axis) {
  Ints sizes = meta_.sizes, strides = meta_.strides;
  sizes.erase(sizes.begin() + axis);
  strides.erase(strides.begin() + axis);
  Reshape(sizes, strides);
}

void ViewChain::Expand(const Ints& sizes) {
  size_t shift = sizes.size() - meta_.sizes.size();
  Ints strides(sizes.size(), Int(0));
  bool same = shift == 0;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (i < shift) {  // a new axis: torch gives size-1 ones the stride that continues the inner dimension
      strides[i] = s_.torch() && sizes[i] == Int(1) && i + 1 < sizes.size() ? sizes[i + 1] * strides[i + 1]
                   : s_.torch() && sizes[i] == Int(1)                       ? Int(1)
                                                                            : Int(0);
    } else if (sizes[i] == meta_.sizes[i - shift]) {
      strides[i] = meta_.strides[i - shift];
    } else {
      same = false;
    }
  }
  if (meta_.sizes.empty()) strides.assign(sizes.size(), Int(0));
  meta_.sizes = sizes;
  meta_.strides = std::move(strides);
  if (same) {
    Push([](Builder&, ValueId v) { return v; }, [](Builder&, ValueId, ValueId fresh) { return fresh; });
  } else {
    Push([sizes](Builder& b, ValueId v) { return b.Broadcast(v, sizes); }, nullptr);
  }
}

Out ViewChain::Done() const {
  Out out;
  out.kind = Out::kView;
  out.of = parent_;
  out.value = value_;
  out.strides = meta_.strides;
  out.view.offset = offset_;
  auto steps = std::make_shared<std::vector<View>>(steps_);
  bool writable = std::all_of(steps->begin(), steps->end(), [](const View& v) { return v.inverse != nullptr; });
  out.view.forward = [steps](Builder& b, ValueId v) {
    for (const View& step : *steps) v = step.forward(b, v);
    return v;
  };
  if (writable) {
    out.view.inverse = [steps](Builder& b, ValueId parent, ValueId fresh) {
      std::vector<ValueId> inner = {parent};
      for (const View& step : *steps) inner.push_back(step.forward(b, inner.back()));
      for (size_t i = steps->size(); i-- > 0;) fresh = (*steps)[i].inverse(b, inner[i], fresh);
      return fresh;
    };
  }
  return out;
}

ValueId ViewChain::Replaced(ValueId fresh) const {
  if (steps_.empty()) return fresh;
  Out view = Done();
  if (!view.view.inverse) Scope::Fail("write through an expanded view");
  return view.view.inverse(s_.b, parent_value_, fresh);
}

SliceBounds NormalizeSlice(Scope& s, const Arg& slice, const Int& size) {
  auto& env = s.env;
  const Arg &a = slice.items[0], &z = slice.items[1], &st = slice.items[2];
  for (const Arg* p : {&a, &z, &st}) {
    if (!p->is_none() && !p->is(Arg::Kind::kInt)) Scope::Skip();  // a tensor as a bound: data decides
  }
  int64_t step = st.is_none() ? 1 : env.Specialize(st.i);
  if (step == 0 || (step < 0 && s.torch())) Scope::Fail("slice step");
  auto clamp = [&](Int v) {
    if (env.Lt(v, 0)) v = v + size;
    if (env.Lt(v, 0)) return Int(0);
    return env.Lt(size, v) ? size : v;
  };
  SliceBounds out;
  if (step > 0) {
    Int start = a.is_none() ? Int(0) : clamp(a.i);
    // The usual huge end (sys.maxsize) must not become a guard on the size.
    bool open = z.is_none() || (z.i.is_const() && z.i.value() > (int64_t{1} << 60));
    Int stop = open ? size : clamp(z.i);
    bool empty = start != Int(0) && env.Le(stop, start);
    out.start = start;
    out.step = step;
    out.length = empty ? Int(0) : shape::CeilDiv(stop - start, Int(step));
    return out;
  }
  // Negative: walk from the first index down; as the reversed positive slice.
  auto fix = [&](const Arg& v, Int otherwise) {
    if (v.is_none()) return otherwise;
    Int x = env.Lt(v.i, 0) ? v.i + size : v.i;
    if (env.Lt(x, 0)) return Int(-1);
    return env.Lt(x, size) ? x : size - Int(1);
  };
  const Int first = fix(a, size - Int(1)), last = fix(z, Int(-1));
  out.flip = true;
  out.step = -step;
  out.length = env.Lt(last, first) ? shape::CeilDiv(first - last, Int(-step)) : Int(0);
  out.start = out.length == Int(0) ? Int(0) : first + (out.length - Int(1)) * Int(step);
  return out;
}

Int NormalizeIndex(Scope& s, const Int& index, const Int& size) {
  Int v = s.env.Lt(index, 0) ? index + size : index;
  if (s.env.Lt(v, 0) || !s.env.Lt(v, size)) Scope::Fail("index out of range");
  return v;
}

Ints FillSizes(Scope& s, const Ints& wanted, const Int& numel) {
  Ints sizes = wanted;
  int hole = -1;
  Int known = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i].is_const() && sizes[i].value() == -1) {
      if (hole >= 0) Scope::Fail("only one -1 is possible");
      hole = static_cast<int>(i);
    } else {
      if (sizes[i].is_const() && sizes[i].value() < 0) Scope::Fail("negative size");
      known = known * sizes[i];
    }
  }
  if (hole < 0) {
    if (!s.env.Eq(known, numel)) Scope::Fail("sizes do not fit the number of elements");
    return sizes;
  }
  if (s.env.Eq(known, 0)) Scope::Fail("-1 is ambiguous");
  if (!s.env.Eq(shape::Mod(numel, known), 0)) Scope::Fail("sizes do not fit the number of elements");
  sizes[hole] = shape::FloorDiv(numel, known);
  return sizes;
}

ValueId Overwriting(Scope& s, const Operand& x, ValueId value) {
  if (!s.mode.grad || !x.meta->requires_grad) return value;
  return s.b.Where(s.b.Constant(Scalar(false), DType::kBool, x.meta->sizes), x.value, value);
}

bool TakenAsNumber(Scope& s, const Operand& o, const Operand& other, bool second) {
  const auto on_cpu = [](const Operand& x) { return x.is_tensor() && x.meta->device.kind == DeviceKind::kCpu; };
  if (!on_cpu(o)) return !o.is_tensor();
  const shape::Ints& sizes = o.meta->sizes;
  if (!on_cpu(other)) return other.is_tensor() && sizes.empty();  // beside a number it is the tensor
  return second && std::all_of(sizes.begin(), sizes.end(), [&](const shape::Int& n) { return s.env.Eq(n, 1); });
}

ValueId Unless(Scope& s, ValueId bad, ValueId v) {
  Attrs attrs;
  attrs.axes = {0};
  attrs.flag = true;                     // index 1 of one element
  if (!s.torch()) attrs.name = "wraps";  // NumPy has something to tell
  return s.b.Add(Op::kTake, {s.b.Reshape(v, {shape::Int(1)}), s.b.Cast(bad, DType::kInt64)}, attrs);
}

ValueId NoOverflow(Scope& s, Op op, ValueId a, ValueId b, ValueId v) {
  const DType t = s.b.type(v).dtype;
  if (!IsInteger(t)) return v;
  auto less = [&](ValueId x, ValueId y) { return s.b.Binary(Op::kLt, x, y); };
  ValueId zero = rules::Like(s.b, v, 0), bad;
  if (op == Op::kMul) {  // undone by division, which wraps for the one case that this misses: the least number by -1
    ValueId quotient = s.b.Binary(Op::kTruncDiv, v, s.b.Where(s.b.Binary(Op::kEq, a, zero), rules::Like(s.b, v, 1), a));
    bad = s.b.Binary(Op::kAnd, s.b.Binary(Op::kNe, a, zero), s.b.Binary(Op::kNe, quotient, b));
    if (IsSigned(t)) {
      ValueId both = s.b.Binary(Op::kAnd, less(a, zero), less(b, zero));
      bad = s.b.Binary(Op::kOr, bad, s.b.Binary(Op::kAnd, both, less(v, zero)));
    }
  } else if (IsSigned(t)) {  // the result's sign is neither operand's (of a sum)
    ValueId other = op == Op::kAdd ? b : s.b.Unary(Op::kNot, b);
    bad = less(s.b.Binary(Op::kAnd, s.b.Binary(Op::kXor, a, v), s.b.Binary(Op::kXor, other, v)), zero);
  } else {
    bad = op == Op::kAdd ? less(v, a) : less(a, b);
  }
  return Unless(s, bad, v);
}

ValueId Element(Scope& s, const Operand& v, DType t) {
  const DType from = v.meta->dtype;
  const ValueId cast = s.b.Cast(v.value, t);
  if (s.torch() || !v.meta->is_scalar || !IsInteger(t) || !IsSigned(t) || from == t || IsBool(from)) return cast;
  const int bits = 8 * DTypeSize(t) - 1, have = 8 * DTypeSize(from) - IsSigned(from);
  auto less = [&](ValueId x, ValueId y) { return s.b.Binary(Op::kLt, x, y); };
  if (IsFloat(from)) {
    const ValueId whole = s.b.Unary(Op::kTrunc, s.b.Cast(v.value, DType::kFloat64));
    const ValueId end = rules::Like(s.b, whole, std::ldexp(1.0, bits));
    const ValueId fits = s.b.Binary(Op::kAnd, less(whole, end), s.b.Binary(Op::kLe, s.b.Unary(Op::kNeg, end), whole));
    return Unless(s, s.b.Unary(Op::kNot, fits), cast);
  }
  if (have <= bits) return cast;
  const int64_t most = bits == 63 ? INT64_MAX : (int64_t{1} << bits) - 1;
  ValueId bad = less(rules::Like(s.b, v.value, most), v.value);
  if (IsSigned(from)) bad = s.b.Binary(Op::kOr, bad, less(v.value, rules::Like(s.b, v.value, -most - 1)));
  return Unless(s, bad, cast);
}

}  // namespace framejit::surface
