#include "capture/training.h"

#include <set>

#include "capture/override.h"
#include "diag/diag.h"
#include "surface/rows.h"
#include "tensor/autograd.h"

namespace framejit::capture {

namespace {

std::shared_ptr<Executable> Make(const Graph& g, const CompileOptions& options, bool interpret) {
  if (diag::Enabled(diag::Channel::graph_)) diag::Log(diag::Channel::graph_, g.str());
  return interpret ? MakeInterpreter(g) : Compile(g, options);
}

}  // namespace

bool WantsGrad(const Trace& t) {
  for (auto& x : t.tensors)
    if (x.input < 0 && x.meta.requires_grad) return true;
  return false;
}

std::unique_ptr<tensor::GraphRunner> MakeTrainingRunner(Session& s, const Trace& trace,
                                                        const std::vector<tensor::OutputPlan>& plans,
                                                        const std::vector<PyObject*>& constants,
                                                        const CompileOptions& options, bool interpret,
                                                        tensor::RunCheck check, std::shared_ptr<Executable>* forward) {
  using autodiff::Undifferentiable;
  if (!s.lowering().undifferentiable().empty()) throw Undifferentiable(s.lowering().undifferentiable());
  for (const Call& c : trace.calls) {
    if (c.mode.grad && !s.entry_mode.grad) throw Undifferentiable("gradients are turned on inside");
    for (auto& [name, a] : c.kwargs)
      if (name == "requires_grad" && a.is(Arg::Kind::kBool) && a.b) throw Undifferentiable("a leaf is made inside");
    if (c.callee == "torch.Tensor.requires_grad_") throw Undifferentiable("a leaf is made inside");
  }
  auto graph = std::make_shared<Graph>(s.graph());
  SimplifySizes(*graph, s.env());

  tensor::Training t;
  for (TraceId id : trace.inputs) {
    const TensorMeta& m = trace.tensors[id].meta;
    if (m.requires_grad && !IsFloat(m.dtype)) throw Undifferentiable("a complex input");
    t.wanted.push_back(m.requires_grad);
  }
  Trace replay = trace;  // its outputs: the bases that the graph makes
  replay.outputs.assign(graph->outputs.size(), 0);
  t.differentiable.resize(graph->outputs.size());
  for (size_t i = 0; i < plans.size(); ++i) {
    const tensor::OutputPlan& p = plans[i];
    if (p.kind == tensor::OutputPlan::kInput || p.index < 0) continue;
    TraceId base = trace.tensors[trace.outputs[i]].base;
    replay.outputs[p.index] = base;
    t.differentiable[p.index] = trace.tensors[base].meta.requires_grad;
  }
  std::vector<int64_t> hints;
  for (const auto& symbol : graph->symbols) hints.push_back(symbol.hint);
  bool random = false;
  for (const Node& n : graph->nodes) random |= n.op == Op::kExtern && surface::IsRandom(n.attrs.call->callee);
  {
    SuspendScope off;
    *graph = autodiff::KeepAttention(*graph, t.wanted, [&](const autodiff::AttentionRequest& request) {
      return tensor::FindAttention(request, hints);
    });
  }
  autodiff::Joint joint = autodiff::Differentiate(*graph, t.wanted, t.differentiable);
  std::vector<bool> passing;
  for (size_t i = 0; i < trace.inputs.size(); ++i)
    passing.push_back(t.wanted[i] && !trace.tensors[trace.inputs[i]].meta.is_parameter);
  std::vector<ValueId> saved = autodiff::ChooseSaved(joint, passing);
  Graph ahead = autodiff::ForwardGraph(joint, saved, &t.saved);
  std::set<int> written;
  for (const Write& w : graph->writes) written.insert(w.input);
  for (auto& [input, output] : check.writes) written.insert(input);
  for (const autodiff::SavedValue& v : t.saved)
    if (written.contains(v.input)) throw Undifferentiable("an input that the gradients need is written");
  t.quietly = [](PyObject* (*f)(void*), void* ctx) {
    SuspendScope off;
    return f(ctx);
  };
  t.num_symbols = graph->symbols.size();
  t.related = autodiff::Related(*graph, t.wanted);
  if (written.empty() && !random) {
    t.replay = tensor::MakeTraceRunner(replay, constants);
  } else {
    t.no_replay = random ? "it draws random numbers" : "it writes its inputs";
  }
  t.compile = [graph, saved, wanted = t.wanted, options, interpret](const std::vector<bool>& tangents) {
    tensor::Training::Backward b;
    autodiff::Joint j = autodiff::Differentiate(*graph, wanted, tangents);
    b.graph = autodiff::BackwardGraph(j, saved, &b.grads);
    for (size_t i = 0; i < j.tangents.size(); ++i)
      if (j.tangents[i] != kNoValue) b.tangents.push_back(static_cast<int>(i));
    b.executable = Make(b.graph, options, interpret);
    return b;
  };
  *forward = Make(ahead, options, interpret);
  return tensor::MakeGraphRunner(*forward, ahead, trace, plans, constants, tensor::MakeTrainingHook(std::move(t)),
                                 std::move(check));
}

}  // namespace framejit::capture
