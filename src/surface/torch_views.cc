// View rows, torch and NumPy.
#include <algorithm>
#include <numeric>

#include "surface/views.h"

namespace framejit::surface {
namespace {

using shape::Int;
using shape::Ints;

Out Copy(const Operand& x, Ints strides = {}) {
  Out out;
  out.value = x.value;
  out.strides = std::move(strides);
  out.array = true;
  return out;
}

Outs Tuple(std::vector<Out> items, Arg::Kind kind = Arg::Kind::kTuple) {
  Outs outs;
  outs.items = std::move(items);
  outs.structure = kind;
  return outs;
}

Outs Alias(Scope& s) {
  ViewChain v(s, s.tensor(0));
  v.Expand(v.sizes());
  return v.Done();
}

Outs Detach(Scope& s) {
  Outs out = Alias(s);
  out.items[0].differentiable = false;
  return out;
}

Out Permuted(Scope& s, const Operand& x, const std::vector<int64_t>& perm) {
  ViewChain v(s, x);
  v.Permute(perm);
  return v.Done();
}

Outs Swapped(Scope& s, const Operand& x, int a, int z) {
  std::vector<int64_t> perm;
  for (int d = 0; d < x.rank(); ++d) perm.push_back(d);
  if (x.rank() > 0) std::swap(perm[a], perm[z]);
  return Permuted(s, x, perm);
}

Outs Transpose(Scope& s) {
  Operand x = s.tensor(0);
  return Swapped(s, x, s.dim(1, x.rank()), s.dim(2, x.rank()));
}

Outs PermuteRow(Scope& s) {
  Operand x = s.tensor(0);
  std::vector<int64_t> perm;
  if (s.has(1)) {
    for (const Int& d : s.ints(1)) perm.push_back(s.Dim(d, x.rank()));
  } else {
    for (int d = x.rank(); d-- > 0;) perm.push_back(d);
  }
  std::vector<int64_t> sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  if (static_cast<int>(perm.size()) != x.rank()) Scope::Fail("permute needs every dimension");
  for (int d = 0; d < x.rank(); ++d) {
    if (sorted[d] != d) Scope::Fail("permute needs every dimension once");
  }
  return Permuted(s, x, perm);
}

Outs TransposeLast(Scope& s) {  // t() and T up to rank 2; mT, adjoint from rank 2
  Operand x = s.tensor(0);
  bool matrix = s.row.op == Op::kMatMul;
  if (matrix && x.rank() == 0) Scope::Skip();
  if (matrix && x.rank() < 2) Scope::Fail("mT needs a matrix");
  if (!matrix && s.torch() && x.rank() != 2 && x.rank() != 0) Scope::Skip();  // torch warns of T, and t() is asked
  if (!s.torch() && !matrix) {
    std::vector<int64_t> perm;
    for (int d = x.rank(); d-- > 0;) perm.push_back(d);
    return Permuted(s, x, perm);
  }
  if (x.rank() < 2) return Alias(s);
  return Swapped(s, x, x.rank() - 2, x.rank() - 1);
}

Outs MoveDim(Scope& s) {
  Operand x = s.tensor(0);
  Ints from = s.ints(1), to = s.ints(2);
  if (from.size() != to.size()) Scope::Fail("movedim");
  if (x.rank() == 0) Scope::Skip();
  std::vector<int64_t> perm(x.rank(), -1);
  std::vector<bool> used(x.rank(), false);
  for (size_t i = 0; i < from.size(); ++i) {
    int f = s.Dim(from[i], x.rank()), t = s.Dim(to[i], x.rank());
    if (used[f] || perm[t] >= 0) Scope::Fail("movedim: repeated dimension");
    used[f] = true;
    perm[t] = f;
  }
  int next = 0;
  for (int64_t& p : perm) {
    if (p >= 0) continue;
    while (used[next]) ++next;
    p = next++;
  }
  return Permuted(s, x, perm);
}

Outs SliceRow(Scope& s) {  // torch.ops.aten.slice
  Operand x = s.tensor(0);
  if (x.rank() == 0) Scope::Fail("slice of a 0-dimensional tensor");
  Arg slice = Arg::None();
  slice.items = {s.arg(2), s.arg(3), s.arg(4)};
  const int d = s.dim(1, x.rank());
  const SliceBounds at = NormalizeSlice(s, slice, x.meta->sizes[d]);
  ViewChain v(s, x);
  v.Slice(d, at.start, at.length, at.step);
  return v.Done();
}

// A view if the strides allow it; otherwise a copy (reshape) or the framework's error (view).
Outs Reshaped(Scope& s, const Operand& x, const Ints& wanted, bool may_copy) {
  Ints sizes = FillSizes(s, wanted, shape::Product(x.meta->sizes));
  for (size_t i = 0; i < sizes.size() && i < x.meta->sizes.size(); ++i) {  // keep the operand's spelling of equal sizes
    if (sizes.size() == x.meta->sizes.size() && !(sizes[i] == x.meta->sizes[i]) &&
        s.env.Prove(shape::Cmp::kEq, sizes[i], x.meta->sizes[i]).value_or(false))
      sizes[i] = x.meta->sizes[i];
  }
  if (auto strides = ViewStrides(s.env, *x.meta, sizes); strides && !x.meta->is_scalar) {
    ViewChain v(s, x);
    v.Reshape(sizes, std::move(*strides));
    return v.Done();
  }
  if (!may_copy) Scope::Fail("view: strides do not allow these sizes");
  Out out;
  out.value = s.b.Reshape(x.value, sizes);
  out.array = true;
  if (!s.torch() && !x.meta->is_scalar) out.owner = Out::kCopy;
  return out;
}

Outs ViewRow(Scope& s) {
  return Reshaped(s, s.tensor(0), s.ints(1), false);
}
Outs ReshapeRow(Scope& s) {
  if (s.has(2) && s.arg(2).s != "C") Scope::Skip();
  return Reshaped(s, s.tensor(0), s.ints(1), true);
}

// x.view_as(y) is recorded as x.view(sizes): replaying it must not need y.
Outs WithSizes(Scope& s, const char* callee, Outs outs) {
  std::vector<Arg> sizes;
  for (const Int& n : s.tensor(1).meta->sizes) sizes.push_back(Arg::Int(n));
  outs.recorded = std::make_shared<Call>();
  outs.recorded->callee = callee;
  outs.recorded->args = {s.arg(0), Arg::Seq(Arg::Kind::kTuple, std::move(sizes))};
  return outs;
}
Outs ViewAs(Scope& s) {
  return WithSizes(s, "torch.Tensor.view", Reshaped(s, s.tensor(0), s.tensor(1).meta->sizes, false));
}
Outs ReshapeAs(Scope& s) {
  return WithSizes(s, "torch.Tensor.reshape", Reshaped(s, s.tensor(0), s.tensor(1).meta->sizes, true));
}

Outs NumpyReshape(Scope& s) {
  if (s.tensor(0).meta->is_scalar) Scope::Skip();  // NumPy makes an array of it, and shows that or gives a number back
  return ReshapeRow(s);
}

Outs Ravel(Scope& s) {
  Operand x = s.tensor(0);
  const std::string& order = !s.torch() && s.has(1) ? s.arg(1).s : "C";
  if (order != "C" && !((order == "K" || order == "A") && IsRowMajor(*x.meta))) Scope::Skip();
  if (!s.torch() && x.meta->is_scalar) Scope::Skip();
  // A copy of what does not lie row by row, also where a view could show it: reshape is the one that looks.
  if (!IsContiguous(s.env, *x.meta)) return s.b.Reshape(x.value, {shape::Product(x.meta->sizes)});
  return Reshaped(s, x, {Int(-1)}, true);
}

Outs Flatten(Scope& s) {
  Operand x = s.tensor(0);
  int from = s.dim(1, x.rank()), to = s.dim(2, x.rank());
  if (x.rank() == 0) return Reshaped(s, x, {Int(1)}, true);
  if (from > to) Scope::Fail("flatten: start after end");
  if (from == to) return Same(x);
  Ints sizes(x.meta->sizes.begin(), x.meta->sizes.begin() + from);
  sizes.push_back(shape::Product(std::span(x.meta->sizes).subspan(from, to - from + 1)));
  sizes.insert(sizes.end(), x.meta->sizes.begin() + to + 1, x.meta->sizes.end());
  return Reshaped(s, x, sizes, true);
}

Outs NumpyFlatten(Scope& s) {  // always a copy
  Operand x = s.tensor(0);
  if (s.has(1) && s.arg(1).s != "C") Scope::Skip();
  Out out;
  out.value = s.b.Reshape(x.value, {shape::Product(x.meta->sizes)});
  return out;
}

Outs Unflatten(Scope& s) {
  Operand x = s.tensor(0);
  if (x.rank() == 0) Scope::Skip();
  int d = s.dim(1, x.rank());
  Ints inner = FillSizes(s, s.ints(2), x.meta->sizes[d]);
  Ints sizes = x.meta->sizes;
  sizes.erase(sizes.begin() + d);
  sizes.insert(sizes.begin() + d, inner.begin(), inner.end());
  return Reshaped(s, x, sizes, false);
}

Outs Squeeze(Scope& s) {
  Operand x = s.tensor(0);
  std::vector<int64_t> axes = s.Dims(1, x.rank());
  ViewChain v(s, x);
  v.Expand(v.sizes());
  bool changed = false;
  for (size_t i = axes.size(); i-- > 0;) {
    changed |= s.env.Eq(x.meta->sizes[axes[i]], 1);
    if (s.env.Eq(v.sizes()[axes[i]], 1)) {
      v.Squeeze(static_cast<int>(axes[i]));
    } else if (!s.torch() && s.has(1)) {
      Scope::Fail("squeeze of an axis that is not 1");
    }
  }
  if (!s.torch() && x.meta->is_scalar) Scope::Skip();
  if (!s.torch() && !changed) return Same(x);
  return v.Done();
}

Outs Unsqueeze(Scope& s) {
  Operand x = s.tensor(0);
  int d = s.Dim(s.integer(1), x.rank() + 1);
  if (!s.torch() && !x.meta->is_scalar) {  // NumPy's is a reshape, which gives all dimensions of size 1 new strides
    Ints sizes = x.meta->sizes;
    sizes.insert(sizes.begin() + d, Int(1));
    return Reshaped(s, x, sizes, false);
  }
  ViewChain v(s, x);
  v.Unsqueeze(d, d < x.rank() ? x.meta->sizes[d] * x.meta->strides[d] : Int(1));
  return v.Done();
}

Outs Expanded(Scope& s, const Operand& x, Ints sizes) {
  int shift = static_cast<int>(sizes.size()) - x.rank();
  if (shift < 0) Scope::Fail("expand to fewer dimensions");
  for (int i = 0; i < static_cast<int>(sizes.size()); ++i) {
    bool keep = sizes[i].is_const() && sizes[i].value() == -1;
    if (i < shift) {
      if (keep) Scope::Fail("expand: -1 for a new dimension");
      const shape::Env::Typical typical(s.env);  // a new axis of one has another stride than a longer one
      if (s.torch() && !sizes[i].is_const() && !s.env.AtRun(sizes[i]) && s.env.Eq(sizes[i], 1)) sizes[i] = 1;
      continue;
    }
    const Int& have = x.meta->sizes[i - shift];
    // To which size a 1 is stretched shows in the stride alone.
    std::optional<shape::Env::Typical> typical;
    if (have == Int(1)) typical.emplace(s.env);
    if (keep || s.env.Eq(have, sizes[i])) {
      sizes[i] = have;
    } else if (!s.env.Eq(have, 1)) {
      Scope::Fail("expand of a dimension that is not 1");
    }
  }
  ViewChain v(s, x);
  v.Expand(sizes);
  return v.Done();
}

Outs Expand(Scope& s) {
  return Expanded(s, s.tensor(0), s.ints(1));
}
Outs ExpandAs(Scope& s) {
  return WithSizes(s, "torch.Tensor.expand", Expanded(s, s.tensor(0), s.tensor(1).meta->sizes));
}

Outs Select(Scope& s) {
  Operand x = s.tensor(0);
  if (x.rank() == 0) Scope::Fail("select of a 0-dimensional tensor");
  int d = s.dim(1, x.rank());
  ViewChain v(s, x);
  v.Select(d, NormalizeIndex(s, s.integer(2), x.meta->sizes[d]));
  return v.Done();
}

Outs Narrow(Scope& s) {
  Operand x = s.tensor(0);
  if (x.rank() == 0) Scope::Fail("narrow of a 0-dimensional tensor");
  int d = s.dim(1, x.rank());
  Int size = x.meta->sizes[d], start = s.integer(2), length = s.integer(3);
  if (s.env.Lt(start, 0)) start = start + size;
  if (s.env.Lt(start, 0) || s.env.Lt(length, 0) || !s.env.Le(start + length, size)) Scope::Fail("narrow out of range");
  ViewChain v(s, x);
  v.Slice(d, start, length, 1);
  return v.Done();
}

Outs Pieces(Scope& s, const Operand& x, int d, const Ints& lengths) {
  std::vector<Out> items;
  Int at = 0;
  for (const Int& n : lengths) {
    ViewChain v(s, x);
    v.Slice(d, at, n, 1);
    items.push_back(v.Done());
    at = at + n;
  }
  return Tuple(std::move(items), s.torch() ? Arg::Kind::kTuple : Arg::Kind::kList);
}

// Pieces of `size`, the last one smaller.
Outs EvenPieces(Scope& s, const Operand& x, int d, const Int& size) {
  Int whole = x.meta->sizes[d];
  if (s.env.Le(size, 0)) {
    if (!s.env.Eq(size, 0) || !s.env.Eq(whole, 0)) Scope::Fail("split size");
    return Pieces(s, x, d, {whole});
  }
  int64_t n = std::max<int64_t>(s.env.Specialize(shape::CeilDiv(whole, size)), 1);
  Ints lengths(n, size);
  lengths[n - 1] = whole - Int(n - 1) * size;
  return Pieces(s, x, d, lengths);
}

Outs Split(Scope& s) {
  Operand x = s.tensor(0);
  if (x.rank() == 0) Scope::Fail("split of a 0-dimensional tensor");
  return EvenPieces(s, x, s.dim(2, x.rank()), s.integer(1));
}

Outs SplitSizes(Scope& s) {
  Operand x = s.tensor(0);
  if (x.rank() == 0) Scope::Fail("split of a 0-dimensional tensor");
  int d = s.dim(2, x.rank());
  Int total = 0;
  for (const Int& n : s.ints(1)) {
    if (s.env.Lt(n, 0)) Scope::Fail("split sizes");
    total = total + n;
  }
  if (!s.env.Eq(total, x.meta->sizes[d])) Scope::Fail("split sizes");
  return Pieces(s, x, d, s.ints(1));
}

Outs Chunk(Scope& s) {
  Operand x = s.tensor(0);
  if (x.rank() == 0) Scope::Fail("chunk of a 0-dimensional tensor");
  int64_t n = s.env.Specialize(s.integer(1));
  if (n <= 0) Scope::Fail("chunks must be positive");
  int d = s.dim(2, x.rank());
  Int size = shape::CeilDiv(x.meta->sizes[d], Int(n));
  if (s.env.Eq(size, 0)) return Pieces(s, x, d, Ints(n, Int(0)));
  return EvenPieces(s, x, d, size);
}

Outs TensorSplit(Scope& s) {  // also numpy.array_split and numpy.split with a count
  Operand x = s.tensor(0);
  if (x.rank() == 0) Scope::Fail("split of a 0-dimensional tensor");
  int d = s.dim(2, x.rank());
  const int64_t n = s.env.Specialize(s.integer(1));
  const Int size = x.meta->sizes[d];
  if (n <= 0) Scope::Fail("sections must be positive");
  if (s.row.op == Op::kRem && !s.env.Eq(shape::Mod(size, n), 0)) Scope::Fail("numpy.split needs equal sections");
  Ints lengths;
  for (int64_t i = 0; i < n; ++i) lengths.push_back(shape::FloorDiv(size + Int(n - 1 - i), n));  // the first are longer
  return Pieces(s, x, d, lengths);
}

Outs Unbind(Scope& s) {
  Operand x = s.tensor(0);
  if (x.rank() == 0) Scope::Fail("unbind of a 0-dimensional tensor");
  int d = s.dim(1, x.rank());
  std::vector<Out> items;
  for (int64_t i = 0, n = s.env.Specialize(x.meta->sizes[d]); i < n; ++i) {
    ViewChain v(s, x);
    v.Select(d, i);
    items.push_back(v.Done());
  }
  return Tuple(std::move(items));
}

Outs Contiguous(Scope& s) {
  Operand x = s.tensor(0);
  std::string_view format = s.has(1) ? std::string_view(s.arg(1).s) : "contiguous_format";
  if (format.ends_with("channels_last") && x.rank() == 4) {
    return IsChannelsLast(s.env, *x.meta) ? Same(x) : Copy(x, ChannelsLast(x.meta->sizes));
  }
  if (!format.ends_with("contiguous_format")) Scope::Skip();
  return IsContiguous(s.env, *x.meta) ? Same(x) : Copy(x);
}

// The diagonal of two axes, as the last axis. Reads by gather, writes by a mask, so no value is computed with.
Outs Diagonal(Scope& s) {
  Operand x = s.tensor(0);
  if (x.rank() < 2) Scope::Fail("diagonal needs two dimensions");
  int a = s.dim(2, x.rank()), z = s.dim(3, x.rank());
  if (a == z) Scope::Fail("diagonal of one dimension");
  int64_t offset = s.env.Specialize(s.integer(1));
  ViewChain v(s, x);
  std::vector<int64_t> perm;
  for (int d = 0; d < x.rank(); ++d) {
    if (d != a && d != z) perm.push_back(d);
  }
  perm.push_back(a);
  perm.push_back(z);
  v.Permute(perm);
  int rank = x.rank();
  Int rows = v.sizes()[rank - 2], columns = v.sizes()[rank - 1];
  Int skip = offset < 0 ? -offset : offset;
  if (!s.env.Lt(skip, offset < 0 ? rows : columns)) Scope::Skip();
  if (offset > 0) v.Slice(rank - 1, skip, columns - skip, 1);
  if (offset < 0) v.Slice(rank - 2, skip, rows - skip, 1);
  rows = v.sizes()[rank - 2];
  columns = v.sizes()[rank - 1];
  Int n = s.env.Lt(rows, columns) ? rows : columns;
  v.Slice(rank - 2, 0, n, 1);
  v.Slice(rank - 1, 0, n, 1);
  Ints square = v.sizes(), line(square.begin(), square.end() - 1);
  Ints strides(v.strides().begin(), v.strides().end() - 1);
  strides.back() = v.strides()[rank - 2] + v.strides()[rank - 1];
  auto forward = [=](Builder& b, ValueId m) {
    Ints column = square;
    column[rank - 1] = 1;
    Attrs attrs;
    attrs.axes = {rank - 1};
    return b.Reshape(b.Add(Op::kGather, {m, b.Iota(DType::kInt64, column, rank - 2)}, attrs), line);
  };
  auto inverse = [=](Builder& b, ValueId m, ValueId fresh) {
    ValueId on = b.Binary(Op::kEq, b.Iota(DType::kInt64, square, rank - 2), b.Iota(DType::kInt64, square, rank - 1));
    Ints column = line;
    column.push_back(1);
    return b.Where(on, b.Broadcast(b.Reshape(fresh, column), square), m);
  };
  Out to_square = v.Done(), out = to_square;
  out.value = forward(s.b, v.value());
  out.strides = strides;
  out.view.forward = [f = to_square.view.forward, forward](Builder& b, ValueId p) { return forward(b, f(b, p)); };
  out.view.inverse = [view = to_square.view, inverse](Builder& b, ValueId p, ValueId fresh) {
    return view.inverse(b, p, inverse(b, view.forward(b, p), fresh));
  };
  return out;
}

// A view that reads its parent's elements, in memory order, at offset + sum of index * step.
Out Strided(Builder& b, const ViewChain& flat, const Ints& sizes, const std::vector<int64_t>& steps) {
  auto read = [=](Builder& b, ValueId line) {
    ValueId at = b.Constant(Scalar(int64_t{0}), DType::kInt64, sizes);
    for (size_t d = 0; d < sizes.size(); ++d) {
      ValueId i = b.Iota(DType::kInt64, sizes, static_cast<int64_t>(d));
      at = b.Binary(Op::kAdd, at, b.Binary(Op::kMul, i, b.Constant(Scalar(steps[d]), DType::kInt64, sizes)));
    }
    Attrs attrs;
    attrs.axes = {0};
    return b.Add(Op::kTake, {line, at}, attrs);
  };
  Out to_line = flat.Done(), out = to_line;
  out.value = read(b, flat.value());
  out.strides = Ints(steps.begin(), steps.end());
  out.view.forward = [f = to_line.view.forward, read](Builder& b, ValueId p) { return read(b, f(b, p)); };
  out.view.inverse = nullptr;
  out.view.offset = {};
  return out;
}

// A view whose elements lie `strides` apart in the memory of x.
Outs StridedOver(Scope& s, const Operand& x, const Ints& sizes, const Ints& strides) {
  if (!IsDense(s.env, *x.meta) || x.meta->is_scalar) Scope::Fail("a view of memory around the array");
  std::vector<int64_t> steps;
  Int last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (s.env.Lt(sizes[d], 1) || s.env.Lt(strides[d], 0)) Scope::Fail("a view of memory around the array");
    steps.push_back(s.env.Specialize(strides[d]));
    last = last + (sizes[d] - 1) * strides[d];
  }
  const Int numel = shape::Product(x.meta->sizes);
  if (!s.env.Lt(last, numel)) Scope::Fail("a view of memory around the array");
  std::vector<int64_t> order(x.rank());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t z) {
    return !(x.meta->strides[a] == x.meta->strides[z]) && s.env.Lt(x.meta->strides[z], x.meta->strides[a]);
  });
  ViewChain v(s, x);
  v.Permute(order);
  v.Reshape({numel}, {1});
  return Strided(s.b, v, sizes, steps);
}

// Of memory that is all the tensor's own, and no further: what lies around a view is not known here.
Outs AsStrided(Scope& s) {
  Operand x = s.tensor(0);
  const Ints sizes = s.ints(1), strides = s.ints(2);
  if (s.has(3) || sizes.size() != strides.size() || x.meta->lazy())
    Scope::Fail("as_strided of memory around the tensor");
  return StridedOver(s, x, sizes, strides);
}

Outs NumpyAsStrided(Scope& s) {  // (x, shape, strides): in bytes
  const Operand x = s.tensor(0);
  const Ints sizes = s.ints(1);
  Ints strides = s.ints(2);
  if (sizes.size() != strides.size()) Scope::Fail("as_strided: strides do not fit");
  for (Int& stride : strides) {
    const int64_t bytes = s.env.Specialize(stride), item = DTypeSize(x.meta->dtype);
    if (bytes % item) Scope::Fail("as_strided: between elements");
    stride = bytes / item;
  }
  return StridedOver(s, x, sizes, strides);
}

Outs SlidingWindows(Scope& s) {  // (x, window_shape, axis)
  const Operand x = s.tensor(0);
  const Ints window = s.ints(1);
  std::vector<int64_t> axes;
  if (s.has(2)) {
    axes = s.Dims(2, x.rank());
  } else {
    for (int d = 0; d < x.rank(); ++d) axes.push_back(d);
  }
  if (axes.size() != window.size()) Scope::Fail("sliding windows: axes do not fit");
  Ints sizes = x.meta->sizes, strides = x.meta->strides;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (s.env.Lt(sizes[axes[i]], window[i]) || s.env.Lt(window[i], 1)) Scope::Fail("sliding windows: too large");
    sizes[axes[i]] = sizes[axes[i]] - window[i] + 1;
    sizes.push_back(window[i]);
    strides.push_back(x.meta->strides[axes[i]]);
  }
  return StridedOver(s, x, sizes, strides);
}

Outs BroadcastTensors(Scope& s) {
  std::vector<Operand> all = s.tensors(0);
  if (all.empty()) Scope::Skip();
  Ints sizes;
  for (const Operand& x : all) sizes = BroadcastShapes(sizes, x.meta->sizes, s.env);
  std::vector<Out> items;
  for (const Operand& x : all) {
    const Ints& mine = x.meta->sizes;
    const auto eq = [&](const Int& a, const Int& b) { return s.env.Eq(a, b); };
    const bool fits = std::equal(mine.begin(), mine.end(), sizes.begin(), sizes.end(), eq);
    items.push_back(fits ? Same(x) : Expanded(s, x, sizes).items[0]);
  }
  return Tuple(std::move(items));
}

Outs MeshGrid(Scope& s) {
  std::vector<Operand> all = s.tensors(0);
  std::string indexing = s.has(1) ? s.arg(1).s : "ij";
  if (all.empty() || (indexing != "ij" && indexing != "xy")) Scope::Skip();
  const bool turned = indexing == "xy" && all.size() > 1;
  if (turned) std::swap(all[0], all[1]);
  Ints sizes;
  for (const Operand& x : all) {
    if (x.rank() > 1) Scope::Fail("meshgrid of tensors that are not 1-dimensional");
    sizes.push_back(x.rank() == 0 ? Int(1) : x.meta->sizes[0]);
  }
  std::vector<Out> items;
  for (size_t i = 0; i < all.size(); ++i) {
    ViewChain v(s, all[i]);
    Ints column(all.size(), Int(1)), strides(all.size(), Int(1));
    column[i] = sizes[i];
    auto view = ViewStrides(s.env, *all[i].meta, column);
    if (!view) Scope::Skip();
    v.Reshape(column, *view);
    Ints stretched = sizes;
    for (size_t k = 0; k < stretched.size(); ++k) {
      const shape::Env::Typical typical(s.env);  // to which size a 1 is stretched shows in the stride alone
      if (k != i && s.env.Eq(stretched[k], 1)) stretched[k] = 1;
    }
    v.Expand(stretched);
    items.push_back(v.Done());
  }
  if (turned) std::swap(items[0], items[1]);
  return Tuple(std::move(items));
}

Outs RealPart(Scope& s) {
  Operand x = s.tensor(0);
  if (IsComplex(x.meta->dtype) || x.meta->lazy()) Scope::Skip();
  return Same(x);
}

// clang-format off: a table
constexpr Row kRows[] = {
    {"tm:transpose tm:swapaxes tm:swapdims", "(Tensor input, int dim0, int dim1)", &Transpose, Op::kInput, kAnyDType},
    {"NM:swapaxes", "(Tensor input, int axis1, int axis2)", &Transpose, Op::kInput, kAnyDType},
    {"tm:permute", "(Tensor input, int[]... dims)", &PermuteRow, Op::kInput, kAnyDType},
    {"M:transpose NM:permute_dims N:transpose", "(Tensor input, int[]?... axes=None)", &PermuteRow, Op::kInput, kAnyDType},
    {"m:view", "(Tensor input, int[]... size)", &ViewRow, Op::kInput, kAnyDType},
    {"tm:reshape", "(Tensor input, int[]... shape)", &ReshapeRow, Op::kInput, kAnyDType},
    {"M:reshape", "(Tensor input, int[]... shape, *, str? order=None)", &ReshapeRow, Op::kInput, kAnyDType},
    {"N:reshape", "(Tensor input, int[] shape, str? order=None)", &NumpyReshape, Op::kInput, kAnyDType},
    {"m:view_as", "(Tensor input, Tensor other)", &ViewAs, Op::kInput, kAnyDType},
    {"m:reshape_as", "(Tensor input, Tensor other)", &ReshapeAs, Op::kInput, kAnyDType},
    {"tm:flatten", "(Tensor input, int start_dim=0, int end_dim=-1)", &Flatten, Op::kInput, kAnyDType},
    {"tmN:ravel M:ravel", "(Tensor input, str? order=None)", &Ravel, Op::kInput, kAnyDType},
    {"M:flatten", "(Tensor input, str? order=None)", &NumpyFlatten, Op::kInput, kAnyDType},
    {"tm:unflatten", "(Tensor input, int dim, int[] sizes)", &Unflatten, Op::kInput, kAnyDType},
    {"tmNM:squeeze", "(Tensor input, int[]? dim=None)", &Squeeze, Op::kInput, kAnyDType},
    {"tm:unsqueeze N:expand_dims", "(Tensor input, int dim)", &Unsqueeze, Op::kInput, kAnyDType},
    {"m:expand", "(Tensor input, int[]... size)", &Expand, Op::kInput, kAnyDType},
    {"m:expand_as", "(Tensor input, Tensor other)", &ExpandAs, Op::kInput, kAnyDType},
    {"tm:broadcast_to", "(Tensor input, int[] size)", &Expand, Op::kInput, kAnyDType},
    {"t:broadcast_tensors t:functional.broadcast_tensors", "(Tensor[]... tensors)", &BroadcastTensors, Op::kInput, kAnyDType},
    {"t:meshgrid", "(Tensor[]... tensors, *, str? indexing=None)", &MeshGrid, Op::kInput, kAnyDType},
    {"tm:t g:T G:T", "(Tensor input)", &TransposeLast, Op::kInput, kAnyDType},
    {"g:mT G:mT tm:adjoint g:mH N:matrix_transpose", "(Tensor input)", &TransposeLast, Op::kMatMul},
    {"tm:movedim tm:moveaxis N:moveaxis", "(Tensor input, int[] source, int[] destination)", &MoveDim, Op::kInput, kAnyDType},
    {"tm:select", "(Tensor input, int dim, int index)", &Select, Op::kInput, kAnyDType},
    {"tm:narrow", "(Tensor input, int dim, int start, int length)", &Narrow, Op::kInput, kAnyDType},
    {"tm:split tm:unsafe_split", "(Tensor input, int split_size, int dim=0)", &Split, Op::kInput, kAnyDType},
    {"tm:split tm:split_with_sizes", "(Tensor input, int[] split_sizes, int dim=0)", &SplitSizes, Op::kInput, kAnyDType},
    {"tm:chunk tm:unsafe_chunk", "(Tensor input, int chunks, int dim=0)", &Chunk, Op::kInput, kAnyDType},
    {"tm:tensor_split N:array_split", "(Tensor input, int sections, int dim=0)", &TensorSplit, Op::kInput, kAnyDType},
    {"N:split", "(Tensor input, int sections, int dim=0)", &TensorSplit, Op::kRem, kAnyDType},
    {"tm:unbind", "(Tensor input, int dim=0)", &Unbind, Op::kInput, kAnyDType},
    {"tm:detach g:data", "(Tensor input)", &Detach, Op::kInput, kAnyDType},
    {"a:alias M:view", "(Tensor input)", &Alias, Op::kInput, kAnyDType},
    {"m:contiguous", "(Tensor input, *, MemoryFormat? memory_format=None)", &Contiguous, Op::kInput, kAnyDType},
    {"a:slice", "(Tensor input, int dim=0, int? start=None, int? end=None, int step=1)", &SliceRow, Op::kInput, kAnyDType},
    {"tm:as_strided", "(Tensor input, int[] size, int[] stride, int? storage_offset=None)", &AsStrided},
    {"N:lib.stride_tricks.as_strided", "(Tensor x, int[] shape, int[] strides)", &NumpyAsStrided},
    {"N:lib.stride_tricks.sliding_window_view", "(Tensor x, int[] window_shape, int[]? dim=None)", &SlidingWindows},
    {"tm:diagonal", "(Tensor input, int offset=0, int dim1=0, int dim2=1)", &Diagonal},
    {"t:real g:real G:real N:real tm:conj tm:resolve_conj tm:resolve_neg", "(Tensor input)", &RealPart},
};
// clang-format on

}  // namespace

std::span<const Row> ViewRows() {
  return kRows;
}

}  // namespace framejit::surface
