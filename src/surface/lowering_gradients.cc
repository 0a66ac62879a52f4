// Derivatives as part of the program: torch.func.grad and its kin, torch.autograd.grad.
//
//   y = f(leaf(x))            trace:  calls as they are; framejit._gradients.leaf, which replays as an alias of x
//   g = grad(y, leaf)                 framejit._gradients.grad, which replays as torch.autograd.grad
//                             graph:  %3 = %0, with the derivative "leaf"; nodes of f; nodes of its derivative
//
// The nodes of a derivative are primitives like any others: it may be differentiated again, batched or left out.
#include <algorithm>

#include "autodiff/autodiff.h"
#include "graph/rewrite.h"
#include "rules/compose.h"
#include "surface/lowering.h"

namespace framejit::surface {

TraceId Lowering::Leaf(TraceId t) {
  Impl& s = *impl_;
  TensorMeta m = s.meta(t);
  if (m.framework != Framework::kTorch || !IsFloat(m.dtype) || IsHidden(t)) throw Decline("gradients of such a tensor");
  if (s.checkpoint.depth) throw Decline("gradients inside of a checkpoint");
  if (!s.undifferentiable.empty()) throw Decline(s.undifferentiable);
  s.journal.clear();
  m.requires_grad = true;
  m.is_parameter = false;
  const ValueId from = s.Value(t), v = s.builder.Barrier(from, "leaf");
  Node& n = s.builder.graph().nodes[v];
  n.derivative = std::make_shared<const Derivative>(Derivative{"leaf", {from}, {}, {}});
  const TraceId leaf = s.NewObject(std::move(m), v);
  s.leaves.insert(leaf);
  s.frozen.insert(s.objects[t].root);
  s.differentiates = true;
  Call call;
  call.callee = "framejit._gradients.leaf";
  call.args = {Arg::Tensor(t)};
  call.results = {leaf};
  call.result = Arg::Tensor(leaf);
  s.trace.calls.push_back(std::move(call));
  s.journal.clear();
  return leaf;
}

std::vector<std::optional<TraceId>> Lowering::Gradients(const Question& q, Call call) {
  Impl& s = *impl_;
  Graph& g = s.builder.graph();
  if (!s.undifferentiable.empty()) throw Decline(s.undifferentiable);
  if (!s.unusable.empty()) throw Decline(s.unusable);
  if (s.checkpoint.depth) throw Decline("gradients inside of a checkpoint");
  for (TraceId t : q.inputs) {
    const ValueId v = s.Value(t);
    for (TraceId other = 0; other < s.objects.size(); ++other) {
      if (other == t || s.objects[other].value != v) continue;
      TraceId from = other;  // a view of it leads to it
      while (from != t && s.objects[from].parent != from) from = s.objects[from].parent;
      if (from != t) throw Decline("gradients of a tensor that is another one in the graph");
    }
    if (!IsFloat(s.meta(t).dtype)) throw Decline("gradients of complex values");
  }
  s.journal.clear();
  const size_t nodes = g.nodes.size();
  std::vector<ValueId> outputs, seeds, inputs, grads;
  std::vector<bool> passed;
  try {
    for (size_t i = 0; i < q.outputs.size(); ++i) {
      const TensorMeta& y = s.meta(q.outputs[i]);
      if (!IsFloat(y.dtype)) throw Decline("gradients of complex values");
      outputs.push_back(s.Value(q.outputs[i]));
      if (!q.seeds[i]) {
        seeds.push_back(s.builder.Constant(1.0, y.dtype, y.sizes));
        Place(g, seeds.back(), y.device);
        continue;
      }
      const TensorMeta& seed = s.meta(*q.seeds[i]);
      bool fits = seed.sizes.size() == y.sizes.size() && IsFloat(seed.dtype) && seed.device == y.device;
      for (size_t d = 0; fits && d < y.sizes.size(); ++d) fits = s.env().Eq(seed.sizes[d], y.sizes[d]);
      if (!fits) throw Decline("a gradient of another shape");
      seeds.push_back(s.Value(*q.seeds[i]));
    }
    for (TraceId t : q.inputs) inputs.push_back(s.Value(t));
    for (size_t i = 0; i < inputs.size() && !q.zeros; ++i) {  // the framework has a gradient of zeros, or none
      const std::vector<bool> uses = autodiff::MadeOf(g, {inputs[i]}), leads = autodiff::DependsOn(g, {inputs[i]});
      const bool unclear = std::any_of(outputs.begin(), outputs.end(), [&](ValueId v) { return uses[v]; }) &&
                           std::none_of(outputs.begin(), outputs.end(), [&](ValueId v) { return leads[v]; });
      if (unclear) throw Decline("gradients that are zero or do not exist");
    }
    grads = autodiff::GradientsWithin(s.builder, outputs, seeds, inputs, &passed);
  } catch (const autodiff::Undifferentiable& e) {
    s.RollBack(nodes);
    throw Decline(e.what());
  } catch (...) {
    s.RollBack(nodes);
    throw;
  }
  for (size_t v = 0; v < passed.size(); ++v) {
    if (!passed[v]) continue;
    if (s.freed.contains(static_cast<ValueId>(v))) {
      s.RollBack(nodes);
      throw Decline("gradients of what has been differentiated before, and was not kept");
    }
  }
  for (size_t v = 0; v < passed.size(); ++v)
    if (passed[v] && !q.retain) s.freed.insert(static_cast<ValueId>(v));
  s.journal.clear();
  s.differentiates = true;

  std::vector<ValueId> roots;
  for (TraceId t : TrackedInputs()) roots.push_back(s.objects[t].value);
  for (TraceId t : q.live) roots.push_back(s.Value(t));
  const std::vector<bool> tracked = autodiff::MadeOf(g, roots);
  std::vector<std::optional<TraceId>> made;
  std::vector<Arg> structure, of, by, along;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i] == kNoValue) {
      made.emplace_back();
      structure.push_back(Arg::None());
      continue;
    }
    TensorMeta m = s.meta(q.inputs[i]);
    m.strides = PreserveFormat(s.env(), m);
    m.is_parameter = false;
    m.requires_grad = q.create && tracked[grads[i]];
    // A value of its own: what stands for one tensor of the program must not stand for another.
    ValueId v = s.builder.Barrier(grads[i], m.requires_grad ? "leaf" : "stop");
    if (m.requires_grad)
      g.nodes[v].derivative = std::make_shared<const Derivative>(Derivative{"leaf", {grads[i]}, {}, {}});
    const TraceId t = s.NewObject(std::move(m), v);
    if (s.meta(t).requires_grad) s.kept.insert(t);
    call.results.push_back(t);
    structure.push_back(Arg::Tensor(t));
    made.emplace_back(t);
  }
  for (TraceId t : q.outputs) of.push_back(Arg::Tensor(t));
  for (TraceId t : q.inputs) by.push_back(Arg::Tensor(t));
  for (const auto& t : q.seeds) {
    along.push_back(t ? Arg::Tensor(*t) : Arg::None());
    if (t) s.kept.insert(s.objects[*t].root);
  }
  call.callee = "framejit._gradients.grad";
  call.args = {Arg::Seq(Arg::Kind::kTuple, of), Arg::Seq(Arg::Kind::kTuple, by), Arg::Seq(Arg::Kind::kTuple, along),
               Arg::Bool(q.create)};
  call.result = Arg::Seq(Arg::Kind::kTuple, structure);
  s.trace.calls.push_back(std::move(call));
  return made;
}

bool Lowering::IsFreed(TraceId t) {
  const ValueId v = impl_->Value(t);
  impl_->journal.clear();
  std::vector<ValueId> freed(impl_->freed.begin(), impl_->freed.end());
  return !freed.empty() && autodiff::DependsOn(impl_->builder.graph(), freed)[v];
}

bool Lowering::Depends(TraceId t, const std::vector<TraceId>& on) {
  std::vector<ValueId> values;
  for (TraceId o : on) values.push_back(impl_->Value(o));
  const ValueId v = impl_->Value(t);
  impl_->journal.clear();
  return autodiff::MadeOf(impl_->builder.graph(), values)[v];  // the framework's zeros count, too
}

std::vector<TraceId> Lowering::TrackedInputs() const {
  std::vector<TraceId> all;
  for (TraceId t : impl_->trace.inputs)
    if (impl_->meta(t).requires_grad) all.push_back(t);
  return all;
}

bool Lowering::differentiates() const {
  return impl_->differentiates;
}

bool Lowering::IsLeaf(TraceId t) const {
  return impl_->leaves.contains(impl_->objects[t].root);
}

void Lowering::Captured(size_t tensors) {
  impl_->captured = tensors;
}

}  // namespace framejit::surface
