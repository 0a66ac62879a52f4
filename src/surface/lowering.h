// What lowering.cc and lowering_extern.cc share: the objects of the program and the values they have now.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "graph/arguments.h"
#include "surface/rows.h"

namespace framejit::surface {

struct Lowering::Impl {
  struct Object {
    ValueId value = kNoValue;
    int version = 0;
    TraceId root = 0, parent = 0;
    TraceId domain = 0;   // has gradients when it has: the root, or what was detached on the way from there
    bool follows = true;  // false: a view made without gradients, or in an unknown way, or one of several
    View view;
  };

  Trace& trace;
  Builder builder;
  InferFn infer;
  WithoutGradientFn without_gradient;
  std::vector<Object> objects;  // by TraceId
  std::vector<int> versions;    // by root's TraceId
  std::string unusable;
  std::set<TraceId> read_only;   // inputs
  bool input_written = false;    // with gradients
  std::string undifferentiable;  // why the graph's derivative is not the program's
  std::set<TraceId> kept;        // roots whose memory the framework may keep for a derivative
  // Roots that it does keep: for the derivatives of what calls made, these values.
  std::map<TraceId, std::vector<ValueId>> surely_kept;
  struct Checkpoint {
    int depth = 0;
    size_t nodes = 0;
    std::vector<int> versions;
  } checkpoint;
  std::vector<Lowering::Range> checkpointed;
  std::set<ValueId> claimed;                      // nodes that are a graph output already
  std::map<TraceId, TraceId> casts;               // autocast's, of leaves
  std::vector<std::pair<size_t, size_t>> hidden;  // ranges of tensors made inside custom functions
  bool Hidden(TraceId t) const {
    return std::any_of(hidden.begin(), hidden.end(), [&](auto& r) { return t >= r.first && t < r.second; });
  }

  std::set<TraceId> leaves, frozen;  // roots: made by Leaf; what these stood for
  std::set<ValueId> freed;           // nodes whose derivative was taken, and the framework kept nothing
  bool differentiates = false;
  size_t captured = 0;

  struct Undo {
    TraceId id;
    ValueId value;
    int version;
  };
  std::vector<Undo> journal;

  Impl(Trace& t, Graph& g, shape::Env& env, InferFn f, WithoutGradientFn without)
      : trace(t), builder(g, env), infer(std::move(f)), without_gradient(std::move(without)) {}

  shape::Env& env() { return builder.env(); }
  TensorMeta& meta(TraceId t) { return trace.tensors[t].meta; }

  void Set(TraceId t, ValueId v, int version) {
    journal.push_back({t, objects[t].value, objects[t].version});
    objects[t].value = v;
    objects[t].version = version;
  }
  void RollBack(size_t nodes) {
    for (; !journal.empty(); journal.pop_back()) {
      const Undo& u = journal.back();
      objects[u.id].value = u.value;
      objects[u.id].version = u.version;
    }
    builder.graph().nodes.resize(nodes);
  }

  ValueId Value(TraceId t) {
    Object& o = objects[t];
    int now = versions[o.root];
    if (o.version != now) Set(t, o.view.forward(builder, Value(o.parent)), now);
    return objects[t].value;
  }

  Operand Read(TraceId t) {
    Operand o;
    o.id = t;
    o.value = Value(t);
    o.meta = &meta(t);
    return o;
  }

  TraceId NewObject(TensorMeta m, ValueId v) {
    TraceTensor t;
    t.id = static_cast<TraceId>(trace.tensors.size());
    t.base = t.id;
    t.meta = std::move(m);
    const TraceId id = t.id;
    trace.tensors.push_back(std::move(t));
    Object o;
    o.value = v;
    o.root = o.parent = o.domain = id;
    objects.push_back(std::move(o));
    versions.push_back(0);
    return id;
  }

  // The framework keeps operands and results of calls for their derivatives, and refuses a backward pass once one of
  // them was written. The graph would give the gradient instead: such programs are left to the framework.
  // A write that gradients do not see, to a tensor that has some; or one that makes an input have some.
  void NoteWrite(TraceId t, bool grad) {
    TraceId root = objects[t].root;
    if (grad && !objects[t].follows) throw Decline("an in-place write with gradients to a view that forbids it");
    if (undifferentiable.empty() && kept.contains(root))
      undifferentiable = "a tensor is written that a derivative may need";
    kept.erase(root);
    surely_kept.erase(root);
    const TraceId domain = objects[t].domain;
    bool tracked = meta(t).requires_grad || meta(domain).requires_grad;
    input_written |= grad && trace.tensors[root].input >= 0;
    if (!undifferentiable.empty()) return;
    if (tracked && !grad) undifferentiable = "a tensor that requires gradients is written without them";
    if (grad && trace.tensors[root].input >= 0) undifferentiable = "an input is written with gradients";
    for (size_t i = 0; i < objects.size(); ++i) {
      if (objects[i].root != root || i == t) continue;
      if (objects[i].domain != domain && meta(i).requires_grad)
        undifferentiable = "a tensor that requires gradients is written behind their back";
      if (!grad || objects[i].domain != domain || (meta(i).requires_grad && objects[i].follows)) continue;
      if (objects[i].follows && IsFloat(meta(i).dtype))
        meta(i).requires_grad = true;
      else
        undifferentiable = "a tensor with views is written with gradients";
    }
  }

  void CheckWritable(TraceId t, const ModeState& mode) {
    for (TraceId at = t;; at = objects[at].parent) {  // or of one whose elements do
      if (Overlaps(env(), meta(at))) throw Decline("write to a tensor whose elements share memory");
      if (at == objects[t].root) break;
    }
    const TraceTensor& root = trace.tensors[objects[t].root];
    if (captured && (root.input >= 0 || root.id + 1 < captured))
      throw Decline("write to a tensor from outside of a function that is differentiated");
    if (leaves.contains(root.id) || frozen.contains(root.id))
      throw Decline("write to a tensor with gradients of its own");
    if (mode.grad && root.input >= 0 && root.meta.requires_grad)
      throw Decline("in-place write to an input that requires grad");
    if (root.meta.read_only || (root.meta.is_inference && !mode.inference))
      throw Decline("write to a tensor that must not be written");
    if (meta(t).is_scalar) throw Decline("write to a scalar");
    if (read_only.contains(objects[t].root)) throw Decline("write to a read-only array");
  }

  // torch refuses operands that overlap the target in part: it knows where they lie.
  void RefuseShared(const Call& call, TraceId target) {
    if (call.callee.framework() != Framework::kTorch) return;
    EachTensor(call, [&](TraceId t) {
      if (t != target && objects[t].root == objects[target].root)
        throw Decline("an operand shares memory with the target of an in-place operation");
    });
  }

  void Write(TraceId t, ValueId v) {
    TraceId root = objects[t].root;
    int next = versions[root] + 1;
    trace.tensors[t].mutated = trace.tensors[root].mutated = true;
    for (TraceId at = t;; at = objects[at].parent) {
      Set(at, v, next);
      if (at == root) break;
      TraceId parent = objects[at].parent;
      ValueId old = Value(parent);
      if (objects[at].view.inverse) {
        v = objects[at].view.inverse(builder, old, v);
      } else {
        if (unusable.empty()) unusable = "a write through a view that has no functional form";
        v = old;
      }
      if (objects[at].domain == at) v = builder.Barrier(v);
    }
    versions[root] = next;
  }

  // v, or a copy of it, as a node that promises these strides when it is materialised.
  ValueId WithLayout(ValueId v, const shape::Ints& strides) {
    Graph& g = builder.graph();
    Node& n = g.nodes[v];
    if (n.op != Op::kInput && (n.strides.empty() || n.strides == strides) && !claimed.contains(v)) {
      n.strides = strides;
      claimed.insert(v);
      return v;
    }
    Node copy;  // an identity that no builder folds away: two results never share a buffer, nor a result an input's
    copy.op = Op::kCast;
    copy.operands = {v};
    copy.type = n.type;
    copy.attrs.dtype = n.type.dtype;
    copy.strides = strides;
    g.nodes.push_back(std::move(copy));
    return static_cast<ValueId>(g.nodes.size() - 1);
  }
  // An operand of a framework kernel: kernels choose their output's layout by their operands' order of dimensions.
  ValueId Materialised(TraceId t) {
    ValueId v = Value(t);
    Node& n = builder.graph().nodes[v];
    const TensorMeta& m = meta(t);
    if (n.op != Op::kInput && n.strides.empty() && !IsContiguous(env(), m)) n.strides = PreserveFormat(env(), m);
    return v;
  }

  void Apply(Call& call);
  void Cast(Call& call);
  bool NumberTooLarge(const Call& call);
  bool OnCupy(const Call& call);
  Device CupyDevice(const Call& call);
  bool TryRows(Call& call, bool computable, bool foreign);
  void Extern(Call& call, bool model);
  struct ExternTypes {  // of the results of an extern node
    std::vector<TensorType> types;
    std::vector<shape::Ints> strides;
    ValueId ValueOf(ValueId node, size_t i) const {
      return types.size() == 1 ? node : static_cast<ValueId>(node + 1 + i);
    }
  };
  Inferred Ask(Callee callee, Call& request, const std::vector<TraceId>& ids, bool in_place);
  std::vector<ValueId> ExternValues(const std::shared_ptr<Call>& request, const std::vector<TraceId>& ids,
                                    const ExternTypes& results, bool grad);
  void WriteBack(Call& call, const Call& request, TraceId target, const ExternTypes& results, ValueId value, bool grad);
  void FollowView(TraceId id, TraceId from, const std::shared_ptr<Call>& request, const ExternTypes& results, size_t i);
  void Written(Call& call, const Arg* out);
  // Lowering::Gradients in its parts.
  void CheckQuestion(const Question& q);
  ValueId Seed(const TensorMeta& y, std::optional<TraceId> given);
  std::vector<ValueId> Differentiate(const Question& q);
  TraceId GradientObject(TraceId input, ValueId grad, bool tracked);
  void Into(Call& call, const Arg& target, bool computable);
  ValueId Distinct(const Call& call, ValueId made);
  void Commit(Call& call, const Row& row, Form form, Outs outs, Framework framework, std::optional<Device> device);
  void KeepSurely(const Call& call, const std::set<TraceId>& written);
  void Record(Call& call, std::vector<TraceId> results, Arg structure);
  void CopyFirst(Call& call, Out& out);
  bool WantsGrad(const Call& call);
};

}  // namespace framejit::surface
