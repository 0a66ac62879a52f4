// Indexing: x[...], x[...] = v with Python's and the frameworks' rules, and the functions that take index tensors.
#include <algorithm>
#include <cmath>
#include <deque>

#include "rules/decompose.h"
#include "surface/views.h"

namespace framejit::surface {
ValueId WrapIndex(Scope& s, ValueId index, const shape::Int& size) {
  ValueId i = s.b.Cast(index, DType::kInt64);
  shape::Ints sizes = s.b.type(i).shape;
  if (s.cupy) {  // round and round
    if (!s.env.Lt(0, size)) Scope::Fail("an index into nothing");
    return s.b.Binary(Op::kRem, i, s.b.SymConstant(size, DType::kInt64, sizes));
  }
  ValueId wrapped = s.b.Binary(Op::kAdd, i, s.b.SymConstant(size, DType::kInt64, sizes));
  return s.b.Where(s.b.Binary(Op::kLt, i, rules::Like(s.b, i, 0)), wrapped, i);
}

namespace {

using Kind = Arg::Kind;
using shape::Int;
using shape::Ints;

ValueId Take(Scope& s, ValueId data, ValueId index, int axis) {
  Attrs attrs;
  attrs.axes = {axis};
  attrs.flag = true;  // the user's indices may be out of range
  return s.b.Add(Op::kTake, {data, s.b.Cast(index, DType::kInt64)}, attrs);
}

struct Indexing {
  ViewChain view;                                // the basic part
  std::vector<std::pair<int, Operand>> tensors;  // A pair is an axis of the view and the index tensor on it.
  std::deque<TensorMeta> made;                   // of those that were lists
};

// A list of ints is the index tensor of its numbers.
bool IsIntList(const Arg& a) {
  return a.is(Kind::kList) && !a.items.empty() && a.items.size() <= 64 &&
         std::all_of(a.items.begin(), a.items.end(), [](const Arg& i) { return i.is(Kind::kInt); });
}

Operand Integers(Scope& s, const Arg& list, TensorMeta* meta) {
  std::vector<ValueId> parts;
  for (const Arg& i : list.items) parts.push_back(s.b.SymConstant(i.i, DType::kInt64, {Int(1)}));
  Attrs attrs;
  attrs.axes = {0};
  Operand out;
  out.value = parts.size() == 1 ? parts[0] : s.b.Add(Op::kCat, parts, attrs);
  meta->dtype = DType::kInt64;
  meta->sizes = {Int(static_cast<int64_t>(parts.size()))};
  meta->strides = {Int(1)};
  out.meta = meta;
  return out;
}

std::vector<Arg> IndexItems(const Arg& key) {
  return key.is(Kind::kTuple) ? key.items : std::vector<Arg>{key};
}

Indexing ParseIndex(Scope& s, const Operand& x, const Arg& key) {
  Indexing out{ViewChain(s, x), {}, {}};
  std::vector<Arg> items = IndexItems(key);
  int consumed = 0, ellipses = 0;
  for (const Arg& a : items) {
    if (a.is(Kind::kTensor)) {
      Operand t = s.Read(a);
      if (IsBool(t.meta->dtype)) {
        consumed += t.rank();
      } else {
        ++consumed;
      }
    } else if (a.is(Kind::kEllipsis)) {
      ++ellipses;
    } else if (a.is(Kind::kInt) || a.is(Kind::kSlice) || IsIntList(a)) {
      ++consumed;
    } else if (!a.is_none()) {
      Scope::Skip();  // Other lists, bools and anything else are the framework's.
    }
  }
  if (ellipses > 1 || consumed > x.rank()) Scope::Fail("too many indices");
  ViewChain& v = out.view;
  if (s.torch() || items.empty()) v.Expand(v.sizes());  // always a new object
  int axis = 0;
  for (const Arg& a : items) {
    if (a.is_none()) {
      Int stride = !s.torch() ? Int(0) : axis < v.rank() ? v.sizes()[axis] * v.strides()[axis] : Int(1);
      v.Unsqueeze(axis++, stride);
    } else if (a.is(Kind::kEllipsis)) {
      axis += x.rank() - consumed;
    } else if (a.is(Kind::kInt)) {
      v.Select(axis, NormalizeIndex(s, a.i, v.sizes()[axis]));
    } else if (a.is(Kind::kSlice)) {
      SliceBounds bounds = NormalizeSlice(s, a, v.sizes()[axis]);
      v.Slice(axis, bounds.start, bounds.length, bounds.step);
      if (bounds.flip) v.Flip(axis);
      ++axis;
    } else {
      Operand t = a.is(Kind::kList) ? Integers(s, a, &out.made.emplace_back()) : s.Read(a);
      if (!IsInteger(t.meta->dtype) && !IsBool(t.meta->dtype))
        Scope::Fail("tensors used as indices must be integers or bools");
      out.tensors.push_back({axis, t});
      axis += IsBool(t.meta->dtype) ? t.rank() : 1;
    }
  }
  return out;
}

// NumPy: elements that are chosen one by one lie as the indices do, which are made int64 first, each in its own order.
Ints LikeIndices(Scope& s, const Ints& shape, const std::vector<std::pair<int, Operand>>& tensors) {
  std::vector<TensorMeta> metas;
  for (const auto& [axis, t] : tensors) {
    TensorMeta& m = metas.emplace_back(*t.meta);
    const TensorMeta* one = &m;
    if (m.dtype != DType::kInt64) m.strides = NumpyPointwise(s.env, m.sizes, {&one, 1});
    m.dtype = DType::kInt64;
  }
  std::vector<const TensorMeta*> all;
  for (const TensorMeta& m : metas) all.push_back(&m);
  return NumpyPointwise(s.env, shape, all);
}

// Do the axes behind the first ones lie in their order, some of them turned perhaps?
bool RowsBehind(shape::Env& env, const TensorMeta& m, int first) {
  if (IsRowMajor(m)) return true;
  std::vector<Int> lengths(m.strides.begin() + first, m.strides.end());
  for (Int& n : lengths)
    if (env.Lt(n, 0)) n = -n;
  for (size_t d = 1; d < lengths.size(); ++d)
    if (!env.Lt(lengths[d], lengths[d - 1])) return false;
  return lengths.empty() || env.Lt(Int(0), lengths.back());
}

Outs Advanced(Scope& s, const Indexing& idx) {
  const auto& tensors = idx.tensors;
  int count = static_cast<int>(tensors.size()), first = tensors[0].first;
  bool alone = true;
  for (const auto& [axis, t] : tensors) {
    if (IsBool(t.meta->dtype) && !s.torch() && !s.cupy) Scope::Skip();
    if (IsBool(t.meta->dtype)) Scope::Fail("a bool mask: data decides the size");
    if (t.meta->dtype == DType::kUInt8 && s.torch()) Scope::Skip();
    alone &= t.rank() == 0;
  }
  // Numbers that select one element make a scalar of NumPy's. Anything else that they select is a view.
  const bool element = !s.torch() && !s.cupy && count == idx.view.rank();
  if (alone && (s.torch() || s.cupy ? count == 1 : !element))
    Scope::Fail("a 0-dimensional index: data decides the view");
  for (int i = 0; i < count; ++i) {
    if (tensors[i].first != first + i) Scope::Skip();  // indexed axes that are apart
  }
  // Makes one linear index over the adjacent axes.
  Ints sizes = idx.view.sizes(), strides = idx.view.strides();
  ValueId linear = WrapIndex(s, tensors[0].second.value, sizes[first]);
  ValueId bad = kNoValue;  // some index but the first one is out of range, where the sum may be in range
  for (int i = 1; i < count; ++i) {
    ValueId next = WrapIndex(s, tensors[i].second.value, sizes[first + i]);
    ValueId outside = s.b.Binary(Op::kOr, s.b.Binary(Op::kLt, next, rules::Like(s.b, next, 0)),
                                 s.b.Binary(Op::kLe, s.b.SymConstant(sizes[first + i], DType::kInt64), next));
    bad = bad == kNoValue ? outside : s.b.Binary(Op::kOr, bad, outside);
    ValueId scaled = s.b.Binary(Op::kMul, linear, s.b.SymConstant(sizes[first + i], DType::kInt64));
    linear = s.b.Binary(Op::kAdd, scaled, next);
  }
  if (bad != kNoValue) linear = s.b.Where(bad, rules::Like(s.b, linear, -1), linear);
  ValueId data = idx.view.value();
  if (count > 1) {
    Ints merged(sizes.begin(), sizes.begin() + first);
    merged.push_back(shape::Product(std::span(sizes).subspan(first, count)));
    merged.insert(merged.end(), sizes.begin() + first + count, sizes.end());
    data = s.b.Reshape(data, merged);
  }
  Out out;
  out.value = Take(s, data, linear, first);
  out.array = true;
  Ints shape = s.b.type(out.value).shape;
  int index_rank = s.b.type(linear).rank();
  if (!s.torch()) {
    // NumPy puts the indexed axes outermost in memory, and the others in the order in which they lie.
    const bool elements = count == idx.view.rank();
    if (first != 0 || !(elements || RowsBehind(s.env, idx.view.meta(), count))) Scope::Skip();
    out.array = false;
    if (elements) out.strides = LikeIndices(s, shape, tensors);
    return out;
  }
  const shape::Env::Typical typical(s.env);
  // Of nothing, where the index tensors alone have the result's shape, all count as contiguous.
  bool same = IsEmpty(s.env, shape);
  for (int d = 0; same && d < static_cast<int>(shape.size()); ++d)
    same = (d >= first && d < first + index_rank) || s.env.Eq(shape[d], 1);
  if (same) return out;
  // Torch goes over the data, in which the indexed axes stand still, and over the index tensors.
  std::vector<Ints> operands;
  Ints data_strides(strides.begin(), strides.begin() + first);
  data_strides.insert(data_strides.end(), index_rank, Int(0));
  data_strides.insert(data_strides.end(), strides.begin() + first + count, strides.end());
  for (Int& st : data_strides) st = st * Int(DTypeSize(idx.view.meta().dtype));
  operands.push_back(data_strides);
  for (const auto& [axis, t] : tensors) {  // broadcast together, then seen with ones around: [1, .., index.., 1, ..]
    TensorMeta m = *t.meta;
    Ints around(shape.size(), Int(1));
    std::copy_n(shape.begin() + first, index_rank, around.begin() + first);
    m.sizes = shape::IntList(std::span(shape).subspan(first, index_rank));
    Ints apart(index_rank);
    int shift = index_rank - t.rank();
    for (int d = 0; d < t.rank(); ++d) {
      bool stretched = !(t.meta->sizes[d] == m.sizes[d + shift]) && s.env.Eq(t.meta->sizes[d], 1);
      if (!stretched) apart[d + shift] = t.meta->strides[d];
    }
    m.strides = apart;
    Ints mine = ViewStrides(s.env, m, around).value_or(RowMajor(around));
    for (size_t d = 0; d < mine.size(); ++d) {
      bool still = around[d] == Int(1) && !s.env.Eq(shape[d], 1);
      mine[d] = still ? Int(0) : mine[d] * Int(DTypeSize(m.dtype));
    }
    operands.push_back(mine);
  }
  out.strides = TorchIterator(s.env, shape, operands);
  return out;
}

Outs GetItem(Scope& s) {
  Operand x = s.tensor(0);
  Indexing idx = ParseIndex(s, x, s.arg(1));
  if (!idx.tensors.empty()) {
    const std::vector<Arg> items = IndexItems(s.arg(1));
    const bool dots = std::any_of(items.begin(), items.end(), [](const Arg& a) { return a.is(Kind::kEllipsis); });
    if (dots && !s.torch() && idx.view.rank() == static_cast<int>(idx.tensors.size())) Scope::Skip();
    return Advanced(s, idx);
  }
  if (!s.torch() && !s.cupy && idx.view.rank() == 0) {
    // With NumPy integers for all axes give a scalar, which is a copy. Beside an ellipsis they give a 0-dimensional
    // view.
    bool ellipsis = false;
    for (const Arg& a : IndexItems(s.arg(1))) ellipsis |= a.is(Kind::kEllipsis);
    if (!ellipsis) return idx.view.value();
  }
  return idx.view.Done();
}

// A number to be stored, as the target's dtype.
Arg Number(Scope& s, const Arg& number, DType t) {
  if (!s.torch() && IsInteger(t) && IsFloatNumber(number)) Scope::Skip();
  auto fits = s.torch() ? Converted(s.env, number, t) : FitsIn(s.env, number, t) ? std::optional(number) : std::nullopt;
  if (!fits) Scope::Fail("value does not fit the dtype");
  return *fits;
}

// The value to be stored, as the target's dtype and shape.
ValueId Stored(Scope& s, const Operand& v, DType t, const Ints& sizes) {
  if (!v.is_tensor()) {
    auto number = Number(s, v.number, t);
    return s.b.Broadcast(s.Constant(number, t), sizes);
  }
  if (IsComplex(v.meta->dtype) && v.meta->dtype != t) Scope::Skip();
  Ints mine = v.meta->sizes;
  while (mine.size() > sizes.size() && s.env.Eq(mine.front(), 1)) mine.erase(mine.begin());
  if (mine.size() > sizes.size()) Scope::Fail("value does not broadcast to the target");
  return s.b.Cast(s.b.Broadcast(s.b.Reshape(v.value, mine), sizes), t);  // a gradient is summed as the value's type
}

// index_put keeps its framework kernel, on what the other indices leave of the tensor: that part with the values
// stored.
ValueId IndexPut(Scope& s, const Operand& x, const Indexing& idx, const Arg& key, const Operand& value) {
  const DType t = x.meta->dtype;
  if (!s.torch() || (value.is_tensor() && value.meta->dtype != t)) Scope::Skip();
  bool whole = true, all = false;  // nothing but index tensors and behind them `:`, since index_put takes no None
  for (const Arg& a : IndexItems(key)) {
    const bool tensor = a.is(Kind::kTensor);
    whole &= tensor ? !all : a.is(Kind::kSlice) && a.items[0].is_none() && a.items[1].is_none() && a.items[2].is_none();
    all |= !tensor;
  }
  std::vector<ValueId> operands = {whole ? x.value : idx.view.value()};
  std::vector<Arg> indices;
  for (const auto& [axis, index] : idx.tensors) {
    while (static_cast<int>(indices.size()) < axis) indices.push_back(Arg::None());
    indices.push_back(Arg::Tensor(static_cast<TraceId>(operands.size())));
    operands.push_back(index.value);
    // A mask stands for as many axes as it has.
    const bool last = &index == &idx.tensors.back().second;
    if (index.meta->dtype == DType::kUInt8) Scope::Skip();
    if (IsBool(index.meta->dtype) && (index.rank() == 0 || (index.rank() > 1 && !last))) Scope::Skip();
  }
  const auto call =
      s.CallOf(whole ? "torch.Tensor.index_put" : "framejit._functions.index_put_copy",
               {Arg::Tensor(0), Arg::Seq(Kind::kTuple, indices), Arg::Tensor(static_cast<TraceId>(operands.size()))});
  if (value.is_tensor()) {  // torch drops the dimensions of one element that come first
    const Ints& given = value.meta->sizes;
    const auto first = std::find_if(given.begin(), given.end(), [](const Int& n) { return !(n == Int(1)); });
    operands.push_back(first == given.begin() ? value.value : s.b.Reshape(value.value, Ints(first, given.end())));
  } else {
    operands.push_back(s.Constant(Number(s, value.number, t), t));
  }
  if (whole) return s.b.Extern(call, operands, {{t, x.meta->sizes, x.meta->device}}, {x.meta->strides});
  const Ints sizes = idx.view.sizes();
  return idx.view.Replaced(s.b.Extern(call, operands, {{t, sizes, x.meta->device}}, {RowMajor(sizes)}));
}

Outs SetItem(Scope& s) {
  Operand x = s.tensor(0), value = s.Read(s.arg(2));
  Outs outs;
  outs.structure = Kind::kNone;
  Indexing idx = ParseIndex(s, x, s.arg(1));
  DType t = x.meta->dtype;
  if (idx.tensors.empty()) {
    if (!s.torch() && idx.view.rank() == 0 && value.rank() > 0) Scope::Fail("an array stored in one element");
    const Ints sizes = idx.view.sizes();
    const bool number = value.is_tensor() && value.meta->is_scalar && !IsComplex(value.meta->dtype);
    ValueId whole = idx.view.Replaced(number ? s.b.Broadcast(Element(s, value, t), sizes) : Stored(s, value, t, sizes));
    if (shape::Product(sizes) == shape::Product(x.meta->sizes)) whole = Overwriting(s, x, whole);
    outs.writes.push_back({x.id, whole, idx.view.region()});
    return outs;
  }
  const auto& [axis, mask] = idx.tensors[0];
  if (idx.tensors.size() == 1 && IsBool(mask.meta->dtype) && value.rank() == 0) {  // x[mask] = number
    Ints sizes = idx.view.sizes();
    std::vector<int64_t> axes;
    for (int d = 0; d < mask.rank(); ++d) {
      if (!s.env.Eq(mask.meta->sizes[d], sizes[axis + d])) Scope::Fail("mask does not fit");
      axes.push_back(axis + d);
    }
    ValueId chosen = s.b.BroadcastInDim(mask.value, sizes, axes);
    ValueId replaced = s.b.Where(
        chosen, value.is_tensor() ? s.b.Broadcast(s.b.Cast(value.value, t), sizes) : Stored(s, value, t, sizes),
        idx.view.value());
    outs.writes.push_back({x.id, idx.view.Replaced(replaced), idx.view.region(), true});
    return outs;
  }
  outs.writes.push_back({x.id, IndexPut(s, x, idx, s.arg(1), value), idx.view.region(), true});
  return outs;
}

// Parts of complex tensors, and of others that the primitives do not compute with, are views like all others.
Outs GetPart(Scope& s) {
  const Operand x = s.tensor(0);
  if (!ParseIndex(s, x, s.arg(1)).tensors.empty()) Scope::Skip();
  return GetItem(s);
}

// Complex values are stored as they are.
Outs SetComplex(Scope& s) {
  const Operand x = s.tensor(0), value = s.Read(s.arg(2));
  if (!IsComplex(x.meta->dtype) || !value.is_tensor() || value.meta->dtype != x.meta->dtype) Scope::Skip();
  if (!(value.meta->device == x.meta->device) || !ParseIndex(s, x, s.arg(1)).tensors.empty()) Scope::Skip();
  return SetItem(s);
}

Outs IndexSelect(Scope& s) {
  Operand x = s.tensor(0), i = s.tensor(2);
  if (i.rank() > 1)
    throw ShapeError("index_select of a tensor of indices that is no vector");  // on "meta" torch takes it
  if (x.rank() == 0) Scope::Skip();
  if (!IsInteger(i.meta->dtype)) Scope::Fail("index dtype");
  ValueId index = i.rank() == 0 ? s.b.Reshape(i.value, {Int(1)}) : i.value;
  return Take(s, x.value, index, s.dim(1, x.rank()));
}

// One place is compared with every position: a kernel, where the framework would copy the tensor and call another.
Outs IndexCopy(Scope& s) {  // (x, dim, index, source)
  Operand x = s.tensor(0), i = s.tensor(2), source = s.tensor(3);
  const DType t = x.meta->dtype;
  const int rank = x.rank();
  if (i.rank() > 1 || rank == 0 || source.rank() != rank) Scope::Skip();
  if (i.meta->dtype != DType::kInt64) Scope::Fail("index_copy: index dtype");
  if (source.meta->dtype != t) Scope::Fail("index_copy: source and target must have one dtype");
  const int axis = s.dim(1, rank);
  const Int count = i.rank() == 0 ? Int(1) : i.meta->sizes[0];
  for (int d = 0; d < rank; ++d) {
    if (!s.env.Eq(source.meta->sizes[d], d == axis ? count : x.meta->sizes[d])) Scope::Fail("index_copy: source size");
  }
  if (IsComplex(t) || !s.env.Eq(count, 1)) {
    const auto call =
        s.CallOf("torch.Tensor.index_copy", {Arg::Tensor(0), Arg::Int(axis), Arg::Tensor(1), Arg::Tensor(2)});
    const TensorType type{t, x.meta->sizes, x.meta->device};
    return s.b.Extern(call, {x.value, i.value, source.value}, {type}, {RowMajor(x.meta->sizes)});
  }
  const Int size = x.meta->sizes[axis];
  const ValueId all = s.b.Iota(DType::kInt64, {size}, 0);
  const ValueId index = Take(s, all, s.b.Reshape(i.value, {Int(1)}), 0);  // an error where it is none of them
  const ValueId here =
      s.b.BroadcastInDim(s.b.Binary(Op::kEq, all, s.b.Broadcast(index, {size})), x.meta->sizes, {axis});
  return s.b.Where(here, s.b.Broadcast(source.value, x.meta->sizes), x.value);
}

Outs Gather(Scope& s) {
  Operand x = s.tensor(0), i = s.tensor(2);
  if (i.meta->dtype != DType::kInt64 || s.flag(3)) Scope::Skip();  // the flag: sparse gradients
  int axis = s.dim(1, x.rank());
  if (x.rank() == 0 || x.rank() != i.rank()) Scope::Skip();
  ValueId data = x.value;
  for (int d = 0; d < x.rank(); ++d) {  // other coordinates are the index's own: crop the data to them
    if (d == axis || s.env.Eq(i.meta->sizes[d], x.meta->sizes[d])) continue;
    if (!s.env.Le(i.meta->sizes[d], x.meta->sizes[d])) Scope::Fail("gather index is larger than the operand");
    data = s.b.Slice(data, d, 0, i.meta->sizes[d]);
  }
  Attrs attrs;
  attrs.axes = {axis};
  attrs.flag = true;
  return s.b.Add(Op::kGather, {data, i.value}, attrs);
}

Outs Embedding(Scope& s) {  // (weight, indices, padding_idx, scale_grad_by_freq, sparse)
  Operand w = s.tensor(0), i = s.tensor(1);
  if (w.rank() != 2) Scope::Fail("embedding weight must be a matrix");
  if (i.meta->dtype != DType::kInt64 && i.meta->dtype != DType::kInt32) Scope::Fail("embedding indices");
  ValueId index = s.b.Cast(i.value, DType::kInt64), v = Take(s, w.value, index, 0);
  int64_t padding = s.env.Specialize(s.integer(2));
  bool plain = !s.flag(3) && !s.flag(4);
  s.b.SetDerivative(v, {plain ? "embedding" : "unknown", {w.value, index}, {static_cast<double>(padding)}, {}});
  return v;
}

Outs TakeFlat(Scope& s) {
  Operand x = s.tensor(0), i = s.tensor(1);
  if (i.meta->dtype != DType::kInt64) Scope::Skip();
  ValueId flat = s.b.Reshape(x.value, {shape::Product(x.meta->sizes)});
  return Take(s, flat, WrapIndex(s, i.value, shape::Product(x.meta->sizes)), 0);
}

Outs OneHot(Scope& s) {
  Operand x = s.tensor(0);
  if (x.meta->dtype != DType::kInt64) Scope::Fail("one_hot needs int64");
  const Int classes = s.integer(1);
  if (!s.env.Lt(0, classes)) Scope::Skip();  // data decides the number of classes
  // The numbers themselves, looked up among the classes: a class that there is none of is an index out of range.
  const ValueId checked = Take(s, s.b.Iota(DType::kInt64, {classes}, 0), x.value, 0);
  return rules::OneHot(s.b, checked, classes, DType::kInt64);
}

// The element that torch asks of a tensor of one element and converts to t, or the run ends where that overflows.
ValueId Filling(Scope& s, const Operand& o, DType t) {
  const DType from = o.meta->dtype;
  const ValueId cast = s.b.Cast(o.value, t);
  if (from == t || IsBool(from) || IsBool(t)) return cast;
  double most, least;
  if (IsFloat(t)) {
    most = LargestFloat(t), least = -most;
    if (IsFloat(from) ? LargestFloat(from) <= most : t != DType::kFloat16 || DTypeSize(from) < 2) return cast;
  } else {
    const int bits = 8 * DTypeSize(t) - IsSigned(t);
    most = std::ldexp(1.0, bits) - 1, least = IsSigned(t) ? -most - 1 : -most;  // negative ones turn around
    if (bits > 32 || 8 * DTypeSize(from) - IsSigned(from) <= bits) return cast;
  }
  if (s.tensor(0).meta->device.kind != DeviceKind::kCpu) Scope::Skip();  // nothing ends a run there
  const ValueId x = s.b.Cast(o.value, DType::kFloat64);
  ValueId bad = s.b.Binary(Op::kOr, s.b.Binary(Op::kLt, rules::Like(s.b, x, most), x),
                           s.b.Binary(Op::kLt, x, rules::Like(s.b, x, least)));
  bad = s.b.Binary(Op::kAnd, bad, s.b.Unary(Op::kNot, s.b.Unary(Op::kIsInf, x)));
  return Unless(s, bad, cast);
}

Outs MaskedFill(Scope& s) {
  Operand x = s.tensor(0), mask = s.tensor(1), value = s.Read(s.arg(2));
  if (!IsBool(mask.meta->dtype)) Scope::Fail("masked_fill needs a bool mask");
  if (value.is_tensor() && value.rank() != 0) Scope::Fail("masked_fill needs a 0-dimensional value");
  DType t = x.meta->dtype;
  if (value.is_tensor()) {
    if (!TorchCanCast(value.meta->dtype, t)) Scope::Skip();
  } else {
    auto number = Converted(s.env, value.number, t);
    if (!number) Scope::Fail("value cannot be converted without overflow");
    value.number = *number;
  }
  return s.b.Where(mask.value, value.is_tensor() ? Filling(s, value, t) : s.Constant(value.number, t),
                   x.value);  // always row-major
}

Outs MaskedFillInPlace(Scope& s) {
  Operand x = s.tensor(0), mask = s.tensor(1);
  Outs out = MaskedFill(s);
  if (s.b.type(out.items[0].value).rank() != x.rank()) Scope::Fail("mask is larger than the tensor");
  return out;
}

Outs FillDiagonal(Scope& s) {
  Operand x = s.tensor(0);
  if (x.rank() != 2 || s.flag(2)) Scope::Skip();
  const DType t = x.meta->dtype;
  const auto number = Converted(s.env, s.Read(s.arg(1)).number, t);
  if (!number) Scope::Fail("value cannot be converted without overflow");
  const Ints& sizes = x.meta->sizes;
  const ValueId on = s.b.Binary(Op::kEq, s.b.Iota(DType::kInt64, sizes, 0), s.b.Iota(DType::kInt64, sizes, 1));
  return s.b.Where(on, s.Constant(*number, t), x.value);
}

// clang-format off: a table
constexpr Row kRows[] = {
    {"oO:getitem", "(Tensor input, Any key)", &GetItem},
    {"oO:getitem", "(Tensor input, Any key)", &GetPart, Op::kInput, kAnyDType},
    {"oO:setitem", "(Tensor input, Any key, Operand value)", &SetItem},
    {"oO:setitem", "(Tensor input, Any key, Operand value)", &SetComplex, Op::kInput, kAnyDType},
    {"tm:index_select", "(Tensor input, int dim, Tensor index)", &IndexSelect},
    {"tmI:index_copy", "(Tensor input, int dim, Tensor index, Tensor source)", &IndexCopy, Op::kInput, kApart},
    {"tm:gather", "(Tensor input, int dim, Tensor index, *, bool sparse_grad=False)", &Gather},
    {"tm:masked_fill", "(Tensor input, Tensor mask, Operand value)", &MaskedFill},
    {"I:masked_fill", "(Tensor input, Tensor mask, Operand value)", &MaskedFillInPlace},
    {"I:fill_diagonal", "(Tensor input, Scalar fill_value, bool wrap=False)", &FillDiagonal},
    {"t:embedding", "(Tensor weight, Tensor indices, int padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False)",
     &Embedding},
    {"tm:take", "(Tensor input, Tensor index)", &TakeFlat},
    {"nf:one_hot", "(Tensor input, int num_classes=-1)", &OneHot},
};
// clang-format on

}  // namespace

std::span<const Row> IndexRows() {
  return kRows;
}

}  // namespace framejit::surface
