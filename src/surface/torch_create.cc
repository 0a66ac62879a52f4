// Rows that make tensors: from nothing, from a dtype change, by joining and repeating. Strides follow the framework.
#include <algorithm>
#include <cmath>

#include "graph/arguments.h"
#include "rules/decompose.h"
#include "runtime/cuda/driver.h"
#include "surface/views.h"

namespace framejit::surface {
namespace {

using Kind = Arg::Kind;
using shape::Int;
using shape::Ints;

// Reads the device= of a creation function.
void OnDevice(Scope& s, int i) {
  if (!s.has(i)) return;
  s.device = runtime::cuda::ParseDevice(s.arg(i).s);
  if (!s.device || s.device->kind == DeviceKind::kMeta) Scope::Skip();
}
// Conversions keep the device: copies between devices are the framework's.
void SameDevice(Scope& s, const Operand& x, std::string_view device) {
  auto to = runtime::cuda::ParseDevice(device);
  if (!to || !(*to == x.meta->device)) Scope::Skip();
}
// Reads the trailing keyword arguments of creation functions: dtype, layout, device, pin_memory, requires_grad at
// first, first+1, ...
void PlainTensor(Scope& s, int layout) {
  if (s.has(layout) && s.arg(layout).s.find("strided") == std::string::npos) Scope::Skip();
  OnDevice(s, layout + 1);
  if ((s.has(layout + 2) && s.flag(layout + 2)) || (s.has(layout + 3) && s.flag(layout + 3))) Scope::Skip();
}

Outs Filled(Scope& s, const Arg& number, DType t, const Ints& sizes, Ints strides = {}) {
  RefuseNegative(s, sizes);
  if (IsInteger(t) && number.is(Kind::kSymFloat)) Scope::Skip();  // it may be out of range
  const std::optional<Arg> fill = surface::Converted(s.env, number, t);
  if (!fill) Scope::Fail("fill value cannot be converted without overflow");
  Out out;
  out.value = s.b.Broadcast(s.Constant(*fill, t), sizes);
  out.strides = std::move(strides);
  out.differentiable = false;
  out.array = true;
  return out;
}

DType NumberDType(Scope& s, const Arg& a) {
  return a.is(Kind::kBool) ? DType::kBool : a.is(Kind::kInt) ? DType::kInt64 : s.default_float();
}

Arg FillOf(Scope& s) {
  return Arg::Int(s.row.op == Op::kReciprocal ? 1 : 0);
}  // ones carry kReciprocal, zeros and empty nothing

#define OPTIONS                                                                                         \
  "*, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=False, bool? " \
  "requires_grad=False"
#define LIKE OPTIONS ", MemoryFormat? memory_format=None"

Outs Zeros(Scope& s) {
  PlainTensor(s, 2);
  return Filled(s, FillOf(s), s.dtype(1).value_or(s.default_float()), s.ints(0));
}
Outs Empty(Scope& s) {  // The result may be whatever is in the memory, and zeros are as good.
  if (s.has(6) && !s.arg(6).s.ends_with("contiguous_format")) Scope::Skip();
  return Zeros(s);
}
Outs Full(Scope& s) {
  PlainTensor(s, 3);
  return Filled(s, s.arg(1), s.dtype(2).value_or(NumberDType(s, s.arg(1))), s.ints(0));
}

Ints LikeStrides(Scope& s, const Operand& x, int format) {
  if (!s.has(format) || s.arg(format).s.ends_with("preserve_format")) return PreserveFormat(s.env, *x.meta);
  if (!s.arg(format).s.ends_with("contiguous_format")) Scope::Skip();
  return {};
}
Outs ZerosLike(Scope& s) {
  Operand x = s.tensor(0);
  PlainTensor(s, 2);
  return Filled(s, FillOf(s), s.dtype(1).value_or(x.meta->dtype), x.meta->sizes, LikeStrides(s, x, 6));
}
Outs FullLike(Scope& s) {
  Operand x = s.tensor(0);
  PlainTensor(s, 3);
  return Filled(s, s.arg(1), s.dtype(2).value_or(x.meta->dtype), x.meta->sizes, LikeStrides(s, x, 7));
}
Outs NewZeros(Scope& s) {
  PlainTensor(s, 3);
  return Filled(s, FillOf(s), s.dtype(2).value_or(s.tensor(0).meta->dtype), s.ints(1));
}
Outs NewFull(Scope& s) {
  PlainTensor(s, 4);
  return Filled(s, s.arg(2), s.dtype(3).value_or(s.tensor(0).meta->dtype), s.ints(1));
}

// start + i * step for i < count, in t.
ValueId Ramp(Scope& s, const Arg& start, const Arg& step, const Int& count, DType t) {
  DType wide = IsFloat(t) ? DType::kFloat64 : DType::kInt64;
  ValueId v = s.b.Iota(wide, {count}, 0);
  v = s.b.Binary(Op::kMul, v, s.Constant(step, wide));
  return s.b.Cast(s.b.Binary(Op::kAdd, v, s.Constant(start, wide)), t);
}

Outs ARangeOf(Scope& s, Arg start, Arg end, Arg step, std::optional<DType> dtype) {
  bool integers = true;
  for (Arg* a : {&start, &end, &step})  // where no float stands, a bool is an integer
    if (a->is(Kind::kBool)) *a = Arg::Int(a->b);
  for (const Arg* a : {&start, &end, &step}) integers &= a->is(Kind::kInt);
  DType t = dtype.value_or(integers ? DType::kInt64 : s.default_float());
  if (IsBool(t)) Scope::Skip();
  Int count;
  if (integers) {
    int64_t by = s.env.Specialize(step.i);
    if (by == 0) Scope::Fail("arange step");
    Int span = by > 0 ? end.i - start.i : start.i - end.i;
    if (s.env.Lt(span, 0)) {
      if (s.torch()) Scope::Fail("arange bounds");
      span = 0;
    }
    count = shape::CeilDiv(span, Int(by > 0 ? by : -by));
  } else {
    auto number = [&](const Arg& a) { return a.is(Kind::kFloat) ? a.f : double(s.env.Specialize(a.i)); };
    double by = number(step), n = std::ceil((number(end) - number(start)) / by);
    if (!(by != 0) || !std::isfinite(n) || n < 0) Scope::Skip();
    if (!IsFloat(t)) Scope::Skip();
    count = static_cast<int64_t>(n);
  }
  Out out;
  out.value = Ramp(s, start, step, count, t);
  out.differentiable = false;
  return out;
}
Outs ARangeEnd(Scope& s) {
  PlainTensor(s, 2);
  return ARangeOf(s, Arg::Int(0), s.arg(0), Arg::Int(1), s.dtype(1));
}
Outs ARange(Scope& s) {
  PlainTensor(s, 4);
  return ARangeOf(s, s.arg(0), s.arg(1), s.arg(2), s.dtype(3));
}

Outs LinSpace(Scope& s) {  // (start, end, steps, dtype...): from both ends, as the kernel does
  PlainTensor(s, 4);
  DType t = s.dtype(3).value_or(s.default_float());
  const Int n = s.integer(2);
  if (!IsFloat(t) || s.env.Lt(n, 2)) Scope::Skip();
  DType wide = ComputeType(t);
  const double start = s.number(0), end = s.number(1);
  const ValueId index = s.b.Iota(DType::kInt64, {n}, 0), i = s.b.Cast(index, wide);
  auto number = [&](double v) { return rules::Like(s.b, i, v); };
  const ValueId last = s.b.Cast(s.b.SymConstant(n - Int(1), DType::kInt64), wide);
  const double range =
      t == DType::kFloat64 ? end - start : static_cast<float>(static_cast<float>(end) - static_cast<float>(start));
  const ValueId step = s.b.Binary(Op::kDiv, number(range), last);
  ValueId up = s.b.Binary(Op::kAdd, s.b.Binary(Op::kMul, i, step), number(start));
  ValueId down = s.b.Binary(Op::kSub, number(end), s.b.Binary(Op::kMul, s.b.Binary(Op::kSub, last, i), step));
  const ValueId half = s.b.SymConstant(shape::FloorDiv(n, Int(2)), DType::kInt64);
  Out out;
  out.value = s.b.Cast(s.b.Where(s.b.Binary(Op::kLt, index, half), up, down), t);
  out.differentiable = false;
  return out;
}

Outs Eye(Scope& s) {
  PlainTensor(s, 3);
  Ints sizes = {s.integer(0), s.has(1) ? s.integer(1) : s.integer(0)};
  DType t = s.dtype(2).value_or(s.default_float());
  RefuseNegative(s, sizes);
  Out out;
  out.value = s.b.Cast(s.b.Binary(Op::kEq, s.b.Iota(DType::kInt64, sizes, 0), s.b.Iota(DType::kInt64, sizes, 1)), t);
  out.differentiable = false;
  return out;
}

Outs ScalarTensor(Scope& s) {
  PlainTensor(s, 2);
  return Filled(s, s.arg(0), s.dtype(1).value_or(s.default_float()), {});
}

// torch.tensor of numbers in (nested) lists is a constant.
Outs TensorOf(Scope& s) {
  if (s.arg(0).is(Kind::kTensor)) Scope::Fail("torch warns of a copy of a tensor");
  OnDevice(s, 2);
  if (s.flag(3) || (s.has(4) && s.flag(4))) Scope::Skip();
  DType t = DType::kBool;
  bool any = false;
  std::function<ValueId(const Arg&)> build = [&](const Arg& a) -> ValueId {
    if (a.is_number()) return s.Constant(a, t);
    if (!a.is(Kind::kList) && !a.is(Kind::kTuple)) Scope::Skip();
    if (a.items.empty() || a.items.size() > 64) Scope::Skip();
    std::vector<ValueId> parts;
    for (const Arg& i : a.items) {
      ValueId v = build(i);
      Ints sizes = s.b.type(v).shape;
      sizes.insert(sizes.begin(), Int(1));
      parts.push_back(s.b.Reshape(v, sizes));
    }
    Attrs attrs;
    attrs.axes = {0};
    return s.b.Add(Op::kCat, parts, attrs);
  };
  EachArg(s.arg(0), [&](const Arg& a) {
    if (!a.is_number()) return;
    t = PromoteTypes(t, NumberDType(s, a));
    any = true;
  });
  if (!any) {
    if (!(s.arg(0).is(Kind::kList) || s.arg(0).is(Kind::kTuple)) || !s.arg(0).items.empty()) Scope::Skip();
    return Filled(s, Arg::Int(0), s.dtype(1).value_or(s.default_float()), {Int(0)});
  }
  t = s.dtype(1).value_or(t);
  Out out;
  out.value = build(s.arg(0));
  out.differentiable = false;
  return out;
}

// --- dtype changes --------------------------------------------------------------------------------------------------

Outs Converted(Scope& s, const Operand& x, DType t, bool copy, const Arg& format) {
  std::string_view f = format.is_none() ? "preserve_format" : std::string_view(format.s);
  bool preserve = f.ends_with("preserve_format");
  // As it is, where torch would suggest that format for it: not the same as lying in it.
  if (f.ends_with("channels_last") && x.rank() == 4) {
    if (t == x.meta->dtype && !copy && LikesChannelsLast(s.env, *x.meta)) return Same(x);
    Out out;
    out.value = s.b.Cast(x.value, t);
    out.strides = ChannelsLast(x.meta->sizes);
    return out;
  }
  if (!preserve && !f.ends_with("contiguous_format")) Scope::Skip();
  if (t == x.meta->dtype && !copy && (preserve || !LikesChannelsLast(s.env, *x.meta))) return Same(x);
  Out out;
  out.value = s.b.Cast(x.value, t);
  if (preserve) out.strides = PreserveFormat(s.env, *x.meta);
  return out;
}

Outs ToDType(Scope& s) {  // (input, dtype, non_blocking, copy, memory_format)
  return Converted(s, s.tensor(0), *s.dtype(1), s.flag(3), s.arg(4));
}
Outs ToDevice(Scope& s) {  // (input, device, dtype, non_blocking, copy, memory_format)
  Operand x = s.tensor(0);
  if (s.has(1)) SameDevice(s, x, s.arg(1).s);
  return Converted(s, x, s.dtype(2).value_or(x.meta->dtype), s.flag(4), s.arg(5));
}
Outs LikeOther(Scope& s, bool copy, const Arg& format) {
  Outs outs = Converted(s, s.tensor(0), s.tensor(1).meta->dtype, copy, format);
  if (!s.tensor(0).meta->requires_grad) outs.items[0].differentiable = false;  // the other's gradients do not matter
  return outs;
}
Outs ToOther(Scope& s) {
  if (IsComplex(s.tensor(1).meta->dtype)) Scope::Skip();
  return LikeOther(s, s.flag(3), s.arg(4));
}
template <DType T>
Outs ToType(Scope& s) {
  return Converted(s, s.tensor(0), T, false, s.arg(1));
}
Outs TypeAs(Scope& s) {
  return LikeOther(s, false, Arg::None());
}
Outs TypeOf(Scope& s) {
  return Converted(s, s.tensor(0), *s.dtype(1), false, Arg::None());
}
Outs ToCpu(Scope& s) {
  SameDevice(s, s.tensor(0), "cpu");
  return Converted(s, s.tensor(0), s.tensor(0).meta->dtype, false, s.arg(1));
}

Outs CopyInPlace(Scope& s) {
  Operand x = s.tensor(0), src = s.tensor(1);
  if (IsComplex(src.meta->dtype)) Scope::Skip();
  return Overwriting(
      s, x,
      s.b.Cast(s.b.Broadcast(src.value, x.meta->sizes), x.meta->dtype));  // a gradient is summed as the source's type
}
Outs FillInPlace(Scope& s) {
  Operand x = s.tensor(0), v = s.Read(s.arg(1));
  if (v.rank() != 0) Scope::Fail("fill_ needs a number");
  DType t = x.meta->dtype;
  if (!v.is_tensor() && (!surface::Converted(s.env, v.number, t) || (!IsFloat(t) && v.number.is(Kind::kFloat))))
    Scope::Skip();
  ValueId value = v.is_tensor() ? Element(s, v, t) : s.Constant(v.number, t);
  return Overwriting(s, x, s.b.Broadcast(value, x.meta->sizes));
}
Outs ZeroInPlace(Scope& s) {
  Operand x = s.tensor(0);
  return Overwriting(s, x, s.b.Constant(Scalar(0), x.meta->dtype, x.meta->sizes));
}

// --- joining and repeating ------------------------------------------------------------------------------------------

DType JoinType(Scope& s, const std::vector<Operand>& all) {
  std::vector<TypeOperand> typed;
  for (const Operand& x : all) typed.push_back({x.meta, Kind::kNone});
  return s.torch() ? TorchResultType(typed, s.default_float()) : NumpyResultType(typed);
}

// NumPy's joins ask no axis that None made (its stride is 0) for its place in memory: here it lies where it stands.
TensorMeta Strided(const TensorMeta& m) {
  TensorMeta out = m;
  Int next = 1;
  for (size_t d = m.sizes.size(); d-- > 0;) {
    if (m.sizes[d] == Int(1) && m.strides[d] == Int(0)) out.strides.Set(d, next);
    next = next * m.sizes[d];
  }
  return out;
}

Outs Joined(Scope& s, bool stack) {
  std::vector<Operand> all = s.tensors(0);
  if (all.empty()) Scope::Fail("nothing to join");
  for (const Operand& x : all) {  // the join keeps a memory order that all operands share: leave that to the framework
    if (s.torch() ? LikesChannelsLast(s.env, *x.meta) : !IsRowMajor(Strided(*x.meta))) Scope::Skip();
  }
  DType t = JoinType(s, all);
  if (s.torch() && !stack && std::any_of(all.begin(), all.end(), [](const Operand& x) { return x.rank() != 1; })) {
    // Historic: a 1-dimensional empty tensor joins with anything (it still takes part in the dtype).
    std::erase_if(all, [&](const Operand& x) {
      const bool nothing = x.rank() == 1 && s.env.Eq(x.meta->sizes[0], 0);
      if (nothing && s.mode.grad && x.meta->requires_grad) Scope::Skip();  // its gradient is empty, too, and not none
      return nothing;
    });
  }
  int rank = all[0].rank() + (stack ? 1 : 0);
  if (rank == 0) Scope::Fail("what is 0-dimensional cannot be concatenated");
  int axis = s.dim(1, rank);
  std::vector<ValueId> parts;
  for (const Operand& x : all) {
    if (x.rank() != all[0].rank()) Scope::Fail("ranks differ");
    ValueId v = s.b.Cast(x.value, t);
    if (stack) {
      Ints sizes = x.meta->sizes;
      sizes.insert(sizes.begin() + axis, Int(1));
      v = s.b.Reshape(v, sizes);
    }
    parts.push_back(v);
  }
  Attrs attrs;
  attrs.axes = {axis};
  return parts.size() == 1 ? parts[0] : s.b.Add(Op::kCat, parts, attrs);
}
Outs Cat(Scope& s) {
  if (s.has(2) || (s.has(3) && s.arg(3).s != "same_kind")) Scope::Skip();  // a type of its own, an error
  return Joined(s, false);
}
Outs Stack(Scope& s) {
  return Joined(s, true);
}

Outs Repeat(Scope& s) {
  Operand x = s.tensor(0);
  Ints times = s.ints(1), sizes = x.meta->sizes;
  if (s.row.op == Op::kTake && times.size() < sizes.size())
    times.insert(times.begin(), sizes.size() - times.size(), Int(1));  // tile
  if (times.size() < sizes.size()) Scope::Fail("repeat needs as many numbers as dimensions");
  sizes.insert(sizes.begin(), times.size() - sizes.size(), Int(1));
  // [a, b] -> [1, a, 1, b] -> [m, a, n, b] -> [m*a, n*b]
  Ints apart, spread, result;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (s.env.Lt(times[i], 0)) Scope::Fail("negative repeats");
    apart.insert(apart.end(), {Int(1), sizes[i]});
    spread.insert(spread.end(), {times[i], sizes[i]});
    result.push_back(times[i] * sizes[i]);
  }
  return s.b.Reshape(s.b.Broadcast(s.b.Reshape(x.value, apart), spread), result);
}

Outs RepeatInterleave(Scope& s) {  // a number of repeats
  Operand x = s.tensor(0);
  Int times = s.integer(1);
  if (s.env.Lt(times, 0)) Scope::Fail("negative repeats");
  ValueId v = x.value;
  Ints sizes = x.meta->sizes;
  int axis = 0;
  if (s.has(2)) {
    if (x.rank() == 0) Scope::Skip();
    axis = s.dim(2, x.rank());
  } else {
    sizes = {shape::Product(sizes)};
    v = s.b.Reshape(v, sizes);
  }
  Ints apart = sizes, spread, result = sizes;
  apart.insert(apart.begin() + axis + 1, Int(1));
  spread = apart;
  spread[axis + 1] = times;
  result[axis] = sizes[axis] * times;
  return s.b.Reshape(s.b.Broadcast(s.b.Reshape(v, apart), spread), result);
}

Outs Pad(Scope& s) {  // (input, pad, mode, value): the last dimension first
  Operand x = s.tensor(0);
  if (s.arg(2).s != "constant" || LikesChannelsLast(s.env, *x.meta)) Scope::Skip();
  Ints pads = s.ints(1);
  if (pads.size() % 2 != 0 || pads.size() / 2 > x.meta->sizes.size()) Scope::Fail("pad sizes");
  Ints all(2 * x.rank(), Int(0));
  // Where nothing is added the result lies as x does.
  const auto none = [&](const Int& p) { return p == Int(0) || (!IsRowMajor(*x.meta) && s.env.Eq(p, 0)); };
  bool nothing = true;
  for (size_t i = 0; i < pads.size() / 2; ++i) {
    int d = x.rank() - 1 - static_cast<int>(i);
    all[2 * d] = pads[2 * i];
    all[2 * d + 1] = pads[2 * i + 1];
    nothing &= none(pads[2 * i]) && none(pads[2 * i + 1]);
    if (s.env.Lt(x.meta->sizes[d] + pads[2 * i] + pads[2 * i + 1], 0)) Scope::Fail("negative size after padding");
  }
  Out out;
  out.value = x.value;
  if (nothing) {  // a clone
    out.strides = PreserveFormat(s.env, *x.meta);
    return out;
  }
  Attrs attrs;
  attrs.syms = all;
  if (s.has(3) && !surface::Converted(s.env, s.arg(3), x.meta->dtype))
    Scope::Fail("value cannot be converted without overflow");
  attrs.scalar = s.has(3) ? Scalar(s.number(3)) : Scalar(0.0);
  if (!IsFloat(x.meta->dtype)) {
    double v = attrs.scalar.AsDouble();
    if (v != std::floor(v)) Scope::Skip();
    attrs.scalar = IsBool(x.meta->dtype) ? Scalar(v != 0) : Scalar(static_cast<int64_t>(v));
  }
  for (size_t d = 0; d < x.meta->sizes.size(); ++d) {  // cropping narrows first and can keep another memory order
    const Int lo = all[2 * d], hi = all[2 * d + 1];
    const auto unknown = [&](const Int& p) { return IsRowMajor(*x.meta) && !s.env.Prove(shape::Cmp::kLt, p, 0); };
    for (const Int& p : {lo, hi})
      if (!unknown(p) && s.env.Lt(p, 0)) Scope::Skip();
    const Int rest = x.meta->sizes[d] + (unknown(lo) ? shape::Min(lo, 0) : 0) + (unknown(hi) ? shape::Min(hi, 0) : 0);
    if (s.env.Lt(rest, 0)) Scope::Fail("cropped by more than there is");
  }
  out.value = s.b.Add(Op::kPad, {x.value}, attrs);
  return out;
}

Outs Flip(Scope& s) {
  Operand x = s.tensor(0);
  Attrs attrs;
  attrs.axes = s.Dims(1, x.rank());
  Out out;
  out.value = s.b.Add(Op::kFlip, {x.value}, attrs);
  out.strides = PreserveFormat(s.env, *x.meta);
  return out;
}

Outs Roll(Scope& s) {
  Operand x = s.tensor(0);
  const bool rows = IsRowMajor(*x.meta);
  if ((!rows && s.torch()) || x.rank() == 0) Scope::Skip();
  Ints shifts = s.ints(1), dims = s.ints(2);
  ValueId v = x.value;
  bool flat = dims.empty();
  if (flat) v = s.b.Reshape(v, {shape::Product(x.meta->sizes)});
  if (!s.torch()) {  // a number goes with each of the others
    if (flat) Scope::Skip();
    if (shifts.size() == 1 && !flat) shifts.resize(dims.size(), shifts[0]);
    if (dims.size() == 1) dims.resize(shifts.size(), dims[0]);
  }
  if (flat ? shifts.size() != 1 : shifts.size() != dims.size()) Scope::Fail("roll: shifts and dims");
  for (size_t i = 0; i < shifts.size(); ++i) {
    int axis = flat ? 0 : s.Dim(dims[i], x.rank());
    Int size = s.b.type(v).shape.at(axis);
    if (s.env.Eq(size, 0)) continue;
    Int by = shape::Mod(shifts[i], size);
    if (s.env.Eq(by, 0)) continue;
    Attrs attrs;
    attrs.axes = {axis};
    ValueId tail = s.b.Slice(v, axis, size - by, by), head = s.b.Slice(v, axis, 0, size - by);
    v = s.b.Add(Op::kCat, {tail, head}, attrs);
  }
  Out out;
  out.value = flat ? s.b.Reshape(v, x.meta->sizes) : v;
  if (!rows) out.strides = KeepOrder(s, *x.meta);
  return out;
}

Outs Triangle(Scope& s) {  // tril: kLe, triu: kLt
  Operand x = s.tensor(0);
  if (x.rank() < 2) Scope::Fail("tril needs a matrix");
  return s.row.op == Op::kLe ? rules::Tril(s.b, x.value, s.integer(1)) : rules::Triu(s.b, x.value, s.integer(1));
}

Outs Diff(Scope& s) {
  Operand x = s.tensor(0);
  if (s.has(3) || s.has(4) || s.env.Specialize(s.integer(1)) != 1 || IsBool(x.meta->dtype) || x.rank() == 0)
    Scope::Skip();
  if (!IsRowMajor(*x.meta)) Scope::Skip();
  int axis = s.dim(2, x.rank());
  Int n = x.meta->sizes[axis];
  if (s.env.Le(n, 1)) Scope::Skip();
  return s.b.Binary(Op::kSub, s.b.Slice(x.value, axis, 1, n - Int(1)), s.b.Slice(x.value, axis, 0, n - Int(1)));
}

#define FORMAT "*, MemoryFormat? memory_format=None)"
// clang-format off: a table
constexpr Row kRows[] = {
    {"t:zeros", "(int[]... size, " OPTIONS ")", &Zeros},
    {"t:ones", "(int[]... size, " OPTIONS ")", &Zeros, Op::kReciprocal},
    {"t:empty", "(int[]... size, " LIKE ")", &Empty},
    {"t:full", "(ints size, Scalar fill_value, " OPTIONS ")", &Full},
    {"t:zeros_like t:empty_like", "(Tensor input, " LIKE ")", &ZerosLike},
    {"t:ones_like", "(Tensor input, " LIKE ")", &ZerosLike, Op::kReciprocal},
    {"t:full_like", "(Tensor input, Scalar fill_value, " LIKE ")", &FullLike},
    {"m:new_zeros m:new_empty", "(Tensor input, int[]... size, " OPTIONS ")", &NewZeros},
    {"m:new_ones", "(Tensor input, int[]... size, " OPTIONS ")", &NewZeros, Op::kReciprocal},
    {"m:new_full", "(Tensor input, int[] size, Scalar fill_value, " OPTIONS ")", &NewFull},
    {"t:arange", "(Scalar end, " OPTIONS ")", &ARangeEnd},
    {"t:arange", "(Scalar start, Scalar end, Scalar step=1, " OPTIONS ")", &ARange},
    {"t:linspace", "(Scalar start, Scalar end, int steps, " OPTIONS ")", &LinSpace},
    {"t:eye", "(int n, int? m=None, " OPTIONS ")", &Eye},
    {"t:scalar_tensor", "(Scalar s, " OPTIONS ")", &ScalarTensor},
    {"t:tensor", "(Any data, *, ScalarType? dtype=None, Device? device=None, bool requires_grad=False, bool? pin_memory=None)",
     &TensorOf},

    {"m:to", "(Tensor input, ScalarType dtype, bool non_blocking=False, bool copy=False, " FORMAT, &ToDType},
    {"m:to", "(Tensor input, Device? device=None, ScalarType? dtype=None, bool non_blocking=False, bool copy=False, " FORMAT,
     &ToDevice},
    {"m:to", "(Tensor input, Tensor other, bool non_blocking=False, bool copy=False, " FORMAT, &ToOther},
    {"m:float", "(Tensor input, " FORMAT, &ToType<DType::kFloat32>}, {"m:double", "(Tensor input, " FORMAT, &ToType<DType::kFloat64>},
    {"m:half", "(Tensor input, " FORMAT, &ToType<DType::kFloat16>}, {"m:bfloat16", "(Tensor input, " FORMAT, &ToType<DType::kBFloat16>},
    {"m:long", "(Tensor input, " FORMAT, &ToType<DType::kInt64>}, {"m:int", "(Tensor input, " FORMAT, &ToType<DType::kInt32>},
    {"m:short", "(Tensor input, " FORMAT, &ToType<DType::kInt16>}, {"m:char", "(Tensor input, " FORMAT, &ToType<DType::kInt8>},
    {"m:byte", "(Tensor input, " FORMAT, &ToType<DType::kUInt8>}, {"m:bool", "(Tensor input, " FORMAT, &ToType<DType::kBool>},
    {"m:type_as", "(Tensor input, Tensor other)", &TypeAs}, {"m:type", "(Tensor input, ScalarType dtype)", &TypeOf},
    {"m:cpu", "(Tensor input, " FORMAT, &ToCpu},
    {"I:copy", "(Tensor input, Tensor src, bool non_blocking=False)", &CopyInPlace},
    {"I:fill", "(Tensor input, Operand value)", &FillInPlace}, {"I:zero", "(Tensor input)", &ZeroInPlace},

    {"t:cat t:concat t:concatenate", "(Tensor[] tensors, int dim=0)", &Cat},
    {"N:concatenate N:concat", "(Tensor[] arrays, int dim=0, *, ScalarType? dtype=None, str? casting=None)", &Cat},
    {"t:stack", "(Tensor[] tensors, int dim=0)", &Stack},
    {"N:stack", "(Tensor[] arrays, int dim=0)", &Stack},
    {"m:repeat", "(Tensor input, int[]... repeats)", &Repeat},
    {"m:tile", "(Tensor input, int[]... dims)", &Repeat, Op::kTake}, {"t:tile", "(Tensor input, int[] dims)", &Repeat, Op::kTake},
    {"tm:repeat_interleave", "(Tensor input, int repeats, int? dim=None, *, int? output_size=None)", &RepeatInterleave},
    {"n:pad", "(Tensor input, int[] pad, str mode='constant', float? value=None)", &Pad},
    {"tm:flip", "(Tensor input, int[]... dims)", &Flip},
    {"NM:repeat", "(Tensor input, int repeats, int? dim=None)", &RepeatInterleave, Op::kInput, kAnyDType},
    {"tm:roll", "(Tensor input, int[] shifts, int[] dims=())", &Roll},
    {"N:roll", "(Tensor input, int[] shift, int[] dim)", &Roll, Op::kInput, kAnyDType},
    {"tm:tril I:tril", "(Tensor input, int diagonal=0)", &Triangle, Op::kLe},
    {"tm:triu I:triu", "(Tensor input, int diagonal=0)", &Triangle, Op::kLt},
    {"tm:diff", "(Tensor input, int n=1, int dim=-1, Tensor? prepend=None, Tensor? append=None)", &Diff},
};
// clang-format on

}  // namespace

std::span<const Row> CreationRows() {
  return kRows;
}

}  // namespace framejit::surface
