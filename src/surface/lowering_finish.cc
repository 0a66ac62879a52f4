// The end of a capture: what its results are made of, and what of the graph must stay.
#include "graph/opaque.h"
#include "graph/raises.h"
#include "graph/rewrite.h"
#include "surface/lowering.h"
#include "surface/masked_update.h"
#include "surface/view_results.h"

namespace framejit::surface {

// The graph's own declaration of its symbols. A symbol is read from the first input size that it is; who makes symbols
// of other things (scalar inputs) has entered their sources already.
static void DeclareSymbols(const shape::Env& env, Graph* g) {
  size_t declared = g->symbols.size();
  for (size_t i = declared; i < env.num_symbols(); ++i) g->symbols.push_back(env.symbol(static_cast<uint32_t>(i)));
  g->symbol_sources.resize(g->symbols.size());
  for (size_t i = 0; i < g->inputs.size(); ++i) {
    const shape::Ints& sizes = g->node(g->inputs[i]).type.shape;
    for (size_t d = 0; d < sizes.size(); ++d) {
      auto id = sizes[d].as_symbol();
      if (id && g->symbol_sources.at(*id).input < 0)
        g->symbol_sources[*id] = {static_cast<int>(i), static_cast<int>(d)};
    }
  }
}

// A result of a custom function that is a view in the program is one where it leaves: the framework makes it.
void Lowering::Impl::LookAtShared(const std::vector<TraceId>& outputs) {
  for (TraceId t : outputs)
    if (derivatives.IsShared(objects[t].root))
      objects.BecomeUnusable("a torch.autograd.Function returned a view, which leaves the graph");
}

// What a backward pass keeps are the inputs themselves. Of memory of its own (torch.vdot) the graph has the value
// alone; a view leaves as what the framework makes of its base.
void Lowering::Impl::LookAtLazy(const std::vector<TraceId>& outputs) {
  for (TraceId t : outputs)
    if (const TraceTensor& root = trace.tensors[objects[t].root]; root.input < 0 && root.meta.lazy())
      objects.BecomeUnusable("what a call returned is conjugated when it is read, and leaves the graph");
  const bool lazy = std::any_of(trace.inputs.begin(), trace.inputs.end(), [&](TraceId t) { return meta(t).lazy(); });
  if (lazy && std::any_of(trace.tensors.begin(), trace.tensors.end(), [](auto& t) { return t.meta.requires_grad; }))
    objects.BecomeUnusable("an input is a conjugate or negated view, and there are gradients");
}

// Sparse and quantised tensors share memory in ways that no view tells. One that leaves the graph does so as in eager
// where nothing else that may share its memory leaves with it; what is written is not followed at all.
void Lowering::Impl::LookAtOpaque(const std::vector<TraceId>& outputs) {
  const bool input =
      std::any_of(trace.inputs.begin(), trace.inputs.end(), [&](TraceId t) { return IsOpaque(meta(t)); });
  if (!input && beside_opaque.empty()) return;
  std::set<TraceId> roots, leaving;
  for (TraceId t : beside_opaque) roots.insert(objects[t].root);
  for (TraceId t : outputs)
    if (roots.contains(objects[t].root) && trace.tensors[objects[t].root].input < 0) leaving.insert(t);
  const bool written = std::any_of(trace.tensors.begin(), trace.tensors.end(), [&](const TraceTensor& t) {
    return t.mutated && (roots.contains(objects[t.id].root) || trace.tensors[objects[t.id].root].input >= 0);
  });
  if (written) objects.BecomeUnusable("a write beside sparse or quantised tensors");
  if (leaving.size() > 1) objects.BecomeUnusable("several results share memory with sparse or quantised tensors");
}

std::vector<Lowering::Made> Lowering::Finish(const std::vector<TraceId>& outputs, bool ieee) {
  Impl& s = *impl_;
  Graph& g = s.builder.graph();
  DeclareSymbols(s.env(), &g);
  s.trace.outputs = outputs;
  s.LookAtShared(outputs);
  s.LookAtLazy(outputs);
  s.LookAtOpaque(outputs);
  std::map<TraceId, int> graph_output;
  std::vector<Made> made;
  for (TraceId t : outputs) {
    TraceId root = s.objects[t].root;
    for (TraceId seen : {root, t}) s.Show(seen);
    int input = s.trace.tensors[root].input;
    Made m{Made::kReplay, 0, {}};
    if (input < 0) {
      if (s.meta(t).requires_grad && !s.meta(root).requires_grad)  // the base has no node, and detach() makes none
        s.objects.BecomeUnusable("a detached view was written to with gradients");
      auto [it, fresh] = graph_output.emplace(root, static_cast<int>(g.outputs.size()));
      if (fresh && !s.lent.contains(root) && s.MayLieInLent(s.objects.Value(root)))
        s.objects.Renew(root, s.InOwnMemory(root));
      if (fresh) g.outputs.push_back(s.objects.WithLayout(s.objects.Value(root), s.meta(root).strides));
      m.index = it->second;
    } else {
      m.index = ~input;
    }
    if (t == root) {
      m.kind = input < 0 ? Made::kGraphOutput : Made::kInput;
      if (input >= 0) m.index = input;
    }
    for (TraceId at = t; at != root; at = s.objects[at].parent)
      m.calls.insert(m.calls.begin(), s.trace.tensors[at].view_call);
    for (int c : m.calls) {
      int tensors = 0;
      EachTensor(s.trace.calls[c], [&](TraceId) { ++tensors; });
      if (tensors > 1) s.objects.BecomeUnusable(s.trace.calls[c].callee + ": a view that needs more than its base");
    }
    made.push_back(std::move(m));
  }
  for (size_t i = 0; i < s.trace.inputs.size(); ++i) {
    TraceId t = s.trace.inputs[i];
    if (s.trace.tensors[t].mutated) g.writes.push_back({static_cast<int>(i), s.objects.Value(t)});
  }
  std::vector<shape::Guard> asked = std::move(s.trace.conditions);
  for (const shape::Guard& c : s.env().guards())
    if (s.env().AtRun(c)) asked.push_back(c);
  DropMasked(g, asked, s.replaced, ieee);
  KeepRaising(g, ieee);
  for (size_t i = 0; i < outputs.size(); ++i)
    if (IsViewResult(made[i].kind == Made::kReplay, s.meta(outputs[i])))
      g.outputs.push_back(s.objects.Value(outputs[i]));
  const std::vector<bool> stand_ins = StandIns(g);
  for (ValueId v = 0; v < g.nodes.size(); ++v)
    if (g.nodes[v].op == Op::kExtern && Draws(g.nodes[v].attrs.call->callee) && !stand_ins[v]) g.ordered.push_back(v);
  PlaceOperands(g);
  return made;
}

}  // namespace framejit::surface
