#include "capture/training.h"

#include <limits>
#include <map>
#include <set>

#include "capture/callees.h"
#include "capture/checkpoint.h"
#include "capture/estimate.h"
#include "capture/first_pass.h"
#include "capture/got_memory.h"
#include "capture/keepers.h"
#include "capture/late_reads.h"
#include "capture/numbers/guess.h"
#include "capture/override.h"
#include "diag/diag.h"
#include "graph/arguments.h"
#include "graph/hints.h"
#include "surface/rows.h"
#include "surface/view_results.h"
#include "tensor/autograd.h"
#include "tensor/segment_node.h"

namespace framejit::capture {

namespace {

// By input: the bucket that its gradient goes to, in the order in which the gradients are made.
std::vector<int> PartsOf(const autodiff::Joint& j, const std::vector<bool>& wanted, const std::vector<int64_t>& caps) {
  std::vector<int> part(wanted.size(), 0), order;
  for (size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] && j.grads[i] != kNoValue) order.push_back(static_cast<int>(i));
  if (caps.empty()) return part;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return j.grads[a] < j.grads[b]; });
  const std::vector<int64_t> hints = Hints(j.graph);
  size_t now = 0;
  int64_t bytes = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    part[order[k]] = static_cast<int>(now);
    const TensorType& t = j.graph.node(j.graph.inputs[order[k]]).type;
    bytes += t.numel().Eval(hints) * DTypeSize(t.dtype);
    const bool same = k + 1 < order.size() && j.grads[order[k]] == j.grads[order[k + 1]];
    if (same || bytes < caps[std::min(now, caps.size() - 1)]) continue;
    bytes = 0;
    ++now;
  }
  return part;
}

// The buckets of the DistributedDataParallel that the program entered here, or that is at work around it.
std::vector<int64_t> BucketBytes(const Session& s) {
  if (s.data_parallel) return tensor::BucketBytes(s.data_parallel);
  auto* type = reinterpret_cast<PyObject*>(tensor::DataParallelType());
  Ref active(type ? PyObject_GetAttrString(type, "_active_ddp_module") : nullptr);
  if (!active) PyErr_Clear();
  return active && active.get() != Py_None ? tensor::BucketBytes(active.get()) : std::vector<int64_t>();
}

// By node, as autodiff::Joint has them.
std::vector<int> RegionsOf(const Graph& g, const std::vector<surface::Lowering::Range>& ranges) {
  std::vector<int> region;
  if (ranges.empty()) return region;
  region.resize(g.nodes.size());
  int number = 0;
  for (const auto& [begin, end] : ranges) {
    ++number;
    for (size_t v = begin; v < std::min(end, region.size()); ++v) {
      const Node& n = g.nodes[v];
      if (n.op == Op::kInput) continue;
      region[v] = n.op == Op::kExtern && Draws(n.attrs.call->callee) ? -number : number;
    }
  }
  return region;
}

// By input: are all that read it in regions?
std::vector<bool> ReadAgain(const Graph& g, const std::vector<int>& region) {
  std::vector<bool> other(g.nodes.size());
  for (size_t v = 0; v < g.nodes.size(); ++v)
    for (ValueId o : g.nodes[v].operands) other[o] = other[o] || v >= region.size() || !region[v];
  std::vector<bool> again;
  for (ValueId input : g.inputs) again.push_back(!other[input]);
  return again;
}

// Does the call write in place to memory of `base`?
bool WritesTo(const Trace& t, const Call& c, TraceId base) {
  bool writes = false;
  const auto look = [&](const Arg& a) { EachTensor(a, [&](TraceId id) { writes |= t.tensors[id].base == base; }); };
  if ((c.results.empty() || ChangesFirst(c.callee)) && !c.args.empty()) look(c.args[0]);
  for (const auto& [name, value] : c.kwargs)
    if (c.results.empty() || name == "out") look(value);
  return writes;
}

// Gives the last call that makes or writes this result. It is -1 if an older view of the result is read behind that
// call.
int LastWrite(const Trace& t, TraceId result) {
  int last = -1, oldest = std::numeric_limits<int>::max();  // of the calls that made the views which are read
  for (int i = static_cast<int>(t.calls.size()) - 1; i >= 0; --i) {
    const Call& c = t.calls[i];
    bool given = false;
    EachTensor(c, [&](TraceId id) { given |= t.tensors[id].base == result; });
    bool same = false;  // contiguous() of what is so: the call hands it on
    EachTensor(c, [&](TraceId id) { same |= id == result; });
    const bool returned = std::find(c.results.begin(), c.results.end(), result) != c.results.end();
    const bool known = callees::IsTorchs(c.callee) || c.callee.name().starts_with("framejit._gradients.") ||
                       c.callee == kCustomCall ||
                       c.callee == tensor::kGiven;  // which writes nothing, or was not captured
    if (given && !known) return -1;
    if ((returned && !same) || WritesTo(t, c, result)) {
      last = i;
      break;
    }
    EachTensor(c, [&](TraceId id) {
      if (id != result && t.tensors[id].base == result) oldest = std::min(oldest, t.tensors[id].view_call);
    });
  }
  return oldest > last ? last : -1;
}

// From which call on is this view what it is? It is -1 if its base is written behind that.
int MadeAsView(const Trace& t, TraceId view) {
  const TraceTensor& v = t.tensors[view];
  for (size_t i = v.view_call + 1; i < t.calls.size(); ++i)
    if (WritesTo(t, t.calls[i], v.base)) return -1;
  return v.view_call;
}

// Results of which others are made are handed on by `framejit._gradients.result`, which may put another tensor in their
// place. stands, by output: of those of which it is known where they are what they are.
bool LetOthersStand(Trace* replay, const std::vector<std::vector<bool>>& made_of, std::vector<bool>* stands) {
  stands->assign(replay->outputs.size(), false);
  for (size_t k = 0; k < replay->outputs.size(); ++k) {
    const TraceId result = replay->outputs[k];
    const bool inner = std::any_of(made_of.begin(), made_of.end(), [&](const auto& of) { return of[k]; });
    const bool view = replay->tensors[result].base != result;
    const int last = !inner ? -1 : view ? MadeAsView(*replay, result) : LastWrite(*replay, result);
    if (last < 0) continue;
    const auto made = replay->calls.begin() + last;
    TraceTensor other = replay->tensors[result];
    other.id = static_cast<TraceId>(replay->tensors.size());
    if (!view) other.base = other.id;
    replay->tensors.push_back(other);
    for (auto c = made + 1; c != replay->calls.end(); ++c) {
      EachArg(*c, [&](Arg& a) {
        if (a.is(Arg::Kind::kTensor) && a.t == result) a.t = other.id;
      });
      std::replace(c->results.begin(), c->results.end(), result, other.id);  // of those that hand it on
      if (c->result.is(Arg::Kind::kTensor) && c->result.t == result) c->result.t = other.id;
    }
    Call call;
    call.callee = "framejit._gradients.result";
    call.args = {Arg::Tensor(result), Arg::Int(static_cast<int64_t>(k))};
    call.results = {other.id};
    call.result = Arg::Tensor(other.id);
    call.mode = made->mode;
    replay->calls.insert(made + 1, call);
    for (TraceTensor& t : replay->tensors) t.view_call += t.view_call > last;
    (*stands)[k] = true;
  }
  return std::find(stands->begin(), stands->end(), true) != stands->end();
}

}  // namespace

std::vector<ViewResult> TakeViews(Session& s, const std::vector<TraceId>& results,
                                  const std::vector<tensor::OutputPlan>& plans) {
  std::vector<ViewResult> views;
  for (size_t i = 0; i < plans.size(); ++i)
    if (surface::IsViewResult(plans[i].kind == tensor::OutputPlan::kReplay, s.meta(results[i])))
      views.push_back({static_cast<int>(i), kNoValue});
  std::vector<ValueId>& outputs = s.graph().outputs;
  const size_t first = outputs.size() - views.size();
  for (size_t j = 0; j < views.size(); ++j) views[j].value = outputs[first + j];
  outputs.resize(first);
  return views;
}

std::shared_ptr<Executable> MakeExecutableOf(const Graph& g, const CompileOptions& options, bool interpret) {
  if (diag::Enabled(diag::Channel::graph_)) diag::Log(diag::Channel::graph_, g.str());
  std::shared_ptr<Executable> made = interpret ? MakeInterpreter(g) : Compile(g, options);
  if (Estimate* e = Estimate::Current()) e->Note(g, *made);
  return made;
}

bool WantsGrad(const Session& s, const Trace& t) {
  if (s.lowering().WritesInputWithGradients()) return true;
  for (auto& x : t.tensors)
    if (x.input < 0 && x.meta.requires_grad) return true;
  return false;
}

namespace {

using autodiff::Undifferentiable;

// Which kinds of calls there are.
void NoteCalls(const Graph& g, tensor::Training* t) {
  for (const Node& n : g.nodes) {
    if (n.op != Op::kExtern) continue;
    t->draws |= Draws(n.attrs.call->callee);
    t->calls_own |= n.attrs.call->callee == callees::kOwnBackward;
  }
}

// Throws Undifferentiable: the framework's gradients of this program are not those of its graph.
void CheckProgram(const Session& s, const Trace& trace) {
  if (!s.lowering().undifferentiable().empty()) throw Undifferentiable(s.lowering().undifferentiable());
  for (const Call& c : trace.calls)
    if (c.mode.grad && !s.modes.entry.grad) throw Undifferentiable("gradients are turned on inside");
  if (s.lowering().tracks()) throw Undifferentiable("a leaf is made inside");
  for (TraceId id : trace.outputs) {
    const TraceTensor& base = trace.tensors[trace.tensors[id].base];
    if (base.input < 0 && base.meta.framework == Framework::kNumpy)
      throw Undifferentiable("a NumPy array among the results");
  }
}

// Throws Undifferentiable where a view and its base are results and the base was written when the view was there. The
// framework makes the view's node anew when it is next asked for, from what the base is then. Ours would be made behind
// the write and would keep what the base was.
void CheckViews(const Trace& trace) {
  for (TraceId id : trace.outputs) {
    const TraceTensor& view = trace.tensors[id];
    if (view.base == id || view.view_call < 0 || !view.meta.requires_grad) continue;
    if (std::find(trace.outputs.begin(), trace.outputs.end(), view.base) == trace.outputs.end()) continue;
    bool behind = false;  // the last write, which is not to the view itself
    for (size_t i = view.view_call + 1; i < trace.calls.size(); ++i) {
      const Call& c = trace.calls[i];
      const bool writes = (c.results.empty() || ChangesFirst(c.callee)) && !c.args.empty();
      if (writes && c.args[0].is(Arg::Kind::kTensor) && trace.tensors[c.args[0].t].base == view.base)
        behind = c.args[0].t != id;
    }
    if (behind) throw Undifferentiable("a result is written of which another one is a view");
  }
}

// What wants gradients: inputs and, of the graph's outputs, bases. The replay's outputs are the bases.
Trace NoteWanted(const Trace& trace, const std::vector<tensor::OutputPlan>& plans, size_t outputs,
                 tensor::Training* t) {
  for (TraceId id : trace.inputs) {
    const TensorMeta& m = trace.tensors[id].meta;
    if (m.requires_grad && !IsFloat(m.dtype)) throw Undifferentiable("a complex input");
    t->wanted.push_back(m.requires_grad);
  }
  Trace replay = trace;  // its outputs: the bases that the graph makes
  replay.outputs.assign(outputs, 0);
  t->differentiable.resize(outputs);
  for (size_t i = 0; i < plans.size(); ++i) {
    const tensor::OutputPlan& p = plans[i];
    if (p.kind == tensor::OutputPlan::kInput || p.index < 0) continue;
    TraceId base = trace.tensors[trace.outputs[i]].base;
    replay.outputs[p.index] = base;
    t->differentiable[p.index] = trace.tensors[base].meta.requires_grad;
  }
  return replay;
}

// Inputs that want gradients and are written become results: outputs of the graph. deferred: writes that are some
// already. Throws Undifferentiable where another result is the same value, as gradients of what is made of it would not
// come by the input.
void NoteOverwritten(Graph* g, const Trace& trace, const std::vector<tensor::OutputPlan>& plans,
                     const std::vector<std::pair<int, int>>& deferred, tensor::Training* t) {
  const auto taken = [&](int input) { return trace.tensors[trace.inputs[input]].meta.requires_grad; };
  for (const auto& write : deferred)
    if (taken(write.first)) t->overwritten.push_back(write);
  for (const Write& w : g->writes) {
    if (!taken(w.input)) continue;
    t->overwritten.emplace_back(w.input, static_cast<int>(g->outputs.size()));
    g->outputs.push_back(w.value);
  }
  std::erase_if(g->writes, [&](const Write& w) { return taken(w.input); });
  for (const auto& [input, output] : t->overwritten) {
    const ValueId value = g->outputs[output];
    const bool result = std::any_of(plans.begin(), plans.end(), [output](const tensor::OutputPlan& p) {
      return p.kind != tensor::OutputPlan::kInput && p.index == output;
    });
    if (result || g->node(value).op == Op::kInput || std::count(g->outputs.begin(), g->outputs.end(), value) > 1)
      throw Undifferentiable("an input with gradients becomes what another tensor is");
    if (!autodiff::DependsOn(*g, {g->inputs[input]})[value])  // normal_(): what it was gets zeros
      throw Undifferentiable("an input with gradients becomes what is not made of it");
  }
}

// Likewise of the replay. written: gets these inputs.
void AddOverwritten(const Trace& trace, Trace* replay, tensor::Training* t, std::set<int>* written) {
  for (auto& [input, output] : t->overwritten) {
    replay->outputs[output] = trace.inputs[input];
    t->differentiable[output] = true;
    written->insert(input);
  }
}

// Which inputs must be kept as they were before the run. Throws Undifferentiable where that does not do.
void NoteBefore(const std::set<int>& written, tensor::Training* t) {
  std::map<int, int> overwritten(t->overwritten.begin(), t->overwritten.end());
  for (const autodiff::SavedValue& v : t->saved)
    if (written.contains(v.input) && !overwritten.contains(v.input))
      throw Undifferentiable("an input that the gradients need is written");
  t->before.resize(t->wanted.size());
  for (int i : written) {
    t->before[i] = overwritten.contains(i);  // it is what the results are made of
    if (t->before[i]) continue;
    for (size_t k = 0; k < t->differentiable.size(); ++k)
      t->before[i] = t->before[i] || (t->differentiable[k] && t->needed[k][i]);
    if (t->before[i] && t->wanted[i]) throw Undifferentiable("an input that gets gradients is written");
  }
  for (const tensor::Training::View& v : t->views)
    if (v.base < 0 && overwritten.contains(~v.base))
      throw Undifferentiable("others are made of a view of an input that is written with gradients");
  for (auto& [input, output] : overwritten)
    if (!t->stands[output] && std::any_of(t->made_of.begin(), t->made_of.end(), [&](auto& of) { return of[output]; }))
      throw Undifferentiable("an input is written with gradients, and it is not known from where on it is what it is");
}

// The form in which a kernel of the framework runs attention, of every length if sizes are symbols.
std::optional<autodiff::AttentionForm> FormOf(const Session& s, const std::vector<int64_t>& hints,
                                              const autodiff::AttentionRequest& request) {
  auto form = tensor::FindAttention(request, hints);
  if (s.options().dynamic_dims.empty()) return form;  // no size is a symbol, or the user wants them to be
  autodiff::AttentionRequest now = request;
  bool fixed = true;
  const auto here = [&](shape::Int size) {
    fixed &= size.is_const();
    return shape::Int(size.Eval(hints));
  };
  for (TensorType& t : now.types) t.shape.Each(here);
  for (shape::Ints& strides : now.strides)
    for (shape::Int& stride : strides) stride = here(stride);
  if (fixed) return form;
  auto best = tensor::FindAttention(now, hints);
  if (best && (!form || form->kernel != best->kernel))
    throw autodiff::WantsFixedSizes("attention whose kernel does not take every length");
  return form;
}

// Throws Undifferentiable: of a relu's derivative, say, the framework has gradients of zeros.
void CheckZeros(const Graph& g, const tensor::Training& t) {
  for (size_t i = 0; i < t.wanted.size(); ++i) {
    if (!t.wanted[i]) continue;
    const std::vector<bool> made = autodiff::MadeOf(g, {g.inputs[i]}), leads = autodiff::DependsOn(g, {g.inputs[i]});
    for (size_t k = 0; k < g.outputs.size(); ++k)
      if (t.differentiable[k] && made[g.outputs[k]] && !leads[g.outputs[k]])
        throw Undifferentiable("gradients that are zero or none");
  }
}

// What the backward passes read of the graph.
struct Plan {
  std::shared_ptr<Graph> graph;  // until it is packed
  std::vector<ValueId> saved;
  // By output and input: the framework keeps it for the derivative of these. Until it is packed.
  std::vector<std::vector<ValueId>> kept;
  std::vector<int> region;
  std::vector<bool> moves;  // as autodiff::Differentiate takes them
  CompileOptions options;
  bool interpret;
  std::vector<GotMemory> rebound;
  std::vector<bool> Read(const autodiff::Joint& j, const std::vector<std::vector<ValueId>>& kept_for) const {
    std::vector<bool> read = autodiff::ReadOutputs(j, kept_for);
    for (const auto& [from, input, beside] : rebound) {
      read[input] = read[input] || read[from];
      if (!beside) read[from] = false;
    }
    return read;
  }
  std::vector<ValueId> views;      // as autodiff::Differentiate takes them
  std::vector<ValueId> reentrant;  // the nodes that the reentrant form of torch.utils.checkpoint made
};

// Which gradients of the outputs arrive is known when the first backward pass runs: it is compiled then.
auto BackwardCompiler(Plan plan, const std::vector<bool>& wanted, const std::vector<int>& part, FirstPass first_pass) {
  auto graph = std::make_shared<const PackedGraph>(Nameless(std::move(*std::exchange(plan.graph, nullptr))));
  const PackedLists kept(std::exchange(plan.kept, {}));
  const auto first = std::make_shared<std::optional<FirstPass>>(std::move(first_pass));
  return [plan = std::move(plan), graph, kept, wanted, part, first](const std::vector<bool>& tangents,
                                                                    const std::vector<bool>& stops, bool around,
                                                                    const std::vector<bool>& skipped) {
    tensor::Training::Backward b;
    autodiff::Joint j;
    if (*first && (*first)->Is(tangents) && stops.empty() && (!around || plan.reentrant.empty())) {
      j = (*first)->Take(&b.read);
    } else {
      j = autodiff::Differentiate(graph->Unpack(), wanted, tangents, stops, plan.views,
                                  around ? plan.reentrant : std::vector<ValueId>(), plan.moves);
      j.region = plan.region;
      b.read = plan.Read(j, kept.Unpack());
    }
    first->reset();
    for (size_t i = 0; i < skipped.size(); ++i)
      if (skipped[i]) j.grads[i] = kNoValue;
    std::vector<autodiff::GradSource> grads;
    Graph whole = autodiff::BackwardGraph(j, plan.saved, &grads);
    for (size_t i = 0; i < j.tangents.size(); ++i)
      if (j.tangents[i] != kNoValue) b.tangents.push_back(static_cast<int>(i));
    j = {};  // thousands of nodes, which would lie beside those of the parts and of what these become
    b.part = stops.empty() ? part : std::vector<int>(grads.size());
    b.parts = autodiff::SplitBackward(std::move(whole), grads, b.part, static_cast<int>(plan.saved.size()));
    for (const autodiff::BackwardPart& p : b.parts.parts)
      b.executables.push_back(MakeExecutableOf(p.graph, plan.options, plan.interpret));
    return b;
  };
}

// Throws Undifferentiable: others are made of a result of which it is not known from which call on it is what it is. So
// a pass that looks for its gradient, and is differentiated, could not go on from it.
void CheckStanding(const Trace& trace, const std::vector<tensor::OutputPlan>& plans, const tensor::Training& t) {
  for (size_t k = t.differentiable.size(); k < t.stands.size(); ++k)
    if (!t.stands[k]) throw Undifferentiable("a result is written of a view of which others are made");
  for (size_t i = 0; i < plans.size(); ++i) {
    const TraceTensor& result = trace.tensors[trace.outputs[i]];
    const int k = plans[i].kind == tensor::OutputPlan::kInput ? -1 : plans[i].index;
    if (k < 0 || result.base != trace.outputs[i] || !t.differentiable[k] || t.stands[k]) continue;
    if (std::any_of(t.made_of.begin(), t.made_of.end(), [&](const auto& of) { return of[k]; }))
      throw Undifferentiable("a result is written of which others are made");
  }
}

// By saved value: the outputs that depend on it.
std::vector<std::vector<bool>> SavedFor(const Graph& g, const std::vector<ValueId>& saved,
                                        const std::vector<bool>& differentiable) {
  const auto primal = static_cast<ValueId>(g.nodes.size());  // behind these: copies
  std::vector<std::vector<bool>> all(saved.size(), std::vector<bool>(g.outputs.size()));
  if (std::count(differentiable.begin(), differentiable.end(), true) < 2) return {};
  std::vector<bool> needed;
  for (size_t k = 0; k < g.outputs.size(); ++k) {
    if (!differentiable[k]) continue;
    needed.assign(primal, false);
    needed[g.outputs[k]] = true;
    for (ValueId v = primal; v-- > 0;)
      if (needed[v])
        for (ValueId o : g.node(v).operands) needed[o] = true;
    for (size_t i = 0; i < saved.size(); ++i) all[i][k] = needed[saved[i] % primal];
  }
  return all;
}

// When the program made its results, and when the framework has the gradients of its inputs: a node runs as soon as all
// have that read its result, the one that was made last before the others.
void NoteOrder(const Trace& t, tensor::Training* training) {
  std::vector<int> made(t.tensors.size(), -1), read(t.tensors.size(), -1), place(t.tensors.size());
  for (size_t i = 0; i < t.calls.size(); ++i) {
    const Call& c = t.calls[i];
    std::vector<TraceId> operands;
    EachTensor(c, [&](TraceId id) { operands.push_back(id); });
    // Its node is addmm's, which begins with what is added.
    if (c.callee.effects().batch == Batch::kLinear) std::rotate(operands.begin(), operands.end() - 1, operands.end());
    bool derived = false;
    for (TraceId id : c.results) {
      derived |= t.tensors[id].meta.requires_grad;
      if (std::find(operands.begin(), operands.end(), id) == operands.end()) made[id] = static_cast<int>(i);
    }
    if (ChangesFirst(c.callee) && !operands.empty()) made[operands[0]] = static_cast<int>(i);
    if (!c.mode.grad || (!derived && !ChangesFirst(c.callee))) continue;
    for (size_t k = 0; k < operands.size(); ++k) {
      if (read[operands[k]] >= 0) continue;
      read[operands[k]] = static_cast<int>(i);
      place[operands[k]] = static_cast<int>(k);
    }
  }
  for (TraceId id : t.outputs) training->made.push_back(made[id]);
  for (size_t i = 0; i < training->wanted.size(); ++i)
    if (training->wanted[i]) training->edges.push_back(static_cast<int>(i));
  std::stable_sort(training->edges.begin(), training->edges.end(), [&](int a, int b) {
    const TraceId x = t.inputs[a], y = t.inputs[b];
    return read[x] != read[y] ? read[x] > read[y] : place[x] < place[y];
  });
}

// Edges lead where gradients may: what an input was made of is not reached by a pass that has nothing for it. A custom
// function may answer with None where the framework has an edge.
void KeepEdges(const autodiff::Joint& joint, const Trace& trace, tensor::Training* t) {
  std::vector<int> kept;
  for (int i : t->edges)
    if (joint.grads[i] != kNoValue) kept.push_back(i);
  const bool custom =
      std::any_of(trace.calls.begin(), trace.calls.end(), [](const Call& c) { return c.callee == kCustomCall; });
  if (!custom && !kept.empty()) t->edges = std::move(kept);
}

// inputs: as the capture met them.
void NoteGroups(const Graph& g, const std::vector<PyObject*>& inputs, tensor::Training* t) {
  constexpr size_t kMost = 4;  // a node costs microseconds
  t->group.assign(t->wanted.size(), -1);
  const auto derived = std::count(t->differentiable.begin(), t->differentiable.end(), true);
  if (derived < 2 || std::any_of(t->part.begin(), t->part.end(), [](int part) { return part > 0; })) return;
  for (int i : t->edges) {
    Ref leaf(PyObject_GetAttrString(inputs[i], "is_leaf"));
    if (!leaf) PyErr_Clear();
    if (leaf.get() != Py_False) continue;
    const std::vector<bool> from = autodiff::DependsOn(g, {g.inputs[i]});
    std::vector<bool> by;
    for (size_t k = 0; k < g.outputs.size(); ++k) by.push_back(t->differentiable[k] && from[g.outputs[k]]);
    const auto reached = std::count(by.begin(), by.end(), true);
    auto group = std::find(t->reached_by.begin(), t->reached_by.end(), by);
    if (!reached || reached == derived || (group == t->reached_by.end() && t->reached_by.size() == kMost)) continue;
    if (group == t->reached_by.end()) group = t->reached_by.insert(group, std::move(by));
    t->group[i] = static_cast<int>(group - t->reached_by.begin());
  }
}

// Only those stay of which outputs are made. What a view is of is made of it where it was written through the view: the
// framework then takes the view of what was written.
void KeepViews(const Graph& g, std::vector<ValueId>* values, tensor::Training* t) {
  size_t kept = 0;
  for (size_t j = 0; j < values->size(); ++j) {
    const std::vector<bool> from = autodiff::DependsOn(g, {(*values)[j]});
    bool made = false;
    for (size_t k = 0; k < g.outputs.size(); ++k)
      made |= t->differentiable[k] && static_cast<int>(k) != t->views[j].base && from[g.outputs[k]];
    if (!made) continue;
    t->views[kept] = t->views[j];
    (*values)[kept++] = (*values)[j];
  }
  values->resize(kept);
  t->views.resize(kept);
}

// What the hook asks of the graph: who depends on whom, and what is copied because it is written.
void NoteDependences(const Graph& g, const std::vector<ValueId>& views, const std::set<int>& written,
                     const std::vector<ValueId>& saved, tensor::Training* t) {
  t->saved_for = SavedFor(g, saved, t->differentiable);
  std::vector<ValueId> values = g.outputs;
  values.insert(values.end(), views.begin(), views.end());
  t->num_symbols = g.symbols.size();
  t->needed = autodiff::Needed(g, values);
  t->made_of = autodiff::MadeOfOutputs(g, t->differentiable, views, &t->next);
  t->seen = autodiff::SeenOutputs(g, views);
  for (size_t j = 0; j < views.size(); ++j) {  // what it is a view of is there before it
    const int base = t->views[j].base;
    if (base >= 0 && t->seen[base] >= views[j]) throw Undifferentiable("a result is a view of one that is made of it");
  }
  t->copied.resize(t->wanted.size());
  for (int i : written) t->copied[i] = true;
}

std::vector<ValueId> NodesOf(const Graph& g, const surface::Lowering::Range& range) {
  std::vector<ValueId> nodes;
  for (size_t v = range.first; v < std::min(range.second, g.nodes.size()); ++v)
    if (g.nodes[v].op != Op::kInput) nodes.push_back(static_cast<ValueId>(v));
  return nodes;
}

// regions: of each its nodes, then what was given to it.
void NoteReentrant(const Graph& g, const std::vector<std::vector<ValueId>>& regions, Plan* plan, tensor::Training* t) {
  t->read_again = ReadAgain(g, plan->region);
  for (size_t r = 0; r < regions.size(); r += 2) {
    const std::vector<ValueId>&nodes = regions[r], &given = regions[r + 1];
    plan->reentrant.insert(plan->reentrant.end(), nodes.begin(), nodes.end());
    const auto leads = [&](ValueId from, const std::vector<ValueId>& to) {
      const std::vector<bool> made = autodiff::DependsOn(g, {from});
      return std::any_of(to.begin(), to.end(), [&](ValueId v) { return made[v]; });
    };
    const std::vector<bool> made = autodiff::DependsOn(g, nodes);
    tensor::Training::Reentrant& region = t->reentrant.emplace_back();
    for (ValueId v : g.outputs) region.outputs.push_back(made[v]);
    for (size_t i = 0; i < g.inputs.size(); ++i) {
      region.inputs.push_back(t->wanted[i] && leads(g.inputs[i], given));
      region.reads.push_back(t->wanted[i] && leads(g.inputs[i], nodes));
    }
    for (ValueId v : t->seen) region.results.push_back(leads(v, given));
  }
}

// functions: of each its results, then what it answers None for.
void NoteUnanswered(const Graph& g, const std::vector<std::vector<ValueId>>& functions, tensor::Training* t) {
  if (functions.empty()) return;
  t->unanswered.assign(g.outputs.size(), std::vector<bool>(t->wanted.size()));
  for (size_t f = 0; f < functions.size(); f += 2) {
    const std::vector<bool> made = autodiff::DependsOn(g, functions[f]);
    for (size_t i = 0; i < t->wanted.size(); ++i) {
      const std::vector<bool> from = autodiff::DependsOn(g, {g.inputs[i]});
      const bool given = t->wanted[i] && std::any_of(functions[f + 1].begin(), functions[f + 1].end(),
                                                     [&](ValueId v) { return from[v]; });
      for (size_t k = 0; given && k < g.outputs.size(); ++k)
        if (t->differentiable[k] && made[g.outputs[k]]) t->unanswered[k][i] = true;
    }
  }
}

}  // namespace

// The inputs that have no gradients behind this run; those that have other memory then go to `written`.
static std::set<int> Stopped(Session& s, const Trace& trace, std::set<int>* written) {
  std::set<int> stopped;
  for (auto& [now, input] : s.pending().rebound) {
    if (s.pending().stopped.contains(now)) stopped.insert(trace.tensors[input].input);
    if (s.pending().replaced.contains(now)) written->insert(trace.tensors[input].input);
  }
  return stopped;
}

TrainingPlan PlanTraining(Session& s, const Trace& trace, const tensor::TraceRunner& calls,
                          const std::vector<tensor::OutputPlan>& plans, const std::vector<ViewResult>& views,
                          const std::vector<PyObject*>& constants, const CompileOptions& options, bool interpret,
                          const std::vector<std::pair<int, int>>& writes) {
  CheckProgram(s, trace);
  CheckViews(trace);
  Plan plan{std::make_shared<Graph>(s.graph()), {}, {}, {}, {}, options, interpret, {}, {}, {}};
  Graph& graph = *plan.graph;
  tensor::Training t;
  NoteOverwritten(&graph, trace, plans, writes, &t);
  Trace replay = NoteWanted(trace, plans, graph.outputs.size(), &t);
  std::set<int> written;
  AddOverwritten(trace, &replay, &t, &written);
  for (const Write& w : graph.writes) written.insert(w.input);
  for (auto& [input, output] : writes) written.insert(input);
  const std::set<int> stopped = Stopped(s, trace, &written);
  for (TraceId output : replay.outputs) plan.kept.push_back(s.lowering().KeptFor(output));
  for (TraceId input : trace.inputs) plan.kept.push_back(s.lowering().KeptFor(input));
  plan.rebound = NoteRebound(s, trace, replay.outputs, &plan.kept, &t);
  written.insert(stopped.begin(), stopped.end());
  t.kept.resize(graph.outputs.size());
  for (size_t i = 0; i < t.kept.size(); ++i)
    t.kept[i] = t.differentiable[i] && s.lowering().MayBeKept(replay.outputs[i]);
  plan.region = RegionsOf(graph, s.lowering().checkpointed());
  NoteCalls(graph, &t);
  NoteLate(s, &t);
  t.checkpoints = s.read_by_checkpoints;
  plan.kept.emplace_back();
  for (const ViewResult& v : views) {
    t.views.push_back({v.plan, plans[v.plan].index});
    plan.kept.back().push_back(v.value);
  }
  const size_t kept = plan.kept.size();
  for (const surface::Lowering::Reentrant& r : s.lowering().reentrant())
    for (const std::vector<ValueId>& values : {NodesOf(graph, r.nodes), r.given}) plan.kept.push_back(values);
  const size_t regions = plan.kept.size() - kept;
  for (const surface::Lowering::Unanswered& u : s.lowering().unanswered())
    for (const std::vector<ValueId>& values : {u.results, u.given}) plan.kept.push_back(values);
  plan.kept.push_back(s.lowering().held());
  std::erase_if(plan.kept.back(), [&](ValueId v) { return v >= graph.nodes.size(); });
  {
    SuspendScope off;
    graph = autodiff::KeepAttention(
        graph, t.wanted,
        [&, hints = Hints(graph)](const autodiff::AttentionRequest& request) { return FormOf(s, hints, request); },
        &plan.region, &plan.kept);
  }
  std::vector<ValueId> held = std::move(plan.kept.back());
  plan.kept.pop_back();
  const auto noted = plan.kept.begin() + static_cast<ptrdiff_t>(kept), behind = noted + static_cast<ptrdiff_t>(regions);
  const std::vector<std::vector<ValueId>> reentrant(noted, behind), unanswered(behind, plan.kept.end());
  plan.kept.resize(kept);
  plan.views = std::move(plan.kept.back());
  plan.kept.pop_back();
  KeepViews(graph, &plan.views, &t);
  std::set<int> lost = written;  // what these inputs were is not in memory behind the run
  for (const auto& [input, output] : t.overwritten) lost.erase(input);
  for (size_t i = 0; i < graph.inputs.size(); ++i)
    if (!lost.contains(static_cast<int>(i))) held.push_back(graph.inputs[i]);
  held.insert(held.end(), graph.outputs.begin(), graph.outputs.end());
  plan.moves = autodiff::Moving(graph, plan.region, held);
  autodiff::Joint joint = autodiff::Differentiate(graph, t.wanted, t.differentiable, {}, plan.views, {}, plan.moves);
  joint.region = plan.region;
  if (s.lowering().differentiates()) CheckZeros(graph, t);
  const std::vector<bool> read = t.versioned = plan.Read(joint, plan.kept);
  for (int i : stopped) t.versioned[graph.outputs.size() + i] = false;
  std::vector<bool> passing;
  for (size_t i = 0; i < trace.inputs.size(); ++i)
    passing.push_back(t.wanted[i] && !trace.tensors[trace.inputs[i]].meta.is_parameter);
  plan.saved = autodiff::ChooseSaved(joint, passing, held);
  Graph ahead = autodiff::ForwardGraph(joint, plan.saved, &t.saved);
  t.quietly = [](PyObject* (*f)(void*), void* ctx) {
    SuspendScope off;
    return f(ctx);
  };
  NoteDependences(graph, plan.views, written, plan.saved, &t);
  NoteReentrant(graph, reentrant, &plan, &t);
  t.num_symbols = std::max<size_t>(t.num_symbols, s.env().num_symbols());
  if (t.checkpoints) NoteAsTheyAre(s, trace, graph, plan.region, plan.saved, &t);
  NoteUnanswered(graph, unanswered, &t);
  t.keepers = KeepersOf(replay, t.wanted);
  for (const tensor::Training::View& v : t.views) replay.outputs.push_back(trace.outputs[v.plan]);
  NoteOrder(replay, &t);
  KeepEdges(joint, trace, &t);
  if (t.checkpoints) MarkCheckpoints(s, &replay);
  const bool others = LetOthersStand(&replay, t.made_of, &t.stands);
  NoteBefore(written, &t);
  CheckStanding(trace, plans, t);
  t.replay = others || t.checkpoints ? tensor::MakeTraceRunner(replay, constants) : calls.With(replay.outputs);
  for (PyObject* o : constants) t.constants.push_back(Borrow(o));
  t.part = PartsOf(joint, t.wanted, BucketBytes(s));
  NoteGroups(graph, s.input_tensors(), &t);
  for (const Node& n : joint.graph.nodes)
    if (n.type.device.kind == DeviceKind::kCuda) t.device = n.type.device;
  t.compile = BackwardCompiler(std::move(plan), t.wanted, t.part, {std::move(joint), t.differentiable, read});
  return {std::move(ahead), std::move(t)};
}

}  // namespace framejit::capture
