// This file has the gradients of attention. Where the framework has a kernel for them, the forward part runs the kernel
// that belongs to it and keeps what that one wants (the logarithms of the sums, where the random numbers began).
// Elsewhere the scores are computed again.
#include <algorithm>
#include <limits>

#include "autodiff/tape.h"
#include "graph/rewrite.h"

namespace framejit::autodiff {
namespace {

using rules::Expr;
using shape::Int;
using shape::Ints;

const Callee kForward("framejit._gradients.attention");
const Callee kBackward("framejit._gradients.attention_backward");
const Callee kDrops("framejit._random.attention");  // (q, k, v, mask, dropout, causal, scale)

Ints HeadsInside(const Ints& s) {  // strides of [B, H, L, E] that lies as [B, L, H, E]
  return {s[1] * s[2] * s[3], s[3], s[1] * s[3], Int(1)};
}

// As eager's operand lies: what is computed lies as the first thing that it is computed from.
bool LiesHeadsInside(const Graph& g, ValueId v) {
  const Node& n = g.node(v);
  if (n.op == Op::kPermute) return n.attrs.axes == std::vector<int64_t>{0, 2, 1, 3};
  return n.strides.empty() && Info(n.op).kind == 'P' && g.node(n.operands[0]).type.shape == n.type.shape &&
         LiesHeadsInside(g, n.operands[0]);
}
Ints LikelyStrides(const Graph& g, ValueId v) {
  const Ints& s = g.node(v).type.shape;
  if (LiesHeadsInside(g, v)) return HeadsInside(s);
  return {s[1] * s[2] * s[3], s[2] * s[3], s[3], Int(1)};
}

// Queries, keys and values lie as in eager, too: kernels that the framework's libraries compile are compiled once for
// both.
void LayAsEager(Graph& g, const Node& attention) {
  for (int i = 0; i < 3; ++i) {
    const ValueId o = attention.operands[i];
    Node& n = g.nodes[o];
    const bool promised = std::find(g.outputs.begin(), g.outputs.end(), o) != g.outputs.end() ||
                          std::any_of(g.writes.begin(), g.writes.end(), [&](const Write& w) { return w.value == o; });
    if (n.op != Op::kPermute && !promised && LiesHeadsInside(g, o)) n.strides = HeadsInside(n.type.shape);
  }
}

// The request of an attention node or of a call with dropout, if the framework's kernels could take its operands.
std::optional<AttentionRequest> RequestOf(const Graph& g, const Node& n, const std::vector<bool>& reached) {
  AttentionRequest r;
  bool drops = n.op == Op::kExtern && n.attrs.call->callee == kDrops;
  if (!drops && n.op != Op::kAttention) return std::nullopt;
  if (n.operands.size() > 3 && reached[n.operands[3]]) return std::nullopt;
  if (drops) {
    const std::vector<Arg>& args = n.attrs.call->args;
    r.dropout = args[4].f;
    r.causal = args[5].b;
    r.scale = args[6].f;
  } else {
    if (n.attrs.sym_scalar) return std::nullopt;
    r.causal = n.attrs.flag;
    r.scale = n.attrs.scalar.AsDouble();
  }
  for (ValueId o : n.operands) {
    r.types.push_back(g.node(o).type);
    r.strides.push_back(LikelyStrides(g, o));
  }
  const TensorType &q = r.types[0], &k = r.types[1], &v = r.types[2];
  if (!IsFloat(q.dtype) || DTypeSize(q.dtype) < 2 || k.dtype != q.dtype || v.dtype != q.dtype) return std::nullopt;
  if (!(q.shape[0] == k.shape[0]) || !(q.shape[1] == k.shape[1]) || !(k.shape == v.shape)) return std::nullopt;
  if (!(q.shape[3] == k.shape[3])) return std::nullopt;
  for (const TensorType* type : {&q, &k})
    for (const Int& s : type->shape)
      if (s == Int(0)) return std::nullopt;
  if (r.types.size() > 3) {
    const TensorType& mask = r.types[3];
    if (r.causal || mask.dtype != q.dtype) return std::nullopt;
    if (!(mask.shape[2] == q.shape[2]) || !(mask.shape[3] == k.shape[2])) return std::nullopt;
  }
  return r;
}

}  // namespace

Graph KeepAttention(const Graph& from, const std::vector<bool>& wanted, const AttentionFinder& find,
                    std::vector<int>* region, std::vector<std::vector<ValueId>>* values) {
  Graph g = from;
  std::vector<int> regions;
  const bool keeps = region && !region->empty();
  const std::vector<bool> reached = Reached(g, wanted);
  std::vector<std::optional<AttentionRequest>> requests(g.nodes.size());
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    if (reached[v]) requests[v] = RequestOf(g, g.nodes[v], reached);
  }
  if (std::none_of(requests.begin(), requests.end(), [](const auto& r) { return r.has_value(); })) return g;
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    if (requests[v]) LayAsEager(g, g.nodes[v]);
  }
  Rewriter to(g);
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    const Node& n = g.nodes[v];
    const std::optional<AttentionRequest>& request = requests[v];
    std::optional<AttentionForm> form = request ? find(*request) : std::nullopt;
    if (!form) {
      to.Keep(v);
      if (keeps) regions.push_back((*region)[v]);
      if (n.derivative) {
        Derivative d = *n.derivative;
        for (ValueId& o : d.operands) o = to[o];
        to.SetDerivative(to[v], std::move(d));
      }
      continue;
    }
    auto call = std::make_shared<Call>();
    call->callee = kForward;
    call->args = {Arg::Str(form->kernel)};
    for (TraceId i = 0; i < 4; ++i) call->args.push_back(i < n.operands.size() ? Arg::Tensor(i) : Arg::None());
    call->args.push_back(Arg::Float(request->dropout));
    call->args.push_back(Arg::Bool(request->causal));
    call->args.push_back(Arg::Float(request->scale));
    std::vector<Arg> results;
    for (TraceId i = 0; i < form->types.size(); ++i) results.push_back(Arg::Tensor(i));
    call->result = Arg::Seq(Arg::Kind::kTuple, std::move(results));
    call->mode.grad = false;
    Node run = to.Remapped(v);
    run.op = Op::kExtern;
    run.attrs = {};
    run.attrs.call = std::move(call);
    run.attrs.result_types = form->types;
    run.type = form->types[0];
    run.strides = form->strides[0];
    const ValueId id = to.Append(std::move(run));
    ValueId out = kNoValue, last = id;
    for (size_t i = 0; i < form->types.size(); ++i) {
      Node result;
      result.op = Op::kResult;
      result.operands = {id};
      result.attrs.axes = {static_cast<int64_t>(i)};
      result.type = form->types[i];
      result.strides = form->strides[i];
      const ValueId at = to.Append(std::move(result));
      if (i == 0) out = at;
      last = at;
    }
    const bool result = std::find(g.outputs.begin(), g.outputs.end(), v) != g.outputs.end();
    if (result && !n.strides.empty()) {  // it lies as the program sees it
      Node as;
      as.op = Op::kCast;
      as.operands = {out};
      as.attrs.dtype = n.type.dtype;
      as.type = n.type;
      as.strides = n.strides;
      out = last = to.Append(std::move(as));
    }
    if (keeps) regions.resize(last + 1, (*region)[v]);
    to.Set(v, out);
  }
  if (keeps) *region = std::move(regions);
  if (values)
    for (std::vector<ValueId>& all : *values)
      for (ValueId& v : all) v = to[v];
  for (ValueId& v : g.ordered)
    for (v = to[v]; to.node(v).op != Op::kExtern;) v = to.node(v).operands[0];
  to.Finish();
  return g;
}

bool KeptAttentionRule(At& t) {
  const Call& c = *t.n.attrs.call;
  if (c.callee == kDrops) throw Undifferentiable("attention with dropout that no kernel of the framework runs whole");
  if (c.callee != kForward) return false;
  const ValueId g = t.tape.results[t.id][0];
  if (g == kNoValue) return true;
  auto call = std::make_shared<Call>();
  call->callee = kBackward;
  std::vector<ValueId> operands = {g};
  for (size_t i = 0; i < t.n.attrs.result_types.size(); ++i) operands.push_back(t.id + 1 + static_cast<ValueId>(i));
  call->args = {c.args[0], Arg::Tensor(0)};
  std::vector<Arg> kept;
  for (size_t i = 1; i < operands.size(); ++i) kept.push_back(Arg::Tensor(static_cast<TraceId>(i)));
  for (size_t i = 0; i < 4; ++i) {
    const bool there = i < t.operands.size();
    call->args.push_back(there ? Arg::Tensor(static_cast<TraceId>(operands.size())) : Arg::None());
    if (there) operands.push_back(t.operands[i]);
  }
  call->args.insert(call->args.end(), c.args.begin() + 5, c.args.end());
  call->args.push_back(Arg::Seq(Arg::Kind::kTuple, std::move(kept)));
  std::vector<TensorType> types = {t.type(0), t.type(1), t.type(2)};
  std::vector<Ints> strides;
  for (const TensorType& type : types) strides.push_back(HeadsInside(type.shape));
  std::vector<ValueId> grads = RunCall(t.b, call, operands, types, strides);
  for (int i = 0; i < 3; ++i) t.Give(i, grads[i]);
  return true;
}

// The scores are computed again from query and key: they are the largest thing there is.
void AttentionRule(At& t) {
  Builder& b = t.b;
  auto wide = [&](ValueId v) { return Expr{b, rules::Widen(b, v)}; };
  auto times = [&](ValueId x, ValueId y) { return Expr{b, b.Add(Op::kMatMul, {x, y})}; };
  auto swap = [&](ValueId v) { return b.Permute(v, {0, 1, 3, 2}); };
  // The framework keeps the weights, and query and key by a factor, in memory of their own.
  Expr q = wide(t.Before(t.operands[0])), k = wide(t.Before(t.operands[1])), v = wide(t.operands[2]), g = wide(t.g);
  double scale = t.n.attrs.scalar.AsDouble();
  Expr scores = times(q, swap(k)) * scale;
  const Ints shape = b.type(scores).shape;
  bool masked = t.operands.size() > 3;
  if (masked) scores = scores + Expr{b, b.Broadcast(wide(t.Before(t.operands[3])), shape)};
  Expr nothing = scores.Number(-std::numeric_limits<double>::infinity());
  if (t.n.attrs.flag) scores = rules::Where({b, rules::TriangleMask(b, shape, 0)}, scores, nothing);
  Expr weights{b, rules::Softmax(b, scores, 3)};
  if (masked) {  // a query that sees nothing has weights 0, where softmax gives nan
    ValueId blind = b.Reduce(Op::kAll, rules::Apply(Op::kEq, scores, nothing), {3}, true);
    weights = rules::Where({b, b.Broadcast(blind, shape)}, weights.Number(0), weights);
  }
  if (t.needs(2)) t.Give(2, times(swap(weights), g));
  // Their sum is also that of g times the result, but for rounding: a query that sees one key has slopes of 0 by this
  // one.
  const Expr slope = times(g, swap(v));
  Expr along{b, b.Broadcast(b.Reduce(Op::kSum, weights * slope, {3}, true), shape)};
  Expr d = weights * (slope - along);
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

}  // namespace framejit::autodiff
