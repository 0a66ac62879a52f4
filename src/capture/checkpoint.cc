// torch.utils.checkpoint.checkpoint: the function is captured like any other, and what the graph
// makes of it is marked, to be made again in the backward pass instead of being kept (src/autodiff/partition.cc). What
// would be seen to happen twice in eager, then and in the backward pass, is not modelled. A pass that finds something
// changed of what the function read runs the program again with the framework's own checkpoints, around the calls of
// the trace, and these call the function itself.
#include "capture/checkpoint.h"

#include <algorithm>
#include <bit>
#include <span>

#include "absl/cleanup/cleanup.h"
#include "absl/container/fixed_array.h"
#include "capture/callees.h"
#include "capture/effects.h"
#include "capture/gradients.h"
#include "capture/override.h"
#include "capture/own_attributes.h"
#include "capture/proxy.h"
#include "capture/reach.h"
#include "capture/semantics.h"
#include "graph/arguments.h"
#include "guard/source.h"

namespace framejit::capture {
namespace {

// The dict of torch.utils.checkpoint. It is null before somebody has imported that.
PyObject* Parts() {
  static PyObject* module = nullptr;
  if (!module) {
    PyObject* loaded = PyDict_GetItemString(PyImport_GetModuleDict(), callees::kCheckpoint);
    if (!loaded) return nullptr;
    module = Py_NewRef(PyModule_GetDict(loaded));
  }
  return module;
}

// Gives an object of that module, if somebody has imported it. It is borrowed.
PyObject* Part(const char* name) {
  PyObject* parts = Parts();
  return parts ? PyDict_GetItemString(parts, name) : nullptr;
}

// What waits for the end of the segment.
std::vector<PyObject*> Pending(Session& s) {
  std::vector<PyObject*> all;
  for (const PendingStore& p : s.pending().stores()) all.insert(all.end(), {p.dict.get(), p.key.get(), p.value.get()});
  for (const PendingCall& c : s.pending().calls()) all.push_back(c.method.get());
  for (const PendingCell& c : s.pending().cells()) all.insert(all.end(), {c.cell.get(), c.value.get()});
  for (PyObject* list : s.pending().lists()) {
    const Ref now(PySequence_List(s.Find(list)->written));
    all.insert(all.end(), {list, nullptr});
    for (Py_ssize_t i = 0; now && i < PyList_GET_SIZE(now.get()); ++i) all.push_back(PyList_GET_ITEM(now.get(), i));
  }
  EachAttribute(s.pending(), [&](TraceId, PyObject*, PyObject* value) { all.push_back(value); });
  for (auto& [cell, root] : s.root_cells) all.push_back(PyCell_GET(cell));
  return all;
}

// functools.partial(create_selective_checkpoint_contexts, ...): what is kept is another matter than what is computed.
bool SelectsAlone(Session& s, PyObject* context) {
  if (!OfType(context, CType::kPartial)) return false;
  if (s.IsOutside(context)) s.guards().Is(s.SourceOf(context), context);
  Ref function(PyObject_GetAttrString(context, "func"));
  if (!function) PyErr_Clear();
  return function && function.get() == Part("create_selective_checkpoint_contexts");
}

// Results of torch's reentrant form where it records nothing: they want no gradients, and are none of what it was
// given.
bool NoneTracked(Session& s, PyObject* o, const std::vector<PyObject*>& given) {
  if (!PyTuple_CheckExact(o))
    return std::find(given.begin(), given.end(), o) == given.end() && !(IsTensor(o) && WantsGradient(s, o));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
    if (!NoneTracked(s, PyTuple_GET_ITEM(o, i), given)) return false;
  return true;
}

// What torch warns of: that `use_reentrant` was not given, or (`given`) that no input wants gradients. False: it cannot
// wait.
bool Warns(Session& s, bool given) {
  PyObject* const told = ToldByTorch(given ? "of_checkpoint_without_gradients" : "of_checkpoint_without_form");
  if (!told || told == Py_None) return told;
  const auto part = [&](int i) { return PyTuple_GET_ITEM(told, i); };
  return WarnLater(s, part(0), PyExc_UserWarning, part(1), part(2), static_cast<int>(PyLong_AsLong(part(3))));
}

Ref TupleOf(std::span<PyObject* const> all) {
  Ref tuple(PyTuple_New(std::ssize(all)));
  for (size_t i = 0; tuple && i < all.size(); ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(all[i]));
  return tuple;
}

using Named = std::vector<std::pair<PyObject*, PyObject*>>;

// The options as the program gave them, and the state of autocast: what torch's own checkpoint is told.
Ref OptionsOf(const ModeState& now, const Named& told, bool reentrant) {
  Ref options(Py_BuildValue("{s:O}", "use_reentrant", reentrant ? Py_True : Py_False));
  for (const auto& [name, value] : told)
    if (!options || PyDict_SetItem(options.get(), name, value) < 0) return {};
  const Autocast& a = now.autocast;
  const auto name = [&](int device) { return std::string(DTypeName(a.dtype[device])); };
  Ref cast(Py_BuildValue("((sOs)(sOs)O)", "cpu", a.on[0] ? Py_True : Py_False, name(0).c_str(), "cuda",
                         a.on[1] ? Py_True : Py_False, name(1).c_str(), a.cache ? Py_True : Py_False));
  return options && cast ? Ref(PyTuple_Pack(2, options.get(), cast.get())) : Ref();
}

// Function, arguments, keywords, options and the state of autocast. given: the arguments, then those with these names.
Ref PartsOf(const ModeState& now, PyObject* function, const std::vector<PyObject*>& given,
            const std::vector<PyObject*>& names, const Named& told, bool reentrant) {
  const size_t positional = given.size() - names.size();
  Ref arguments = TupleOf(std::span(given).first(positional)), named(PyDict_New());
  for (size_t i = 0; named && i < names.size(); ++i)
    if (PyDict_SetItem(named.get(), names[i], given[positional + i]) < 0) return {};
  Ref options = OptionsOf(now, told, reentrant);
  if (!arguments || !named || !options) return {};
  return Ref(PyTuple_Pack(5, function, arguments.get(), named.get(), PyTuple_GET_ITEM(options.get(), 0),
                          PyTuple_GET_ITEM(options.get(), 1)));
}

// Puts the tensors of a result into `ids`: of one, or of a tuple of nothing else. Gradients of a view would arrive at
// what it is a view of.
bool FlatResults(Session& s, PyObject* result, std::vector<TraceId>* ids) {
  const auto take = [&](PyObject* o) {
    if (!IsTensor(o)) return false;
    ids->push_back(AsTensor(o)->id);
    return s.trace().tensors[ids->back()].base == ids->back();
  };
  if (!PyTuple_CheckExact(result)) return take(result);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(result); ++i)
    if (!take(PyTuple_GET_ITEM(result, i))) return false;
  return true;
}

// The results of torch's reentrant form all want gradients, and are none of what it was given.
bool AllTracked(Session& s, PyObject* o, const std::vector<PyObject*>& given) {
  if (IsTensor(o)) return WantsGradient(s, o) && std::find(given.begin(), given.end(), o) == given.end();
  if (!PyTuple_CheckExact(o)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
    if (!AllTracked(s, PyTuple_GET_ITEM(o, i), given)) return false;
  return true;
}

// What these tensors, made from this call and tensor on, are made of there, but for what the function was given: the
// framework looks at the versions of that.
std::vector<TraceId> MadeOutside(const Trace& t, size_t first, TraceId own, const std::vector<TraceId>& asked,
                                 const std::vector<PyObject*>& given) {
  std::vector<bool> needed(t.tensors.size());  // by memory
  for (TraceId id : asked) needed[t.tensors[id].base] = true;
  for (size_t i = t.calls.size(); i-- > first;) {
    const Call& c = t.calls[i];
    bool leads = false;
    const auto look = [&](TraceId id) { leads |= needed[t.tensors[id].base]; };
    std::for_each(c.results.begin(), c.results.end(), look);
    EachTensor(c, [&](TraceId id) { leads |= needed[t.tensors[id].base] && t.tensors[t.tensors[id].base].mutated; });
    if (leads) EachTensor(c, [&](TraceId id) { needed[t.tensors[id].base] = true; });
  }
  for (PyObject* o : given)
    if (IsTensor(o)) needed[t.tensors[AsTensor(o)->id].base] = false;
  std::vector<TraceId> outside;
  for (TraceId id = 0; id < needed.size(); ++id)
    if (needed[id] && (id < own || t.tensors[id].input >= 0)) outside.push_back(id);
  return outside;
}

}  // namespace

// One whose function is being captured.
struct OpenCheckpoint {
  OpenCheckpoint* outer;
  bool reentrant;
  TraceId first;  // the tensor that it makes first
  std::vector<TraceId> branches = {};
  const char* left = nullptr;  // why it runs as written
};
static thread_local OpenCheckpoint* open_checkpoint = nullptr;

bool InCheckpoint() {
  return open_checkpoint;
}

void NoteBranch(TraceId tensor) {
  for (OpenCheckpoint* c = open_checkpoint; c; c = c->outer) c->branches.push_back(tensor);
}

void LeaveCheckpoints(const char* why) {
  for (OpenCheckpoint* c = open_checkpoint; c; c = c->outer) c->left = why;
}

void NoteAskedOfGradients(const TraceId* tensor) {
  if (!open_checkpoint) return;
  // torch's own switches ask what they put back.
  static PyObject* const name = PyUnicode_InternFromString("__name__");
  PyObject* globals = tensor ? nullptr : PyEval_GetGlobals();
  PyObject* asks = globals ? PyDict_GetItemWithError(globals, name) : nullptr;
  if (asks && PyUnicode_Check(asks) && PyUnicode_CompareWithASCIIString(asks, "torch.autograd.grad_mode") == 0) return;
  for (OpenCheckpoint* c = open_checkpoint; c; c = c->outer)
    if (c->reentrant && (!tensor || *tensor >= c->first)) c->left = "it asks whether gradients are recorded";
}

bool IsCheckpoint(PyObject* function) {
  static PyObject* const name = PyUnicode_InternFromString("checkpoint");
  PyObject* parts = tensor::TorchLoaded() ? Parts() : nullptr;
  return parts && function == PyDict_GetItemWithError(parts, name);
}

PyObject* CaptureSemantics::CallCheckpoint(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  auto refuse = [&](const std::string& why) {
    return s_.Break(BreakId::kAutogradCall, std::string(callees::kCheckpoint) + ": " + why);
  };
  if (!s_.options().checkpoints) return refuse("its gradients are not compiled here");
  if (nargs < 1) return refuse("an unknown form");
  std::vector<PyObject*> given(args + 1, args + nargs), names;
  Named told;
  // Was use_reentrant given, and is the random generator put back for the second time?
  bool plain = false, reentrant = false, chosen = false, restores = true;
  auto noted = std::make_shared<Checkpointed>(s_);
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) {
    PyObject *name = PyTuple_GET_ITEM(kwnames, i), *value = args[nargs + i];
    auto is = [&](const char* text) { return PyUnicode_CompareWithASCIIString(name, text) == 0; };
    noted->selects |= is("context_fn") && value != Part("noop_context_fn");
    if (is("use_reentrant")) {
      plain = value == Py_False;
      reentrant = value == Py_True;
      chosen = value != Py_None;
    } else if (is("preserve_rng_state")) {
      restores = value == Py_True;
    } else if (is("context_fn") ? value != Part("noop_context_fn") && !SelectsAlone(s_, value)
                                : is("debug") && value != Py_False) {
      return refuse(std::string("with ") + PyUnicode_AsUTF8(name));
    } else if (!is("context_fn") && !is("debug") && !is("determinism_check") && !is("early_stop")) {
      names.push_back(name);
      given.push_back(value);
      continue;
    }
    if (!is("use_reentrant") && !is("debug")) told.emplace_back(name, value);
  }
  reentrant = reentrant || !chosen;
  if (!plain && !(reentrant && names.empty())) return refuse("without use_reentrant");
  if (!chosen && !Warns(s_, false)) return refuse("a warning that cannot wait");
  const Ref kept = TupleOf(names);
  if (!kept) return nullptr;
  PyObject* keywords = names.empty() ? nullptr : kept.get();
  const size_t positional = given.size() - names.size();
  const auto wants = [&](PyObject* o) { return IsTensor(o) && WantsGradient(s_, o); };
  const bool without = reentrant && std::none_of(given.begin(), given.end(), wants);
  if (without && !Warns(s_, true)) return refuse("a warning that cannot wait");
  if (without || !s_.modes.now.grad || s_.modes.now.inference) {
    absl::Cleanup back = [&, grad = s_.modes.now.grad] { s_.modes.now.grad = grad; };
    s_.modes.now.grad &= !without;  // so torch calls the function there
    Ref result(Call(args[0], given.data(), positional, keywords));
    if (result && reentrant && !NoneTracked(s_, result.get(), given))
      return refuse("a result that is an input or wants gradients");
    return result.release();
  }
  const std::vector<PyObject*> before = Pending(s_);
  const size_t calls = s_.trace().calls.size(), drawn = s_.draws.size(), sizes = s_.data_sizes().all().size();
  std::vector<PyObject*> roots = {args[0]};
  roots.insert(roots.end(), given.begin(), given.end());
  noted->first = calls;
  noted->mode = s_.modes.now;
  noted->mode.autocast = {};
  const size_t answers = s_.pending().answers();
  const Reach objects = ReachFrom(s_, roots);
  std::vector<TraceId> wanting;
  for (PyObject* o : given)
    if (reentrant && wants(o)) wanting.push_back(AsTensor(o)->id);
  surface::Lowering::Reentrant region = s_.lowering().BeginReentrant(wanting);
  s_.lowering().BeginCheckpoint();
  Ref result;
  OpenCheckpoint open{open_checkpoint, reentrant, static_cast<TraceId>(s_.trace().tensors.size())};
  {
    open_checkpoint = &open;
    s_.guards().SetMarking(true);
    no_global_hooks_ = nullptr;  // they are asked for in each
    absl::Cleanup end = [&] { s_.guards().SetMarking(open_checkpoint = open.outer); };
    result = Ref(Call(args[0], given.data(), positional, keywords));
  }
  std::string why;
  try {
    s_.lowering().EndCheckpoint();
  } catch (const surface::Decline& d) {
    why = d.what();
  }
  if (!result) return nullptr;
  if (!why.empty()) return refuse(why);
  if (Pending(s_) != before) return refuse("something outside is written");
  if (objects.hidden || !(ReachFrom(s_, roots) == objects)) return refuse("an object is changed");
  if (s_.data_sizes().all().size() != sizes) return refuse("data decides a size");
  if (open.left) return refuse(open.left);
  noted->asked = MadeOutside(s_.trace(), calls, open.first, open.branches, given);
  const auto made = std::span(s_.trace().calls).subspan(calls);
  if (s_.draws.size() != drawn || (!restores && std::ranges::any_of(made, Draws, &Call::callee)))
    return refuse("other random numbers the second time");
  if (reentrant && !AllTracked(s_, result.get(), given)) return refuse("a result without gradients");
  if (s_.pending().answers() != answers) return refuse("something that was written before is read");
  if (reentrant && !FlatResults(s_, result.get(), &noted->reentrant)) return refuse("a view, or a tuple in the result");
  if (reentrant) s_.lowering().EndReentrant(std::move(region));
  noted->last = s_.trace().calls.size();
  noted->parts = PartsOf(s_.modes.now, args[0], given, names, told, reentrant);
  if (!noted->parts) return nullptr;
  noted->objects = ReachFrom(s_, roots);
  noted->roots = std::move(roots);
  s_.checkpoints.push_back(std::move(noted));
  return result.release();
}

// The objects of the program's that a segment has for ever are those that its guards have.
static void TakeFromGuards(Session& s, Recipe* recipe) {
  for (RecipeNode& n : recipe->nodes) {
    PyObject* o = n.object.get();
    const Origin* g = n.kind == RecipeNode::kConst && !IsPrimitive(o) ? s.Find(o) : nullptr;
    if (!g || g->kind != Origin::kConst || !g->source || PyType_IsSubtype(Py_TYPE(o), &PyType_Type)) continue;
    n.kind = RecipeNode::kInput;
    n.index = static_cast<int>(recipe->object_sources.size());
    n.object = Ref();
    recipe->object_sources.push_back(g->source);
  }
}

std::string MakeRecipes(Session& s, const Exit& exit) {
  for (const auto& c : s.checkpoints) {
    if (c->first == c->last) continue;
    const auto base = [&](TraceId id) { return s.trace().tensors[id].base; };
    for (TraceId id : c->asked) {  // nobody would count what is written there
      if (s.meta(id).framework != Framework::kTorch) return "it branches by an array";
      if (s.trace().tensors[id].input < 0 &&
          std::ranges::find(exit.recipe.outputs, base(id), base) != exit.recipe.outputs.end())
        return "it branches by a tensor that goes out";
    }
    const Reach now = ReachFrom(s, c->roots);
    if (!(now == c->objects)) return "an object is changed behind it";
    for (PyObject* o : now.changeable)
      if (exit.recipe.Holds(o) || (!exit.returns && s.root_cells.contains(o)))
        return "an object may be changed behind it";
    c->node = c->recipe.Add(c->parts.get());
    if (c->node < 0) return "its function cannot be made again: " + c->recipe.why();
    const std::vector<Call>& calls = s.trace().calls;
    for (TraceId id : c->recipe.outputs) {
      bool made = s.trace().tensors[id].input >= 0;
      for (size_t i = 0; !made && i < c->first; ++i)
        made = std::find(calls[i].results.begin(), calls[i].results.end(), id) != calls[i].results.end();
      if (!made) return "its arguments are other tensors by the end";
    }
    c->tensors = c->recipe.outputs;
    TakeFromGuards(s, &c->recipe);
  }
  return "";
}

std::vector<const Source*> InputsOfCheckpoints(Session& s, size_t first, std::shared_ptr<bool> never) {
  if (s.checkpoints.empty()) return {};
  guard::GuardBuilder::Part part = s.guards().TakeMarked(s.input_sources());
  const std::shared_ptr<guard::GuardSet> set = std::move(part.set);
  std::vector<const Source*> all = part.roots;
  auto found = std::make_shared<tensor::Training::Checkpoints>();
  if (const auto book = s.options().guesses; book && !s.options().whole)
    found->often = [book, never = std::move(never)] { book->checkpoints_change = *never = true; };
  const size_t read = part.tensors.size() + part.numbers.size();
  const auto num_symbols = static_cast<size_t>(s.env().num_symbols());
  std::vector<bool> tracked;  // of these tensors: do they want gradients?
  for (int i : part.tensors) tracked.push_back(s.meta(s.trace().inputs[i]).requires_grad);
  found->changed = [set, read, tracked, part = std::move(part)](PyObject* const* inputs, PyObject* const* kept,
                                                                const int64_t* symbols) {
    absl::FixedArray<PyObject*, 64> now(read);
    if (!set->Check(kept, now.data(), nullptr)) return true;
    size_t at = 0;
    for (int i : part.tensors) {
      const bool wanted = tracked[at];
      PyObject* o = now[at++];
      tensor::Meta m;
      if (!inputs[i]) continue;
      if (o != inputs[i] || (tensor::ReadMeta(o, &m) && m.requires_grad != wanted)) return true;
    }
    for (const auto& [symbol, is_float] : part.numbers) {
      PyObject* o = now[at++];
      if (is_float ? !PyFloat_CheckExact(o) : !PyLong_CheckExact(o)) return true;
      int overflow = 0;
      const int64_t value =
          is_float ? std::bit_cast<int64_t>(PyFloat_AS_DOUBLE(o)) : PyLong_AsLongLongAndOverflow(o, &overflow);
      if (overflow || value != symbols[symbol]) return true;
    }
    return false;
  };
  struct Region {
    Recipe recipe;
    int node;
    size_t first;  // of its objects
  };
  auto regions = std::make_shared<std::vector<Region>>();
  for (const auto& c : s.checkpoints) {
    found->reentrant |= !c->reentrant.empty();
    for (TraceId id : c->asked)
      if (s.trace().tensors[id].input >= 0) found->decide.push_back(s.trace().tensors[id].input);
    c->recipe.Seal();
    regions->push_back({std::move(c->recipe), c->node, all.size()});
    const std::vector<const Source*>& objects = regions->back().recipe.object_sources;
    all.insert(all.end(), objects.begin(), objects.end());
  }
  found->call = [regions, num_symbols](size_t number, PyObject* const* kept, const int64_t* symbols,
                                       PyObject* const* tensors) -> PyObject* {
    const Region& r = regions->at(number);
    std::vector<Ref> values;
    if (r.recipe.Build(kept + r.first, tensors, symbols, num_symbols, false, &values) < 0) return nullptr;
    return values[r.node].release();
  };
  found->first = first;
  found->count = all.size();
  s.read_by_checkpoints = std::move(found);
  return all;
}

// May one of them get this tensor as an argument, or keep what is made of it? The framework keeps it then, as it is.
static bool GivenToCheckpoint(Session& s, TraceId tensor) {
  // What was made of it may be kept as well: a number that decides a size, or what a selective one keeps.
  if (!s.trace().data_symbols.empty()) return true;
  return std::any_of(s.checkpoints.begin(), s.checkpoints.end(), [&](const auto& c) {
    if (c->selects) return true;
    PyObject* given = PyTuple_GET_ITEM(c->parts.get(), 1);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i) {
      PyObject* o = PyTuple_GET_ITEM(given, i);
      if (IsLazy(o)) o = reinterpret_cast<Lazy*>(o)->resolved;
      if (o && IsTensor(o) && s.pending().Original(AsTensor(o)->id) == tensor) return true;
    }
    return false;
  });
}

// By input: is one of these values made of it?
static std::vector<bool> MadeInto(const Graph& g, std::vector<bool> leads) {
  for (size_t v = g.nodes.size(); v-- > 0;)
    for (ValueId o : g.nodes[v].operands) leads[o] = leads[o] || leads[v];
  std::vector<bool> inputs;
  for (ValueId input : g.inputs) inputs.push_back(leads[input]);
  return inputs;
}

void NoteAsTheyAre(Session& s, const Trace& trace, const Graph& g, const std::vector<int>& region,
                   const std::vector<ValueId>& saved, tensor::Training* t) {
  const auto in = [&](ValueId v) { return v < region.size() ? std::abs(region[v]) : 0; };
  std::vector<bool> seen(g.nodes.size()), kept(g.nodes.size()), chosen(g.nodes.size());
  for (ValueId v : g.outputs) seen[v] = true;
  for (ValueId v = 0; v < g.nodes.size(); ++v)
    for (ValueId o : g.nodes[v].operands) seen[o] = seen[o] || !in(o) || in(o) != in(v);
  for (ValueId v : saved) {
    if (v >= g.nodes.size() || g.nodes[v].op == Op::kInput) continue;
    const bool outside = seen[v] || !in(v);
    if (outside || region[v] > 0) (outside ? kept : chosen)[v] = true;  // what is drawn is another matter
  }
  t->kept_of = MadeInto(g, std::move(kept));
  const std::vector<bool> decides = MadeInto(g, std::move(chosen));
  for (size_t i = 0; i < t->read_again.size(); ++i) {
    if (!t->read_again[i]) continue;
    const TraceId id = trace.inputs[i];
    const bool given = trace.tensors[id].meta.framework != Framework::kTorch || GivenToCheckpoint(s, id);
    t->versioned[g.outputs.size() + i] = given;
    if (decides[i] && !given) s.read_by_checkpoints->decide.push_back(static_cast<int>(i));
  }
}

void MarkCheckpoints(const Session& s, Trace* replay) {
  std::vector<std::vector<Call>> before(replay->calls.size() + 1), behind(replay->calls.size() + 1);
  for (size_t k = 0; k < s.checkpoints.size(); ++k) {
    const Checkpointed& c = *s.checkpoints[k];
    if (c.first == c.last) continue;
    Call enter, leave;
    enter.callee = "framejit._gradients.enter_checkpoint";
    leave.callee = "framejit._gradients.leave_checkpoint";
    enter.mode = leave.mode = c.mode;
    enter.args = leave.args = {Arg::Int(static_cast<int64_t>(k))};
    for (TraceId id : c.tensors) enter.args.push_back(Arg::Tensor(id));
    std::vector<Arg> results;
    for (TraceId id : c.reentrant) {  // what its calls make is another tensor than what comes out
      TraceTensor own = replay->tensors[id];
      own.id = static_cast<TraceId>(replay->tensors.size());
      if (own.base == id) own.base = own.id;
      replay->tensors.push_back(own);
      replay->tensors[id].base = id;
      for (size_t i = c.first; i < c.last; ++i) {
        Call& call = replay->calls[i];
        EachArg(call, [&](Arg& a) {
          if (a.is(Arg::Kind::kTensor) && a.t == id) a.t = own.id;
        });
        std::replace(call.results.begin(), call.results.end(), id, own.id);
        if (call.result.is(Arg::Kind::kTensor) && call.result.t == id) call.result.t = own.id;
      }
      leave.args.push_back(Arg::Tensor(own.id));
      leave.results.push_back(id);
      results.push_back(Arg::Tensor(id));
    }
    if (!results.empty()) leave.result = Arg::Seq(Arg::Kind::kTuple, std::move(results));
    before[c.first].insert(before[c.first].begin(), std::move(enter));  // what ends later is around
    behind[c.last].push_back(std::move(leave));
  }
  std::vector<Call> calls;
  std::vector<int> place(replay->calls.size());
  for (size_t i = 0; i <= replay->calls.size(); ++i) {
    for (std::vector<Call>* marks : {&behind[i], &before[i]})
      std::move(marks->begin(), marks->end(), std::back_inserter(calls));
    if (i == replay->calls.size()) break;
    place[i] = static_cast<int>(calls.size());
    calls.push_back(std::move(replay->calls[i]));
  }
  replay->calls = std::move(calls);
  for (TraceTensor& t : replay->tensors)
    if (t.view_call >= 0) t.view_call = place[t.view_call];
}

}  // namespace framejit::capture
