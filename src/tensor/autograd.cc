// The segment's node is an instance of a subclass of torch.autograd.Function made here, once. A call of the segment
// runs the forward executable first; `apply` then only takes its results in (forward hands them over), so that torch's
// rules about versions, hooks on saved tensors, freed graphs and threads hold as for any function of a user.
#include "tensor/autograd.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "tensor/call_step.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

namespace {

class Hook;

// What one call leaves for its backward pass. Not the tensors it reads: those are saved with the framework.
struct CallState {
  PyObject_HEAD std::shared_ptr<Hook>* hook;
  std::vector<int64_t>* symbols;
  std::vector<bool>* used;  // by output: a backward pass has gone through it
  PyObject* inputs;         // tuple: for a backward pass that is differentiated
  PyObject* versions;       // tuple: theirs, then
  PyObject* outputs;        // tuple: on their way through `apply`
  PyObject* saved;          // tuple, likewise
  PyObject* opaque;         // tuple, likewise: outputs without gradients
};

void Dealloc(PyObject* o) {
  auto* s = reinterpret_cast<CallState*>(o);
  PyObject_GC_UnTrack(o);
  delete s->hook;
  delete s->symbols;
  delete s->used;
  for (PyObject** p : {&s->inputs, &s->versions, &s->outputs, &s->saved, &s->opaque}) Py_CLEAR(*p);
  PyObject_GC_Del(o);
}
int Traverse(PyObject* o, visitproc visit, void* arg) {
  auto* s = reinterpret_cast<CallState*>(o);
  for (PyObject* p : {s->inputs, s->outputs, s->saved, s->opaque}) Py_VISIT(p);
  return 0;
}
int Clear(PyObject* o) {
  auto* s = reinterpret_cast<CallState*>(o);
  for (PyObject** p : {&s->inputs, &s->outputs, &s->saved, &s->opaque}) Py_CLEAR(*p);
  return 0;
}

PyTypeObject* StateType() {
  static PyTypeObject type = [] {
    PyTypeObject t = {PyVarObject_HEAD_INIT(nullptr, 0)};
    t.tp_name = "framejit._SegmentCall";
    t.tp_basicsize = sizeof(CallState);
    t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
    t.tp_dealloc = Dealloc;
    t.tp_traverse = Traverse;
    t.tp_clear = Clear;
    return t;
  }();
  static bool ready = PyType_Ready(&type) == 0;
  return ready ? &type : nullptr;
}

PyObject* Name(const char* text) {  // interned, for ever
  static std::map<const char*, PyObject*> names;
  PyObject*& n = names[text];
  if (!n) n = PyUnicode_InternFromString(text);
  return n;
}
constexpr const char *kSave = "to_save", *kState = "_segment", *kSaved = "saved_tensors",
                     *kMaterialize = "materialize_grads", *kClear = "maybe_clear_saved_tensors",
                     *kOpaque = "non_differentiable", *kVersion = "_version";

class Hook : public OutputHook, public std::enable_shared_from_this<Hook> {
 public:
  explicit Hook(Training t) : t_(std::move(t)) {}
  int Attach(PyObject* const* inputs, PyObject** made, const int64_t* symbols) override;
  auto quietly() const { return t_.quietly; }
  PyObject* Backward(CallState* s, PyObject* ctx, PyObject* const* grads, Py_ssize_t n);

 private:
  struct Compiled {
    std::vector<autodiff::GradSource> grads;
    std::vector<int> tangents;
    std::vector<std::pair<TensorType, shape::Ints>> inputs;  // types and strides of the saved values, then the tangents
    size_t num_outputs = 0;
    std::unique_ptr<GraphRunner> runner;
  };
  Compiled* For(const std::vector<bool>& tangents);
  PyObject* Replay(CallState* s, PyObject* const* grads, Py_ssize_t n);

  Training t_;
  std::mutex mu_;
  std::map<std::vector<bool>, Compiled> compiled_;
};

CallState* StateOf(PyObject* o) {
  if (Py_TYPE(o) == StateType()) return reinterpret_cast<CallState*>(o);
  PyErr_SetString(PyExc_SystemError, "framejit: not a call of a segment");
  return nullptr;
}

PyObject* Forward(PyObject*, PyObject* const* args, Py_ssize_t n) {  // (ctx, state, inputs that want gradients...)
  CallState* s = n >= 2 ? StateOf(args[1]) : nullptr;
  if (!s) return nullptr;
  if (PyObject_SetAttr(args[0], Name(kSave), s->saved) < 0 || PyObject_SetAttr(args[0], Name(kOpaque), s->opaque) < 0 ||
      PyObject_SetAttr(args[0], Name(kMaterialize), Py_False) < 0 ||
      PyObject_SetAttr(args[0], Name(kState), args[1]) < 0)
    return nullptr;
  PyObject* outputs = s->outputs;
  s->outputs = nullptr;
  Py_CLEAR(s->saved);
  Py_CLEAR(s->opaque);
  return outputs;
}

PyObject* BackwardOf(PyObject*, PyObject* const* args, Py_ssize_t n) {  // (ctx, grads...)
  Ref state(n ? PyObject_GetAttr(args[0], Name(kState)) : nullptr);
  CallState* s = state ? StateOf(state.get()) : nullptr;
  if (!s) return nullptr;
  struct Request {
    CallState* s;
    PyObject* const* args;
    Py_ssize_t n;
  } request{s, args, n};
  AutocastOff plain;
  return (*s->hook)->quietly()(
      [](void* p) {
        auto* r = static_cast<Request*>(p);
        return (*r->s->hook)->Backward(r->s, r->args[0], r->args + 1, r->n - 1);
      },
      &request);
}

PyMethodDef forward_def = {"forward", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Forward)),
                           METH_FASTCALL, nullptr};
PyMethodDef backward_def = {"backward", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(BackwardOf)),
                            METH_FASTCALL, nullptr};

// `apply` of the class, bound; torch's own, without the Python wrapper that looks for functorch (guards exclude it).
PyObject* Apply() {
  static PyObject* apply = nullptr;
  if (apply) return apply;
  Ref module(PyImport_ImportModule("torch.autograd.function")), f(PyCFunction_New(&forward_def, nullptr)),
      b(PyCFunction_New(&backward_def, nullptr));
  Ref base(module ? PyObject_GetAttrString(module.get(), "Function") : nullptr);
  if (!base || !f || !b) return nullptr;
  Ref sf(PyStaticMethod_New(f.get())), sb(PyStaticMethod_New(b.get()));
  Ref cls(PyObject_CallFunction(reinterpret_cast<PyObject*>(Py_TYPE(base.get())), "s(O){s:O,s:O,s:s}",
                                "CompiledSegment", base.get(), "forward", sf.get(), "backward", sb.get(), "__module__",
                                "framejit"));
  if (!cls) return nullptr;
  Ref super(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PySuper_Type), "OO", base.get(), cls.get()));
  apply = super ? PyObject_GetAttrString(super.get(), "apply") : nullptr;
  return apply;
}

int Hook::Attach(PyObject* const* inputs, PyObject** made, const int64_t* symbols) {
  PyObject* apply = Apply();
  PyTypeObject* type = StateType();
  if (!apply || !type) return -1;
  auto* s = PyObject_GC_New(CallState, type);
  if (!s) return -1;
  Ref state(reinterpret_cast<PyObject*>(s));
  s->hook = new std::shared_ptr<Hook>(shared_from_this());
  s->symbols = new std::vector<int64_t>(symbols, symbols + t_.num_symbols);
  s->used = new std::vector<bool>(t_.differentiable.size());
  s->inputs = s->versions = s->outputs = s->saved = s->opaque = nullptr;
  size_t n = t_.differentiable.size(), num_inputs = t_.wanted.size();
  s->outputs = PyTuple_New(n);
  s->saved = PyTuple_New(t_.saved.size());
  if (!s->outputs || !s->saved) return -1;
  std::vector<PyObject*> opaque, args = {nullptr, state.get()};
  for (size_t i = 0; i < n; ++i) {
    PyTuple_SET_ITEM(s->outputs, i, Py_NewRef(made[i]));
    if (!t_.differentiable[i]) opaque.push_back(made[i]);
  }
  for (size_t i = 0; i < t_.saved.size(); ++i) {
    const autodiff::SavedValue& v = t_.saved[i];
    PyTuple_SET_ITEM(s->saved, i, Py_NewRef(v.input >= 0 ? inputs[v.input] : made[v.output]));
  }
  s->opaque = PyTuple_New(opaque.size());
  if (!s->opaque) return -1;
  for (size_t i = 0; i < opaque.size(); ++i) PyTuple_SET_ITEM(s->opaque, i, Py_NewRef(opaque[i]));
  for (size_t i = 0; i < num_inputs; ++i)
    if (t_.wanted[i]) args.push_back(inputs[i]);
  if (t_.replay) {
    s->inputs = PyTuple_New(num_inputs);
    s->versions = PyTuple_New(num_inputs);
    if (!s->inputs || !s->versions) return -1;
    for (size_t i = 0; i < num_inputs; ++i) {
      PyTuple_SET_ITEM(s->inputs, i, Py_NewRef(inputs[i]));
      PyObject* version = PyObject_GetAttr(inputs[i], Name(kVersion));
      if (!version) {  // an inference tensor has none
        PyErr_Clear();
        version = Py_NewRef(Py_None);
      }
      PyTuple_SET_ITEM(s->versions, i, version);
    }
  }
  PyObject_GC_Track(state.get());
  ModeSwitch mode;
  ModeState grad = ReadMode();
  grad.grad = true;
  mode.Set(grad);
  Ref result(PyObject_Vectorcall(apply, args.data() + 1, (args.size() - 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  if (!result) return -1;
  if (!PyTuple_Check(result.get()) || PyTuple_GET_SIZE(result.get()) != static_cast<Py_ssize_t>(n)) {
    PyErr_SetString(PyExc_SystemError, "framejit: autograd changed the number of results");
    return -1;
  }
  for (size_t i = 0; i < n; ++i) Py_SETREF(made[i], Py_NewRef(PyTuple_GET_ITEM(result.get(), i)));
  return 0;
}

Hook::Compiled* Hook::For(const std::vector<bool>& tangents) {
  std::lock_guard lock(mu_);
  auto at = compiled_.find(tangents);
  if (at != compiled_.end()) return &at->second;
  Compiled c;
  try {
    Training::Backward b = t_.compile(tangents);
    for (ValueId v : b.graph.inputs) c.inputs.emplace_back(b.graph.node(v).type, b.graph.node(v).strides);
    c.num_outputs = b.graph.outputs.size();
    c.grads = std::move(b.grads);
    c.tangents = std::move(b.tangents);
    Trace trace;  // says that these are torch's tensors
    trace.tensors.emplace_back();
    std::vector<OutputPlan> plans;
    for (size_t i = 0; i < c.num_outputs; ++i) plans.push_back({OutputPlan::kGraphOutput, static_cast<int>(i), {}});
    c.runner = MakeGraphRunner(b.executable, b.graph, trace, std::move(plans), {});
  } catch (const std::exception& e) {
    PyErr_Format(PyExc_RuntimeError, "framejit: the backward pass cannot be compiled: %s", e.what());
    return nullptr;
  }
  return &compiled_.emplace(tangents, std::move(c)).first->second;
}

// o as the backward executable expects it: o itself, or a copy with those strides. Null without an exception: it is
// something else (another type of tensor, say).
PyObject* Fitting(PyObject* o, const TensorType& type, const shape::Ints& strides,
                  const std::vector<int64_t>& symbols) {
  Class kind = Classify(o);
  Meta m;
  if ((kind != Class::kTorch && kind != Class::kTorchParameter) || !ReadMeta(o, &m) || m.dtype != type.dtype ||
      m.rank != type.rank() || !(m.device == type.device))
    return nullptr;
  bool same = true, empty = false;
  for (int d = 0; d < m.rank; ++d) {
    if (m.sizes[d] != type.shape[d].Eval(symbols)) return nullptr;
    empty |= m.sizes[d] == 0;
    same &= m.sizes[d] == 1 || m.strides[d] == strides[d].Eval(symbols);
  }
  if (same || empty) return Py_NewRef(o);
  Ref sizes(PyTuple_New(m.rank)), steps(PyTuple_New(m.rank));
  for (int d = 0; d < m.rank; ++d) {
    PyTuple_SET_ITEM(sizes.get(), d, PyLong_FromLongLong(m.sizes[d]));
    PyTuple_SET_ITEM(steps.get(), d, PyLong_FromLongLong(strides[d].Eval(symbols)));
  }
  Ref fresh(PyObject_CallMethod(o, "new_empty_strided", "OO", sizes.get(), steps.get()));
  return fresh ? PyObject_CallMethod(fresh.get(), "copy_", "O", o) : nullptr;
}

PyObject* Hook::Backward(CallState* s, PyObject* ctx, PyObject* const* grads, Py_ssize_t n) {
  if (n != static_cast<Py_ssize_t>(t_.differentiable.size()))
    return PyErr_Format(PyExc_SystemError, "framejit: %zd gradients arrived", n);
  if (ReadMode().grad) return Replay(s, grads, n);  // create_graph=True
  std::vector<bool> tangents(n);
  bool any = false, fresh = true;
  for (Py_ssize_t i = 0; i < n; ++i) {
    tangents[i] = t_.differentiable[i] && grads[i] != Py_None;
    any |= tangents[i];
    for (Py_ssize_t k = 0; tangents[i] && k < n; ++k) fresh &= !((*s->used)[k] && t_.related[i][k]);
  }
  // Freed, or written since: torch raises. Where nothing was saved there is nothing to free.
  Ref saved(t_.saved.empty() ? PyTuple_New(0) : PyObject_GetAttr(ctx, Name(kSaved)));
  if (!saved) {
    bool other = std::find(s->used->begin(), s->used->end(), true) != s->used->end();
    if (!fresh || !other || !t_.replay) return nullptr;
    PyErr_Clear();
    for (Py_ssize_t i = 0; i < n; ++i) (*s->used)[i] = (*s->used)[i] || tangents[i];
    return Replay(s, grads, n);
  }
  *s->used = tangents;  // what is still here was kept by all passes before this one
  size_t num_grads = 0;
  for (bool w : t_.wanted) num_grads += w;
  Ref result(PyTuple_New(1 + num_grads));
  if (!result) return nullptr;
  for (size_t i = 0; i <= num_grads; ++i) PyTuple_SET_ITEM(result.get(), i, Py_NewRef(Py_None));
  if (!any) return result.release();
  Compiled* c = For(tangents);
  if (!c) return nullptr;
  std::vector<Ref> held, taken;
  Py_ssize_t num_saved = PyTuple_GET_SIZE(saved.get());
  for (size_t i = 0; i < c->inputs.size(); ++i) {
    PyObject* o =
        static_cast<Py_ssize_t>(i) < num_saved ? PyTuple_GET_ITEM(saved.get(), i) : grads[c->tangents[i - num_saved]];
    taken.emplace_back(Fitting(o, c->inputs[i].first, c->inputs[i].second, *s->symbols));
    if (!taken.back()) return PyErr_Occurred() ? nullptr : Replay(s, grads, n);
  }
  // Nobody else needs what was saved, unless the graph is kept: it goes as the pass proceeds.
  Ref cleared(PyObject_CallMethodNoArgs(ctx, Name(kClear)));
  if (!cleared) PyErr_Clear();
  saved = Ref();
  std::vector<PyObject*> out(c->num_outputs);
  if (c->runner->RunTaking(&taken, s->symbols->data(), out.data()) < 0) return nullptr;
  for (PyObject* o : out) held.emplace_back(o);
  size_t at = 1;
  for (size_t i = 0; i < t_.wanted.size(); ++i) {
    if (!t_.wanted[i]) continue;
    const autodiff::GradSource& g = c->grads[i];
    PyObject* o = g.kind == autodiff::GradSource::kOutput    ? out[g.index]
                  : g.kind == autodiff::GradSource::kTangent ? grads[c->tangents[g.index]]
                                                             : Py_None;
    Py_SETREF(PyTuple_GET_ITEM(result.get(), at), Py_NewRef(o));
    ++at;
  }
  return result.release();
}

// The framework runs the program again, with its own records, and differentiates those.
PyObject* Hook::Replay(CallState* s, PyObject* const* grads, Py_ssize_t n) {
  if (!t_.replay)
    return PyErr_Format(PyExc_RuntimeError, "trying to differentiate twice a function compiled by framejit: %s",
                        t_.no_replay.c_str());
  size_t num_inputs = t_.wanted.size();
  for (size_t i = 0; i < num_inputs; ++i) {
    Ref now(PyObject_GetAttr(PyTuple_GET_ITEM(s->inputs, i), Name(kVersion)));
    PyObject* then = PyTuple_GET_ITEM(s->versions, i);
    if (!now) PyErr_Clear();
    if (then == Py_None) continue;
    int same = now ? PyObject_RichCompareBool(now.get(), then, Py_EQ) : 0;
    if (same < 0) return nullptr;
    if (!same)
      return PyErr_Format(
          PyExc_RuntimeError,
          "one of the variables needed for gradient computation has been modified by an inplace operation");
  }
  std::vector<PyObject*> inputs;
  for (size_t i = 0; i < num_inputs; ++i) inputs.push_back(PyTuple_GET_ITEM(s->inputs, i));
  std::vector<PyObject*> outputs(n);
  ModeSwitch mode;
  ModeState on = ReadMode();
  bool create = on.grad;
  on.grad = true;
  mode.Set(on);
  int failed = 0;
  if (t_.replay->Run(inputs.data(), s->symbols->data(), outputs.data(), &failed) < 0) return nullptr;
  std::vector<Ref> held;
  for (PyObject* o : outputs) held.emplace_back(o);
  Ref outs(PyList_New(0)), wanted(PyList_New(0)), tangents(PyList_New(0)),
      autograd(PyImport_ImportModule("torch.autograd"));
  if (!outs || !wanted || !tangents || !autograd) return nullptr;
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (!t_.differentiable[i] || grads[i] == Py_None) continue;
    if (PyList_Append(outs.get(), outputs[i]) < 0 || PyList_Append(tangents.get(), grads[i]) < 0) return nullptr;
  }
  for (size_t i = 0; i < num_inputs; ++i)
    if (t_.wanted[i] && PyList_Append(wanted.get(), inputs[i]) < 0) return nullptr;
  Ref result(PyTuple_New(1 + PyList_GET_SIZE(wanted.get())));
  if (!result) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(result.get()); ++i) PyTuple_SET_ITEM(result.get(), i, Py_NewRef(Py_None));
  if (PyList_GET_SIZE(outs.get()) == 0) return result.release();
  Ref f(PyObject_GetAttrString(autograd.get(), "grad")),
      args(PyTuple_Pack(3, outs.get(), wanted.get(), tangents.get()));
  Ref kwargs(Py_BuildValue("{s:O,s:O}", "create_graph", create ? Py_True : Py_False, "allow_unused", Py_True));
  Ref all(f && args && kwargs ? PyObject_Call(f.get(), args.get(), kwargs.get()) : nullptr);
  if (!all) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all.get()); ++i)
    Py_SETREF(PyTuple_GET_ITEM(result.get(), i + 1), Py_NewRef(PyTuple_GET_ITEM(all.get(), i)));
  return result.release();
}

// --- the framework's derivative of one call -------------------------------------------------------------------------

// o with tensors replaced by their stand-ins. New reference.
PyObject* Substitute(PyObject* o, const std::map<PyObject*, PyObject*>& stand_ins) {
  auto at = stand_ins.find(o);
  if (at != stand_ins.end()) return Py_NewRef(at->second);
  if (PyTuple_CheckExact(o) || PyList_CheckExact(o)) {
    bool tuple = PyTuple_CheckExact(o);
    Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
    Ref made(tuple ? PyTuple_New(n) : PyList_New(n));
    for (Py_ssize_t i = 0; made && i < n; ++i) {
      PyObject* x = Substitute(PySequence_Fast_GET_ITEM(o, i), stand_ins);
      if (!x) return nullptr;
      if (tuple) {
        PyTuple_SET_ITEM(made.get(), i, x);
      } else {
        PyList_SET_ITEM(made.get(), i, x);
      }
    }
    return made.release();
  }
  if (PyDict_CheckExact(o)) {
    Ref made(PyDict_New());
    PyObject *key, *value;
    for (Py_ssize_t pos = 0; made && PyDict_Next(o, &pos, &key, &value);) {
      Ref x(Substitute(value, stand_ins));
      if (!x || PyDict_SetItem(made.get(), key, x.get()) < 0) return nullptr;
    }
    return made.release();
  }
  return Py_NewRef(o);
}

bool Flatten(PyObject* o, std::vector<PyObject*>* out) {  // tensors of a result, in order
  if (Classify(o) != Class::kNone) out->push_back(o);
  if (PyTuple_Check(o) || PyList_Check(o))
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) Flatten(PySequence_Fast_GET_ITEM(o, i), out);
  return true;
}

PyObject* Vjp(PyObject* callable, PyObject* const* args, Py_ssize_t n) {
  if (n != 5) return PyErr_Format(PyExc_TypeError, "framejit: vjp takes 5 arguments");
  PyObject *which = args[0], *operands = args[1], *grads = args[4];
  ModeSwitch mode;
  ModeState on = ReadMode();
  on.grad = true;
  mode.Set(on);
  std::map<PyObject*, PyObject*> stand_ins;
  std::vector<Ref> held;
  Ref leaves(PyList_New(0)), outs(PyList_New(0)), tangents(PyList_New(0)),
      autograd(PyImport_ImportModule("torch.autograd"));
  if (!leaves || !outs || !tangents || !autograd) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(operands); ++i) {
    PyObject* o = PyTuple_GET_ITEM(operands, i);
    Ref leaf(PyObject_CallMethod(o, "detach", nullptr));
    if (!leaf) return nullptr;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(which); ++k) {
      if (PyLong_AsSsize_t(PyTuple_GET_ITEM(which, k)) != i) continue;
      Ref r(PyObject_CallMethod(leaf.get(), "requires_grad_", nullptr));
      if (!r || PyList_Append(leaves.get(), leaf.get()) < 0) return nullptr;
    }
    stand_ins[o] = leaf.get();
    held.push_back(std::move(leaf));
  }
  Ref a(Substitute(args[2], stand_ins)), k(Substitute(args[3], stand_ins));
  Ref value(a && k ? PyObject_Call(callable, a.get(), k.get()) : nullptr);
  if (!value) return nullptr;
  std::vector<PyObject*> flat;
  Flatten(value.get(), &flat);
  for (size_t i = 0; i < flat.size() && static_cast<Py_ssize_t>(i) < PyTuple_GET_SIZE(grads); ++i) {
    PyObject* g = PyTuple_GET_ITEM(grads, i);
    Ref tracked(PyObject_GetAttrString(flat[i], "requires_grad"));
    if (!tracked) return nullptr;
    if (g == Py_None || tracked.get() != Py_True) continue;
    if (PyList_Append(outs.get(), flat[i]) < 0 || PyList_Append(tangents.get(), g) < 0) return nullptr;
  }
  Ref f(PyObject_GetAttrString(autograd.get(), "grad")),
      call(PyTuple_Pack(3, outs.get(), leaves.get(), tangents.get()));
  Ref kwargs(Py_BuildValue("{s:O,s:O}", "allow_unused", Py_True, "materialize_grads", Py_True));
  if (PyList_GET_SIZE(outs.get()) > 0)
    return f && call && kwargs ? PyObject_Call(f.get(), call.get(), kwargs.get()) : nullptr;
  Ref zeros(PyTuple_New(PyList_GET_SIZE(leaves.get())));  // nothing leads there
  Ref torch(PyImport_ImportModule("torch"));
  for (Py_ssize_t i = 0; zeros && torch && i < PyTuple_GET_SIZE(zeros.get()); ++i) {
    PyObject* z = PyObject_CallMethod(torch.get(), "zeros_like", "O", PyList_GET_ITEM(leaves.get(), i));
    if (!z) return nullptr;
    PyTuple_SET_ITEM(zeros.get(), i, z);
  }
  return torch ? zeros.release() : nullptr;
}

PyMethodDef vjp_def = {"vjp", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Vjp)), METH_FASTCALL, nullptr};

}  // namespace

std::shared_ptr<OutputHook> MakeTrainingHook(Training training) {
  return std::make_shared<Hook>(std::move(training));
}

PyObject* MakeVjp(const std::string& callee) {
  Ref callable(ResolveCallee(callee));
  return callable ? PyCFunction_New(&vjp_def, callable.get()) : nullptr;
}

}  // namespace framejit::tensor
