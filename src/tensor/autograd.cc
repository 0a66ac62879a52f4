// The segment's node is an instance of a subclass of torch.autograd.Function made here, once. A call of the segment
// runs the forward executable first; `apply` then only takes its results in (forward hands them over), so that torch's
// rules about versions, hooks on saved tensors, freed graphs and threads hold as for any function of a user.
#include "tensor/autograd.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "tensor/call_step.h"
#include "tensor/numpy_api.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

namespace {

class Hook;

struct Pass;

// What one call leaves for its backward pass. Not the tensors it reads: those are saved with the framework.
struct CallState {
  PyObject_HEAD std::shared_ptr<Hook>* hook;
  std::vector<int64_t>* symbols;
  std::vector<bool>* used;          // by output: a backward pass has gone through it
  std::map<int64_t, Pass>* passes;  // that are on their way through the segment's nodes, by torch's number of the pass
  int part;                         // of the backward pass: this node's
  PyObject* head;                   // the state of the node that runs first (null: this one), which holds all the rest
  PyObject* inputs;                 // tuple: for a backward pass that is differentiated
  PyObject* versions;               // tuple: theirs, then
  PyObject* watched;                // tuple: (tensor without memory, version) of each, sharing its version
  PyObject* outputs;                // tuple: on their way through `apply`
  PyObject* saved;                  // tuple, likewise
  PyObject* opaque;                 // tuple, likewise: outputs without gradients
};

void DropPasses(CallState* s);

void Dealloc(PyObject* o) {
  auto* s = reinterpret_cast<CallState*>(o);
  PyObject_GC_UnTrack(o);
  delete s->hook;
  delete s->symbols;
  delete s->used;
  DropPasses(s);
  for (PyObject** p : {&s->head, &s->inputs, &s->versions, &s->watched, &s->outputs, &s->saved, &s->opaque})
    Py_CLEAR(*p);
  PyObject_GC_Del(o);
}
int Traverse(PyObject* o, visitproc visit, void* arg) {
  auto* s = reinterpret_cast<CallState*>(o);
  for (PyObject* p : {s->head, s->inputs, s->outputs, s->saved, s->opaque}) Py_VISIT(p);
  return 0;
}
int Clear(PyObject* o) {
  auto* s = reinterpret_cast<CallState*>(o);
  for (PyObject** p : {&s->head, &s->inputs, &s->outputs, &s->saved, &s->opaque}) Py_CLEAR(*p);
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

// A NumPy array is saved as a copy: nobody counts its versions.
PyObject* CopyOfArray(PyObject* o) {
  Ref copy(PyObject_CallMethod(Numpy()->module, "array", "O", o));
  return copy ? PyObject_CallMethod(Torch()->module, "from_numpy", "O", copy.get()) : nullptr;
}

constexpr const char* kModified =
    "one of the variables needed for gradient computation has been modified by an inplace operation";

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
  friend struct Pass;
  struct Part {
    std::vector<int> inputs, outputs;  // numbers
    std::vector<int> last, done;       // that no later part reads: inputs, and gradients that it hands on
    std::vector<std::pair<TensorType, shape::Ints>> types;  // of the inputs, with strides
    std::unique_ptr<GraphRunner> runner;
  };
  struct Compiled {
    std::vector<int> grads;     // by input: number, or -1
    std::vector<int> tangents;  // of outputs
    std::vector<bool> read;     // by output
    int count = 0;              // of numbers
    std::vector<Part> parts;
  };
  int num_parts() const { return t_.part.empty() ? 1 : *std::max_element(t_.part.begin(), t_.part.end()) + 1; }
  Compiled* For(const std::vector<bool>& tangents);
  int Begin(CallState* s, PyObject* ctx, PyObject* const* grads, Py_ssize_t n, Pass* pass);
  int Go(CallState* s, int part, Pass* pass);
  PyObject* Answer(CallState* s, int part, Pass pass, int64_t number);
  int Replay(CallState* s, PyObject* const* grads, Py_ssize_t n, Pass* pass);
  int Watch(CallState* s, PyObject* const* made);
  int LookAtWatched(CallState* s, const std::vector<bool>& tangents);
  PyObject* Link(PyObject* state, int part, PyObject* link, PyObject* const* inputs);

  Training t_;
  Ref link_;  // the gradient of every hidden scalar
  std::mutex mu_;
  std::map<std::vector<bool>, Compiled> compiled_;
};

// One backward pass through the nodes of a segment: what was saved and what arrived, then what parts make for others,
// by number; or the gradients, made all at once.
struct Pass {
  Hook::Compiled* compiled = nullptr;
  std::vector<Ref> values;
  std::vector<Ref> grads;  // by input
};

void DropPasses(CallState* s) {
  delete s->passes;
}

CallState* NewState(const std::shared_ptr<Hook>& hook, int part, PyObject* head) {
  PyTypeObject* type = StateType();
  auto* s = type ? PyObject_GC_New(CallState, type) : nullptr;
  if (!s) return nullptr;
  s->hook = new std::shared_ptr<Hook>(hook);
  s->symbols = nullptr;
  s->used = nullptr;
  s->passes = nullptr;
  s->part = part;
  s->head = Py_XNewRef(head);
  s->inputs = s->versions = s->watched = s->outputs = s->saved = s->opaque = nullptr;
  return s;
}

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

// Of the pass that the framework's engine is at on this thread; -1: none.
int64_t NumberOfPass() {
  static PyObject* function = ResolveCallee("torch._C._current_graph_task_id");
  Ref number(function ? PyObject_CallNoArgs(function) : nullptr);
  const int64_t n = number ? PyLong_AsLongLong(number.get()) : -1;
  PyErr_Clear();
  return n;
}

// A scalar that nobody reads.
PyObject* Scalar(const char* made_by, Device device) {
  Ref torch(PyImport_ImportModule("torch")), shape(PyTuple_New(0)), args(PyTuple_Pack(1, shape.get()));
  Ref function(torch ? PyObject_GetAttrString(torch.get(), made_by) : nullptr);
  const std::string where = device.kind == DeviceKind::kCuda ? "cuda:" + std::to_string(device.index) : "cpu";
  Ref kwargs(Py_BuildValue("{s:s}", "device", where.c_str()));
  return function && args && kwargs ? PyObject_Call(function.get(), args.get(), kwargs.get()) : nullptr;
}

// Nodes for the later parts of the backward pass hang on each other by scalars that nobody sees. They lie where the
// graph's values do: that decides on which of its threads and streams the framework runs a node.
PyObject* Hook::Link(PyObject* head, int part, PyObject* link, PyObject* const* inputs) {
  auto* s = NewState(shared_from_this(), part, head);
  if (!s) return nullptr;
  Ref state(reinterpret_cast<PyObject*>(s)), fresh(Scalar("empty", t_.device));
  s->outputs = fresh ? PyTuple_Pack(1, fresh.get()) : nullptr;
  s->saved = PyTuple_New(0);
  s->opaque = PyTuple_New(0);
  PyObject_GC_Track(state.get());
  if (!s->outputs || !s->saved || !s->opaque) return nullptr;
  std::vector<PyObject*> call = {state.get()};
  if (link) call.push_back(link);
  for (size_t i = 0; i < t_.wanted.size(); ++i)
    if (t_.wanted[i] && t_.part[i] == part) call.push_back(inputs[i]);
  Ref result(PyObject_Vectorcall(Apply(), call.data(), call.size(), nullptr));
  return result ? Py_NewRef(PyTuple_GET_ITEM(result.get(), 0)) : nullptr;
}

int Hook::Attach(PyObject* const* inputs, PyObject** made, const int64_t* symbols) {
  PyObject* apply = Apply();
  auto* s = apply ? NewState(shared_from_this(), 0, nullptr) : nullptr;
  if (!s) return -1;
  Ref state(reinterpret_cast<PyObject*>(s));
  s->symbols = new std::vector<int64_t>(symbols, symbols + t_.num_symbols);
  s->used = new std::vector<bool>(t_.differentiable.size());
  s->passes = new std::map<int64_t, Pass>();
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
    PyObject* kept = v.input >= 0 ? inputs[v.input] : made[v.output];
    const bool array = v.input >= 0 && Classify(kept) > Class::kTorchSubclass;
    PyTuple_SET_ITEM(s->saved, i, array ? CopyOfArray(kept) : Py_NewRef(kept));
    if (!PyTuple_GET_ITEM(s->saved, i)) return -1;
  }
  s->opaque = PyTuple_New(opaque.size());
  if (!s->opaque) return -1;
  for (size_t i = 0; i < opaque.size(); ++i) PyTuple_SET_ITEM(s->opaque, i, Py_NewRef(opaque[i]));
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
  if (Watch(s, made) < 0) return -1;
  PyObject_GC_Track(state.get());
  ModeSwitch mode;
  ModeState grad = ReadMode();
  grad.grad = true;
  mode.Set(grad);
  Ref link;
  for (int part = num_parts() - 1; part > 0; --part) {
    link = Ref(Link(state.get(), part, link.get(), inputs));
    if (!link) return -1;
  }
  if (link) args.push_back(link.get());
  for (size_t i = 0; i < num_inputs; ++i)
    if (t_.wanted[i] && t_.part[i] == 0) args.push_back(inputs[i]);
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
    c.grads = std::move(b.parts.grads);
    c.tangents = std::move(b.tangents);
    c.read = std::move(b.read);
    c.count = b.parts.count;
    Trace trace;  // says that these are torch's tensors
    trace.tensors.emplace_back();
    std::vector<bool> later(c.count);  // read by later parts, or what those hand on
    for (size_t p = b.parts.parts.size(); p-- > 0;) {
      autodiff::BackwardPart& from = b.parts.parts[p];
      Part part;
      for (ValueId v : from.graph.inputs) part.types.emplace_back(from.graph.node(v).type, from.graph.node(v).strides);
      std::vector<bool> mine(c.count);
      for (size_t i = 0; i < c.grads.size(); ++i)
        if (c.grads[i] >= 0 && t_.part[i] == static_cast<int>(p)) mine[c.grads[i]] = true;
      for (int i : from.inputs)
        if (!later[i] && !mine[i]) part.last.push_back(i);
      for (int i = 0; i < c.count; ++i)
        if (!later[i] && mine[i]) part.done.push_back(i);
      for (int i : from.inputs) later[i] = true;
      for (int i = 0; i < c.count; ++i) later[i] = later[i] || mine[i];
      part.inputs = std::move(from.inputs);
      part.outputs = std::move(from.outputs);
      std::vector<OutputPlan> plans;
      for (size_t i = 0; i < part.outputs.size(); ++i)
        plans.push_back({OutputPlan::kGraphOutput, static_cast<int>(i), {}});
      part.runner = MakeGraphRunner(b.executables[p], from.graph, trace, std::move(plans), {});
      c.parts.insert(c.parts.begin(), std::move(part));
    }
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

// The framework's rule: what a derivative reads must be as it was. Memory is not held for that.
int Hook::Watch(CallState* s, PyObject* const* made) {
  static PyObject* nothing = nullptr;
  const size_t n = std::count(t_.watched.begin(), t_.watched.end(), true);
  if (!n) return 0;
  if (!nothing) nothing = Scalar("empty", Device{});
  s->watched = PyTuple_New(2 * n);
  if (!nothing || !s->watched) return -1;
  size_t at = 0;
  for (size_t i = 0; i < t_.watched.size(); ++i) {
    if (!t_.watched[i]) continue;
    PyObject* twin = PyObject_CallMethod(made[i], "detach", nullptr);
    if (!twin) return -1;
    PyTuple_SET_ITEM(s->watched, at++, twin);
    Ref own(t_.device.kind == DeviceKind::kCuda ? PyObject_CallMethod(made[i], "new_empty", "i", 0)
                                                : Py_NewRef(nothing));
    if (!own || PyObject_SetAttrString(twin, "data", own.get()) < 0) return -1;
    PyObject* version = PyObject_GetAttr(twin, Name(kVersion));
    if (!version) return -1;
    PyTuple_SET_ITEM(s->watched, at++, version);
  }
  return 0;
}

// 1: some were written, which this pass does not read.
int Hook::LookAtWatched(CallState* s, const std::vector<bool>& tangents) {
  Compiled* c = nullptr;
  Py_ssize_t at = 0;
  int written = 0;
  for (size_t i = 0; s->watched && i < t_.watched.size(); ++i) {
    if (!t_.watched[i]) continue;
    Ref now(PyObject_GetAttr(PyTuple_GET_ITEM(s->watched, at), Name(kVersion)));
    const int same = now ? PyObject_RichCompareBool(now.get(), PyTuple_GET_ITEM(s->watched, at + 1), Py_EQ) : -1;
    at += 2;
    if (same < 0) return -1;
    if (same) continue;
    written = 1;
    if (!c && !(c = For(tangents))) return -1;
    if (!c->read[i]) continue;
    PyErr_SetString(PyExc_RuntimeError, kModified);
    return -1;
  }
  return written;
}

// A backward pass enters the segment. -1: an exception.
int Hook::Begin(CallState* s, PyObject* ctx, PyObject* const* grads, Py_ssize_t n, Pass* pass) {
  if (n != static_cast<Py_ssize_t>(t_.differentiable.size())) {
    PyErr_Format(PyExc_SystemError, "framejit: %zd gradients arrived", n);
    return -1;
  }
  std::vector<bool> tangents(n);
  for (Py_ssize_t i = 0; i < n; ++i) tangents[i] = t_.differentiable[i] && grads[i] != Py_None;
  const int written = LookAtWatched(s, tangents);
  if (written < 0) return -1;
  if (ReadMode().grad) return Replay(s, grads, n, pass);  // create_graph=True
  bool any = false, fresh = true;
  for (Py_ssize_t i = 0; i < n; ++i) {
    any |= tangents[i];
    for (Py_ssize_t k = 0; tangents[i] && k < n; ++k) fresh &= !((*s->used)[k] && t_.related[i][k]);
  }
  // Freed, or written since: torch raises. Where nothing was saved there is nothing to free.
  Ref saved(t_.saved.empty() ? PyTuple_New(0) : PyObject_GetAttr(ctx, Name(kSaved)));
  if (!saved) {
    const bool other = written || std::find(s->used->begin(), s->used->end(), true) != s->used->end();
    if (!fresh || !other || !t_.replay) return -1;
    PyErr_Clear();
    for (Py_ssize_t i = 0; i < n; ++i) (*s->used)[i] = (*s->used)[i] || tangents[i];
    return Replay(s, grads, n, pass);
  }
  *s->used = tangents;  // what is still here was kept by all passes before this one
  pass->grads.resize(t_.wanted.size());
  if (!any) return 0;
  Compiled* c = For(tangents);
  if (!c) return -1;
  pass->values.resize(c->count);
  const size_t num_saved = t_.saved.size();
  for (size_t i = 0; i < num_saved; ++i) pass->values[i] = Ref::Borrow(PyTuple_GET_ITEM(saved.get(), i));
  for (size_t i = 0; i < c->tangents.size(); ++i) pass->values[num_saved + i] = Ref::Borrow(grads[c->tangents[i]]);
  for (const Part& part : c->parts)
    for (size_t i = 0; i < part.inputs.size(); ++i) {
      const int number = part.inputs[i];
      if (number >= static_cast<int>(num_saved + c->tangents.size())) continue;
      Ref fitting(Fitting(pass->values[number].get(), part.types[i].first, part.types[i].second, *s->symbols));
      if (!fitting) return PyErr_Occurred() ? -1 : Replay(s, grads, n, pass);
      if (number < static_cast<int>(num_saved)) pass->values[number] = std::move(fitting);
    }
  pass->compiled = c;
  // Nobody else needs what was saved, unless the graph is kept: it goes as the pass proceeds.
  Ref cleared(PyObject_CallMethodNoArgs(ctx, Name(kClear)));
  if (!cleared) PyErr_Clear();
  return 0;
}

int Hook::Go(CallState* s, int number, Pass* pass) {
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
  if (!part.outputs.empty() && part.runner->RunTaking(&taken, s->symbols->data(), out.data()) < 0) return -1;
  for (size_t i = 0; i < out.size(); ++i) pass->values[part.outputs[i]] = Ref(out[i]);
  for (size_t i = 0; i < t_.wanted.size(); ++i) {
    const int g = pass->compiled->grads[i];
    if (t_.wanted[i] && t_.part[i] == number && g >= 0) pass->grads[i] = Ref::Borrow(pass->values[g].get());
  }
  for (int i : part.done) pass->values[i] = Ref();  // who accumulates it may keep it as it is
  return 0;
}

// What the node of this part returns; the rest of the pass is kept for the next one's.
PyObject* Hook::Answer(CallState* head, int part, Pass pass, int64_t number) {
  std::vector<PyObject*> all = {Py_NewRef(Py_None)};
  if (part + 1 < num_parts()) {
    if (!link_) link_ = Ref(Scalar("zeros", t_.device));
    PyObject* link = Py_XNewRef(link_.get());
    if (!link) return Py_DECREF(all[0]), nullptr;
    all.push_back(link);
  }
  for (size_t i = 0; i < t_.wanted.size(); ++i)
    if (t_.wanted[i] && t_.part[i] == part) all.push_back(pass.grads[i] ? pass.grads[i].release() : Py_NewRef(Py_None));
  if (part + 1 < num_parts()) {
    constexpr size_t kMost = 64;  // passes that asked for a part of the gradients only are never heard of again
    if (head->passes->size() == kMost) head->passes->erase(head->passes->begin());
    head->passes->insert_or_assign(number, std::move(pass));
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

PyObject* Hook::Backward(CallState* s, PyObject* ctx, PyObject* const* grads, Py_ssize_t n) {
  CallState* head = s->head ? StateOf(s->head) : s;
  if (!head) return nullptr;
  Pass pass;
  const int64_t number = NumberOfPass();
  if (s == head) {
    if (Begin(s, ctx, grads, n, &pass) < 0) return nullptr;
  } else if (auto at = head->passes->find(number); at != head->passes->end()) {
    pass = std::move(at->second);
    head->passes->erase(at);
  } else {
    return PyErr_Format(PyExc_RuntimeError, "framejit: this backward pass was not begun");
  }
  if (pass.compiled && Go(head, s->part, &pass) < 0) return nullptr;
  return Answer(head, s->part, std::move(pass), number);
}

// The framework runs the program again, with its own records, and differentiates those.
int Hook::Replay(CallState* s, PyObject* const* grads, Py_ssize_t n, Pass* pass) {
  *pass = {};
  pass->grads.resize(t_.wanted.size());
  if (!t_.replay) {
    PyErr_Format(PyExc_RuntimeError, "trying to differentiate twice a function compiled by framejit: %s",
                 t_.no_replay.c_str());
    return -1;
  }
  size_t num_inputs = t_.wanted.size();
  for (size_t i = 0; i < num_inputs; ++i) {
    Ref now(PyObject_GetAttr(PyTuple_GET_ITEM(s->inputs, i), Name(kVersion)));
    PyObject* then = PyTuple_GET_ITEM(s->versions, i);
    if (!now) PyErr_Clear();
    if (then == Py_None) continue;
    int same = now ? PyObject_RichCompareBool(now.get(), then, Py_EQ) : 0;
    if (same < 0) return -1;
    if (!same) {
      PyErr_SetString(PyExc_RuntimeError, kModified);
      return -1;
    }
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
  if (t_.replay->Run(inputs.data(), s->symbols->data(), outputs.data(), &failed) < 0) return -1;
  std::vector<Ref> held;
  for (PyObject* o : outputs) held.emplace_back(o);
  Ref outs(PyList_New(0)), wanted(PyList_New(0)), tangents(PyList_New(0)),
      autograd(PyImport_ImportModule("torch.autograd"));
  if (!outs || !wanted || !tangents || !autograd) return -1;
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (!t_.differentiable[i] || grads[i] == Py_None) continue;
    if (PyList_Append(outs.get(), outputs[i]) < 0 || PyList_Append(tangents.get(), grads[i]) < 0) return -1;
  }
  for (size_t i = 0; i < num_inputs; ++i)
    if (t_.wanted[i] && PyList_Append(wanted.get(), inputs[i]) < 0) return -1;
  if (PyList_GET_SIZE(outs.get()) == 0) return 0;
  Ref f(PyObject_GetAttrString(autograd.get(), "grad")),
      args(PyTuple_Pack(3, outs.get(), wanted.get(), tangents.get()));
  Ref kwargs(Py_BuildValue("{s:O,s:O}", "create_graph", create ? Py_True : Py_False, "allow_unused", Py_True));
  Ref all(f && args && kwargs ? PyObject_Call(f.get(), args.get(), kwargs.get()) : nullptr);
  if (!all) return -1;
  Py_ssize_t at = 0;
  for (size_t i = 0; i < num_inputs; ++i)
    if (t_.wanted[i]) pass->grads[i] = Ref::Borrow(PyTuple_GET_ITEM(all.get(), at++));
  return 0;
}

}  // namespace

std::vector<int64_t> BucketBytes() {
  SavedError saved;
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch.nn.parallel.distributed");
  Ref type(module ? PyObject_GetAttrString(module, "DistributedDataParallel") : nullptr);
  Ref active(type ? PyObject_GetAttrString(type.get(), "_active_ddp_module") : nullptr);
  if (!active || active.get() == Py_None) return PyErr_Clear(), std::vector<int64_t>();
  std::vector<int64_t> caps;
  auto add = [&](PyObject* o) {
    const double bytes = o ? PyFloat_AsDouble(o) : -1;
    PyErr_Clear();
    if (bytes > 0) caps.push_back(static_cast<int64_t>(bytes));
  };
  Ref config(PyObject_GetAttrString(active.get(), "_bucket_config"));  // of newer versions
  Ref each(config ? PyObject_GetAttrString(config.get(), "per_bucket_bytes_caps") : nullptr);
  for (Py_ssize_t i = 0; each && PyTuple_Check(each.get()) && i < PyTuple_GET_SIZE(each.get()); ++i)
    add(PyTuple_GET_ITEM(each.get(), i));
  if (!caps.empty()) return caps;
  add(Ref(config ? PyObject_GetAttrString(config.get(), "first_bucket_bytes_cap") : nullptr).get());
  add(Ref(PyObject_GetAttrString(active.get(), "bucket_bytes_cap")).get());
  return caps;
}

std::shared_ptr<OutputHook> MakeTrainingHook(Training training) {
  return std::make_shared<Hook>(std::move(training));
}

}  // namespace framejit::tensor
