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
  s.Show(t);
  TensorMeta m = s.meta(t);
  if (m.framework != Framework::kTorch || !IsFloat(m.dtype) || m.neg || IsHidden(t))
    throw Decline("gradients of such a tensor");
  if (s.derivatives.InCheckpoint()) throw Decline("gradients inside of a checkpoint");
  if (!s.derivatives.undifferentiable().empty()) throw Decline(s.derivatives.undifferentiable());
  s.objects.Keep();
  m.requires_grad = true;
  m.is_parameter = false;
  const ValueId from = s.objects.Value(t), v = s.builder.Barrier(from, "leaf");
  Node& n = s.builder.graph().nodes[v];
  n.derivative = std::make_shared<const Derivative>(Derivative{"leaf", {from}, {}, {}});
  const TraceId leaf = s.objects.New(std::move(m), v);
  s.derivatives.AddLeaf(leaf, s.objects[t].root);
  Call call;
  call.callee = "framejit._gradients.leaf";
  call.args = {Arg::Tensor(t)};
  call.results = {leaf};
  call.result = Arg::Tensor(leaf);
  s.trace.calls.push_back(std::move(call));
  s.objects.Keep();
  return leaf;
}

void Lowering::Track(TraceId t, bool on) {
  Impl& s = *impl_;
  const TensorMeta& m = s.meta(t);
  if (m.framework != Framework::kTorch || !IsFloat(m.dtype) || m.lazy() || m.is_inference || IsHidden(t) ||
      s.trace.tensors[t].input >= 0 || s.objects[t].domain != t || (!on && !IsTracked(t)))
    throw Decline("gradients of such a tensor");
  for (TraceId view = 0; view < s.objects.size(); ++view)
    if (view != t && s.objects[view].domain == t) throw Decline("gradients of a tensor that has views");
  s.Show(t);
  s.meta(t).requires_grad = on;
  s.derivatives.Track(t, on);
  Call call;
  call.callee = "framejit._gradients.track";
  call.args = {Arg::Tensor(t), Arg::Bool(on)};
  call.results = {t};
  call.result = Arg::Tensor(t);
  s.trace.calls.push_back(std::move(call));
  s.objects.Keep();
}

bool Lowering::IsTracked(TraceId t) const {
  return impl_->derivatives.IsTracked(t);
}

bool Lowering::tracks() const {
  return impl_->derivatives.tracks();
}

// Can the graph have gradients by these inputs at all? Throws Decline.
void Lowering::Impl::CheckQuestion(const Question& q) {
  if (!derivatives.undifferentiable().empty()) throw Decline(derivatives.undifferentiable());
  if (!objects.unusable().empty()) throw Decline(objects.unusable());
  if (derivatives.InCheckpoint()) throw Decline("gradients inside of a checkpoint");
  for (TraceId t : q.inputs) {
    const ValueId v = objects.Value(t);
    for (TraceId other = 0; other < objects.size(); ++other) {
      if (other == t || objects[other].value != v) continue;
      TraceId from = other;  // a view of it leads to it
      while (from != t && objects[from].parent != from) from = objects[from].parent;
      if (from != t) throw Decline("gradients of a tensor that is another one in the graph");
    }
    if (!IsFloat(meta(t).dtype)) throw Decline("gradients of complex values");
  }
}

// The value with which the gradient of `y` begins: ones where none is given.
ValueId Lowering::Impl::Seed(const TensorMeta& y, std::optional<TraceId> given) {
  if (!given) {
    const ValueId ones = builder.Constant(1.0, y.dtype, y.sizes);
    PutOn(builder.graph(), ones, y.device);
    return ones;
  }
  const TensorMeta& seed = meta(*given);
  bool fits = seed.sizes.size() == y.sizes.size() && IsFloat(seed.dtype) && seed.device == y.device;
  for (size_t d = 0; fits && d < y.sizes.size(); ++d) fits = env().Eq(seed.sizes[d], y.sizes[d]);
  if (!fits) throw Decline("a gradient of another shape");
  return objects.Value(*given);
}

// Gives the gradients as values, in the order of the inputs. Where they are declined, the graph is as it was.
std::vector<ValueId> Lowering::Impl::Differentiate(const Question& q) {
  Graph& g = builder.graph();
  const Objects::Mark before = objects.Begin();
  std::vector<ValueId> outputs, seeds, inputs, grads;
  std::vector<bool> passed;
  try {
    for (size_t i = 0; i < q.outputs.size(); ++i) {
      const TensorMeta& y = meta(q.outputs[i]);
      if (!IsFloat(y.dtype)) throw Decline("gradients of complex values");
      outputs.push_back(objects.Value(q.outputs[i]));
      seeds.push_back(Seed(y, q.seeds[i]));
    }
    for (TraceId t : q.inputs) inputs.push_back(objects.Value(t));
    for (size_t i = 0; i < inputs.size() && !q.zeros; ++i) {  // the framework has a gradient of zeros, or none
      const std::vector<bool> uses = autodiff::MadeOf(g, {inputs[i]}), leads = autodiff::DependsOn(g, {inputs[i]});
      const bool unclear = std::any_of(outputs.begin(), outputs.end(), [&](ValueId v) { return uses[v]; }) &&
                           std::none_of(outputs.begin(), outputs.end(), [&](ValueId v) { return leads[v]; });
      if (unclear) throw Decline("gradients that are zero or do not exist");
    }
    grads = autodiff::GradientsWithin(builder, outputs, seeds, inputs, &passed, q.zeros);
    for (ValueId v = 0; v < passed.size(); ++v) {
      if (passed[v] && derivatives.freed().contains(v))
        throw Decline("gradients of what has been differentiated before, and was not kept");
      if (!passed[v] || !g.nodes[v].derivative || g.nodes[v].derivative->rule != "custom") continue;
      // Its backward was captured without gradients.
      if (q.create) throw Decline("gradients, to be differentiated again, of a torch.autograd.Function");
      // It would run before what the program writes, and behind all that it reads.
      if (g.nodes[v].derivative->numbers[2] != 0) throw Decline("gradients of a function whose backward runs as it is");
    }
  } catch (const autodiff::Undifferentiable& e) {
    objects.RollBack(before);
    throw Decline(e.what());
  } catch (...) {
    objects.RollBack(before);
    throw;
  }
  derivatives.Differentiated(passed, q.retain);
  objects.Keep();
  return grads;
}

// The tensor of the program that is the gradient `grad` by `input`.
TraceId Lowering::Impl::GradientObject(TraceId input, ValueId grad, bool tracked) {
  Graph& g = builder.graph();
  Show(input);
  TensorMeta m = meta(input);
  shape::TakenForGranted();
  m.strides = PreserveFormat(env(), m);
  for (shape::Int size : shape::TakenForGranted()) shape::NoteShown(env(), size);
  m.is_parameter = m.neg = false;
  m.requires_grad = tracked;
  // A value of its own: what stands for one tensor of the program must not stand for another.
  const ValueId v = builder.Barrier(grad, tracked ? "leaf" : "stop");
  if (tracked) g.nodes[v].derivative = std::make_shared<const Derivative>(Derivative{"leaf", {grad}, {}, {}});
  const TraceId t = objects.New(std::move(m), v);
  if (tracked) derivatives.Keep(t);
  return t;
}

std::vector<std::optional<TraceId>> Lowering::Gradients(const Question& q, Call call) {
  Impl& s = *impl_;
  s.CheckQuestion(q);
  const std::vector<ValueId> grads = s.Differentiate(q);
  std::vector<ValueId> roots;
  for (TraceId t : TrackedInputs()) roots.push_back(s.objects[t].value);
  for (TraceId t : q.live) roots.push_back(s.objects.Value(t));
  const std::vector<bool> tracked = autodiff::MadeOf(s.builder.graph(), roots);
  std::vector<std::optional<TraceId>> made;
  std::vector<Arg> structure, of, by, along;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i] == kNoValue) {
      made.emplace_back();
      structure.push_back(Arg::None());
      continue;
    }
    const TraceId t = s.GradientObject(q.inputs[i], grads[i], q.create && tracked[grads[i]]);
    call.results.push_back(t);
    structure.push_back(Arg::Tensor(t));
    made.emplace_back(t);
  }
  for (TraceId t : q.outputs) of.push_back(Arg::Tensor(t));
  for (TraceId t : q.inputs) by.push_back(Arg::Tensor(t));
  for (const auto& t : q.seeds) {
    along.push_back(t ? Arg::Tensor(*t) : Arg::None());
    if (t) s.derivatives.Keep(s.objects[*t].root);
  }
  call.callee = "framejit._gradients.grad";
  call.args = {Arg::Seq(Arg::Kind::kTuple, of), Arg::Seq(Arg::Kind::kTuple, by), Arg::Seq(Arg::Kind::kTuple, along),
               Arg::Bool(q.create)};
  call.result = Arg::Seq(Arg::Kind::kTuple, structure);
  s.trace.calls.push_back(std::move(call));
  return made;
}

bool Lowering::IsFreed(TraceId t) {
  const ValueId v = impl_->objects.Value(t);
  impl_->objects.Keep();
  std::vector<ValueId> freed(impl_->derivatives.freed().begin(), impl_->derivatives.freed().end());
  return !freed.empty() && autodiff::DependsOn(impl_->builder.graph(), freed)[v];
}

bool Lowering::Depends(TraceId t, const std::vector<TraceId>& on) {
  std::vector<ValueId> values;
  for (TraceId o : on) values.push_back(impl_->objects.Value(o));
  const ValueId v = impl_->objects.Value(t);
  impl_->objects.Keep();
  return autodiff::MadeOf(impl_->builder.graph(), values)[v];  // the framework's zeros count, too
}

std::vector<TraceId> Lowering::TrackedInputs() const {
  std::vector<TraceId> all;
  for (TraceId t : impl_->trace.inputs)
    if (impl_->meta(t).requires_grad) all.push_back(t);
  return all;
}

bool Lowering::differentiates() const {
  return impl_->derivatives.differentiates();
}

bool Lowering::IsLeaf(TraceId t) const {
  return IsTracked(t) || impl_->derivatives.IsLeaf(impl_->objects[t].root);
}

bool Lowering::ViewedWithoutGradients(TraceId t) const {
  return impl_->ViewedWithoutGradients(t);
}

void Lowering::Show(TraceId t) {
  impl_->Show(t);
}

void Lowering::LeaveDerivatives(const std::string& why) {
  impl_->derivatives.Leave(why);
}

void Lowering::Captured(size_t tensors) {
  impl_->derivatives.Captured(tensors);
}

// The derivative of a batch norm in evaluation reads the running statistics when it runs. One in training writes them,
// and the framework counts no version.
void Lowering::Impl::NoteStatistics(const Call& call, bool grad) {
  constexpr size_t kMean = 3, kVariance = 4, kTraining = 5;
  const bool trains =
      call.args.size() <= kTraining || !call.args[kTraining].is(Arg::Kind::kBool) || call.args[kTraining].b;
  bool tracked = false;
  if (!grad || !call.callee.Has(kWritesInSilence) || trains) return;
  EachTensor(call, [&](TraceId t) { tracked |= meta(t).requires_grad; });
  for (size_t i : {kMean, kVariance})
    if (tracked && call.args[i].is(Arg::Kind::kTensor)) statistics.insert(objects[call.args[i].t].root);
}

}  // namespace framejit::surface
