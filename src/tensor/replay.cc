// Where a backward pass cannot be compiled, the program is run again and differentiated by the framework.
#include <algorithm>

#include "tensor/call_step.h"
#include "tensor/outside_batches.h"
#include "tensor/segment_node.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {
namespace {

// While this lives, modules, variables and classes hold what they held for the forward pass, as far as backwards of the
// user's read it.
class AsInForward {
 public:
  explicit AsInForward(const Training& t) : changed_(t.Changed()) {
    for (const auto& [late, now] : changed_) late.Put(late.value.get());
  }
  ~AsInForward() {
    SavedError error;
    for (const auto& [late, now] : changed_) late.Put(now.get());
  }
  AsInForward(const AsInForward&) = delete;

 private:
  std::vector<std::pair<Training::Late, Ref>> changed_;
};

// Memory that holds what inputs held in the call, each with what holds it by now.
using Rewritten = std::vector<std::pair<Ref, Ref>>;

// What the program runs on for an input gets the memory of the call, if that is another. False: an exception.
bool GiveMemoryOfCall(const CallState& s, int input, bool wanted, bool copied, Rewritten* rewritten, Ref* own) {
  static PyObject* const held = ResolveCallee("framejit._gradients.held");
  Ref memory = s.former && s.former->contains(input) ? s.former->at(input) : Ref();
  if (s.shown && !copied && s.shown->contains(input)) {
    Ref now = memory ? memory : Ref::Borrow(PyTuple_GET_ITEM(s.inputs, input));
    Ref then(PyObject_CallFunctionObjArgs(held, s.shown->at(input).get(), now.get(), nullptr));
    if (!then) return false;
    if (then.get() != Py_None) {
      rewritten->emplace_back(then, std::move(now));
      memory = std::move(then);
    }
  }
  if (!memory) return true;
  if (!wanted && !copied) *own = Ref(PyObject_CallMethodNoArgs(own->get(), Interned(kDetach)));
  return *own && GiveData(own->get(), memory.get()) == 0;
}

// Behind the run: views that it has kept read what is there by now.
bool Rewrite(const Rewritten& rewritten) {
  return std::all_of(rewritten.begin(), rewritten.end(), [](const auto& both) {
    Ref now(PyObject_CallMethodNoArgs(both.second.get(), Interned(kDetach)));
    return now && Ref(PyObject_CallMethod(both.first.get(), "copy_", "O", now.get()));
  });
}

Ref AliasOf(PyObject* o, bool leaf) {
  if (!leaf) return Ref(PyObject_CallMethod(o, "view_as", "O", o));
  Ref own(PyObject_CallMethodNoArgs(o, Interned(kDetach)));
  return own ? Ref(PyObject_CallMethod(own.get(), "requires_grad_", nullptr)) : Ref();
}

// What the program runs on for an input, which may want gradients by now and not have done so in the call, or the other
// way round. again: functions of checkpoints are called, and tell the one from the other.
Ref InputOfRun(PyObject* input, bool wanted, bool copied, bool leaf, bool again) {
  Meta m;
  const bool known = ReadMeta(input, &m), wants = known && m.requires_grad;
  if (copied && !wanted) return Ref(PyObject_CallMethod(input, "clone", nullptr));
  if (wanted) return AliasOf(input, leaf || (known && !wants));
  return again && wants ? Ref(PyObject_CallMethodNoArgs(input, Interned(kDetach))) : Ref::Borrow(input);
}

// framejit._gradients.Checkpoints for a replay of this call.
Ref CheckpointsOf(CallState* s) {
  static PyObject* type = ResolveCallee("framejit._gradients.Checkpoints");
  static PyMethodDef call = {"checkpointed",
                             [](PyObject* of, PyObject* args) -> PyObject* {
                               auto* s = reinterpret_cast<CallState*>(of);
                               Py_ssize_t number = 0;
                               PyObject* tensors = nullptr;
                               if (!PyArg_ParseTuple(args, "nO!", &number, &PyTuple_Type, &tensors)) return nullptr;
                               return (*s->hook)->CallOfCheckpoint(s, number, PySequence_Fast_ITEMS(tensors));
                             },
                             METH_VARARGS, nullptr};
  Ref function(PyCFunction_New(&call, reinterpret_cast<PyObject*>(s)));
  return Ref(type && function ? PyObject_CallOneArg(type, function.get()) : nullptr);
}

}  // namespace

PyObject* SegmentHook::CallOfCheckpoint(CallState* s, size_t number, PyObject* const* tensors) const {
  return t_.checkpoints->call(number, PySequence_Fast_ITEMS(s->kept), s->symbols->data(), tensors);
}

PyObject* Training::Late::Now() const {
  if (PyCell_Check(owner.get())) return PyCell_GET(owner.get());
  if (PyFunction_Check(owner.get())) return PyFunction_GET_CODE(owner.get());
  PyObject* dict = PyType_Check(owner.get()) ? reinterpret_cast<PyTypeObject*>(owner.get())->tp_dict : owner.get();
  return PyDict_GetItemWithError(dict, key.get());
}

void Training::Late::Put(PyObject* to) const {
  int failed = 0;
  if (PyCell_Check(owner.get()))
    failed = PyCell_Set(owner.get(), to);
  else if (PyFunction_Check(owner.get()))
    failed = PyObject_SetAttrString(owner.get(), "__code__", to);
  else if (PyType_Check(owner.get()))
    failed = PyType_Type.tp_setattro(owner.get(), key.get(), to);
  else
    failed = to ? PyDict_SetItem(owner.get(), key.get(), to) : PyDict_DelItem(owner.get(), key.get());
  if (failed) PyErr_Clear();
}

std::vector<std::pair<Training::Late, Ref>> Training::Changed() const {
  std::vector<std::pair<Late, Ref>> changed;
  const auto look = [&](const Late& l) {
    PyObject* now = l.Now();
    if (now != l.value.get()) changed.emplace_back(l, Ref::Borrow(now));
  };
  for (const Late& l : late) look(l);
  for (const LateClass& c : late_classes) {
    auto* type = reinterpret_cast<PyTypeObject*>(c.type.get());
    if (c.tag && type->tp_version_tag == c.tag) continue;
    const size_t before = changed.size();
    for (const Late& l : c.functions) look(l);
    for (const Late& l : FunctionsOf(type))
      if (std::none_of(c.functions.begin(), c.functions.end(), [&](auto& had) { return had.key.get() == l.key.get(); }))
        changed.push_back({{c.type, l.key, Ref()}, l.value});
    if (changed.size() == before) c.tag = type->tp_version_tag;
  }
  return changed;
}

std::vector<Training::Late> Training::FunctionsOf(PyTypeObject* type) {
  std::vector<Late> all;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(type->tp_dict, &at, &key, &value);) {
    const bool own = Py_IS_TYPE(value, &PyGetSetDescr_Type) || Py_IS_TYPE(value, &PyMemberDescr_Type);
    if (!own && (Py_TYPE(value)->tp_descr_get || Py_TYPE(value)->tp_call))
      all.push_back({Ref::Borrow(reinterpret_cast<PyObject*>(type)), Ref::Borrow(key), Ref::Borrow(value)});
  }
  return all;
}

// What a derivative is made of is the program's own result, or made of one, also where the derivative is
// differentiated: what the run begins with comes from a node that has edges to such results.
int SegmentHook::BeginOwn(CallState* s, Rerun* run) {
  static PyObject* type = ResolveCallee("framejit._gradients.Own");
  Ref tracked(PyList_New(0)), own(PyList_New(0));
  std::vector<Ref*> begins;
  for (size_t i = 0; i < num_results(); ++i) {
    const int k = static_cast<int>(i);
    const bool read = HasInner(i) || (i < t_.kept.size() && t_.kept[i]);
    Ref result = read && AsMade(s, k) ? Unwritten(s, k) : Ref();
    if (!result) continue;
    if (PyList_Append(own.get(), result.get()) < 0) return -1;
    run->own_results.push_back(k);
  }
  if (run->own_results.empty()) return 0;
  for (size_t i = 0; i < t_.wanted.size(); ++i)
    if (t_.wanted[i]) begins.push_back(&run->inputs[i]);
  for (Ref& standing : run->standing)
    if (standing) begins.push_back(&standing);
  for (Ref* begin : begins)
    if (PyList_Append(tracked.get(), begin->get()) < 0) return -1;
  run->own = Ref(type ? PyObject_CallNoArgs(type) : nullptr);
  Ref aliases(run->own ? PyObject_CallMethod(run->own.get(), "begin", "OO", tracked.get(), own.get()) : nullptr);
  if (!aliases) return -1;
  for (size_t k = 0; k < begins.size(); ++k) {
    *begins[k] = Ref(PySequence_GetItem(aliases.get(), k));
    if (!*begins[k]) return -1;
  }
  return 0;
}

// What the run of a replay is told: what stands for results, by number, and what else there is.
static Ref Told(const std::vector<Ref>& standing, const Ref& own, const Ref& checkpoints) {
  Ref by_number(PyDict_New());
  for (size_t i = 0; by_number && i < standing.size(); ++i) {
    Ref number(standing[i] ? PyLong_FromSize_t(i) : nullptr);
    if (standing[i] && PyDict_SetItem(by_number.get(), number.get(), standing[i].get()) < 0) return {};
  }
  if (by_number && own && PyDict_SetItem(by_number.get(), Py_None, own.get()) < 0) return {};
  if (by_number && checkpoints && PyDict_SetItemString(by_number.get(), "checkpoints", checkpoints.get()) < 0)
    return {};
  return by_number;
}

// standing, by result: what others owe to it goes to that result itself. Its value is what this run makes.
int SegmentHook::Again(CallState* s, const std::vector<bool>& standing, bool create, Rerun* run) {
  static PyObject* stand = ResolveCallee("framejit._gradients.stand");
  // What the inputs were made of is not this segment's: their gradients are those of aliases, which end here, and call
  // no hooks.
  const bool changed = CallsAgain(s);
  run->leaves = changed && t_.checkpoints->reentrant;
  const auto alias = [run](PyObject* o) { return AliasOf(o, run->leaves); };
  Rewritten rewritten;
  std::vector<PyObject*> inputs, results(num_results());
  static const std::map<int, Ref> none;
  for (size_t i = 0; i < t_.wanted.size(); ++i) {
    Ref input = InputOfRun(PyTuple_GET_ITEM(s->inputs, i), t_.wanted[i], t_.copied[i], run->leaves, changed);
    if (!input) return -1;
    if (!GiveMemoryOfCall(*s, static_cast<int>(i), t_.wanted[i], t_.copied[i], &rewritten, &input)) return -1;
    run->inputs.push_back(std::move(input));
  }
  run->standing.resize(standing.size());
  Rerun as_made;  // for results that are gone or have another node by now
  for (size_t i = 0; i < standing.size(); ++i) {
    if (!standing[i]) continue;
    const Ref own = AsMade(s, static_cast<int>(i));
    if (!own && as_made.results.empty() && Again(s, {}, false, &as_made) < 0) return -1;
    if (!own && create && HasHooks(s, static_cast<int>(i)) && !Hang(s, i, as_made.results[i].get())) return -1;
    run->standing[i] = alias(own ? own.get() : as_made.results[i].get());
    if (!run->standing[i]) return -1;
  }
  if (create && BeginOwn(s, run) < 0) return -1;
  std::vector<Ref> copies;  // of inputs that want gradients and are written
  for (size_t i = 0; i < run->inputs.size(); ++i) {
    PyObject* const input = run->inputs[i].get();
    if (t_.copied[i] && t_.wanted[i]) copies.emplace_back(PyObject_CallMethod(input, "clone", nullptr));
    inputs.push_back(t_.copied[i] && t_.wanted[i] ? copies.back().get() : input);
    if (!inputs.back()) return -1;
  }
  constexpr int kOften = 16;
  if (changed && ++called_again_ == kOften && t_.checkpoints->often) t_.checkpoints->often();
  if (changed && !(run->checkpoints = CheckpointsOf(s))) return -1;
  const Ref by_number = Told(run->standing, run->own, run->checkpoints);
  if (!by_number) return -1;
  Ref now(s->drawn ? Generators(t_.device) : nullptr);
  if (s->drawn && (!now || SetGenerators(s->drawn) < 0)) return -1;
  Ref before(stand ? PyObject_CallOneArg(stand, by_number.get()) : nullptr);
  int failed = 0;
  bool ran = false;
  {
    AsInForward modules(t_);
    const OfCall call(s->own);
    OutsideBatches outside(bool(s->drawn));
    GivesMemory as_program;
    for (const auto& [i, times] : t_.rebound) {
      CallState::Rebound* own = s->rebound && s->rebound->contains(i) ? &s->rebound->at(i) : nullptr;
      if (!own || own->times > 0) continue;  // the call has not got so far
      Ref memory = own->former ? own->former : Ref(PyObject_CallMethodNoArgs(own->object.get(), Interned(kDetach)));
      if (memory) as_program.Expect(inputs[i], times, std::move(memory));
    }
    ran = before && t_.replay->Run(inputs.data(), s->symbols->data(), results.data(), &failed) == RunEnd::kOk;
    SavedError error;
    ran = as_program.PutBack() && ran;
  }
  {
    SavedError error;
    if (now && SetGenerators(now.get()) < 0) PyErr_Clear();
    Ref gone(before ? PyObject_CallOneArg(stand, before.get()) : nullptr);
    if (!ran && run->checkpoints && !Ref(PyObject_CallMethod(run->checkpoints.get(), "close", nullptr))) PyErr_Clear();
  }
  if (!ran) return -1;
  for (PyObject* o : results) run->results.emplace_back(o);
  if (!Rewrite(rewritten)) return -1;
  for (const auto& [i, former] :
       s->former ? *s->former : none) {  // what the run has kept of it as an object has this memory from now on
    if (t_.copied[i]) continue;
    Ref now(PyObject_CallMethodNoArgs(PyTuple_GET_ITEM(s->inputs, i), Interned(kDetach)));
    if (!now || GiveData(run->inputs[i].get(), now.get()) < 0) return -1;
  }
  if (s->rebound)
    for (const auto& [i, own] : *s->rebound) {  // likewise
      Ref now(own.times < 0 ? PyObject_CallMethodNoArgs(own.object.get(), Interned(kDetach)) : nullptr);
      if (now ? GiveData(inputs[i], now.get()) < 0 : PyErr_Occurred() != nullptr) return -1;
    }
  for (const auto& [i, inner] : *s->retained) {  // as the program did: the framework knows who has kept it
    if (!IsDetached(s, i)) continue;
    Ref number(PyLong_FromLong(-1 - i)), result(std::exchange(run->results[i], alias(results[i])));
    PyObject* stands = number ? PyDict_GetItemWithError(by_number.get(), number.get()) : nullptr;
    if (!run->results[i] || PyErr_Occurred()) return -1;
    if (!Ref(PyObject_CallMethod(stands ? stands : result.get(), "detach_", nullptr))) return -1;
  }
  Ref made(run->own ? PyList_New(0) : nullptr);
  for (int i : run->own_results)
    if (!made || PyList_Append(made.get(), results[i]) < 0) return -1;
  Ref held(made ? PyObject_CallMethod(run->own.get(), "hold", "O", made.get()) : nullptr);
  return made && !held ? -1 : 0;
}

// Gives a tuple, or null with an exception.
Ref SegmentHook::GradientsOf(const Rerun& run, const std::vector<Ref>& grads, const std::vector<Ref>& wanted,
                             bool create) {
  static PyObject* f = ResolveCallee("torch.autograd.grad");
  Ref outs(PyList_New(0)), of(PyList_New(0)), tangents(PyList_New(0));
  if (!f || !outs || !of || !tangents) return {};
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i] &&
        (PyList_Append(outs.get(), run.results[i].get()) < 0 || PyList_Append(tangents.get(), grads[i].get()) < 0))
      return {};
  for (const Ref& w : wanted)
    if (PyList_Append(of.get(), w.get()) < 0) return {};
  if (PyList_GET_SIZE(outs.get()) == 0 || wanted.empty()) {
    Ref none(PyTuple_New(wanted.size()));
    for (size_t i = 0; none && i < wanted.size(); ++i) PyTuple_SET_ITEM(none.get(), i, Py_NewRef(Py_None));
    return none;
  }
  if (run.leaves) {
    static PyObject* add = ResolveCallee("framejit._gradients.add_up");
    return Ref(add ? PyObject_CallFunctionObjArgs(add, outs.get(), of.get(), tangents.get(), nullptr) : nullptr);
  }
  Ref args(PyTuple_Pack(3, outs.get(), of.get(), tangents.get()));
  Ref kwargs(Py_BuildValue("{s:O,s:O}", "create_graph", create ? Py_True : Py_False, "allow_unused", Py_True));
  Ref all(args && kwargs ? PyObject_Call(f, args.get(), kwargs.get()) : nullptr);
  if (all && run.own && PyObject_SetAttrString(run.own.get(), "differentiated", Py_True) < 0) return {};
  return all;
}

// By which inputs the framework has come in this run without a gradient for them.
int SegmentHook::NoteNone(const Rerun& run, const std::vector<Ref>& grads, const std::vector<Ref>& wanted,
                          const std::vector<bool>& looked_for, Pass* pass) {
  static PyObject* f = ResolveCallee("framejit._gradients.passed");
  Ref from(PyList_New(0)), to(PyList_New(0)), ends(PyList_New(0));
  if (!f || !from || !to || !ends) return -1;
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i] && PyList_Append(from.get(), run.results[i].get()) < 0) return -1;
  for (const Ref& w : wanted)
    if (PyList_Append(to.get(), w.get()) < 0) return -1;
  for (const Ref& standing : run.standing)
    if (standing && PyList_Append(ends.get(), standing.get()) < 0) return -1;
  Ref told(PyObject_CallFunctionObjArgs(f, from.get(), to.get(), ends.get(), nullptr));
  if (!told) return -1;
  pass->unanswered.resize(t_.wanted.size());
  for (size_t i = 0, at = 0; i < t_.wanted.size(); ++i)
    if (looked_for[i]) pass->unanswered[i] = PyList_GET_ITEM(told.get(), at++) == Py_True && !pass->grads[i];
  return 0;
}

// A stage of a pass (InStages): what these outputs give to the inputs and to the results that are left.
int SegmentHook::StageAgain(CallState* s, const std::vector<bool>& left, const std::vector<Ref>& grads, Pass* part) {
  if (t_.draws && !s->drawn) return PyErr_SetString(PyExc_RuntimeError, kDrawsAgain), -1;
  std::vector<bool> arrived(grads.size());
  for (size_t i = 0; i < grads.size(); ++i) arrived[i] = bool(grads[i]);
  if (const int written = Written(s, &arrived)) {
    if (written > 0) PyErr_SetString(PyExc_RuntimeError, kModified);
    return -1;
  }
  ModeSwitch mode;
  ModeState on = ReadMode();
  on.grad = true;
  mode.Set(on);
  Rerun run;
  if (Again(s, left, false, &run) < 0) return -1;
  const size_t inputs = t_.wanted.size();
  std::vector<size_t> of;
  std::vector<Ref> wanted;
  for (size_t i = 0; i < inputs; ++i)
    if (t_.wanted[i]) of.push_back(i), wanted.push_back(run.inputs[i]);
  for (size_t i = 0; i < left.size(); ++i)
    if (left[i]) of.push_back(inputs + i), wanted.push_back(run.standing[i]);
  Ref all = GradientsOf(run, grads, wanted, false);
  if (!all) return -1;
  part->grads.clear();
  part->grads.resize(inputs + num_results());
  for (size_t k = 0; k < of.size(); ++k)
    if (PyObject* own = PyTuple_GET_ITEM(all.get(), k); own != Py_None) part->grads[of[k]] = Ref::Borrow(own);
  return 0;
}

// What the framework keeps of an input is that object, with the memory that it has when the gradients are
// differentiated: aliases get it, too. So do results of this run count what is written to the program's.
int SegmentHook::Follow(CallState* s, const Rerun& run, const Ref& gradients, const std::vector<Ref>& grads) {
  static PyObject* f = ResolveCallee("framejit._gradients.follow");
  Ref aliases(PyList_New(0)), inputs(PyList_New(0)), given(PyList_New(0)), watched(PyList_New(0));
  if (!f || !aliases || !inputs || !given || !watched) return -1;
  for (size_t i = 0; i < t_.wanted.size(); ++i)
    if (t_.wanted[i] && (PyList_Append(aliases.get(), run.inputs[i].get()) < 0 ||
                         PyList_Append(inputs.get(), PyTuple_GET_ITEM(s->inputs, i)) < 0))
      return -1;
  for (const Ref& grad : grads)
    if (grad && PyList_Append(given.get(), grad.get()) < 0) return -1;
  for (size_t i = 0, at = 0; s->versioned && i < num_outputs(); ++i) {
    if (!t_.versioned[i]) continue;
    Ref both(PyTuple_Pack(2, PyTuple_GET_ITEM(s->versioned, at), run.results[i].get()));
    if (!both || PyList_Append(watched.get(), both.get()) < 0) return -1;
    at += 2;
  }
  Ref done(PyObject_CallFunctionObjArgs(f, gradients.get(), aliases.get(), inputs.get(), given.get(), watched.get(),
                                        nullptr));
  return done ? 0 : -1;
}

// The framework runs the program again, with its own records, and differentiates those.
int SegmentHook::Replay(CallState* s, const std::vector<Ref>& grads, const std::vector<bool>& stops,
                        const std::vector<bool>& standing, Pass* pass) {
  const size_t n = grads.size();
  *pass = {};
  pass->grads.resize(t_.wanted.size());
  if (t_.draws && !s->drawn) {
    PyErr_SetString(PyExc_RuntimeError, kDrawsAgain);
    return -1;
  }
  std::vector<bool> arrived(n);
  for (size_t i = 0; i < n; ++i) arrived[i] = bool(grads[i]);
  if (std::find(arrived.begin(), arrived.end(), true) == arrived.end()) return 0;
  if (const int written = Written(s, &arrived)) {
    if (written > 0) PyErr_SetString(PyExc_RuntimeError, kModified);
    return -1;
  }
  if (const int around = LookAtReentrant(s, arrived)) {
    if (around > 0) PyErr_SetString(PyExc_RuntimeError, kReentrantAgain);
    return -1;
  }
  ModeSwitch mode;
  ModeState on = ReadMode();
  const bool create = on.grad;
  if (create && t_.checkpoints && t_.checkpoints->reentrant && CallsAgain(s)) {
    PyErr_SetString(PyExc_RuntimeError, kReentrantAgain);
    return -1;
  }
  on.grad = true;
  mode.Set(on);
  Rerun run;
  if (Again(s, standing, create, &run) < 0) return -1;
  std::vector<Ref> wanted, kept;
  std::vector<bool> looked_for = t_.wanted, skipped = Skipped(s);
  for (size_t i = 0; i < looked_for.size(); ++i) {
    if (!skipped.empty() && skipped[i]) looked_for[i] = false;
    if (looked_for[i]) wanted.push_back(run.inputs[i]);
  }
  for (size_t i = 0; i < stops.size(); ++i) {
    if (!stops[i]) continue;
    const auto& owns = run.own_results;
    const bool own = std::find(owns.begin(), owns.end(), static_cast<int>(i)) != owns.end();
    if (!kept.emplace_back(Hang(s, i, run.results[i].get(), own ? run.own.get() : nullptr))) return -1;
  }
  Ref all = GradientsOf(run, grads, wanted, create);
  if (!all || (create && Follow(s, run, all, grads) < 0)) return -1;
  Py_ssize_t at = 0;
  bool none = false;
  for (size_t i = 0; i < t_.wanted.size(); ++i) {
    PyObject* grad = looked_for[i] ? PyTuple_GET_ITEM(all.get(), at++) : Py_None;
    if (grad != Py_None) pass->grads[i] = Ref::Borrow(grad);
    none |= looked_for[i] && grad == Py_None;
  }
  if (none && NoteNone(run, grads, wanted, looked_for, pass) < 0) return -1;
  at = 0;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (!stops[i]) continue;
    PyObject* gradients = kept[at++].get();
    const Py_ssize_t times = PyList_GET_SIZE(gradients);
    if (times && Retain(s, i, PyList_GET_ITEM(gradients, times - 1), grads[i].get()) < 0) return -1;
  }
  return 0;
}

}  // namespace framejit::tensor
