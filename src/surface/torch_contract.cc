// Rows that contract: they lower to the primitives that a library runs (matmul, linear, conv, attention).
#include <algorithm>
#include <cmath>
#include <limits>

#include "rules/decompose.h"
#include "surface/reduce.h"
#include "surface/views.h"

namespace framejit::surface {
namespace {

using shape::Int;
using shape::Ints;

void SameFloats(Scope& s, std::initializer_list<const Operand*> all) {
  DType t = (*all.begin())->meta->dtype;
  for (const Operand* x : all) {
    if (x->meta->dtype != t) Scope::Fail("operands need one dtype");
  }
  if (!IsFloat(t)) Scope::Skip();
}

Outs Linear(Scope& s) {
  Operand x = s.tensor(0), w = s.tensor(1);
  if (w.rank() != 2 || x.rank() < 1) Scope::Skip();
  SameFloats(s, {&x, &w});
  std::vector<ValueId> operands = {x.value, w.value};
  if (s.has(2)) {
    Operand bias = s.tensor(2);
    SameFloats(s, {&x, &bias});
    if (bias.rank() != 1 || !s.env.Eq(bias.meta->sizes[0], w.meta->sizes[0])) Scope::Skip();
    operands.push_back(bias.value);
  }
  return s.b.Add(Op::kLinear, operands);
}

// Multiplies matrices [.., M, K] x [.., K, N] with broadcast batches.
ValueId Product(Scope& s, ValueId a, ValueId b) {
  TensorType ta = s.b.type(a), tb = s.b.type(b);
  if (tb.rank() == 2 && ta.rank() > 2) {  // one matrix for all: fold the batch into the rows
    Ints rows(ta.shape.begin(), ta.shape.end() - 1), result = rows;
    result.push_back(tb.shape[1]);
    ValueId flat = s.b.Reshape(a, {shape::Product(rows), ta.shape.back()});
    return s.b.Reshape(s.b.Add(Op::kMatMul, {flat, b}), result);
  }
  const Ints batch =
      BroadcastShapes({ta.shape.begin(), ta.shape.end() - 2}, {tb.shape.begin(), tb.shape.end() - 2}, s.env);
  auto spread = [&](ValueId v, const TensorType& t) {
    Ints sizes = batch;
    sizes.insert(sizes.end(), t.shape.end() - 2, t.shape.end());
    return s.b.Broadcast(v, sizes);
  };
  return s.b.Add(Op::kMatMul, {spread(a, ta), spread(b, tb)});
}

ValueId MatMulOf(Scope& s, const Operand& x, const Operand& y) {
  if (x.rank() == 0 || y.rank() == 0) Scope::Fail("matmul of a 0-dimensional tensor");
  Ints xs = x.meta->sizes, ys = y.meta->sizes;
  if (!s.env.Eq(xs.back(), ys[ys.size() >= 2 ? ys.size() - 2 : 0])) Scope::Fail("matmul: contracted sizes differ");
  ValueId a = x.rank() == 1 ? s.b.Reshape(x.value, {Int(1), xs[0]}) : x.value;
  ValueId b = y.rank() == 1 ? s.b.Reshape(y.value, {ys[0], Int(1)}) : y.value;
  ValueId v = Product(s, a, b);
  if (x.rank() > 1 && y.rank() > 1) return v;
  Ints sizes = s.b.type(v).shape;
  if (y.rank() == 1) sizes.pop_back();
  if (x.rank() == 1) sizes.erase(sizes.end() - (y.rank() == 1 ? 1 : 2));
  return s.b.Reshape(v, sizes);
}

Outs MatMul(Scope& s) {
  Operand x = s.tensor(0), y = s.tensor(1);
  if (!s.torch()) {
    if (!IsFloat(x.meta->dtype) || !IsFloat(y.meta->dtype)) Scope::Skip();
    DType t = NumpyPromoteTypes(x.meta->dtype, y.meta->dtype);
    x.value = s.b.Cast(x.value, t);
    y.value = s.b.Cast(y.value, t);
    return MatMulOf(s, x, y);
  }
  SameFloats(s, {&x, &y});
  return MatMulOf(s, x, y);
}

Outs Strict(Scope& s, int rank_x, int rank_y) {  // mm, bmm, mv, dot: fixed ranks, no broadcasting
  Operand x = s.tensor(0), y = s.tensor(1);
  if (x.rank() != rank_x || y.rank() != rank_y) Scope::Fail("operand ranks");
  if (rank_x == 3 && !s.env.Eq(x.meta->sizes[0], y.meta->sizes[0])) Scope::Fail("batch sizes differ");
  SameFloats(s, {&x, &y});
  return MatMulOf(s, x, y);
}
Outs Mm(Scope& s) {
  return Strict(s, 2, 2);
}
Outs Bmm(Scope& s) {
  return Strict(s, 3, 3);
}
Outs Mv(Scope& s) {
  return Strict(s, 2, 1);
}
Outs Dot(Scope& s) {
  return Strict(s, 1, 1);
}

Outs NumpyDot(Scope& s) {
  for (int i : {0, 1}) {
    if (s.tensor(i).rank() > 2 || s.tensor(i).rank() == 0) Scope::Skip();
  }
  return MatMul(s);
}

Outs AddMatMul(Scope& s) {  // addmm, baddbmm: beta * input + alpha * (x @ y)
  Operand add = s.tensor(0), x = s.tensor(1), y = s.tensor(2);
  int rank = s.row.op == Op::kMatMul ? 3 : 2;
  if (x.rank() != rank || y.rank() != rank) Scope::Fail("operand ranks");
  SameFloats(s, {&add, &x, &y});
  double beta = s.number(3), alpha = s.number(4);
  if (rank == 2 && x.meta->device.kind == DeviceKind::kCuda && add.rank() == 1 && beta == 1 && alpha == 1 &&
      s.env.Eq(add.meta->sizes[0], y.meta->sizes[1]) && s.env.Eq(x.meta->sizes[1], y.meta->sizes[0]))
    return s.b.Add(Op::kLinear, {x.value, s.b.Permute(y.value, {1, 0}), add.value});  // one call of the library
  ValueId v = s.Up(MatMulOf(s, x, y));
  if (alpha != 1) v = s.b.Binary(Op::kMul, v, rules::Like(s.b, v, alpha));
  if (beta != 0) {
    ValueId a = s.Up(add.value);
    if (beta != 1) a = s.b.Binary(Op::kMul, a, rules::Like(s.b, a, beta));
    Ints sizes = s.b.type(v).shape;
    v = s.b.Binary(Op::kAdd, s.b.Broadcast(a, sizes), v);
  }
  return s.b.Cast(v, x.meta->dtype);
}

Outs Outer(Scope& s) {
  Operand x = s.tensor(0), y = s.tensor(1);
  if (x.rank() != 1 || y.rank() != 1) Scope::Skip();
  if (x.meta->dtype != y.meta->dtype) Scope::Skip();
  ValueId column = s.b.Reshape(x.value, {x.meta->sizes[0], Int(1)});
  return s.b.Binary(Op::kMul, column, y.value);
}

// Two operands, each letter once per operand: permute to [shared, left, summed] x [shared, summed, right], multiply,
// permute to the asked order.
Outs Einsum(Scope& s) {
  std::string eq;
  for (char c : s.arg(0).s) {
    if (c != ' ') eq += c;
  }
  std::vector<Operand> xs = s.tensors(1);
  size_t arrow = eq.find("->"), comma = eq.find(',');
  if (xs.size() != 2 || arrow == std::string::npos || comma == std::string::npos || eq.find('.') != std::string::npos)
    Scope::Skip();
  std::string left = eq.substr(0, comma), right = eq.substr(comma + 1, arrow - comma - 1),
              result = eq.substr(arrow + 2);
  auto distinct = [](std::string t) {
    std::sort(t.begin(), t.end());
    return std::adjacent_find(t.begin(), t.end()) == t.end();
  };
  if (!distinct(left) || !distinct(right) || !distinct(result)) Scope::Skip();
  if (static_cast<int>(left.size()) != xs[0].rank() || static_cast<int>(right.size()) != xs[1].rank())
    Scope::Fail("einsum: ranks");
  if (xs[0].meta->dtype != xs[1].meta->dtype) Scope::Skip();  // torch multiplies them where nothing is summed
  SameFloats(s, {&xs[0], &xs[1]});
  std::string batch, rows, columns, summed;
  auto has = [](const std::string& t, char c) { return t.find(c) != std::string::npos; };
  for (char c : result) {
    if (has(left, c) && has(right, c))
      batch += c;
    else if (has(left, c))
      rows += c;
    else if (has(right, c))
      columns += c;
    else
      Scope::Fail("einsum: unknown letter in the result");
  }
  for (char c : left) {
    if (has(result, c)) continue;
    if (!has(right, c)) Scope::Skip();
    summed += c;
  }
  for (char c : right) {
    if (!has(result, c) && !has(left, c)) Scope::Skip();
  }
  if (summed.empty()) Scope::Skip();
  for (char c : result) {  // torch swaps the operands when the right one's letters come first: another memory order
    if (has(rows, c)) break;
    if (has(columns, c) && !rows.empty()) Scope::Skip();
  }
  auto size = [&](char c) {
    size_t l = left.find(c), r = right.find(c);
    Int n = l != std::string::npos ? xs[0].meta->sizes[l] : xs[1].meta->sizes[r];
    if (l != std::string::npos && r != std::string::npos && !s.env.Eq(n, xs[1].meta->sizes[r])) Scope::Skip();
    if (s.env.Eq(n, 1)) Scope::Skip();  // torch gives such a letter another part: another memory order
    return n;
  };
  auto total = [&](const std::string& t) {
    Int n = 1;
    for (char c : t) n = n * size(c);
    return n;
  };
  auto arrange = [&](const Operand& x, const std::string& have, const std::string& want, const Ints& sizes) {
    std::vector<int64_t> perm;
    for (char c : want) perm.push_back(static_cast<int64_t>(have.find(c)));
    return s.b.Reshape(s.b.Permute(x.value, perm), sizes);
  };
  Int m = total(rows), n = total(columns), k = total(summed);
  Ints sizes_l = {m, k}, sizes_r = {k, n};
  if (!batch.empty()) {
    Int count = total(batch);
    sizes_l = {count, m, k};
    sizes_r = {count, k, n};
  }
  ValueId v = s.b.Add(Op::kMatMul, {arrange(xs[0], left, batch + rows + summed, sizes_l),
                                    arrange(xs[1], right, batch + summed + columns, sizes_r)});
  std::string natural = batch + rows + columns;
  Ints sizes;
  for (char c : natural) sizes.push_back(size(c));
  Ints strides = RowMajor(sizes);
  std::vector<int64_t> perm;
  Out out;
  for (char c : result) {
    perm.push_back(static_cast<int64_t>(natural.find(c)));
    out.strides.push_back(strides[perm.back()]);
  }
  out.value = s.b.Permute(s.b.Reshape(v, sizes), perm);
  return out;
}

// As torch sees the operand of a convolution in one dimension: a picture of one row; the input is made contiguous
// first.
TensorMeta AsPicture(TensorMeta m, shape::Env* dense = nullptr) {
  if (dense && !IsContiguous(*dense, m)) m.strides = RowMajor(m.sizes);
  m.strides.Insert(2, m.sizes[2] * m.strides[2]);
  m.sizes.Insert(2, Int(1));
  return m;
}

bool Changes(const Scope& s, const Ints& numbers) {
  return std::any_of(numbers.begin(), numbers.end(), [&](const Int& i) { return !s.env.Simplify(i).is_const(); });
}

// (input, weight, bias, stride, padding, dilation, groups); row.arity of spatial dimensions is the weight's rank - 2.
Outs ConvOf(Scope& s, int n, bool transposed) {
  Operand x = s.tensor(0), w = s.tensor(1);
  if (w.rank() != n + 2) Scope::Fail("conv weight rank");
  bool batched = x.rank() == n + 2;
  if (!batched && x.rank() != n + 1) Scope::Fail("conv input rank");
  SameFloats(s, {&x, &w});
  ValueId input = x.value;
  if (!batched) {
    Ints sizes = x.meta->sizes;
    sizes.insert(sizes.begin(), Int(1));
    input = s.b.Reshape(input, sizes);
  }
  std::vector<ValueId> operands = {input, w.value};
  const bool cuda = x.meta->device.kind == DeviceKind::kCuda;
  if (s.has(2)) {
    Operand bias = s.tensor(2);
    SameFloats(s, {&x, &bias});
    if (!cuda) operands.push_back(bias.value);
  }
  auto numbers = [&](int i) {
    std::vector<int64_t> out;
    for (const Int& v : s.ints(i)) out.push_back(s.env.Specialize(v));
    if (out.size() == 1) out.resize(n, out[0]);
    if (static_cast<int>(out.size()) != n) Scope::Fail("conv parameters");
    return out;
  };
  std::vector<int64_t> stride = numbers(3), padding(n, 0), extra(n, 0), dilation = numbers(transposed ? 7 : 5);
  int64_t groups = s.env.Specialize(s.integer(6));
  if (s.arg(4).is(Arg::Kind::kString)) {
    if (s.arg(4).s == "same") {
      for (int d = 0; d < n; ++d) {
        int64_t total = dilation[d] * (s.env.Specialize(w.meta->sizes[d + 2]) - 1);
        if (total % 2 != 0 || stride[d] != 1) Scope::Skip();
        padding[d] = total / 2;
      }
    } else if (s.arg(4).s != "valid") {
      Scope::Fail("padding");
    }
  } else if (!transposed && Changes(s, s.ints(4))) {  // zeros around the input, as many as there are
    Ints around = s.ints(4);
    if (around.size() == 1) around.resize(n, around[0]);
    if (static_cast<int>(around.size()) != n) Scope::Fail("conv parameters");
    Attrs zeros;
    Ints all(4, Int(0));
    for (const Int& p : around) {
      if (s.env.Lt(p, 0)) Scope::Fail("conv parameters");
      all.insert(all.end(), {p, p});
    }
    zeros.syms = all;
    zeros.scalar = Scalar(0.0);
    operands[0] = s.b.Add(Op::kPad, {input}, zeros);
  } else {
    padding = numbers(4);
    if (*std::min_element(padding.begin(), padding.end()) < 0) Scope::Fail("conv parameters");
  }
  if (transposed) extra = numbers(5);
  Attrs attrs;
  for (auto* list : {&stride, &padding, &dilation, &extra})
    attrs.axes.insert(attrs.axes.end(), list->begin(), list->end());
  attrs.axes.push_back(groups);
  attrs.flag = transposed;
  for (const Int& d : x.meta->sizes) {
    if (s.env.Eq(d, 0)) Scope::Skip();
  }
  Out out;
  out.value = s.b.Add(Op::kConv, operands, attrs);
  Ints sizes = s.b.type(out.value).shape;
  for (int d = 0; d < n; ++d) {
    if (!s.env.Lt(0, sizes[d + 2])) Scope::Fail("the kernel is larger than the padded input");
  }
  if (cuda && s.has(2)) {  // a kernel of its own, as in eager, that what follows is fused with
    Operand bias = s.tensor(2);
    if (bias.rank() != 1 || !s.env.Eq(bias.meta->sizes[0], sizes[1])) Scope::Fail("conv bias does not fit");
    Ints channels(n + 2, Int(1));
    channels[1] = sizes[1];
    ValueId all = s.b.Broadcast(s.b.Reshape(s.Up(bias.value), channels), sizes);
    out.value = s.b.Cast(s.b.Binary(Op::kAdd, s.Up(out.value), all), x.meta->dtype);
  }
  if (!batched) {
    sizes.erase(sizes.begin());
    out.value = s.b.Reshape(out.value, sizes);
  } else if (cuda && x.meta->dtype == DType::kFloat64) {
    // cuDNN has no kernels of doubles with the channels last.
  } else if (n > 1 && (LikesChannelsLast(s.env, *x.meta) || LikesChannelsLast(s.env, *w.meta))) {
    if ((x.meta->dtype != DType::kFloat32 && !cuda) || n != 2 || transposed) Scope::Skip();
    out.strides = ChannelsLast(sizes);
  } else if (cuda && n == 1 &&
             (LikesChannelsLast(s.env, AsPicture(*x.meta, &s.env)) || LikesChannelsLast(s.env, AsPicture(*w.meta)))) {
    if (transposed) Scope::Skip();
    out.strides = {sizes[1] * sizes[2], 1, sizes[1]};
  }
  return out;
}
template <int N>
Outs Conv(Scope& s) {
  return ConvOf(s, N, false);
}
template <int N>
Outs ConvTranspose(Scope& s) {
  return ConvOf(s, N, true);
}

// Would torch's fused CPU kernel run? It keeps the query's memory order; the composite path gives row-major results.
bool IsFused(Scope& s, const Operand& q, const Operand& k, const Operand& v, const Operand* mask) {
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4) return false;
  if (!s.env.Eq(q.meta->sizes[3], v.meta->sizes[3])) return false;
  for (const Operand* x : {&q, &k, &v}) {
    if (!s.env.Eq(x->meta->strides[3], 1) || IsEmpty(s.env, x->meta->sizes)) return false;
  }
  return !mask || ((mask->rank() == 2 || mask->rank() == 4) && !mask->meta->requires_grad);
}

// Is there a library's kernel for it on CPUs? Not for values of another width than queries, nor of nothing.
bool HasKernel(Scope& s, ValueId q, ValueId k, ValueId v) {
  for (ValueId x : {q, k, v})
    if (IsEmpty(s.env, s.b.type(x).shape)) return false;
  return s.env.Eq(s.b.type(q).shape[3], s.b.type(v).shape[3]);
}

// The memory order of the result on CUDA: 16-bit kernels keep the query's, the float32 one writes [B, L, H, E].
Ints CudaAttentionStrides(Scope& s, const Operand& q, const Operand& v) {
  const int64_t width = s.env.Specialize(q.meta->sizes[3]);
  const bool half = DTypeSize(q.meta->dtype) == 2;
  if (width % (half ? 8 : 4) || !s.env.Eq(v.meta->sizes[3], Int(width))) Scope::Skip();
  if (half) return PreserveFormat(s.env, *q.meta);
  const Ints& n = q.meta->sizes;
  const Ints t = RowMajor(Ints{n[0], n[2], n[1], n[3]});
  return {t[0], t[2], t[1], t[3]};
}

// By the framework, whose kernels draw inside. What it gives lies as CudaAttentionStrides says.
ValueId Dropping(Scope& s, const std::vector<ValueId>& operands, const Ints& strides, double dropout, bool causal,
                 double scale) {
  const auto call = s.CallOf("framejit._random.attention", {}, false);
  for (TraceId i = 0; i < 4; ++i) call->args.push_back(i < operands.size() ? Arg::Tensor(i) : Arg::None());
  for (const Arg& a : {Arg::Float(dropout), Arg::Bool(causal), Arg::Float(scale)}) call->args.push_back(a);
  TensorType type = s.b.type(operands[0]);
  type.shape.Set(3, s.b.type(operands[2]).shape[3]);
  return s.b.Extern(call, operands, {type}, {strides});
}

Outs AttentionOf(Scope& s) {  // (query, key, value, attn_mask, dropout_p, is_causal, *, scale, enable_gqa)
  Operand q = s.tensor(0), k = s.tensor(1), v = s.tensor(2);
  double dropout = s.number(4);
  const bool cuda = q.meta->device.kind == DeviceKind::kCuda;
  if (s.has(6) && std::isnan(s.number(6))) Scope::Skip();  // kernels differ in what they make of it
  if (dropout != 0 && (dropout < 0 || dropout >= 1 || IsEmpty(s.env, q.meta->sizes) || IsEmpty(s.env, k.meta->sizes)))
    throw Unmodelled{"attention with dropout draws random numbers"};
  SameFloats(s, {&q, &k, &v});
  int rank = q.rank();
  if (rank < 2 || k.rank() != rank || v.rank() != rank) Scope::Skip();
  bool causal = s.flag(5);
  Operand mask;
  if (s.has(3)) mask = s.tensor(3);
  if (causal && mask.is_tensor()) Scope::Fail("attn_mask with is_causal");
  auto four = [&](const Operand& x) {  // [.., L, E] -> [B, H, L, E]
    Ints sizes = x.meta->sizes;
    if (rank <= 4) {
      sizes.insert(sizes.begin(), 4 - rank, Int(1));
    } else {
      Int batch = shape::Product(std::span(sizes).first(rank - 3));
      sizes.erase(sizes.begin(), sizes.end() - 3);
      sizes.insert(sizes.begin(), batch);
    }
    return s.b.Reshape(x.value, sizes);
  };
  ValueId qv = four(q), kv = four(k), vv = four(v);
  Ints qs = s.b.type(qv).shape;
  if (s.flag(7) && rank >= 3) {  // grouped queries: each key head serves several query heads in a row
    for (ValueId* x : {&kv, &vv}) {
      Ints sizes = s.b.type(*x).shape;
      if (s.env.Eq(sizes[1], qs[1])) continue;
      int64_t heads = s.env.Specialize(qs[1]), have = s.env.Specialize(sizes[1]);
      if (have == 0 || heads % have != 0) Scope::Fail("enable_gqa: heads do not divide");
      Ints apart = {sizes[0], sizes[1], Int(1), sizes[2], sizes[3]}, spread = apart;
      spread[2] = heads / have;
      *x = s.b.Reshape(s.b.Broadcast(s.b.Reshape(*x, apart), spread), {sizes[0], qs[1], sizes[2], sizes[3]});
    }
  }
  Ints ks = s.b.type(kv).shape;
  for (int d : {0, 1}) {
    if (!s.env.Eq(qs[d], ks[d])) Scope::Skip();
  }
  std::vector<ValueId> operands = {qv, kv, vv};
  if (mask.is_tensor()) {
    DType t = q.meta->dtype;
    if (mask.rank() > 4 || rank > 4) Scope::Skip();
    ValueId m = mask.value;
    if (IsBool(mask.meta->dtype)) {
      double inf = std::numeric_limits<double>::infinity();
      m = s.b.Where(m, s.b.Constant(Scalar(0.0), t), s.b.Constant(Scalar(-inf), t));
    } else if (mask.meta->dtype != t) {
      Scope::Skip();
    }
    Ints sizes = mask.meta->sizes;
    sizes.insert(sizes.begin(), 4 - mask.rank(), Int(1));
    operands.push_back(s.b.Reshape(m, sizes));
  }
  Attrs attrs;
  attrs.flag = causal;
  attrs.scalar = s.has(6) ? s.number(6) : 1.0 / std::sqrt(static_cast<double>(s.env.Specialize(qs[3])));
  Out out;
  if (dropout != 0 && cuda) {
    if (rank != 4 || DTypeSize(q.meta->dtype) > 4) Scope::Skip();
    out.value = Dropping(s, operands, CudaAttentionStrides(s, q, v), dropout, causal, attrs.scalar.AsDouble());
  } else if (dropout != 0 || (!cuda && !HasKernel(s, qv, kv, vv))) {
    ValueId additive = rules::kNone;
    if (mask.is_tensor()) additive = s.b.Broadcast(operands[3], {qs[0], qs[1], qs[2], ks[2]});
    out.value = rules::Attention(s.b, qv, kv, vv, additive, causal, attrs.scalar.AsDouble(), [&](ValueId w) {
      return dropout == 0 ? w : s.b.Binary(Op::kMul, w, DropoutNoise(s, w, dropout));
    });
  } else {
    out.value = s.b.Add(Op::kAttention, operands, attrs);
  }
  Ints sizes = q.meta->sizes;
  sizes.back() = v.meta->sizes.back();
  if (rank != 4) out.value = s.b.Reshape(out.value, sizes);
  if (cuda) {
    if (rank != 4 || DTypeSize(q.meta->dtype) > 4) Scope::Skip();
    out.strides = CudaAttentionStrides(s, q, v);
  } else if (dropout == 0 && IsFused(s, q, k, v, mask.is_tensor() ? &mask : nullptr)) {
    out.strides = PreserveFormat(s.env, *q.meta);
  }
  return out;
}

Outs Attention(Scope& s) {
  try {
    return AttentionOf(s);
  } catch (const NotThisRow&) {
    if (s.number(4) != 0) throw Unmodelled{"attention with dropout draws random numbers"};
    throw;
  }
}

#define CONV \
  "(Tensor input, Tensor weight, Tensor? bias=None, int[] stride=1, Any padding=0, int[] dilation=1, int groups=1)"
#define CONV_T                                                                                                 \
  "(Tensor input, Tensor weight, Tensor? bias=None, int[] stride=1, int[] padding=0, int[] output_padding=0, " \
  "int groups=1, int[] dilation=1)"
// clang-format off: a table
constexpr Row kRows[] = {
    {"nf:linear", "(Tensor input, Tensor weight, Tensor? bias=None)", &Linear},
    {"tmN:matmul l:matmul orOR:matmul", "(Tensor input, Tensor other)", &MatMul},
    {"tm:mm", "(Tensor input, Tensor mat2)", &Mm}, {"tm:bmm", "(Tensor input, Tensor mat2)", &Bmm},
    {"tm:mv", "(Tensor input, Tensor vec)", &Mv}, {"tm:dot", "(Tensor input, Tensor tensor)", &Dot},
    {"NM:dot", "(Tensor input, Tensor other)", &NumpyDot},
    {"tm:addmm", "(Tensor input, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1)", &AddMatMul},
    {"tm:baddbmm", "(Tensor input, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1)", &AddMatMul, Op::kMatMul},
    {"tm:outer tm:ger N:outer", "(Tensor input, Tensor vec2)", &Outer},
    {"t:einsum", "(str equation, Tensor[]... operands)", &Einsum},
    {"tf:conv1d", CONV, &Conv<1>}, {"tf:conv2d", CONV, &Conv<2>}, {"tf:conv3d", CONV, &Conv<3>},
    {"tf:conv_transpose1d", CONV_T, &ConvTranspose<1>}, {"tf:conv_transpose2d", CONV_T, &ConvTranspose<2>},
    {"nf:scaled_dot_product_attention",
     "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, "
     "float? scale=None, bool enable_gqa=False)", &Attention},
};
// clang-format on

}  // namespace

std::span<const Row> ContractionRows() {
  return kRows;
}

}  // namespace framejit::surface
