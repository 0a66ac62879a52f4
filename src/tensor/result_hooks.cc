// Hooks of results, and retain_grad(). All results of a segment hang on one node: those of which others were made get a
// part of their gradients inside of it. The pass is cut there, so that hooks see all that eager's see.
#include <algorithm>

#include "tensor/call_step.h"
#include "tensor/import.h"
#include "tensor/segment_node.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {
namespace {

// A function of framejit._gradients, called. A new reference, or null with the exception set.
template <typename... Args>
PyObject* Ask(const char* name, Args... args) {
  static PyObject* const module = Import("framejit._gradients");
  Ref function(module ? PyObject_GetAttrString(module, name) : nullptr);
  return function ? PyObject_CallFunctionObjArgs(function.get(), args..., nullptr) : nullptr;
}

// No gradient arrived, though the node runs. False: an exception.
bool TellNone(PyObject* hooks) {
  Ref all(PyDict_Values(hooks));
  for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(all.get()); ++i) {
    if (!Ref(Ask("tell_none", PyList_GET_ITEM(all.get(), i)))) return false;
  }
  return bool(all);
}

// What the hooks of a dict make of a gradient. Null with the exception set.
Ref Through(PyObject* hooks, Ref grad) {
  Ref all(PyDict_Values(hooks));
  for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(all.get()); ++i) {
    PyObject* hook = PyList_GET_ITEM(all.get(), i);
    Ref other(PyObject_CallOneArg(hook, grad.get()));
    if (!other) return {};
    if (other.get() == Py_None) continue;
    if (other.get() != grad.get() && !Ref(Ask("check_answer", hook, grad.get(), other.get()))) return {};
    grad = std::move(other);
  }
  return all ? grad : Ref();
}

PyObject* CallHooks(PyObject* hooks, PyObject* grad) {  // as a hook
  if (grad != Py_None) return Through(hooks, Ref::Borrow(grad)).release();
  return TellNone(hooks) ? Py_NewRef(Py_None) : nullptr;
}
PyMethodDef call_hooks = {"framejit_hooks", CallHooks, METH_O, nullptr};

// Does the pass, which looks for some gradients only, go on behind this node? -1: an exception.
int GoesOn(PyObject* node) {
  Ref next(PyObject_GetAttrString(node, "next_functions"));
  if (!next) return -1;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(next.get()); ++i) {
    PyObject* to = PyTuple_GET_ITEM(PyTuple_GET_ITEM(next.get(), i), 0);
    const int runs = to == Py_None ? 0 : WillRun(to);
    if (runs < 0) PyErr_Clear();  // of a leaf that is looked for it is not said
    if (runs) return 1;
  }
  return 0;
}

// As a hook of a result whose hooks are called when its node runs: it does not where that result is all that is looked
// for.
PyObject* CallHooksAtTheEnd(PyObject* where, PyObject* grad) {
  static PyObject* current = ResolveCallee("torch._C._current_autograd_node");
  Ref node(current ? PyObject_CallNoArgs(current) : nullptr);
  const int on = node ? GoesOn(node.get()) : -1;
  if (on < 0) return nullptr;
  // Borrowed: who calls this keeps the call. Nobody would find a reference from here that closes a circle.
  auto* s = static_cast<CallState*>(PyCapsule_GetPointer(where, nullptr));
  const auto output = static_cast<int>(reinterpret_cast<intptr_t>(PyCapsule_GetContext(where)));
  auto at = s->hooks->find(output);
  if (on || at == s->hooks->end()) return Py_NewRef(Py_None);
  const Ref hooks = at->second;
  return CallHooks(hooks.get(), grad);
}
PyMethodDef call_at_the_end = {"framejit_hooks", CallHooksAtTheEnd, METH_O, nullptr};

// A result, if it keeps its gradient and is still the result of this call; else null. A tensor that was viewed in place
// since then (`unsqueeze_`), or detached, keeps what it would have kept before.
Ref Retaining(const CallState::Inner& result, CallState* head) {
  Ref tensor(PyObject_CallNoArgs(result.weak.get()));
  Ref answer(tensor && tensor.get() != Py_None ? PyObject_GetAttrString(tensor.get(), "retains_grad") : nullptr);
  Ref node(answer && answer.get() == Py_True ? PyObject_GetAttrString(tensor.get(), "grad_fn") : nullptr);
  for (Ref behind; node && node.get() != Py_None && !PyObject_HasAttr(node.get(), Interned(kState));) {
    behind = Ref(Ask("left_behind"));
    const int views = behind ? PySet_Contains(behind.get(), reinterpret_cast<PyObject*>(Py_TYPE(node.get()))) : -1;
    Ref next(views > 0 ? PyObject_GetAttrString(node.get(), "next_functions") : nullptr);
    Ref edge(next ? PySequence_GetItem(next.get(), 0) : nullptr);
    node = Ref(edge ? PySequence_GetItem(edge.get(), 0) : nullptr);
  }
  if (node && node.get() == Py_None) {  // detached; had it been written before that, its gradient would be that one's
    Ref version(PyObject_GetAttr(tensor.get(), Interned(kVersion)));
    const bool same = version && PyLong_AsLongLong(version.get()) == result.version;
    PyErr_Clear();
    return same ? std::move(tensor) : Ref();
  }
  return MadeBy(node.get(), head) ? std::move(tensor) : Ref();  // of a written one it is another's
}

// The same of hooks that are called when a leaf's gradient has been added up.
int KeepNoneFromLaterHooks(PyObject* input) {
  Ref hooks(PyObject_GetAttrString(input, "_post_accumulate_grad_hooks"));
  if (!hooks) return -1;
  if (!PyDict_Check(hooks.get()) || !PyDict_GET_SIZE(hooks.get())) return 0;
  return Ref(Ask("only_with_gradient", hooks.get(), input)) ? 0 : -1;
}

}  // namespace

int KeepNoneFromHooks(PyObject* input) {
  Ref hooks(PyObject_GetAttrString(input, "_backward_hooks"));
  if (!hooks) return -1;
  if (!PyDict_Check(hooks.get())) return KeepNoneFromLaterHooks(input);
  return Ref(Ask("keep_none_from", hooks.get())) ? KeepNoneFromLaterHooks(input) : -1;
}

namespace {

// The dict of hooks of a node of the framework's, which those that come later go to as well.
Ref HooksOfNode(PyObject* node, const char* registers) {
  Ref handle(PyObject_CallMethod(node, registers, "O", Py_None));
  Ref weak(handle ? PyObject_GetAttrString(handle.get(), "hooks_dict_ref") : nullptr);
  Ref dict(weak ? PyObject_CallNoArgs(weak.get()) : nullptr);
  Ref removed(dict ? PyObject_CallMethod(handle.get(), "remove", nullptr) : nullptr);
  return removed && PyDict_Check(dict.get()) ? std::move(dict) : Ref();
}

// Under which numbers the hooks of a view's node stand among those of results.
int BeforeNode(size_t view) {
  return -1 - 2 * static_cast<int>(view);
}
int BehindNode(size_t view) {
  return -2 - 2 * static_cast<int>(view);
}

}  // namespace

// A view that others are made of hangs on a node of the framework's, which calls its hooks. Those others have edges to
// it, and give it its gradients along these only if somebody wants to know: all its hooks, also those that come later,
// are in this dict.
int SegmentHook::WatchView(CallState* s, size_t result, PyObject* view) {
  static PyObject* const type = ResolveCallee("collections.OrderedDict");
  Ref hooks(type ? PyObject_CallNoArgs(type) : nullptr), node(PyObject_GetAttrString(view, "grad_fn"));
  if (!hooks || !node || PyObject_SetAttr(view, Interned(kHooks), hooks.get()) < 0) return -1;
  Ref done(PyObject_CallMethod(node.get(), "_register_hook_dict", "O", view));
  Ref before(done ? HooksOfNode(node.get(), "register_prehook") : Ref());
  Ref behind(before ? HooksOfNode(node.get(), "register_hook") : Ref());
  if (!behind || Retained(s, result, view) < 0) return -1;
  s->hooks->emplace(static_cast<int>(result), std::move(hooks));
  s->hooks->emplace(BeforeNode(result), std::move(before));
  s->hooks->emplace(BehindNode(result), std::move(behind));
  return 0;
}

bool SegmentHook::HasHooks(CallState* s, int number) {
  auto at = s->hooks->find(number);
  return at != s->hooks->end() && PyDict_Size(at->second.get()) > 0;
}

// Does somebody want to know what such views are given?
bool SegmentHook::ViewsWatched(CallState* s) {
  for (size_t i = num_outputs(); i < num_results(); ++i) {
    if (HasHooks(s, static_cast<int>(i)) || HasHooks(s, BeforeNode(i)) || HasHooks(s, BehindNode(i))) return true;
    Ref view = Alive(s, static_cast<int>(i));
    Ref keeps(view ? PyObject_GetAttrString(view.get(), "retains_grad") : nullptr);
    PyErr_Clear();
    if (keeps.get() == Py_True) return true;
  }
  return false;
}

// own: the dict that torch's node gets in place of the tensor's.
int SegmentHook::AddHooks(CallState* s, long i, PyObject* hooks, PyObject* own) {
  Ref key(PyLong_FromLong(0));
  if (!key) return -1;
  Ref caller;
  if (HasInner(i)) {
    s->hooks->insert_or_assign(static_cast<int>(i), Ref::Borrow(hooks));
    Ref where(PyCapsule_New(s, nullptr, nullptr));
    if (!where || PyCapsule_SetContext(where.get(), reinterpret_cast<void*>(static_cast<intptr_t>(i)))) return -1;
    caller = Ref(PyCFunction_New(&call_at_the_end, where.get()));
  } else {
    caller = Ref(PyCFunction_New(&call_hooks, hooks));
  }
  return caller ? PyDict_SetItem(own, key.get(), caller.get()) : -1;
}

// What arrives from outside at results of which others were made: their hooks are called here, unless a gradient comes
// from those others, too. Then all of them are stops, so that their hooks are called one after the other.
int SegmentHook::Inner(CallState* s, const std::vector<bool>& tangents, std::vector<Ref>* grads,
                       std::vector<bool>* stops) {
  std::vector<int> hooked;
  bool inner = false;
  for (auto& [i, inner_result] : *s->retained) {
    if (!HasInner(i)) continue;
    if (i >= static_cast<int>(num_outputs())) continue;  // those who are made of a view give it its gradients (Routed)
    auto at = s->hooks->find(i);
    if ((at == s->hooks->end() || !PyDict_Size(at->second.get())) && !Retaining(inner_result, s)) continue;
    hooked.push_back(i);
    for (size_t k = 0; k < tangents.size(); ++k) inner |= tangents[k] && t_.made_of[k][i];
  }
  if (inner) {
    stops->resize(num_results());
    for (int i : hooked) (*stops)[i] = true;
    return 0;
  }
  std::stable_sort(hooked.begin(), hooked.end(), [&](int a, int b) { return t_.made[a] > t_.made[b]; });
  for (int i : hooked) {
    auto at = s->hooks->find(i);
    PyObject* hooks = at == s->hooks->end() || !PyDict_Size(at->second.get()) ? nullptr : at->second.get();
    if (Ref& grad = (*grads)[i]; hooks && grad) {
      Ref given = grad;
      grad = Through(hooks, grad);
      if (!grad || Retain(s, i, grad.get(), given.get()) < 0) return -1;
    } else if (hooks && !grad && OwnNodeRuns(s, i) && !TellNone(hooks)) {
      return -1;
    }
  }
  return 0;
}

// Does the node on which this result hangs run in this pass? The segment's does.
bool SegmentHook::OwnNodeRuns(CallState* s, int output) {
  if (InnerOf(output).empty() && GroupsOf(output).empty()) return true;
  SavedError error;
  Ref own = Alive(s, output), node(own ? PyObject_GetAttrString(own.get(), "grad_fn") : nullptr);
  const bool runs = !node || node.get() == Py_None || WillRun(node.get()) != 0;
  PyErr_Clear();
  return runs;
}

// A result keeps its gradient, if it was asked to. given: what torch has added to it already.
int SegmentHook::Retain(CallState* s, size_t output, PyObject* total, PyObject* given) {
  if (total == Py_None || total == given) return 0;
  Ref tensor = Retaining(s->retained->at(static_cast<int>(output)), s);
  if (!tensor) return 0;
  Ref now(PyObject_GetAttrString(tensor.get(), "grad")), sum;
  if (!now) return -1;
  if (now.get() == Py_None) {
    sum = Ref::Borrow(total);
  } else if (!given) {
    sum = Ref(PyNumber_Add(now.get(), total));
  } else {
    Ref same(PyObject_CallMethod(now.get(), "equal", "O", given));
    Ref more(same ? PyNumber_Subtract(total, given) : nullptr);
    if (!more) return -1;
    sum = same.get() == Py_True ? Ref::Borrow(total) : Ref(PyNumber_Add(now.get(), more.get()));
  }
  const Ref kept(sum ? Ask("keep", tensor.get(), sum.get()) : nullptr);
  return kept ? 0 : -1;
}

// The hooks of a result are those of the tensor that stands for it in a replay. The list that its gradient goes to
// then. own: where the replay's gradients are differentiated, what comes to that tensor goes to the result itself.
Ref SegmentHook::Hang(CallState* s, size_t output, PyObject* tensor, PyObject* own) {
  Ref kept(PyList_New(0));
  std::vector<Ref> hooks;
  if (auto at = s->hooks->find(static_cast<int>(output)); at != s->hooks->end())
    hooks.emplace_back(PyCFunction_New(&call_hooks, at->second.get()));
  hooks.emplace_back(kept ? PyObject_GetAttrString(kept.get(), "append") : nullptr);
  for (Ref& hook : hooks) {
    if (hook && own) hook = Ref(PyObject_CallMethod(own, "at_first", "O", hook.get()));
    Ref handle(hook ? PyObject_CallMethod(tensor, "register_hook", "O", hook.get()) : nullptr);
    if (!handle) return {};
  }
  return kept;
}

std::vector<int> SegmentHook::GroupsOf(size_t output) const {
  std::vector<int> groups;
  for (size_t g = 0; g < t_.reached_by.size(); ++g)
    if (t_.reached_by[g][output]) groups.push_back(static_cast<int>(g));
  return groups;
}

Ref NodeOfLeaf(PyObject* leaf) {
  ModeSwitch modes;
  modes.Set({true, false});
  Ref view(PyObject_CallMethod(leaf, "view_as", "O", leaf));
  Ref made(view ? PyObject_GetAttrString(view.get(), "grad_fn") : nullptr);
  Ref next(made ? PyObject_GetAttrString(made.get(), "next_functions") : nullptr);
  Ref first(next ? PySequence_GetItem(next.get(), 0) : nullptr);
  return first ? Ref(PySequence_GetItem(first.get(), 0)) : Ref();
}

PyObject* Nobody(PyObject** node) {
  static PyObject *leaf = nullptr, *accumulates = nullptr;
  if (!leaf) {
    Ref fresh(HiddenScalar("zeros", Device{}));
    Ref wants(fresh ? PyObject_CallMethod(fresh.get(), "requires_grad_", nullptr) : nullptr);
    accumulates = wants ? NodeOfLeaf(fresh.get()).release() : nullptr;
    if (!accumulates) return nullptr;
    leaf = fresh.release();
  }
  *node = accumulates;
  return leaf;
}

int WillRun(PyObject* node) {
  static PyObject* function = ResolveCallee("torch._C._will_engine_execute_node");
  Ref answer(function ? PyObject_CallOneArg(function, node) : nullptr);
  return answer ? PyObject_IsTrue(answer.get()) : -1;
}

bool ComesTo(PyObject* tensor, PyObject* of_leaf) {
  SavedError error;
  Ref node(PyObject_GetAttrString(tensor, "grad_fn"));
  if (node.get() == Py_None) node = of_leaf ? Ref::Borrow(of_leaf) : NodeOfLeaf(tensor);
  const int runs = node ? WillRun(node.get()) : -1;
  PyErr_Clear();  // of a leaf that is looked for it is not said
  return runs != 0;
}

// Does the pass come by the results of reentrant checkpoints?
bool SegmentHook::GoesAround() const {
  static PyObject* const valid = ResolveCallee("torch.autograd._is_checkpoint_valid");
  if (t_.reentrant.empty()) return false;
  SavedError error;
  Ref answer(valid ? PyObject_CallNoArgs(valid) : nullptr);
  PyErr_Clear();
  return answer.get() == Py_False;
}

// 1: what the pass looks for is read in such a checkpoint, and has nothing from there. -1: the framework refuses the
// pass.
int SegmentHook::LookAtReentrant(CallState* head, const std::vector<bool>& tangents) {
  if (!GoesAround()) return 0;
  bool around = false;
  for (const Training::Reentrant& r : t_.reentrant) {
    bool reached = false, comes = false;
    for (size_t k = 0; k < tangents.size(); ++k) reached |= tangents[k] && r.outputs[k];
    if (!reached) continue;
    for (size_t i = 0; i < r.inputs.size(); ++i)
      comes |= r.inputs[i] && head->inputs && ComesTo(PyTuple_GET_ITEM(head->inputs, i));
    for (size_t i = 0; i < r.results.size(); ++i) {
      const Ref own = r.results[i] ? Alive(head, static_cast<int>(i)) : Ref();
      comes |= own && ComesTo(own.get());
    }
    if (comes) return PyErr_SetString(PyExc_RuntimeError, kReentrant), -1;
    for (size_t i = 0; i < r.reads.size(); ++i)
      around |= r.reads[i] && head->inputs && ComesTo(PyTuple_GET_ITEM(head->inputs, i));
  }
  return around;
}

// A result that is made of others has a node of its own before the segment's, with edges to those others: so the
// framework finds the way from the one to the other. So has a result whose gradient reaches groups of inputs, with
// edges to their nodes. own: the result; on_segment: the tensor that stands for it there; groups: the results of those
// nodes.
Ref SegmentHook::Route(PyObject* head, size_t output, PyObject* own, PyObject* on_segment, PyObject* const* results,
                       const std::vector<Ref>& groups) {
  PyObject* node;
  PyObject* nobody = Nobody(&node);
  auto* s = nobody ? NewState(shared_from_this(), -1 - static_cast<int>(output), head) : nullptr;
  if (!s) return {};
  Ref state(reinterpret_cast<PyObject*>(s));
  s->outputs = PyTuple_Pack(1, own);
  s->saved = PyTuple_New(0);
  s->opaque = PyTuple_New(0);
  PyObject_GC_Track(state.get());
  if (!s->outputs || !s->saved || !s->opaque) return {};
  std::vector<PyObject*> call = {state.get(), on_segment};
  for (int i : InnerOf(output)) call.push_back(results[i]);
  for (int g : GroupsOf(output)) call.push_back(groups[g].get());
  call.push_back(nobody);
  Ref result(PyObject_Vectorcall(ApplyNode(), call.data(), call.size(), nullptr));
  return result ? Ref::Borrow(PyTuple_GET_ITEM(result.get(), 0)) : Ref();
}

// Are these what compiled code can read, and not gradients of a batch (is_grads_batched), say? Null ones are.
bool ArePlain(const std::vector<Ref>& grads) {
  SavedError error;
  Meta m;
  return std::all_of(grads.begin(), grads.end(), [&](const Ref& grad) {
    return !grad || (IsPlainTorch(Classify(grad.get())) && ReadMeta(grad.get(), &m));
  });
}

// Has a pass freed what an operation between this result and those that it is made of has kept?
bool SegmentHook::SpentBetween(const CallState& head, size_t output) const {
  for (size_t k = 0; k < t_.keepers.all.size(); ++k) {
    const auto comes_by = [&](int i) {
      return static_cast<size_t>(i) < num_outputs() && t_.keepers.LeadsFrom(t_.keepers.all[k], i);
    };
    const std::vector<int>& inner = InnerOf(output);
    if ((*head.spent)[k] && comes_by(static_cast<int>(output)) && std::none_of(inner.begin(), inner.end(), comes_by))
      return true;
  }
  return false;
}

// Gives an output's gradients to the results that it is made of, which are stops. It is -1 with an exception.
int SegmentHook::ToInner(CallState* head, size_t output, PyObject* segment, PyObject* grad, Given* inner,
                         Begun* begun) {
  const size_t n = t_.differentiable.size();
  std::vector<bool> tangents(n), stops(n);
  std::vector<Ref> grads(n);
  tangents[output] = true;
  grads[output] = Ref::Borrow(grad);
  const auto again = [&] { return ToInnerAgain(head, output, CutAt(AllInner()), grad, false, inner, begun); };
  if (!ArePlain(grads) || MustReplay(head)) return again();
  stops = AllInner();
  stops[output] = false;
  const int written = LookAtWatched(head, tangents);
  if (written < 0 || LookAtReentrant(head, tangents) < 0) return -1;
  if (written) return again();
  Ref saved = SavedOf(head, segment);
  // Freed by a pass that came another way: what this one comes by on its way to those results is still there.
  if (!saved && head->freed && !SpentBetween(*head, output)) return PyErr_Clear(), again();
  Compiled* c = saved ? For(tangents, stops, Skipped(head)) : nullptr;
  Pass part;
  const int fits = c ? Prepare(head, saved.get(), c, grads, &part) : -1;
  if (fits > 0) PyErr_SetString(PyExc_RuntimeError, "framejit: a gradient of another type or shape than its tensor's");
  if (fits) return -1;
  if (Go(head, 0, &part) < 0) {
    Answering answer;
    if (!answer.gave_none()) return -1;
    without_ = true;
    return again();
  }
  for (int i : InnerOf(output)) inner->emplace(i, part.grads[t_.wanted.size() + i]);
  part.grads.resize(t_.wanted.size());
  *begun = std::move(part.grads);
  return 0;
}

std::vector<bool> SegmentHook::AllInner() const {
  std::vector<bool> inner(num_results());
  for (size_t i = 0; i < inner.size(); ++i) inner[i] = (i >= num_outputs() || t_.differentiable[i]) && HasInner(i);
  return inner;
}

// Of these results: those at which a run of the framework's can be cut.
std::vector<bool> SegmentHook::CutAt(std::vector<bool> results) const {
  for (size_t i = 0; i < results.size(); ++i) results[i] = results[i] && t_.stands[i];
  return results;
}

// Gives the result if somebody holds it, else null.
Ref SegmentHook::Alive(CallState* head, int output) {
  auto at = head->retained->find(output);
  Ref own(at == head->retained->end() ? nullptr : PyObject_CallNoArgs(at->second.weak.get()));
  return own && own.get() != Py_None ? std::move(own) : Ref();
}

// Is it a result of which others are made, with derivatives that read it, that the program has detached in place?
bool SegmentHook::IsDetached(CallState* head, int output) {
  if (output >= static_cast<int>(num_outputs()) || !HasInner(output) || !t_.versioned[output]) return false;
  if (auto at = head->retained->find(output); at != head->retained->end() && at->second.detached) return true;
  Ref own = Alive(head, output), node(own ? PyObject_GetAttrString(own.get(), "grad_fn") : nullptr);
  PyErr_Clear();
  return node.get() == Py_None;
}

// As Alive, if it is what it was.
Ref SegmentHook::Unwritten(CallState* head, int output) {
  Ref own = Alive(head, output);
  Ref version(own ? PyObject_GetAttr(own.get(), Interned(kVersion)) : nullptr);
  const bool same = version && PyLong_AsLongLong(version.get()) == head->retained->at(output).version;
  PyErr_Clear();
  return same ? std::move(own) : Ref();
}

// By result: a replay may go on from the result itself. What has another node by now, and a view that is gone, is made
// again if its hooks are to be called.
std::vector<bool> SegmentHook::Standing(CallState* head) {
  std::vector<bool> standing(t_.stands.size());
  for (size_t k = 0; k < standing.size(); ++k) {
    const int i = static_cast<int>(k);
    standing[k] = t_.stands[k] && (AsMade(head, i) || (HasHooks(head, i) && (k >= num_outputs() || Alive(head, i))));
  }
  return standing;
}

// The same as ToInner, by the framework: a replay goes on from those results themselves. create: it is differentiated.
int SegmentHook::ToInnerAgain(CallState* head, size_t output, const std::vector<bool>& standing, PyObject* grad,
                              bool create, Given* inner, Begun* begun) {
  std::vector<bool> others = standing;
  others[output] = false;
  std::vector<Ref> grads(t_.differentiable.size()), wanted;
  grads[output] = Ref::Borrow(grad);
  std::vector<bool> tangents(grads.size());
  tangents[output] = true;
  int written = LookAtWatched(head, tangents);
  if (written >= 0) written = Written(head, &tangents);
  if (written > 0) PyErr_SetString(PyExc_RuntimeError, kModified);
  if (!written && (written = LookAtReentrant(head, tangents)) > 0) PyErr_SetString(PyExc_RuntimeError, kReentrantAgain);
  ModeSwitch mode;
  ModeState on = ReadMode();
  on.grad = true;
  mode.Set(on);
  Rerun run;
  if (written || Again(head, others, create, &run) < 0) return -1;
  std::vector<int> of;  // also those to which ways lead by others that do not stand
  for (size_t i = 0; i < others.size(); ++i)
    if (others[i] && t_.made_of[output][i]) of.push_back(static_cast<int>(i));
  for (int i : of) wanted.push_back(run.standing[i]);
  for (size_t i = 0; i < t_.wanted.size(); ++i)
    if (t_.wanted[i]) wanted.push_back(run.inputs[i]);
  Ref all = GradientsOf(run, grads, wanted, create);
  if (!all || (create && Follow(head, run, all, grads) < 0)) return -1;
  for (size_t k = 0; k < of.size(); ++k)
    if (PyObject* own = PyTuple_GET_ITEM(all.get(), k); own != Py_None) inner->emplace(of[k], Ref::Borrow(own));
  begun->resize(t_.wanted.size());
  for (size_t i = 0, k = of.size(); i < t_.wanted.size(); ++i)
    if (PyObject* own = t_.wanted[i] ? PyTuple_GET_ITEM(all.get(), k++) : Py_None; own != Py_None)
      (*begun)[i] = Ref::Borrow(own);
  return 0;
}

// Adds what results that had told their others give to the inputs. -1: an exception.
int SegmentHook::AddBegun(const std::vector<Begun>& begun, Pass* pass) const {
  pass->grads.resize(std::max(pass->grads.size(), t_.wanted.size()));
  for (const Begun& parts : begun)
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i]) continue;
      Ref& sum = pass->grads[i];
      sum = sum ? Ref(PyNumber_Add(sum.get(), parts[i].get())) : parts[i];
      if (!sum) return -1;
    }
  return 0;
}

// What this output gives to others goes along its own edges, with what others have sent this way. -1: an exception.
int SegmentHook::Along(CallState* head, size_t output, Given* inner) {
  auto routes = head->routed->empty() ? head->routed->end() : head->routed->find(NumberOfPass());
  if (routes == head->routed->end()) return 0;
  Given& passing = routes->second.passing;
  const auto move = [](Given* from, Given::iterator at, Given* to) {
    Ref& sum = (*to)[at->first];
    sum = sum ? Ref(PyNumber_Add(sum.get(), at->second.get())) : std::move(at->second);
    from->erase(at);
    return bool(sum);
  };
  const std::vector<int>& edges = InnerOf(output);
  for (auto at = inner->begin(); at != inner->end();) {
    auto here = at++;
    const bool far = here->second && std::find(edges.begin(), edges.end(), here->first) == edges.end();
    if (far && !move(inner, here, &passing)) return -1;
  }
  for (int i : edges)
    if (auto at = passing.find(i); at != passing.end() && !move(&passing, at, inner)) return -1;
  return 0;
}

// The hooks of a result that has got everything that is its own.
int SegmentHook::AnswerHooks(CallState* s, size_t output, Ref* grad) {
  auto at = s->hooks->find(static_cast<int>(output));
  if (at == s->hooks->end()) return 0;
  if (!*grad) return TellNone(at->second.get()) ? 0 : -1;
  Ref given = *grad;
  *grad = Through(at->second.get(), given);
  return *grad ? Retain(s, output, grad->get(), given.get()) : -1;
}

// 0: what an operation between this result and all that it is made of has saved is still there. -1: an exception.
int SegmentHook::Spent(size_t output, PyObject* ctx) {
  if (InnerOf(output).empty()) return 0;
  Ref kept(PyObject_GetAttr(ctx, Interned(kSaved)));
  if (kept) return 0;
  PyErr_Clear();  // an earlier pass through this node has freed it
  std::vector<bool> tangents(t_.differentiable.size()), stops = AllInner();
  tangents[output] = true;
  stops[output] = false;
  Compiled* c = For(tangents, stops);
  if (c && c->spends) kept = Ref(PyObject_GetAttr(ctx, Interned(kSaved)));  // the framework's words
  return c && !c->spends ? 0 : -1;
}

// The segment's node computes what results give each other inside of itself. Only where some gradients are looked for
// the way leads through the edges, for one of those results may be what is looked for; and where somebody wants to know
// what views are given.
PyObject* SegmentHook::Routed(CallState* head, size_t output, PyObject* ctx, PyObject* grad) {
  Given inner;
  Ref own = Ref::Borrow(grad);
  PyObject* nobody = nullptr;
  if (!Nobody(&nobody)) return nullptr;
  int everywhere = grad == Py_None ? 1 : WillRun(nobody);
  if (everywhere < 0 || (grad != Py_None && Spent(output, ctx) < 0)) return nullptr;
  if (!everywhere && !InnerOf(output).empty()) everywhere = LooksForNoInner(head, ctx);
  if (everywhere && grad != Py_None && !t_.views.empty())
    everywhere = !head->routed->contains(NumberOfPass()) && !ViewsWatched(head);
  if (!everywhere && !InnerOf(output).empty()) {
    Ref next(PyObject_GetAttrString(ctx, "next_functions")), edge(next ? PySequence_GetItem(next.get(), 0) : nullptr);
    Ref segment(edge ? PySequence_GetItem(edge.get(), 0) : nullptr);
    const bool create = ReadMode().grad;  // create_graph=True
    const int on = segment && create ? GoesOn(segment.get()) : 0;
    if (!segment || on < 0) return nullptr;
    std::vector<bool> standing;
    if (create && (!t_.draws || head->drawn)) standing = Standing(head);
    const bool some = std::find(standing.begin(), standing.end(), true) != standing.end();
    if (!create || some) {  // else nobody holds any of those results
      if (AnswerHooks(head, output, &own) < 0) return nullptr;
      grad = own.get();
      Begun begun;
      if ((create ? ToInnerAgain(head, output, standing, grad, true, &inner, &begun)
                  : ToInner(head, output, segment.get(), grad, &inner, &begun)) < 0)
        return nullptr;
      const int64_t number = NumberOfPass();
      if (!head->routed->contains(number) && ForgetAtEnd(head, number) < 0) return nullptr;
      CallState::Routes& routes = (*head->routed)[number];
      routes.standing = std::move(standing);
      routes.begun[static_cast<int>(output)] = std::move(begun);
    }
  }
  if (Along(head, output, &inner) < 0) return nullptr;
  std::vector<PyObject*> all = {Py_None, grad};
  for (int i : InnerOf(output)) all.push_back(inner[i] ? inner[i].get() : Py_None);
  if (!link_ && !t_.reached_by.empty()) link_ = Ref(HiddenScalar("zeros", t_.device));
  all.insert(all.end(), GroupsOf(output).size(), grad == Py_None ? Py_None : link_.get());
  all.push_back(Py_None);
  if (grad != Py_None && !t_.reached_by.empty()) {
    const int64_t number = NumberOfPass();
    Pass pass = TakePass(head, number);
    pass.given[output] = Ref::Borrow(grad);
    if (KeepPass(head, number, std::move(pass)) < 0) return nullptr;
  }
  PyObject* result = link_ || t_.reached_by.empty() ? PyTuple_New(all.size()) : nullptr;
  for (size_t i = 0; result && i < all.size(); ++i) PyTuple_SET_ITEM(result, i, Py_NewRef(all[i]));
  return result;
}

// From one stop to those before it, the last of the program first: a graph for each way, which is compiled when it is
// first asked for.
int SegmentHook::InStages(CallState* s, PyObject* saved, const std::vector<bool>& stops, std::vector<Ref> grads,
                          bool routed, Pass* pass) {
  const size_t n = num_outputs(), inputs = t_.wanted.size();  // views are given theirs by those who are made of them
  std::vector<size_t> order;
  for (size_t i = 0; i < n; ++i)
    if (stops[i]) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return t_.seen[a] > t_.seen[b]; });
  std::vector<Ref> sums(inputs), outside = grads;
  const std::vector<bool> skipped = Skipped(s);
  auto add = [](Ref& sum, const Ref& more) {
    if (more) sum = sum ? Ref(PyNumber_Add(sum.get(), more.get())) : more;
    return sum || !more;
  };
  std::vector<bool> left = stops, tangents(n);
  for (size_t i = 0; i < n; ++i) tangents[i] = grads[i] && !stops[i];
  for (size_t stage = 0; stage <= order.size(); ++stage) {
    if (stage) {
      const size_t i = order[stage - 1];
      tangents.assign(n, false);
      tangents[i] = bool(grads[i]);
      left[i] = false;
      const bool told = routed && !InnerOf(i).empty();  // by its own node
      auto at = s->hooks->find(static_cast<int>(i));
      if (!grads[i]) {
        const bool tell = at != s->hooks->end() && !told && OwnNodeRuns(s, static_cast<int>(i));
        if (tell && !TellNone(at->second.get())) return -1;
        continue;
      }
      if (at != s->hooks->end() && !told) {
        grads[i] = Through(at->second.get(), grads[i]);
        if (!grads[i]) return -1;
      }
      if (!told && Retain(s, i, grads[i].get(), outside[i].get()) < 0) return -1;
    }
    if (std::find(tangents.begin(), tangents.end(), true) == tangents.end()) continue;
    Compiled* c = For(tangents, left, skipped);
    Pass part;
    const int fits = c ? Prepare(s, saved, c, grads, &part) : -1;
    if (fits > 0)
      PyErr_SetString(PyExc_RuntimeError, "framejit: a gradient of another type or shape than its tensor's");
    if (fits) return -1;
    if (Go(s, 0, &part) < 0) {
      if (CutAt(left) != left) return -1;
      Answering answer;
      if (!answer.gave_none()) return -1;
      without_ = true;
      std::vector<Ref> given(n);
      for (size_t i = 0; i < n; ++i)
        if (tangents[i]) given[i] = grads[i];
      if (StageAgain(s, left, given, &part) < 0) return -1;
    }
    for (size_t i = 0; i < inputs; ++i)
      if (!add(sums[i], part.grads[i])) return -1;
    for (size_t i = 0; i < n && !routed; ++i)
      if (!add(grads[i], part.grads[inputs + i])) return -1;
  }
  pass->grads = std::move(sums);
  return 0;
}

}  // namespace framejit::tensor
