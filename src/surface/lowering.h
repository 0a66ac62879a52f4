// What the files of the lowering share.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "graph/arguments.h"
#include "graph/kept.h"
#include "shape/typical.h"
#include "surface/derivatives.h"
#include "surface/numpy_transforms.h"
#include "surface/objects.h"
#include "surface/rows.h"

namespace framejit::surface {

struct Lowering::Impl {
  Trace& trace;
  Builder builder;
  InferFn infer;
  WithoutGradientFn without_gradient;
  Objects objects{trace, builder};
  Derivatives derivatives{trace, objects};
  std::set<TraceId> read_only;       // inputs not to be written; if they want gradients, not with these
  std::set<TraceId> lent;            // What is made here, and an operator of the program's may have kept.
  std::set<ValueId> lent_values;     // those of them, in whose memory nothing else may lie
  std::set<TraceId> beside_opaque;   // what may share memory with sparse or quantised tensors
  std::set<TraceId> statistics;      // running ones, by root, of which a derivative reads what they are when it runs
  std::set<ValueId> replaced;        // masked_update.h
  std::map<TraceId, TraceId> casts;  // from a leaf to the cast that autocast made of it
  std::vector<std::pair<size_t, size_t>> hidden;  // ranges of tensors that were made inside of custom functions
  // For a tensor: the sizes that were taken to be at least 2 when its strides were computed.
  std::map<TraceId, shape::Ints> granted;
  bool Hidden(TraceId t) const {
    return std::any_of(hidden.begin(), hidden.end(), [&](auto& r) { return t >= r.first && t < r.second; });
  }

  Impl(Trace& t, Graph& g, shape::Env& env, InferFn f, WithoutGradientFn without)
      : trace(t), builder(g, env), infer(std::move(f)), without_gradient(std::move(without)) {}

  shape::Env& env() { return builder.env(); }
  TensorMeta& meta(TraceId t) { return trace.tensors[t].meta; }

  // Is it a view, made in no_grad, of what has gradients? What the framework computes of it requires gradients, which
  // lead nowhere.
  bool ViewedWithoutGradients(TraceId t) {
    const TensorMeta& m = meta(t);
    return objects[t].domain != t && !m.requires_grad && (IsFloat(m.dtype) || IsComplex(m.dtype)) &&
           meta(objects[t].domain).requires_grad;
  }

  void CheckWritable(TraceId t, const ModeState& mode) {
    // Neither the tensor's own elements may share memory, nor those of a tensor that it is a view of.
    for (TraceId at = t;; at = objects[at].parent) {
      if (Overlaps(env(), meta(at))) throw Decline("write to a tensor whose elements share memory");
      if (objects[at].own_version) throw Decline("write to a part that has a version of its own");
      if (at == objects[t].root) break;
    }
    const TraceTensor& root = trace.tensors[objects[t].root];
    derivatives.CheckWritable(root.id);
    const auto shares = [&](TraceId o) { return objects[o].root == root.id; };
    if (!trace.data_symbols.empty() && std::any_of(beside_opaque.begin(), beside_opaque.end(), shares))
      throw Decline("a write to what may share memory with a sparse tensor, beside sizes that data decides");
    if (mode.grad && derivatives.IsTracked(objects[t].domain)) throw Decline("in-place write to a leaf");
    if (const auto sample = OpenSample(trace); sample && (root.input >= 0 || root.id < *sample))
      throw Decline("write, in framejit.vmap, to an array that all samples share");
    const bool fixed = read_only.contains(root.id);
    if (fixed && mode.grad && root.meta.requires_grad && objects[t].domain == root.id)
      throw Decline("in-place write to an input that requires grad");
    if (root.meta.read_only || (root.meta.is_inference && !mode.inference))
      throw Decline("write to a tensor that must not be written");
    if (meta(t).is_scalar) throw Decline("write to a scalar");
    if (fixed && !root.meta.requires_grad) throw Decline("write to a read-only array");
    if (lent.contains(root.id)) throw Decline("write to what an operator in Python may have kept");
  }

  // The strides of this result of `call` hold if these sizes are at least 2, and if what was taken for granted of the
  // operands' strides is true.
  void Grant(TraceId result, const Call& call, shape::Ints sizes) {
    EachTensor(call, [&](TraceId t) {
      if (auto at = granted.find(t); at != granted.end())
        sizes.insert(sizes.end(), at->second.begin(), at->second.end());
    });
    if (!sizes.empty()) granted[result] = std::move(sizes);
  }
  // To be called where somebody sees the strides of t: what was taken for granted of them becomes guards.
  void Show(TraceId t) {
    if (auto at = granted.find(t); at != granted.end())
      for (shape::Int size : at->second) shape::NoteShown(env(), size);
  }

  // torch refuses operands that overlap the target in part: it knows where they lie.
  // apart: nor may an operand be the target itself.
  void RefuseShared(const Call& call, TraceId target, bool apart);
  void RefuseShared(const Call& call, const Overwrite& written);
  void NoteStatistics(const Call& call, bool grad);
  // NumPy copies along one axis without a look at what it overwrites, and reads what it has just written where the
  // strides of the two differ.
  void RefuseSpoiled(TraceId from, const Region& to);
  bool LiesAsItsCopy(const TensorMeta& m);
  void CheckLazy(const Call& call, const Outs& outs, Framework results);
  void LookAtLazy(const std::vector<TraceId>& outputs);
  void LookAtShared(const std::vector<TraceId>& outputs);
  void LookAtOpaque(const std::vector<TraceId>& outputs);
  std::string NoteOpaque(const Inferred& inferred, const std::vector<TraceId>& ids, bool grad, bool writes);
  void Lend(TraceId t);
  bool MayLieInLent(ValueId v);
  ValueId InOwnMemory(TraceId root);

  void Apply(Call& call);
  void Cast(Call& call);
  bool NumberTooLarge(const Call& call);
  bool OnCupy(const Call& call);
  Device CupyDevice(const Call& call);
  bool TryRows(Call& call, bool computable, bool foreign, std::optional<TraceId> into = {});  // into: out=
  void Extern(Call& call, bool model);
  // Types and strides of the results of an extern node.
  struct ExternTypes {
    std::vector<TensorType> types;
    std::vector<shape::Ints> strides;
    bool views = false;  // of the one operand
    ValueId Make(Builder& b, const std::shared_ptr<Call>& request, std::vector<ValueId> operands) const {
      const ValueId node = b.Extern(request, std::move(operands), types, strides);
      if (views) b.graph().nodes[node].attrs.name = kViews;
      return node;
    }
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
  // --- the parts of Lowering::Gradients
  void CheckQuestion(const Question& q);
  ValueId Seed(const TensorMeta& y, std::optional<TraceId> given);
  std::vector<ValueId> Differentiate(const Question& q);
  TraceId GradientObject(TraceId input, ValueId grad, bool tracked);
  void Into(Call& call, const Arg& target, bool computable);
  ValueId Distinct(const Call& call, ValueId made);
  void Store(const Call& call, TraceId target, ValueId v, bool tracked);
  void Commit(Call& call, const Row& row, Form form, Outs outs, Framework framework, std::optional<Device> device);
  void Record(Call& call, std::vector<TraceId> results, Arg structure);
  void MakeOwner(Call& call, Out& out);
};

}  // namespace framejit::surface
