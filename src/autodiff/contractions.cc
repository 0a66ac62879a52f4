// Derivatives that are large: convolution and attention, and calls that the framework differentiates itself.
#include <limits>
#include <numeric>

#include "autodiff/tape.h"

namespace framejit::autodiff {
namespace {

using rules::Expr;
using shape::Int;
using shape::Ints;

Arg Numbers(const int64_t* p, int n) {
  std::vector<Arg> items;
  for (int i = 0; i < n; ++i) items.push_back(Arg::Int(p[i]));
  return Arg::Seq(Arg::Kind::kList, std::move(items));
}

Ints RowMajor(const Ints& shape) {
  Ints strides(shape.size());
  Int s = 1;
  for (size_t d = shape.size(); d-- > 0; s = s * shape[d]) strides[d] = s;
  return strides;
}

// The call with results of these types; the first's id, or that of its `result` node.
std::vector<ValueId> Run(Builder& b, std::shared_ptr<Call> call, std::vector<ValueId> operands,
                         const std::vector<TensorType>& types, std::vector<Ints> strides = {}) {
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

}  // namespace

void EmbeddingRule(At& t) {  // the framework's kernel; number: the padding index, whose row gets nothing
  if (t.type(0).dtype != t.b.type(t.g).dtype) throw Undifferentiable("an embedding in another dtype");
  auto call = std::make_shared<Call>();
  call->callee = "torch.ops.aten.embedding_dense_backward";
  call->args = {Arg::Tensor(0), Arg::Tensor(1), Arg::Int(t.type(0).shape[0]),
                Arg::Int(static_cast<int64_t>(t.number(0))), Arg::Bool(false)};
  t.Give(0, Run(t.b, call, {t.g, t.operands[1]}, {t.type(0)})[0]);
}

ValueId ScatterAdd(Builder& b, const char* what, const TensorType& data, ValueId index, ValueId grad, int64_t axis) {
  auto call = std::make_shared<Call>();
  call->callee = std::string("framejit._gradients.") + what;
  std::vector<Arg> sizes;
  for (const Int& s : data.shape) sizes.push_back(Arg::Int(s));
  call->args = {Arg::Tensor(0), Arg::Tensor(1), Arg::Seq(Arg::Kind::kTuple, std::move(sizes)), Arg::Int(axis)};
  TensorType type = data;
  type.dtype = b.type(grad).dtype;
  return Run(b, call, {grad, index}, {type})[0];
}

void ConvRule(At& t) {
  int n = t.type(0).rank() - 2;
  const int64_t* p = t.n.attrs.axes.data();
  bool bias = t.operands.size() > 2;
  auto call = std::make_shared<Call>();
  call->callee = "torch.ops.aten.convolution_backward";
  Arg features = bias ? Arg::Seq(Arg::Kind::kList, {Arg::Int(t.type(2).shape[0])}) : Arg::None();
  std::vector<Arg> mask;
  std::vector<TensorType> types;
  for (int i = 0; i < 3; ++i) {
    bool wanted = i < static_cast<int>(t.operands.size()) && t.needs(i);
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
  std::vector<ValueId> grads = Run(t.b, call, {t.g, t.operands[0], t.operands[1]}, types);
  for (int i = 0, next = 0; i < 3; ++i)
    if (mask[i].b) t.Give(i, grads[next++]);
}

namespace {

// The framework's kernel: it never holds the scores of more than a block.
bool FlashRule(At& t) {
  const TensorType q = t.type(0), k = t.type(1), v = t.type(2);
  const bool masked = t.operands.size() > 3, causal = t.n.attrs.flag;
  if (q.device.kind != DeviceKind::kCpu || q.rank() != 4 || !IsFloat(q.dtype) || DTypeSize(q.dtype) < 2) return false;
  if (k.dtype != q.dtype || v.dtype != q.dtype || t.b.type(t.g).dtype != q.dtype) return false;
  if (!(q.shape[0] == k.shape[0]) || !(q.shape[1] == k.shape[1]) || !(k.shape == v.shape)) return false;
  if (!(q.shape[3] == k.shape[3])) return false;
  for (const TensorType* type : {&q, &k})
    for (const Int& s : type->shape)
      if (s == Int(0)) return false;
  if (masked) {
    const TensorType mask = t.type(3);
    const int rank = mask.rank();
    if (t.needs(3) || causal || mask.dtype != q.dtype || (rank != 2 && rank != 4)) return false;
    if (!(mask.shape[rank - 2] == q.shape[2]) || !(mask.shape[rank - 1] == k.shape[2])) return false;
  }
  auto call = std::make_shared<Call>();
  call->callee = "framejit._gradients.attention";
  std::vector<ValueId> operands = {t.g, t.operands[0], t.operands[1], t.operands[2]};
  if (masked) operands.push_back(t.operands[3]);
  for (size_t i = 0; i < operands.size(); ++i) call->args.push_back(Arg::Tensor(static_cast<TraceId>(i)));
  if (!masked) call->args.push_back(Arg::None());
  call->args.push_back(Arg::Bool(causal));
  call->args.push_back(Arg::Float(t.n.attrs.scalar.AsDouble()));
  std::vector<Ints> strides;
  for (const TensorType* type : {&q, &k, &v}) {  // [batch, length, head, e] in memory
    const Ints& s = type->shape;
    strides.push_back({s[1] * s[2] * s[3], s[3], s[1] * s[3], Int(1)});
  }
  std::vector<ValueId> grads = Run(t.b, call, operands, {q, k, v}, strides);
  for (int i = 0; i < 3; ++i) t.Give(i, grads[i]);
  return true;
}

}  // namespace

// The scores are computed again from query and key: they are the largest thing there is.
void AttentionRule(At& t) {
  if (FlashRule(t)) return;
  Builder& b = t.b;
  auto wide = [&](ValueId v) { return Expr{b, rules::Widen(b, v)}; };
  auto times = [&](ValueId x, ValueId y) { return Expr{b, b.Add(Op::kMatMul, {x, y})}; };
  auto swap = [&](ValueId v) { return b.Permute(v, {0, 1, 3, 2}); };
  Expr q = wide(t.operands[0]), k = wide(t.operands[1]), v = wide(t.operands[2]), g = wide(t.g), y = wide(t.id);
  double scale = t.n.attrs.scalar.AsDouble();
  Expr scores = times(q, swap(k)) * scale;
  const Ints shape = b.type(scores).shape;
  bool masked = t.operands.size() > 3;
  if (masked) scores = scores + Expr{b, b.Broadcast(wide(t.operands[3]), shape)};
  Expr nothing = scores.Number(-std::numeric_limits<double>::infinity());
  if (t.n.attrs.flag) scores = rules::Where({b, rules::TriangleMask(b, shape, 0)}, scores, nothing);
  Expr weights{b, rules::Softmax(b, scores, 3)};
  if (masked) {  // a query that sees nothing has weights 0, where softmax gives nan
    ValueId blind = b.Reduce(Op::kAll, rules::Apply(Op::kEq, scores, nothing), {3}, true);
    weights = rules::Where({b, b.Broadcast(blind, shape)}, weights.Number(0), weights);
  }
  if (t.needs(2)) t.Give(2, times(swap(weights), g));
  Expr along{b, b.Broadcast(b.Reduce(Op::kSum, g * y, {3}, true), shape)};
  Expr d = weights * (times(g, swap(v)) - along);
  if (masked && t.needs(3)) {
    const Ints mask = t.type(3).shape;
    std::vector<int64_t> over;
    for (int i = 0; i < 4; ++i)
      if (mask[i] == Int(1) && !(shape[i] == Int(1))) over.push_back(i);
    t.Give(3, b.Reshape(b.Reduce(Op::kSum, d, over, true), mask));
  }
  d = d * scale;
  if (t.needs(0)) t.Give(0, times(d, k));
  if (t.needs(1)) t.Give(1, times(swap(d), q));
}

namespace {

// sort, topk: the indices that came with the values say where these are from.
bool SelectionRule(At& t) {
  const Call& c = *t.n.attrs.call;
  const std::string name = c.callee.substr(c.callee.rfind('.') + 1);
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

// framejit.vjp(CALLEE)(which, operands, args, kwargs, grads): the host runs the call again with gradients and asks the
// framework for those of operands[i], i in `which`; grads: by result, or None.
void ExternRule(At& t) {
  if (SelectionRule(t)) return;
  const Call& c = *t.n.attrs.call;
  auto call = std::make_shared<Call>();
  call->callee = "framejit.vjp(" + c.callee + ")";
  std::vector<ValueId> operands = t.operands;
  std::vector<Arg> which, grads, kwargs;
  std::vector<TensorType> types;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!t.needs(i)) continue;
    which.push_back(Arg::Int(static_cast<int64_t>(i)));
    types.push_back(t.type(i));
  }
  std::vector<ValueId> arrived = t.n.attrs.result_types.size() > 1 ? t.tape.results[t.id] : std::vector<ValueId>{t.g};
  for (ValueId g : arrived) {
    grads.push_back(g == kNoValue ? Arg::None() : Arg::Tensor(static_cast<TraceId>(operands.size())));
    if (g != kNoValue) operands.push_back(g);
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
  std::function<bool(const Arg&)> opaque = [&](const Arg& a) {
    if (a.is(Arg::Kind::kObject)) return true;
    return std::any_of(a.items.begin(), a.items.end(), opaque);
  };
  for (const Arg& a : call->args)
    if (opaque(a)) throw Undifferentiable(c.callee + " has an argument that only the framework can read");
  std::vector<ValueId> out = Run(t.b, call, operands, types);
  for (size_t i = 0; i < which.size(); ++i) t.Give(static_cast<int>(which[i].i.value()), out[i]);
}

}  // namespace framejit::autodiff
