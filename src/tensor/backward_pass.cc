// Backward passes through the nodes of a segment. They are compiled when the first one comes whose results need it, and
// run part by part. Where they cannot be compiled, replay.cc runs the program again.
#include <absl/container/fixed_array.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <unordered_map>

#include "diag/diag.h"
#include "tensor/call_step.h"
#include "tensor/outside_batches.h"
#include "tensor/segment_node.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {
namespace {

enum class Fit : uint8_t { kOther, kStrides, kSame };

// Is o as the executable expects it, but for its strides or in all? kOther: it is of another type, say.
Fit FitOf(PyObject* o, const TensorType& type, const shape::Ints& strides, const std::vector<int64_t>& symbols) {
  Class kind = Classify(o);
  Meta m;
  if (!IsPlainTorch(kind) || !ReadMeta(o, &m) || m.dtype != type.dtype || m.rank != type.rank() ||
      !(m.device == type.device))
    return Fit::kOther;
  bool same = true, empty = false;
  for (int d = 0; d < m.rank; ++d) {
    if (m.sizes[d] != type.shape[d].Eval(symbols)) return Fit::kOther;
    empty |= m.sizes[d] == 0;
    same &= m.sizes[d] == 1 || m.strides[d] == strides[d].Eval(symbols);
  }
  return same || empty ? Fit::kSame : Fit::kStrides;
}

// Itself, or a copy with those strides. Null without an exception: kOther.
PyObject* Fitting(PyObject* o, const TensorType& type, const shape::Ints& strides,
                  const std::vector<int64_t>& symbols) {
  const Fit fit = FitOf(o, type, strides, symbols);
  if (fit == Fit::kOther) return nullptr;
  if (fit == Fit::kSame) return Py_NewRef(o);
  Ref sizes(PyTuple_New(type.rank())), steps(PyTuple_New(type.rank()));
  for (int d = 0; d < type.rank(); ++d) {
    PyTuple_SET_ITEM(sizes.get(), d, PyLong_FromLongLong(type.shape[d].Eval(symbols)));
    PyTuple_SET_ITEM(steps.get(), d, PyLong_FromLongLong(strides[d].Eval(symbols)));
  }
  Ref fresh(PyObject_CallMethod(o, "new_empty_strided", "OO", sizes.get(), steps.get()));
  return fresh ? PyObject_CallMethod(fresh.get(), "copy_", "O", o) : nullptr;
}

// Do all these gradients come through one operation that reads what was saved?
bool Spends(const autodiff::BackwardPart& part, int num_saved, const std::set<int>& gradients) {
  const Graph& g = part.graph;
  std::vector<bool> kept(g.nodes.size()), arrived(g.nodes.size());
  for (size_t i = 0; i < g.inputs.size(); ++i) (part.inputs[i] < num_saved ? kept : arrived)[g.inputs[i]] = true;
  std::vector<ValueId> readers;
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    bool reads = false;
    for (ValueId o : g.node(v).operands) {
      if (arrived[o]) arrived[v] = true;
      if (kept[o]) reads = true;
    }
    if (reads && arrived[v]) readers.push_back(v);
    kept[v] = kept[v] || (reads && !arrived[v]);
  }
  return std::any_of(readers.begin(), readers.end(), [&](ValueId reader) {
    const std::vector<bool> through = autodiff::MadeOf(g, {reader});
    for (size_t i = 0; i < g.outputs.size(); ++i)
      if (gradients.contains(part.outputs[i]) && !through[g.outputs[i]]) return false;
    return true;
  });
}

}  // namespace

int64_t NumberOfPass() {
  static PyObject* function = ResolveCallee("torch._C._current_graph_task_id");
  Ref number(function ? PyObject_CallNoArgs(function) : nullptr);
  const int64_t n = number ? PyLong_AsLongLong(number.get()) : -1;
  PyErr_Clear();
  return n;
}

// By number: of what is not reached through another one as well. Whoever looks for that other one comes by here.
std::set<int> SegmentHook::FarthestGradients(const std::vector<int>& grads) const {
  const size_t inputs = t_.wanted.size();
  std::set<int> farthest;
  for (size_t i = 0; i < grads.size(); ++i) {
    bool through = grads[i] < 0;
    for (size_t k = 0; k + inputs < grads.size(); ++k)
      through |= grads[inputs + k] >= 0 && (i < inputs ? t_.needed[k][i] : bool(t_.made_of[k][i - inputs]));
    if (!through) farthest.insert(grads[i]);
  }
  return farthest;
}

SegmentHook::Compiled* SegmentHook::For(const std::vector<bool>& tangents, const std::vector<bool>& stops,
                                        const std::vector<bool>& skipped) {
  std::lock_guard lock(mu_);
  const bool around = GoesAround();
  std::vector<bool> key = tangents;
  key.push_back(around);
  key.push_back(stops.empty());
  key.insert(key.end(), stops.begin(), stops.end());
  key.insert(key.end(), skipped.begin(), skipped.end());
  auto at = compiled_.find(key);
  if (at != compiled_.end()) return &at->second;
  Compiled c;
  try {
    Training::Backward b = t_.compile(tangents, stops, around, skipped);
    c.part = std::move(b.part);
    c.grads = std::move(b.parts.grads);
    c.tangents = std::move(b.tangents);
    c.read = std::move(b.read);
    c.count = b.parts.count;
    Trace trace;  // says that these are torch's tensors
    trace.tensors.emplace_back();
    std::vector<PyObject*> constants;
    for (const Ref& o : t_.constants) constants.push_back(o.get());
    std::vector<bool> later(c.count);  // read by later parts, or what those hand on
    for (size_t p = b.parts.parts.size(); p-- > 0;) {
      autodiff::BackwardPart& from = b.parts.parts[p];
      Part part;
      part.types.Reserve(from.graph.inputs.size());
      for (ValueId v : from.graph.inputs) part.types.Append({from.graph.node(v).type, from.graph.node(v).strides});
      std::vector<bool> mine(c.count);
      for (size_t i = 0; i < c.grads.size(); ++i)
        if (c.grads[i] >= 0 && c.part[i] == static_cast<int>(p)) mine[c.grads[i]] = true;
      for (int i : from.inputs)
        if (!later[i] && !mine[i]) part.last.push_back(i);
      for (int i = 0; i < c.count; ++i)
        if (!later[i] && mine[i]) part.done.push_back(i);
      for (int i : from.inputs) later[i] = true;
      for (int i = 0; i < c.count; ++i) later[i] = later[i] || mine[i];
      if (!stops.empty()) c.spends = Spends(from, static_cast<int>(t_.saved.size()), FarthestGradients(c.grads));
      part.inputs = std::move(from.inputs);
      part.outputs = std::move(from.outputs);
      std::vector<OutputPlan> plans;
      plans.reserve(part.outputs.size());
      for (size_t i = 0; i < part.outputs.size(); ++i)
        plans.push_back({OutputPlan::kGraphOutput, static_cast<int>(i), {}});
      part.runner = MakeGraphRunner(b.executables[p], from.graph, trace, std::move(plans), constants);
      c.parts.insert(c.parts.begin(), std::move(part));
    }
  } catch (const std::exception& e) {
    PyErr_Format(PyExc_RuntimeError, "framejit: the backward pass cannot be compiled: %s", e.what());
    return nullptr;
  }
  return &compiled_.emplace(std::move(key), std::move(c)).first->second;
}

// 1: some results were written, which this pass does not read.
int SegmentHook::LookAtWatched(CallState* s, const std::vector<bool>& tangents) {
  Compiled* c = nullptr;
  Py_ssize_t at = 0;
  int written = 0;
  const size_t outputs = t_.differentiable.size();
  for (size_t i = s->versioned ? 0 : outputs; i < (s->inputs ? t_.versioned.size() : outputs); ++i) {
    if (!t_.versioned[i]) continue;
    const bool output = i < outputs, twin = output || (s->versioned && HasTwin(s, i));
    PyObject* tensor = twin ? PyTuple_GET_ITEM(s->versioned, at) : PyTuple_GET_ITEM(s->inputs, i - outputs);
    PyObject* then = twin ? PyTuple_GET_ITEM(s->versioned, at + 1) : PyTuple_GET_ITEM(s->versions, i - outputs);
    if (twin) at += 2;
    if (then == Py_None) continue;
    Ref now(PyObject_GetAttr(tensor, Interned(kVersion)));
    const int same = now ? PyObject_RichCompareBool(now.get(), then, Py_EQ) : -1;
    if (same < 0) return -1;
    if (same) continue;
    written |= output;
    if (!c && !(c = For(tangents))) return -1;
    if (!c->read[i]) continue;
    static PyObject* const text = ResolveCallee("framejit._gradients.modified");
    Ref told(text
                 ? PyObject_CallFunction(text, "sOOOO", kModified, tensor, output ? Py_True : Py_False, now.get(), then)
                 : nullptr);
    if (told) PyErr_SetObject(PyExc_RuntimeError, told.get());
    return -1;
  }
  return written;
}

// What was saved. Null with an exception: it was freed, or written since.
Ref SegmentHook::SavedOf(CallState* s, PyObject* ctx) const {
  Ref saved(t_.saved.empty() ? PyTuple_New(0) : PyObject_GetAttr(ctx, Interned(kSaved))), all;
  for (size_t i = 0; saved && i < t_.saved.size(); ++i) {
    if (!ReadAsItIs(t_.saved[i].input)) continue;
    if (!all) all = Ref(PyTuple_New(static_cast<Py_ssize_t>(t_.saved.size())));
    if (!all) return {};
    PyTuple_SET_ITEM(all.get(), i, Py_NewRef(PyTuple_GET_ITEM(s->inputs, t_.saved[i].input)));
  }
  for (size_t i = 0; all && i < t_.saved.size(); ++i)
    if (!PyTuple_GET_ITEM(all.get(), i)) PyTuple_SET_ITEM(all.get(), i, Py_NewRef(PyTuple_GET_ITEM(saved.get(), i)));
  return all ? all : saved;
}

// What the parts of a backward pass start from. 1: not of the types that it was compiled for.
int SegmentHook::Prepare(CallState* s, PyObject* saved, Compiled* c, const std::vector<Ref>& grads, Pass* pass) {
  pass->values.resize(c->count);
  const size_t num_saved = t_.saved.size();
  for (size_t i = 0; i < num_saved; ++i) pass->values[i] = Ref::Borrow(PyTuple_GET_ITEM(saved, i));
  for (size_t i = 0; i < c->tangents.size(); ++i) pass->values[num_saved + i] = grads[c->tangents[i]];
  for (const Part& part : c->parts)
    for (size_t i = 0; i < part.inputs.size(); ++i) {
      const int number = part.inputs[i];
      if (number >= static_cast<int>(num_saved + c->tangents.size())) continue;
      Ref& value = pass->values[number];
      const auto& [type, strides] = part.types[i];
      const Fit fit = FitOf(value.get(), type, strides, *s->symbols);
      if (fit == Fit::kOther) return PyErr_Occurred() ? -1 : 1;
      if (fit == Fit::kSame || number >= static_cast<int>(num_saved)) continue;  // of gradients each part makes its own
      value = Ref(Fitting(value.get(), type, strides, *s->symbols));
      if (!value) return -1;
    }
  pass->compiled = c;
  pass->grads.resize(c->grads.size());
  return 0;
}

// The nodes of leaves to which this one leads, by leaf. (To ask for that of one leaf takes a view of it: NodeOfLeaf.)
static std::unordered_map<PyObject*, Ref> LeavesBehind(PyObject* node) {
  static PyObject* const variable = Interned("variable");
  SavedError error;
  std::unordered_map<PyObject*, Ref> leaves;
  Ref next(PyObject_GetAttrString(node, "next_functions"));
  for (Py_ssize_t i = 0; next && PyTuple_CheckExact(next.get()) && i < PyTuple_GET_SIZE(next.get()); ++i) {
    PyObject* edge = PyTuple_GET_ITEM(next.get(), i);
    PyObject* behind = PyTuple_CheckExact(edge) && PyTuple_GET_SIZE(edge) == 2 ? PyTuple_GET_ITEM(edge, 0) : Py_None;
    if (!std::strstr(Py_TYPE(behind)->tp_name, "AccumulateGrad")) continue;
    Ref leaf(PyObject_GetAttr(behind, variable));
    if (leaf) leaves.emplace(leaf.get(), Ref::Borrow(behind));
    PyErr_Clear();
  }
  PyErr_Clear();
  return leaves;
}

// What this pass frees, unless the graph is kept. -1: an earlier one has freed some of it. Where only some gradients
// are looked for, it comes through what leads to these.
int SegmentHook::Spend(CallState* s, PyObject* ctx, const std::vector<bool>& tangents) {
  static PyObject* kept = ResolveCallee("torch._C._autograd._get_current_graph_task_keep_graph");
  Ref keep(kept ? PyObject_CallNoArgs(kept) : Py_NewRef(Py_True));
  if (!keep) return -1;
  if (keep.get() == Py_True && !s->freed) return 0;
  const bool everywhere =
      std::all_of(t_.keepers.all.begin(), t_.keepers.all.end(), [](auto& keeper) { return keeper.whole(); }) ||
      GoesEverywhere(s, tangents);
  std::vector<bool> comes;  // by set of inputs: does the pass come to one of them? Asked for where it matters.
  const auto comes_to = [&](int inputs) {
    if (comes.empty()) {
      std::vector<bool> looked_for(t_.wanted.size());
      const std::unordered_map<PyObject*, Ref> leaves = LeavesBehind(ctx);
      for (size_t k = 0; s->inputs && k < looked_for.size(); ++k) {
        PyObject* input = PyTuple_GET_ITEM(s->inputs, k);
        const auto leaf = leaves.find(input);
        looked_for[k] = t_.wanted[k] && ComesTo(input, leaf == leaves.end() ? nullptr : leaf->second.get());
      }
      comes = t_.keepers.Meeting(looked_for);
    }
    return comes[inputs];
  };
  std::vector<bool> begins;  // by set of outputs: does a gradient arrive at one of them?
  for (const std::vector<bool>& outputs : t_.keepers.outputs) {
    bool any = false;
    for (size_t k = 0; !any && k < tangents.size(); ++k) any = tangents[k] && outputs[k];
    begins.push_back(any);
  }
  std::vector<bool> all = *s->spent;
  const int64_t number = t_.reached_by.empty() ? -1 : NumberOfPass();  // of the pass, which several nodes may begin
  for (size_t i = 0; i < all.size(); ++i) {
    const Training::Keepers::Keeper& keeper = t_.keepers.all[i];
    if (!begins[keeper.outputs] || !(keeper.whole() || everywhere || comes_to(keeper.inputs))) continue;
    const bool earlier = all[i] && (number < 0 || s->freeing != number);
    if (earlier && (keeper.sure || !t_.saved.empty())) return PyErr_SetString(PyExc_RuntimeError, kFreed), -1;
    all[i] = true;
  }
  if (keep.get() == Py_True) return 0;
  *s->spent = std::move(all);
  s->freed = true;
  s->freeing = number;
  return 0;
}

// Does a backward of the user's, or the function of a checkpoint, find something else? Also with an exception.
bool SegmentHook::LateChanged(CallState* s) const {
  return !t_.Changed().empty() || CheckpointsChanged(s);
}

bool SegmentHook::CheckpointsChanged(CallState* s) const {
  if (!t_.checkpoints || !s->kept) return false;
  absl::FixedArray<PyObject*, 64> inputs(t_.wanted.size());
  for (size_t i = 0; i < inputs.size(); ++i)  // of some there are copies
    inputs[i] = t_.before[i] ? nullptr : PyTuple_GET_ITEM(s->inputs, i);
  for (int i : t_.checkpoints->decide) {
    PyObject* then = PyTuple_GET_ITEM(s->versions, i);
    Ref now(then == Py_None ? nullptr : PyObject_GetAttr(PyTuple_GET_ITEM(s->inputs, i), Interned(kVersion)));
    if (now ? PyObject_RichCompareBool(now.get(), then, Py_EQ) != 1 : then != Py_None) return true;
    if ((s->shown && s->shown->contains(i)) || (s->former && s->former->contains(i))) return true;
  }
  return t_.checkpoints->changed(inputs.data(), PySequence_Fast_ITEMS(s->kept), s->symbols->data());
}

// Does a run of the framework's call the functions of checkpoints? What other memory holds was not there in the call.
bool SegmentHook::CallsAgain(CallState* s) const {
  return CheckpointsChanged(s) || (t_.checkpoints && s->kept && s->former && !s->former->empty());
}

// The framework keeps of an input that object, with the memory that it has when a derivative runs, or a view, with that
// of the call. Which it is, it says when it runs. So it does where a result was detached in place that the derivatives
// of others read, or an input that the call gave other memory has got other memory again.
bool SegmentHook::MustReplay(CallState* s) {
  if (without_ || LateChanged(s)) return true;
  for (const auto& [result, inner] : *s->retained)
    if (IsDetached(s, result)) return true;
  if (s->rebound && std::any_of(s->rebound->begin(), s->rebound->end(), [](auto& r) { return r.second.times < 0; }))
    return true;
  return s->former && std::any_of(t_.saved.begin(), t_.saved.end(), [&](const auto& v) {
           // What is saved of a leaf is the leaf itself, with the memory of now.
           const bool now = v.input >= 0 && t_.read_again[v.input] && !HasHistory(PyTuple_GET_ITEM(s->inputs, v.input));
           return s->former->contains(v.input) && !now;
         });
}

// Reads this pass nothing of what was saved?
bool SegmentHook::ReadsNone(CallState* s, const std::vector<bool>& tangents) {
  SavedError error;
  const Compiled* c = without_ || LateChanged(s) ? nullptr : For(tangents);
  PyErr_Clear();
  return c && std::none_of(c->parts.begin(), c->parts.end(), [&](const Part& part) {
           return std::any_of(part.inputs.begin(), part.inputs.end(),
                              [&](int i) { return i < static_cast<int>(t_.saved.size()); });
         });
}

// A pass has freed what was saved. What those outputs depend on of which it has spent nothing stays, as it does in the
// framework: another pass may begin there.
int SegmentHook::Stash(CallState* s, PyObject* saved) {
  if (std::find(s->spent->begin(), s->spent->end(), false) == s->spent->end()) {  // the usual pass
    Py_CLEAR(s->saved);
    return 0;
  }
  std::vector<bool> whole = t_.differentiable;
  for (size_t i = 0; i < t_.keepers.all.size(); ++i)
    for (size_t k = 0; k < whole.size() && (*s->spent)[i]; ++k)
      whole[k] = whole[k] && !t_.keepers.LeadsFrom(t_.keepers.all[i], k);
  Ref stays;
  for (size_t i = 0; i < t_.saved_for.size(); ++i) {
    bool read = false;
    for (size_t k = 0; k < whole.size(); ++k) read |= whole[k] && t_.saved_for[i][k];
    PyObject* value = PyTuple_GET_ITEM(saved, i);
    if (value == Py_None && s->saved) value = PyTuple_GET_ITEM(s->saved, i);
    if (!read || value == Py_None) continue;
    if (!stays) {
      stays = Ref(PyTuple_New(static_cast<Py_ssize_t>(t_.saved.size())));
      for (size_t k = 0; stays && k < t_.saved.size(); ++k) PyTuple_SET_ITEM(stays.get(), k, Py_NewRef(Py_None));
    }
    if (!stays) return -1;
    const bool own = t_.saved[i].input < 0;  // a result that held its own node would never go
    PyObject* kept = own ? PyObject_CallMethodNoArgs(value, Interned(kDetach)) : Py_NewRef(value);
    if (!kept) return -1;
    Py_DECREF(Py_None);
    PyTuple_SET_ITEM(stays.get(), i, kept);
  }
  Py_XSETREF(s->saved, stays.release());
  return 0;
}

// Is all that these parts read of what was saved still there, and as it was?
bool SegmentHook::ReadsStashed(CallState* s, const Compiled& c) {
  for (const Part& part : c.parts)
    for (int i : part.inputs) {
      if (i >= static_cast<int>(t_.saved.size())) continue;
      PyObject* value = PyTuple_GET_ITEM(s->saved, i);
      if (value == Py_None) return false;
      const int input = t_.saved[i].input;
      PyObject* then = input < 0 ? Py_None : PyTuple_GET_ITEM(s->versions, input);
      if (then == Py_None || ReadAsItIs(input) || t_.got.contains(num_outputs() + input)) continue;
      Ref now(PyObject_GetAttr(value, Interned(kVersion)));
      if (!now || PyObject_RichCompareBool(now.get(), then, Py_EQ) != 1) return PyErr_Clear(), false;
    }
  return true;
}

// A backward pass enters the segment. given: by output, and then what its hooks made of it. -1: an exception.
int SegmentHook::Begin(CallState* s, PyObject* ctx, std::vector<Ref>* given, Pass* pass) {
  std::vector<Ref>& grads = *given;
  std::vector<bool> tangents(grads.size());
  for (size_t i = 0; i < grads.size(); ++i) tangents[i] = bool(grads[i]);
  if (LookAtReentrant(s, tangents) < 0) return -1;
  auto at = s->routed->empty() ? s->routed->end() : s->routed->find(NumberOfPass());
  const bool routed = at != s->routed->end();
  std::vector<bool> standing;
  std::vector<Begun> begun;
  if (routed) {  // results of which others are made have got everything that is theirs
    standing = std::move(at->second.standing);
    for (auto& [output, parts] : at->second.begun)
      if (std::exchange(grads[output], Ref())) begun.push_back(std::move(parts));
    s->routed->erase(at);
  }
  if (BeginRest(s, ctx, tangents, routed, std::move(standing), given, pass) < 0) return -1;
  return begun.empty() ? 0 : AddBegun(begun, pass);
}

// tangents: of all outputs. grads: without those of results that have told already what they give.
int SegmentHook::BeginRest(CallState* s, PyObject* ctx, const std::vector<bool>& tangents, bool routed,
                           std::vector<bool> standing, std::vector<Ref>* given, Pass* pass) {
  std::vector<Ref>& grads = *given;
  std::vector<bool> stops;
  const int written = LookAtWatched(s, tangents);
  if (written < 0) return -1;
  if (routed && standing.empty()) stops = AllInner();
  if (!routed && !s->retained->empty() && Inner(s, tangents, &grads, &stops) < 0) return -1;
  const bool plain = stops.empty() || (ArePlain(grads) && !MustReplay(s));
  if (!plain && routed) standing = CutAt(std::exchange(stops, {}));
  for (size_t i = 0; !standing.empty() && i < num_outputs(); ++i)  // the others have been told by their own nodes
    if (InnerOf(i).empty() && AnswerHooks(s, i, &grads[i]) < 0) return -1;
  const bool freed = s->freed;
  if (Spend(s, ctx, tangents) < 0) return -1;
  if (ReadMode().grad || !plain) return Replay(s, grads, stops, standing, pass);  // create_graph=True
  // Freed by a pass that came another way, or written since: torch raises.
  Ref saved = SavedOf(s, ctx);
  if (!saved && stops.empty() && ReadsNone(s, tangents)) {
    PyErr_Clear();
    saved = Ref(PyTuple_New(static_cast<Py_ssize_t>(t_.saved.size())));
    for (size_t i = 0; saved && i < t_.saved.size(); ++i) PyTuple_SET_ITEM(saved.get(), i, Py_NewRef(Py_None));
  }
  if (!saved && freed && s->saved && stops.empty()) {
    SavedError error;
    const Compiled* c = MustReplay(s) ? nullptr : For(tangents);
    if (c && ReadsStashed(s, *c)) saved = Ref::Borrow(s->saved);
    PyErr_Clear();
  }
  if (saved) {
    PyErr_Clear();
  } else {
    bool other = written || freed;
    if (!other) {  // an input was: one that this pass does not depend on?
      SavedError error;
      const int elsewhere = Written(s, nullptr), here = Written(s, &tangents);
      other = elsewhere == 1 && here == 0;
      PyErr_Clear();
    }
    if (!other) return -1;
    PyErr_Clear();
    return Replay(s, grads, stops, {}, pass);
  }
  if (MustReplay(s)) return PyErr_Occurred() ? -1 : Replay(s, grads, stops, {}, pass);
  pass->grads.resize(t_.wanted.size());
  if (std::find(tangents.begin(), tangents.end(), true) == tangents.end()) return 0;
  if (!stops.empty()) {
    if (InStages(s, saved.get(), stops, grads, routed, pass) < 0) return -1;
  } else {
    Compiled* c = For(tangents, {}, Skipped(s));
    if (!c) {  // it needs what was not saved, where only some results lead to the loss
      diag::Log(diag::Channel::perf_, "a backward pass runs through the framework: " + TakeErrorText());
      return Replay(s, grads, stops, {}, pass);
    }
    const int fits = c ? Prepare(s, saved.get(), c, grads, pass) : -1;
    if (fits) return fits < 0 ? -1 : Replay(s, grads, stops, {}, pass);
  }
  // Nobody else needs what was saved, unless the graph is kept: it goes as the pass proceeds.
  if (s->freed && !t_.saved_for.empty() && Stash(s, saved.get()) < 0) return -1;
  Ref cleared(PyObject_CallMethodNoArgs(ctx, Interned(kClear)));
  if (!cleared) PyErr_Clear();
  return 0;
}

int SegmentHook::Go(CallState* s, int number, Pass* pass) {
  const Part& part = pass->compiled->parts[number];
  std::vector<Ref> taken;
  for (size_t i = 0; i < part.inputs.size(); ++i) {
    const Ref& value = pass->values[part.inputs[i]];
    const bool saved = part.inputs[i] < static_cast<int>(t_.saved.size());  // fits
    taken.emplace_back(saved ? Py_NewRef(value.get())
                             : Fitting(value.get(), part.types[i].first, part.types[i].second, *s->symbols));
    if (!taken.back()) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "framejit: a value of the backward pass is another");
      return -1;
    }
  }
  for (int i : part.last) pass->values[i] = Ref();
  std::vector<PyObject*> out(part.outputs.size());
  const OfCall call(s->own);
  if (!part.outputs.empty() && part.runner->RunTaking(&taken, s->symbols->data(), out.data()) != RunEnd::kOk) return -1;
  for (size_t i = 0; i < out.size(); ++i) pass->values[part.outputs[i]] = Ref(out[i]);
  const Compiled& c = *pass->compiled;
  for (size_t i = 0; i < c.grads.size(); ++i)
    if (c.part[i] == number && c.grads[i] >= 0) pass->grads[i] = pass->values[c.grads[i]];
  for (int i : part.done) pass->values[i] = Ref();  // who accumulates it may keep it as it is
  return 0;
}

// A whole pass, of one part. A function of the program's that gives no gradient where one was expected is known by
// then, and this pass and those that follow go through the framework.
int SegmentHook::BeginAndGo(CallState* s, PyObject* ctx, PyObject* const* given, Py_ssize_t n, Pass* pass) {
  if (n != static_cast<Py_ssize_t>(t_.differentiable.size())) {
    PyErr_Format(PyExc_SystemError, "framejit: %zd gradients arrived", n);
    return -1;
  }
  std::vector<Ref> grads(n);
  for (Py_ssize_t i = 0; i < n; ++i)
    if (t_.differentiable[i] && given[i] != Py_None) grads[i] = Ref::Borrow(given[i]);
  if (Begin(s, ctx, &grads, pass) < 0) return -1;
  if (!pass->compiled || Go(s, 0, pass) == 0) return 0;
  if (num_parts() > 1) return -1;
  Answering answer;
  if (!answer.gave_none()) return -1;
  without_ = true;
  return Replay(s, grads, {}, {}, pass);
}

// Gives what the node of this part returns. The rest of the pass is kept for the next one's.
PyObject* SegmentHook::Answer(CallState* head, int part, Pass pass, int64_t number) {
  const std::vector<bool> skipped = Skipped(head);
  for (int i : edges_[part]) {
    const bool told = (!pass.unanswered.empty() && pass.unanswered[i]) || (!skipped.empty() && skipped[i]);
    const bool none = head->inputs && !pass.grads[i] && !told;
    if (none && KeepNoneFromHooks(PyTuple_GET_ITEM(head->inputs, i)) < 0) return nullptr;
  }
  std::vector<PyObject*> all = {Py_NewRef(Py_None)};
  if (part + 1 < num_parts()) {
    if (!link_) link_ = Ref(HiddenScalar("zeros", t_.device));
    PyObject* link = Py_XNewRef(link_.get());
    if (!link) return Py_DECREF(all[0]), nullptr;
    all.push_back(link);
  }
  for (int i : edges_[part]) all.push_back(pass.grads[i] ? pass.grads[i].release() : Py_NewRef(Py_None));
  if (part == 0 && edges_[0].empty()) all.push_back(Py_NewRef(Py_None));
  if (part + 1 < num_parts()) {
    if (KeepPass(head, number, std::move(pass)) < 0) {
      for (PyObject* o : all) Py_XDECREF(o);
      return nullptr;
    }
  }
  PyObject* result = PyTuple_New(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (result) {
      PyTuple_SET_ITEM(result, i, all[i]);
    } else {
      Py_DECREF(all[i]);
    }
  }
  return result;
}

void SegmentHook::NoteUnanswered(size_t output, Pass* pass) const {
  if (t_.unanswered.empty()) return;
  pass->unanswered.resize(t_.wanted.size());
  for (size_t i = 0; i < t_.wanted.size(); ++i) pass->unanswered[i] = pass->unanswered[i] || t_.unanswered[output][i];
}

SegmentHook::Pass SegmentHook::TakePass(CallState* head, int64_t number) {
  Pass pass;
  if (auto at = head->passes->find(number); at != head->passes->end()) {
    pass = std::move(at->second);
    head->passes->erase(at);
  }
  pass.grads.resize(t_.wanted.size());
  pass.given.resize(num_outputs());
  pass.taken.resize(num_outputs());
  return pass;
}

// Until the pass ends: one that looks for some gradients only may never take what is kept for it.
int SegmentHook::KeepPass(CallState* head, int64_t number, Pass pass) {
  if (!pass.ends) {
    if (ForgetAtEnd(head, number) < 0) return -1;
    pass.ends = true;
  }
  head->passes->insert_or_assign(number, std::move(pass));
  return 0;
}

// As the framework's engine ends the pass that it is at. Those that fail are not told of: their number is limited, and
// the last ones stay.
int SegmentHook::ForgetAtEnd(CallState* head, int64_t number) {
  static PyMethodDef forget = {"forget",
                               [](PyObject* of, PyObject*) {
                                 auto* s = reinterpret_cast<CallState*>(PyTuple_GET_ITEM(of, 0));
                                 const int64_t pass = PyLong_AsLongLong(PyTuple_GET_ITEM(of, 1));
                                 auto left = s->passes->extract(pass);  // what it held dies when it has left
                                 s->routed->erase(pass);
                                 return Py_NewRef(Py_None);
                               },
                               METH_NOARGS, nullptr};
  static PyObject* const at_end = ResolveCallee("torch.autograd.Variable._execution_engine.queue_callback");
  Ref of(Py_BuildValue("(OL)", head, static_cast<long long>(number)));
  Ref callback(of ? PyCFunction_New(&forget, of.get()) : nullptr);
  Ref done(callback && at_end ? PyObject_CallOneArg(at_end, callback.get()) : nullptr);
  if (!done) return -1;
  constexpr size_t kMost = 1024;
  if (head->passes->size() >= kMost) head->passes->erase(head->passes->begin());
  if (head->routed->size() >= kMost) head->routed->erase(head->routed->begin());
  return 0;
}

// The segment's node and those of groups each hand on the gradients of some inputs. The first that runs computes all:
// the segment's, unless only inputs of groups are looked for. What arrives later is added.
PyObject* SegmentHook::InGroups(CallState* s, CallState* head, PyObject* ctx, PyObject* const* grads, int64_t number) {
  Pass pass = TakePass(head, number), more;
  std::vector<PyObject*> given(num_outputs(), Py_None);
  std::vector<Ref> held = std::exchange(pass.given, std::vector<Ref>(num_outputs()));
  bool any = false;
  for (size_t k = 0; k < given.size(); ++k) {
    PyObject* grad = s == head ? grads[k] : held[k] ? held[k].get() : Py_None;
    if (grad == Py_None || !t_.differentiable[k] || pass.taken[k]) continue;
    pass.taken[k] = any = true;
    given[k] = grad;
  }
  if (any && BeginAndGo(head, ctx, given.data(), static_cast<Py_ssize_t>(given.size()), &more) < 0) return nullptr;
  for (size_t i = 0; any && i < pass.grads.size(); ++i) {
    if (!more.grads[i]) continue;
    pass.grads[i] = pass.grads[i] ? Ref(PyNumber_Add(pass.grads[i].get(), more.grads[i].get())) : more.grads[i];
    if (!pass.grads[i]) return nullptr;
  }
  if (!more.unanswered.empty()) pass.unanswered = std::move(more.unanswered);
  Pass own;
  own.unanswered = pass.unanswered;
  own.grads.resize(pass.grads.size());
  for (int i : edges_[s->part]) own.grads[i] = std::move(pass.grads[i]);
  for (size_t k = 0; k < pass.taken.size(); ++k)
    if (pass.taken[k]) NoteUnanswered(k, &own);
  if (KeepPass(head, number, std::move(pass)) < 0) return nullptr;
  return Answer(head, s->part, std::move(own), number);
}

static int64_t passes_begun = 0;  // The GIL protects it.
int64_t BackwardPasses() {
  return passes_begun;
}

PyObject* SegmentHook::Backward(CallState* s, PyObject* ctx, PyObject* const* arrived, Py_ssize_t n) {
  passes_begun += !timed_calls;
  CallState* head = s->head ? reinterpret_cast<CallState*>(s->head) : s;
  PassComesTo(head->measured ? *head->measured : nullptr);
  if (s->part < 0) return Routed(head, -1 - s->part, ctx, arrived[0]);
  absl::FixedArray<PyObject*, 16> grads(arrived, arrived + n);
  if (s == head && n == static_cast<Py_ssize_t>(num_outputs())) std::swap(grads[0], grads[first_]);
  Pass pass;
  const int64_t number = NumberOfPass();
  if (!t_.reached_by.empty()) return InGroups(s, head, s->segment ? s->segment : ctx, grads.data(), number);
  if (s == head) {
    if (BeginAndGo(s, ctx, grads.data(), n, &pass) < 0) return nullptr;
    for (size_t k = 0; k < num_outputs(); ++k)
      if (grads[k] != Py_None) NoteUnanswered(k, &pass);
    return Answer(head, s->part, std::move(pass), number);
  } else if (auto at = head->passes->find(number); at != head->passes->end()) {
    pass = std::move(at->second);
    head->passes->erase(at);
  } else {
    return PyErr_Format(PyExc_RuntimeError, "framejit: this backward pass was not begun");
  }
  if (pass.compiled && Go(head, s->part, &pass) < 0) return nullptr;
  return Answer(head, s->part, std::move(pass), number);
}

// Does output k depend on input i, or on what that got in the graph, which is read by the input?
bool SegmentHook::Reads(size_t k, int i) const {
  if (t_.needed[k][i] || !t_.rebound.contains(i)) return t_.needed[k][i];
  bool known = false;
  for (const auto& [given, input] : t_.got) {
    if (input != i) continue;
    known = true;
    if (given >= num_outputs() ? t_.needed[k][given - num_outputs()] : given == k || t_.made_of[k][given]) return true;
  }
  return !known;
}

// Were inputs written since the call, of those that the outputs with these tangents depend on (null: of all)?
int SegmentHook::Written(CallState* s, const std::vector<bool>* tangents) {
  for (size_t i = 0; i < t_.wanted.size(); ++i) {
    bool needed = !tangents;
    for (size_t k = 0; tangents && k < tangents->size(); ++k) needed |= (*tangents)[k] && Reads(k, static_cast<int>(i));
    PyObject* then = PyTuple_GET_ITEM(s->versions, i);
    if (!needed || then == Py_None) continue;
    if (t_.checkpoints && ReadAsItIs(static_cast<int>(i)) && !t_.kept_of[i])
      continue;  // checkpoints read what is there by now
    Ref now(PyObject_GetAttr(PyTuple_GET_ITEM(s->inputs, i), Interned(kVersion)));
    if (!now) PyErr_Clear();
    const int same = now ? PyObject_RichCompareBool(now.get(), then, Py_EQ) : 0;
    if (same <= 0) return same < 0 ? -1 : 1;
  }
  return 0;
}

}  // namespace framejit::tensor
