// torch.autograd.Function. Forward and backward are captured like any code of the user's; what is special is what they
// mean together:
//
//   y = F.apply(x)      trace:  one call, which torch replays (and differentiates, twice if need be)
//                       graph:  %3 = nodes of forward
//                               %4 = extern framejit.tangent        stands for the gradient of y
//                               %7 = nodes of backward, of %4 and what forward left behind
//                               %8 = %3, with the derivative "custom": of x it is %7, with the gradient in place of %4
//
// What depends on a stand-in never runs: differentiation copies it (src/autodiff/custom.cc).
#include "graph/arguments.h"
#include "graph/raises.h"
#include "surface/lowering.h"

namespace framejit::surface {

void Lowering::BeginCustom(Custom* c) {
  c->calls = impl_->trace.calls.size();
  c->tensors = impl_->trace.tensors.size();
  c->versions = impl_->objects.versions();
}

std::vector<TraceId> Lowering::Tangents(Custom* c, const std::vector<TraceId>& outputs) {
  Impl& s = *impl_;
  c->nodes = s.builder.graph().nodes.size();
  c->outputs = outputs;
  std::vector<TraceId> tangents;
  for (TraceId t : outputs) {
    const TensorMeta& was = s.meta(t);
    if (!IsFloat(was.dtype) || was.neg) throw Decline("a custom function of complex values");
    TensorMeta m = was;
    m.requires_grad = m.is_parameter = false;
    m.strides = RowMajor(m.sizes);
    auto call = std::make_shared<Call>();
    call->callee = kTangent;
    call->mode.grad = false;
    call->result = Arg::Tensor(0);
    c->tangents.push_back(s.builder.Extern(std::move(call), {}, {{m.dtype, m.sizes, m.device}}, {m.strides}));
    tangents.push_back(s.objects.New(std::move(m), c->tangents.back()));
  }
  return tangents;
}

namespace {

// The calls of the forward that lead to what was asked of its tensors. Throws Decline where these may not be made
// twice.
std::vector<Call> CallsForAsked(const Trace& trace, size_t first, const Call& given) {
  std::vector<bool> needed(trace.tensors.size());
  for (const auto& [name, a] : given.kwargs)
    if (name == "asked")
      EachArg(a, [&](const Arg& t) {
        if (t.is(Arg::Kind::kTensor)) needed[t.t] = true;
      });
  std::vector<Call> calls;
  for (size_t i = trace.calls.size(); i-- > first;) {
    const Call& call = trace.calls[i];
    if (std::none_of(call.results.begin(), call.results.end(), [&](TraceId t) { return needed[t]; })) continue;
    if (Draws(call.callee) || call.callee.Has(kForeign)) throw Decline("a branch on what a custom function draws");
    EachTensor(call, [&](TraceId t) { needed[t] = true; });
    calls.push_back(call);
  }
  for (TraceId t = 0; t < needed.size() && !calls.empty(); ++t)
    if (needed[t] && (trace.tensors[t].mutated || trace.tensors[trace.tensors[t].base].mutated))
      throw Decline("a branch on what a custom function writes");
  std::reverse(calls.begin(), calls.end());
  return calls;
}

// In the order of what a call returns.
std::vector<TraceId> TensorsOf(const Arg& result) {
  std::vector<TraceId> tensors;
  if (result.is(Arg::Kind::kTensor)) tensors.push_back(result.t);
  for (const Arg& a : result.items)
    if (a.is(Arg::Kind::kTensor)) tensors.push_back(a.t);
  return tensors;
}

}  // namespace

std::vector<TraceId> Lowering::EndCustom(Custom* c, Call call, const std::vector<std::optional<TraceId>>& inputs,
                                         const std::vector<std::optional<TraceId>>& grads) {
  Impl& s = *impl_;
  Graph& g = s.builder.graph();
  Call notes;  // what it gave to save_for_backward, and what its forward asked of tensors
  notes.kwargs.swap(call.kwargs);
  std::vector<bool> stand_ins;
  for (size_t v = c->nodes; v < g.nodes.size(); ++v) {
    if (g.nodes[v].op != Op::kExtern || !Draws(g.nodes[v].attrs.call->callee)) continue;
    if (stand_ins.empty()) stand_ins = StandIns(g);
    // A user's operator that reads the gradients runs in the backward pass alone.
    if (!g.nodes[v].attrs.call->callee.Has(kForeign) || !stand_ins[v])
      throw Decline("a custom function whose backward draws random numbers");
  }
  for (size_t t = 0; t < c->versions.size(); ++t)
    if (s.objects.versions()[t] != c->versions[t]) throw Decline("a custom function writes a tensor");
  for (TraceId t : c->outputs)
    if (s.objects[t].root < c->tensors && !IsContiguous(s.env(), s.meta(t)))
      throw Decline("a custom function whose result is a view that lies apart");
  Derivative d{"custom", {}, {}, {}};
  std::vector<ValueId> ends;
  Unanswered unanswered;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i] || !s.meta(*inputs[i]).requires_grad) continue;
    if (!grads[i]) {
      unanswered.given.push_back(s.objects.Value(*inputs[i]));
      continue;
    }
    const TensorMeta &x = s.meta(*inputs[i]), &y = s.meta(*grads[i]);
    bool fits = x.sizes.size() == y.sizes.size() && IsFloat(y.dtype) && IsFloat(x.dtype);
    for (size_t k = 0; fits && k < x.sizes.size(); ++k) fits = s.env().Eq(x.sizes[k], y.sizes[k]);
    if (!fits) throw Decline("a custom function with a gradient of another shape");
    d.operands.push_back(s.objects.Value(*inputs[i]));
    ends.push_back(s.objects.Value(*grads[i]));
  }
  d.numbers = {static_cast<double>(d.operands.size()), static_cast<double>(c->tangents.size()),
               static_cast<double>(c->as_it_is)};
  d.operands.insert(d.operands.end(), c->tangents.begin(), c->tangents.end());
  d.operands.insert(d.operands.end(), ends.begin(), ends.end());

  std::vector<Call> asked = CallsForAsked(s.trace, c->calls, notes);
  s.objects.Keep();
  s.trace.calls.resize(c->calls);
  size_t hidden = c->tensors;
  for (Call& before : asked) {
    for (TraceId t : before.results) {
      if (t > hidden) s.hidden.emplace_back(hidden, t);
      hidden = t + 1;
    }
    s.trace.calls.push_back(std::move(before));
  }
  s.hidden.emplace_back(hidden, s.trace.tensors.size());
  std::erase_if(s.casts, [&](const auto& cast) { return cast.second >= c->tensors; });
  std::vector<TraceId> made;
  std::vector<ValueId> values;
  const auto others = c->outputs.begin() + static_cast<std::ptrdiff_t>(c->tangents.size());  // without gradients
  for (auto t = c->outputs.begin(); t != others; ++t) values.push_back(s.objects.Value(*t));
  // Says what the derivative is of. Where there are several results, none is made of another.
  const ValueId head = s.builder.Barrier(values[0]);
  g.nodes[head].derivative = std::make_shared<const Derivative>(std::move(d));
  for (size_t i = 0; i < values.size(); ++i) {
    const bool single = values.size() == 1;
    const ValueId v = single ? head : s.builder.Barrier(values[i]);
    if (!single)
      g.nodes[v].derivative = std::make_shared<const Derivative>(
          Derivative{"custom_result", {head}, {static_cast<double>(values.size()), static_cast<double>(i)}, {}});
    s.Show(c->outputs[i]);
    TensorMeta m = s.meta(c->outputs[i]);
    m.requires_grad = true;
    m.is_parameter = false;
    made.push_back(s.objects.New(std::move(m), v));
    s.derivatives.Keep(made.back());
    if (const TraceId root = s.objects[c->outputs[i]].root; root < c->tensors) s.derivatives.Share(made.back(), root);
  }
  for (auto t = others; t != c->outputs.end(); ++t) {
    s.Show(*t);
    TensorMeta m = s.meta(*t);
    if (m.lazy()) throw Decline("a custom function returns a conjugate or negated view");
    made.push_back(s.objects.New(std::move(m), s.builder.Barrier(s.objects.Value(*t))));
    s.derivatives.Keep(made.back());
  }
  for (const auto& t : inputs)
    if (t) s.derivatives.Keep(s.objects[*t].root);
  std::vector<ValueId> by;
  for (TraceId t : made) by.push_back(s.objects.Value(t));
  unanswered.results = by;
  if (!unanswered.given.empty()) s.derivatives.unanswered.push_back(std::move(unanswered));
  std::erase_if(notes.kwargs, [](const auto& k) { return k.first != "saved"; });
  EachTensor(notes, [&](TraceId t) {
    const auto at = std::find(c->outputs.begin(), c->outputs.end(), t);
    if (at != c->outputs.end())
      s.derivatives.KeepSurely(made[at - c->outputs.begin()], by);
    else if (t < c->tensors)
      s.derivatives.KeepSurely(s.objects[t].root, by);
  });
  call.results = TensorsOf(call.result);
  if (c->as_it_is) call.kwargs.emplace_back("own", Arg::Int(static_cast<int64_t>(c->tensors)));
  s.trace.calls.push_back(std::move(call));
  return made;
}

TraceId Lowering::AddHidden(TensorMeta meta) {
  const TraceId t = impl_->objects.New(std::move(meta), kNoValue);
  auto& ranges = impl_->hidden;
  if (ranges.empty() || ranges.back().second != t) ranges.emplace_back(t, t);
  ++ranges.back().second;
  return t;
}

bool Lowering::IsHidden(TraceId t) const {
  return impl_->Hidden(t);
}

}  // namespace framejit::surface
