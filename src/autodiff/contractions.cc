// Derivatives that are large: convolution, and calls that the framework differentiates itself.
#include <limits>
#include <numeric>

#include "autodiff/tape.h"
#include "graph/device.h"
#include "graph/effects.h"
#include "graph/kept.h"
#include "graph/opaque.h"
#include "graph/rewrite.h"
#include "rules/convolution.h"

namespace framejit::autodiff {
namespace {

using shape::Int;
using shape::Ints;

Arg Numbers(const int64_t* p, int n) {
  std::vector<Arg> items;
  for (int i = 0; i < n; ++i) items.push_back(Arg::Int(p[i]));
  return Arg::Seq(Arg::Kind::kList, std::move(items));
}

}  // namespace

std::vector<ValueId> RunCall(Builder& b, std::shared_ptr<Call> call, std::vector<ValueId> operands,
                             const std::vector<TensorType>& types, std::vector<Ints> strides) {
  std::vector<Arg> items;
  for (size_t i = 0; i < types.size(); ++i) {
    if (strides.size() == i) strides.push_back(RowMajor(types[i].shape));
    items.push_back(Arg::Tensor(static_cast<TraceId>(i)));
  }
  call->result = types.size() == 1 ? items[0] : Arg::Seq(Arg::Kind::kTuple, items);
  call->mode.grad = false;
  ValueId first = b.Extern(std::move(call), std::move(operands), types, strides);
  std::vector<ValueId> out;
  for (size_t i = 0; i < types.size(); ++i)
    out.push_back(types.size() == 1 ? first : first + 1 + static_cast<ValueId>(i));
  return out;
}

void EmbeddingRule(At& t) {  // number: the padding index, whose row gets nothing
  const TensorType table = t.type(0);
  if (table.dtype != t.b.type(t.g).dtype) throw Undifferentiable("an embedding in another dtype");
  auto call = std::make_shared<Call>();
  const int64_t padding = static_cast<int64_t>(t.number(0));
  if (t.tape.zeros || !TraitsOf(table.device).host_code || DTypeSize(table.dtype) < 4) {
    call->callee = "torch.ops.aten.embedding_dense_backward";
    call->args = {Arg::Tensor(0), Arg::Tensor(1), Arg::Int(table.shape[0]), Arg::Int(padding), Arg::Bool(false)};
    t.Give(0, RunCall(t.b, call, {t.g, t.operands[1]}, {table})[0]);
    return;
  }
  // Into what the table's other uses have already given, or zeros: the table is large, and few of its rows are meant.
  ValueId& sum = t.tape.grads[t.operands[0]];
  const ValueId before = sum != kNoValue ? sum : t.b.Constant(0.0, table.dtype, table.shape);
  call->callee = "framejit._gradients.embedding";
  call->args = {Arg::Tensor(0), Arg::Tensor(1), Arg::Tensor(2), Arg::Int(padding)};
  sum = RunCall(t.b, call, {before, t.g, t.operands[1]}, {table})[0];
  t.b.graph().nodes[sum].attrs.flag = true;
}

ValueId ScatterAdd(Builder& b, const char* what, const TensorType& data, ValueId index, ValueId grad, int64_t axis) {
  auto call = std::make_shared<Call>();
  call->callee = std::string("framejit._gradients.") + what;
  std::vector<Arg> sizes;
  for (const Int& s : data.shape) sizes.push_back(Arg::Int(s));
  call->args = {Arg::Tensor(0), Arg::Tensor(1), Arg::Seq(Arg::Kind::kTuple, std::move(sizes)), Arg::Int(axis)};
  TensorType type = data;
  type.dtype = b.type(grad).dtype;
  return RunCall(b, call, {grad, index}, {type})[0];
}

namespace {

// Weight and bias of a depthwise convolution: our own kernel (runtime/depthwise.h), where the library has none. False:
// something else.
bool DepthwiseWeight(At& t) {
  const TensorType x = t.type(0), w = t.type(1);
  const int64_t* p = t.n.attrs.axes.data();
  if (!TraitsOf(x.device).host_code || t.n.attrs.flag || !rules::IsDepthwise(t.b.graph(), t.n)) return false;
  for (const TensorType& type : {x, w, t.b.type(t.g)})
    if (type.dtype != DType::kFloat32) return false;
  // Where channels lie inside, oneDNN has a kernel for windows of 3x3: 2 to 20 times as fast as ours. Row by row ours
  // is as fast, and windows of 5x5 and 7x7 take the library 1.3 to 30 times as long, however they lie (batches of 1, 4
  // and 32, 32 to 576 channels of 14x14 to 56x56, one thread).
  if (w.shape[2] == Int(3) && w.shape[3] == Int(3) && !rules::IsHostDepthwise(t.b.graph(), t.n)) return false;
  const bool bias = t.operands.size() > 2 && t.needs(2);
  if (!t.needs(1)) return false;
  auto call = std::make_shared<Call>();
  call->callee = "framejit._gradients.depthwise";
  call->args = {Arg::Tensor(0), Arg::Tensor(1),    Arg::Int(w.shape[2]), Arg::Int(w.shape[3]),
                Numbers(p, 2),  Numbers(p + 2, 2), Numbers(p + 4, 2),    Arg::Bool(bias)};
  std::vector<TensorType> types = {w};
  if (bias) types.push_back(t.type(2));
  std::vector<ValueId> grads = RunCall(t.b, call, {t.g, t.operands[0]}, types);
  t.Give(1, grads[0]);
  if (bias) t.Give(2, grads[1]);
  return true;
}

// What a depthwise convolution reads: the transposed convolution, if that is our own, too.
bool DepthwiseInput(At& t) {
  if (t.n.attrs.flag || !rules::IsHostDepthwise(t.b.graph(), t.n)) return false;
  const Ints x = t.type(0).shape, w = t.type(1).shape, g = t.b.type(t.g).shape;
  Attrs attrs = t.n.attrs;
  attrs.flag = true;
  int64_t* p = attrs.axes.data();
  for (int d = 0; d < 2; ++d) {
    const Int extra =
        x[2 + d] - ((g[2 + d] - Int(1)) * Int(p[d]) - Int(2 * p[2 + d]) + Int(p[4 + d]) * (w[2 + d] - Int(1)) + Int(1));
    if (!extra.is_const()) return false;
    p[6 + d] = extra.value();
  }
  t.Give(0, t.b.Add(Op::kConv, {t.g, t.operands[1]}, attrs));
  return true;
}

// A convolution whose windows lie side by side: products of the patches' matrix, of which libraries know more than of
// its gradients. False: something else.
bool PatchRule(At& t) {
  const TensorType x = t.type(0), w = t.type(1), g = t.b.type(t.g);
  const int64_t* p = t.n.attrs.axes.data();
  if (!TraitsOf(x.device).host_code || x.rank() != 4 || t.n.attrs.flag || p[8] != 1) return false;
  for (const TensorType* type : {&x, &w, &g})
    if (type->dtype != DType::kFloat32) return false;
  for (int d = 0; d < 2; ++d) {
    if (!(w.shape[2 + d] == Int(p[d])) || p[2 + d] != 0 || p[4 + d] != 1) return false;
    if (!(x.shape[2 + d] == g.shape[2 + d] * Int(p[d]))) return false;
  }
  if (p[0] * p[1] == 1) return false;
  Builder& b = t.b;
  const Int n = x.shape[0], c = x.shape[1], o = w.shape[0], h = g.shape[2], wide = g.shape[3];
  const Int rows = n * h * wide, columns = c * Int(p[0] * p[1]);
  const ValueId grads = b.Reshape(b.Permute(t.g, {0, 2, 3, 1}), {rows, o});
  if (t.needs(1)) {
    const ValueId apart = b.Reshape(t.operands[0], {n, c, h, Int(p[0]), wide, Int(p[1])});
    const ValueId patches = b.Reshape(b.Permute(apart, {0, 2, 4, 1, 3, 5}), {rows, columns});
    t.Give(1, b.Reshape(b.Add(Op::kMatMul, {b.Permute(grads, {1, 0}), patches}), w.shape));
  }
  if (t.needs(0)) {
    const ValueId patches = b.Add(Op::kMatMul, {grads, b.Reshape(t.operands[1], {o, columns})});
    const ValueId apart = b.Reshape(patches, {n, h, wide, c, Int(p[0]), Int(p[1])});
    t.Give(0, b.Reshape(b.Permute(apart, {0, 3, 1, 4, 2, 5}), x.shape));
  }
  if (t.operands.size() > 2 && t.needs(2)) t.Give(2, b.Reduce(Op::kSum, t.g, {0, 2, 3}, false));
  return true;
}

constexpr int64_t kFewRows = 128;  // libraries read a large matrix faster as it lies

bool ProductRule(At& t) {
  Builder& b = t.b;
  if (!rules::IsProduct(b.graph(), t.n)) return false;
  const Ints x = t.type(0).shape, w = t.type(1).shape, out = t.n.type.shape;
  const ValueId g = b.Reshape(t.g, {w[0], out[2] * out[3]});
  if (t.needs(1)) {
    const ValueId pixels = rules::Pixels(b, t.operands[0], out, t.n.attrs);
    t.Give(1, b.Reshape(b.Add(Op::kMatMul, {g, b.Permute(pixels, {1, 0})}), w));
  }
  if (t.needs(0)) {
    const ValueId filters = b.Reshape(t.operands[1], {w[0], w[1]}), swapped = b.Permute(g, {1, 0});
    const ValueId pixels = (out[2] * out[3]).value() < kFewRows
                               ? b.Permute(b.Add(Op::kMatMul, {swapped, filters}), {1, 0})
                               : b.Add(Op::kMatMul, {b.Permute(filters, {1, 0}), g});
    t.Give(0, rules::FromPixels(b, pixels, x, out, t.n.attrs));
  }
  if (t.operands.size() > 2 && t.needs(2)) t.Give(2, b.Reduce(Op::kSum, t.g, {0, 2, 3}, false));
  return true;
}

}  // namespace

void ConvRule(At& t) {
  if (PatchRule(t) || ProductRule(t)) return;
  int n = t.type(0).rank() - 2;
  const int64_t* p = t.n.attrs.axes.data();
  bool bias = t.operands.size() > 2;
  const bool depthwise = DepthwiseWeight(t);
  // Beside a weight that is fixed: torch would make the weight's gradient all the same.
  const bool bias_alone = bias && t.needs(2) && !t.needs(1) && !depthwise;
  if (bias_alone) {
    std::vector<int64_t> axes = {0};
    for (int d = 0; d < n; ++d) axes.push_back(d + 2);
    t.Give(2, t.b.Reduce(Op::kSum, t.g, axes, false));
  }
  const bool others = t.needs(1) || (bias && t.needs(2) && !bias_alone);
  if ((depthwise || !others) && (!t.needs(0) || DepthwiseInput(t))) return;
  auto call = std::make_shared<Call>();
  call->callee = "torch.ops.aten.convolution_backward";
  Arg features = bias ? Arg::Seq(Arg::Kind::kList, {Arg::Int(t.type(2).shape[0])}) : Arg::None();
  std::vector<Arg> mask;
  std::vector<TensorType> types;
  for (int i = 0; i < 3; ++i) {
    bool wanted =
        i < static_cast<int>(t.operands.size()) && t.needs(i) && !(depthwise && i > 0) && !(bias_alone && i == 2);
    mask.push_back(Arg::Bool(wanted));
    if (wanted) types.push_back(t.type(i));
  }
  call->args = {Arg::Tensor(0),
                Arg::Tensor(1),
                Arg::Tensor(2),
                features,
                Numbers(p, n),
                Numbers(p + n, n),
                Numbers(p + 2 * n, n),
                Arg::Bool(t.n.attrs.flag),
                Numbers(p + 3 * n, n),
                Arg::Int(p[4 * n]),
                Arg::Seq(Arg::Kind::kList, mask)};
  std::vector<ValueId> grads = RunCall(t.b, call, {t.g, t.operands[0], t.operands[1]}, types);
  for (int i = 0, next = 0; i < 3; ++i)
    if (mask[i].b) t.Give(i, grads[next++]);
}

namespace {

// sort, topk: the indices that came with the values say where these are from.
bool SelectionRule(At& t) {
  const Call& c = *t.n.attrs.call;
  const std::string_view name = c.callee.last();
  if ((name != "sort" && name != "topk") || t.operands.size() != 1 || t.n.attrs.result_types.size() != 2) return false;
  const size_t place = name == "sort" ? 1 : 2;
  Int dim = -1;
  if (c.args.size() > place) {
    if (!c.args[place].is(Arg::Kind::kInt)) return false;
    dim = c.args[place].i;
  }
  for (const auto& [key, value] : c.kwargs)
    if (key == "dim") dim = value.i;
  const int rank = t.type(0).rank();
  if (!dim.is_const() || rank == 0 || !t.needs(0)) return false;
  const int64_t axis = dim.value() < 0 ? dim.value() + rank : dim.value();
  const ValueId g = t.tape.results[t.id][0], indices = t.id + 2;
  if (g == kNoValue || t.b.graph().node(indices).op != Op::kResult) return false;
  t.Give(0, ScatterAdd(t.b, "gather", t.type(0), indices, g, axis));
  return true;
}

}  // namespace

// This makes framejit.vjp(CALLEE)(which, operands, args, kwargs, grads): the host runs the call again with gradients
// and asks the framework for those of operands[i], i in `which`. `grads` has one for each result, or None.
void ExternRule(At& t) {
  if (SelectionRule(t) || KeptAttentionRule(t)) return;
  const Call& c = *t.n.attrs.call;
  if (MakesOpaque(t.n)) throw Undifferentiable(c.callee + " makes a sparse or quantised tensor");
  auto call = std::make_shared<Call>();
  call->callee = "framejit.vjp(" + c.callee + ")";
  std::vector<ValueId> operands = t.operands;
  std::vector<Arg> which, grads, kwargs, now, made;
  std::vector<TensorType> types;
  const KeptMemory kept = KeptMemory::From(t.n.attrs.axes, t.operands.size());
  const auto add = [&](ValueId v) {  // None: the same as it was
    if (v == kNoValue) return Arg::None();
    operands.push_back(v);
    return Arg::Tensor(static_cast<TraceId>(operands.size() - 1));
  };
  const bool linear = c.callee.Has(kShapesAlone);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (linear && IsFloat(t.type(i).dtype)) {
      operands[i] = rules::Like(t.b, operands[i], 0);
      PutOn(t.b.graph(), operands[i], t.type(i).device);
    }
    if (!t.needs(i)) continue;
    which.push_back(Arg::Int(static_cast<int64_t>(i)));
    types.push_back(t.type(i));
  }
  std::vector<ValueId> arrived = t.n.attrs.result_types.size() > 1 ? t.tape.results[t.id] : std::vector<ValueId>{t.g};
  for (ValueId g : arrived) grads.push_back(add(g));
  // What the call made inside is made again of what the operands were, if the framework keeps that.
  for (size_t i = 0; i < t.operands.size() && kept.others && !linear; ++i) {
    const ValueId o = t.operands[i];
    if (t.Moves(o)) operands[i] = t.b.Barrier(o, kBefore);
    now.push_back(add(t.Moves(o) && kept.operands[i] ? o : kNoValue));
  }
  const bool moved = std::any_of(t.operands.begin(), t.operands.end(), [&](ValueId o) { return t.Moves(o); });
  for (size_t i = 0; i < kept.results.size(); ++i) {
    const ValueId o = kept.results.size() == 1 ? t.id : t.id + 1 + static_cast<ValueId>(i);
    made.push_back(add(kept.results[i] && (moved || t.Moves(o)) ? o : kNoValue));
  }
  for (const auto& [name, value] : c.kwargs) {
    kwargs.push_back(Arg::Str(name));
    kwargs.push_back(value);
  }
  std::vector<Arg> all;  // the operands in order, so that `which` may number them
  for (size_t i = 0; i < t.operands.size(); ++i) all.push_back(Arg::Tensor(static_cast<TraceId>(i)));
  call->args = {Arg::Seq(Arg::Kind::kTuple, which), Arg::Seq(Arg::Kind::kTuple, all),
                Arg::Seq(Arg::Kind::kTuple, c.args), Arg::Seq(Arg::Kind::kDict, kwargs),
                Arg::Seq(Arg::Kind::kTuple, grads)};
  const auto given = [](const Arg& a) { return !a.is_none(); };
  if (std::any_of(now.begin(), now.end(), given) || std::any_of(made.begin(), made.end(), given)) {
    call->args.push_back(Arg::Seq(Arg::Kind::kTuple, now));
    call->args.push_back(Arg::Seq(Arg::Kind::kTuple, made));
  }
  std::function<bool(const Arg&)> opaque = [&](const Arg& a) {
    if (a.is(Arg::Kind::kObject)) return true;
    return std::any_of(a.items.begin(), a.items.end(), opaque);
  };
  for (const Arg& a : call->args)
    if (opaque(a)) throw Undifferentiable(c.callee + " has an argument that only the framework can read");
  std::vector<ValueId> out = RunCall(t.b, call, operands, types);
  for (size_t i = 0; i < which.size(); ++i) t.Give(static_cast<int>(which[i].i.value()), out[i]);
}

}  // namespace framejit::autodiff
