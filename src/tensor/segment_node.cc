#include "tensor/segment_node.h"

#include <algorithm>
#include <cstring>
#include <queue>

#include "tensor/call_step.h"
#include "tensor/import.h"
#include "tensor/overrides.h"
#include "tensor/own_reference.h"
#include "tensor/torch_api.h"
#include "tensor/undo.h"

namespace framejit::tensor {
namespace {

CallState* newest = nullptr;  // The GIL protects it.

void Dealloc(PyObject* o) {
  auto* s = reinterpret_cast<CallState*>(o);
  PyObject_GC_UnTrack(o);
  if (s->newer) s->newer->older = s->older;
  if (s->older) s->older->newer = s->newer;
  if (newest == s) newest = s->older;
  delete s->former;
  delete s->shown;
  delete s->rebound;
  delete s->hook;
  delete s->symbols;
  delete s->spent;
  delete s->passes;
  delete s->hooks;
  delete s->hung;
  delete s->retained;
  delete s->routed;
  delete s->measured;
  for (PyObject** p : {&s->head, &s->segment, &s->inputs, &s->versions, &s->own, &s->drawn, &s->versioned, &s->outputs,
                       &s->saved, &s->opaque, &s->kept})
    Py_CLEAR(*p);
  PyObject_GC_Del(o);
}
int Traverse(PyObject* o, visitproc visit, void* arg) {
  auto* s = reinterpret_cast<CallState*>(o);
  for (PyObject* p : {s->head, s->segment, s->inputs, s->own, s->outputs, s->saved, s->opaque, s->kept}) Py_VISIT(p);
  if (s->rebound)
    for (auto& [i, own] : *s->rebound) Py_VISIT(own.object.get());
  if (!s->hooks) return 0;
  for (auto& [i, dict] : *s->hooks) Py_VISIT(dict.get());
  for (auto& [i, hung] : *s->hung) {
    Py_VISIT(hung.weak.get());
    Py_VISIT(hung.own.get());
  }
  return 0;
}
int Clear(PyObject* o) {
  auto* s = reinterpret_cast<CallState*>(o);
  for (PyObject** p : {&s->head, &s->segment, &s->inputs, &s->outputs, &s->saved, &s->opaque, &s->kept}) Py_CLEAR(*p);
  if (s->rebound) s->rebound->clear();
  if (s->hooks) s->hooks->clear();
  if (s->hung) s->hung->clear();
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

CallState* StateOf(PyObject* o) {
  if (Py_TYPE(o) == StateType()) return reinterpret_cast<CallState*>(o);
  PyErr_SetString(PyExc_SystemError, "framejit: not a call of a segment");
  return nullptr;
}

PyObject* Forward(PyObject*, PyObject* const* args, Py_ssize_t n) {  // (ctx, state, inputs that want gradients...)
  CallState* s = n >= 2 ? StateOf(args[1]) : nullptr;
  if (!s) return nullptr;
  if ((PyTuple_GET_SIZE(s->saved) && PyObject_SetAttr(args[0], Interned(kSave), s->saved) < 0) ||
      (PyTuple_GET_SIZE(s->opaque) && PyObject_SetAttr(args[0], Interned(kOpaque), s->opaque) < 0) ||
      PyObject_SetAttr(args[0], Interned(kMaterialize), Py_False) < 0 ||
      PyObject_SetAttr(args[0], Interned(kState), args[1]) < 0)
    return nullptr;
  PyObject* outputs = s->outputs;
  s->outputs = nullptr;
  Py_CLEAR(s->saved);
  Py_CLEAR(s->opaque);
  return outputs;
}

PyObject* BackwardOf(PyObject*, PyObject* const* args, Py_ssize_t n) {  // (ctx, grads...)
  Ref state(n ? PyObject_GetAttr(args[0], Interned(kState)) : nullptr);
  CallState* s = state ? StateOf(state.get()) : nullptr;
  if (!s) return nullptr;
  struct Request {
    CallState* s;
    PyObject* const* args;
    Py_ssize_t n;
  } request{s, args, n};
  AutocastOff plain;
  OverridesOff own;
  PyObject* gradients = (*s->hook)->quietly()(
      [](void* p) {
        auto* r = static_cast<Request*>(p);
        return (*r->s->hook)->Backward(r->s, r->args[0], r->args + 1, r->n - 1);
      },
      &request);
  // What a run takes for granted is no exception, and a result may die while its hooks run.
  if (!gradients && !PyErr_Occurred())
    PyErr_SetString(PyExc_RuntimeError, "framejit: what the backward pass takes for granted does not hold any more");
  return gradients;
}

// torch's own _register_hook_dict: `node` calls the hooks in `own` for the gradient of its result `tensor`, behind
// those that it calls already. A new reference, or null with the exception set.
PyObject* CallForGradient(PyObject* node, PyObject* tensor, PyObject* own) {
  static PyObject* base = ResolveCallee("torch._C._FunctionBase._register_hook_dict");
  Ref hooks(base ? PyObject_GetAttr(tensor, Interned(kHooks)) : nullptr);
  if (!hooks || PyObject_SetAttr(tensor, Interned(kHooks), own) < 0) return nullptr;
  PyObject* args[] = {node, tensor};
  Ref result(PyObject_Vectorcall(base, args, 2, nullptr));
  return PyObject_SetAttr(tensor, Interned(kHooks), hooks.get()) < 0 ? nullptr : result.release();
}

// Of a result's node, from torch's Tensor.register_hook: the hooks are called by us, if a gradient arrives.
PyObject* RegisterHooks(PyObject*, PyObject* const* args, Py_ssize_t n) {  // (node, tensor)
  if (n != 2) return PyErr_Format(PyExc_SystemError, "framejit: hooks of something else");
  Ref state(PyObject_GetAttr(args[0], Interned(kState))), hooks(PyObject_GetAttr(args[1], Interned(kHooks)));
  Ref own(PyDict_New());
  CallState* s = state ? StateOf(state.get()) : nullptr;
  if (!s || !hooks || !own) return nullptr;
  auto* head = s->head ? reinterpret_cast<CallState*>(s->head) : s;
  if ((s->head && s->part >= 0) || !PyDict_Check(hooks.get())) return CallForGradient(args[0], args[1], hooks.get());
  Ref number(s->part < 0 ? PyLong_FromLong(-1 - s->part) : PyObject_GetAttrString(args[1], "output_nr"));
  long output = number ? PyLong_AsLong(number.get()) : -1;
  if (output >= 0 && s->part >= 0) output = static_cast<long>((*s->hook)->PlaceOf(output));
  if (output < 0 || (*s->hook)->AddHooks(head, output, hooks.get(), own.get()) < 0) return nullptr;
  Ref result(CallForGradient(args[0], args[1], own.get()));
  if (result && s == head && (*s->hook)->PutInOrder(s, args[0], output, args[1], own.get()) < 0) return nullptr;
  return result.release();
}

PyMethodDef hooks_def = {"_register_hook_dict",
                         reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(RegisterHooks)), METH_FASTCALL,
                         nullptr};
PyMethodDef forward_def = {"forward", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Forward)),
                           METH_FASTCALL, nullptr};
PyMethodDef backward_def = {"backward", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(BackwardOf)),
                            METH_FASTCALL, nullptr};

}  // namespace

SegmentHook::SegmentHook(Training t)
    : t_(std::move(t)), edges_(num_parts() + t_.reached_by.size()), inner_(num_outputs()), has_inner_(num_results()) {
  for (size_t output = 0; output < num_outputs(); ++output)
    for (size_t i = 0; i < num_results() && t_.differentiable[output]; ++i)
      if (t_.next[output][i]) {
        inner_[output].push_back(static_cast<int>(i));
        has_inner_[i] = true;
      }
  // The framework runs the nodes of what was made last first, so what was made first may hang on the segment's.
  std::vector<size_t> on_segment;
  for (size_t i = 0; i < num_outputs(); ++i) {
    const bool routed = !inner_[i].empty() || !GroupsOf(i).empty() || (t_.differentiable[i] && !t_.views.empty());
    how_.push_back(routed ? How::kRouted : How::kOnSegment);
    if (t_.differentiable[i] && !routed) on_segment.push_back(i);
  }
  if (!on_segment.empty())
    first_ = *std::min_element(on_segment.begin(), on_segment.end(), [&](size_t a, size_t b) {
      return has_inner_[a] != has_inner_[b] ? has_inner_[a] : t_.made[a] < t_.made[b];
    });
  const auto own_node = [&](size_t i) { return Torch()->lift && !has_inner_[i] ? How::kAlone : How::kRouted; };
  for (size_t i : on_segment)
    if (i != first_) how_[i] = own_node(i);
  for (size_t i = 0; i < num_outputs() && !on_segment.empty() && !has_inner_[first_]; ++i)
    if (t_.differentiable[i] && t_.made[i] < t_.made[first_]) how_[first_] = own_node(first_);
  // The engine's queue takes nodes of leaves before all others, and those among them in the order of a heap in which
  // all are equal.
  for (size_t part = 0; part < edges_.size(); ++part) {
    std::vector<int> all;
    for (int i : t_.edges)
      if (NodeOf(i) == static_cast<int>(part)) all.push_back(i);
    auto equal = [](size_t, size_t) { return false; };
    std::priority_queue<size_t, std::vector<size_t>, decltype(equal)> queue(equal);
    for (size_t place = 0; place < all.size(); ++place) queue.push(place);
    edges_[part].resize(all.size());
    for (int i : all) {
      edges_[part][queue.top()] = i;
      queue.pop();
    }
  }
}

int SegmentHook::PutInOrder(CallState* s, PyObject* node, long output, PyObject* tensor, PyObject* own) {
  std::vector<int> before;
  for (auto& [i, hung] : *s->hung)
    if (t_.made[i] < t_.made[output]) before.push_back(i);
  std::stable_sort(before.begin(), before.end(), [&](int a, int b) { return t_.made[a] > t_.made[b]; });
  for (int i : before) {
    CallState::Hung& hung = s->hung->at(i);
    Ref other(PyObject_CallNoArgs(hung.weak.get()));
    if (!other) return -1;
    if (other.get() == Py_None) continue;  // its hooks stay where they are
    Ref again(PyDict_Copy(hung.own.get())), done(again ? CallForGradient(node, other.get(), again.get()) : nullptr);
    if (!done) return -1;
    PyDict_Clear(hung.own.get());
    hung.own = std::move(again);
  }
  Ref weak = OwnReference(tensor);
  if (!weak) return -1;
  s->hung->insert_or_assign(static_cast<int>(output), CallState::Hung{std::move(weak), Ref::Borrow(own)});
  return 0;
}

PyObject* Interned(const char* text) {
  static std::map<const char*, PyObject*> names;
  PyObject*& n = names[text];
  if (!n) n = PyUnicode_InternFromString(text);
  return n;
}

// Of framejit._functions, also while an exception is set. A new reference.
static PyObject* OfFunctions(const char* name) {
  SavedError error;
  PyObject* found = ResolveCallee(std::string("framejit._functions.") + name);
  PyErr_Clear();
  return found;
}

Answering::Answering() {
  static PyObject *const none = OfFunctions("NoGradient"), *const answer = OfFunctions("answer");
  if (!none || !answer || !PyErr_ExceptionMatches(none)) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Ref a(type), error(value), c(trace);
  before_ = Ref(PyObject_CallOneArg(answer, error.get()));
}

Answering::~Answering() {
  static PyObject* const answer = OfFunctions("answer");
  if (!before_) return;
  SavedError error;
  if (!Ref(PyObject_CallOneArg(answer, before_.get()))) PyErr_Clear();
}

Ref OfCall::Tell(PyObject* kept) {
  static PyObject* const of_call = ResolveCallee("framejit._functions.of_call");
  Ref before(of_call ? PyObject_CallOneArg(of_call, kept) : nullptr);
  if (!before) PyErr_Clear();
  return before;
}

OfCall::~OfCall() {
  SavedError error;
  if (before_ && !Tell(before_.get())) PyErr_Clear();
}

CallState* NewestCall() {
  return newest;
}

CallState* NewState(const std::shared_ptr<SegmentHook>& hook, int part, PyObject* head) {
  PyTypeObject* type = StateType();
  auto* s = type ? PyObject_GC_New(CallState, type) : nullptr;
  if (!s) return nullptr;
  s->hook = new std::shared_ptr<SegmentHook>(hook);
  s->symbols = nullptr;
  s->spent = nullptr;
  s->freed = false;
  s->freeing = -1;
  s->unseen = -1;
  s->passes = nullptr;
  s->hooks = head ? nullptr : new std::map<int, Ref>();
  s->hung = head ? nullptr : new std::map<int, CallState::Hung>();
  s->retained = head ? nullptr : new std::map<int, CallState::Inner>();
  s->routed = head ? nullptr : new std::map<int64_t, CallState::Routes>();
  s->part = part;
  s->former = s->shown = nullptr;
  s->rebound = nullptr;
  s->measured = !head && measured_call ? new Measured(measured_call) : nullptr;
  s->newer = s->older = nullptr;
  if (!head) {
    s->older = newest;
    if (newest) newest->newer = s;
    newest = s;
  }
  s->head = Py_XNewRef(head);
  s->segment = s->inputs = s->versions = s->own = s->drawn = s->versioned = s->outputs = s->saved = s->opaque = nullptr;
  s->kept = nullptr;
  return s;
}

PyObject* Generators(Device device) {
  Ref states(PyList_New(0));
  for (const char* name : {"torch.default_generator", "torch.cuda.default_generators"}) {
    if (!strcmp(name, "torch.cuda.default_generators") && device.kind != DeviceKind::kCuda) break;
    static std::map<const char*, PyObject*> known;
    PyObject*& found = known[name];
    if (!found || device.kind == DeviceKind::kCuda) Py_XSETREF(found, ResolveCallee(name));
    Ref generator(!found                      ? nullptr
                  : PyTuple_CheckExact(found) ? PySequence_GetItem(found, std::max<int>(0, device.index))
                                              : Py_NewRef(found));
    Ref state(generator ? PyObject_CallMethod(generator.get(), "get_state", nullptr) : nullptr);
    Ref both(state ? PyTuple_Pack(2, generator.get(), state.get()) : nullptr);
    if (!both || !states || PyList_Append(states.get(), both.get()) < 0) return nullptr;
  }
  return states.release();
}

int SetGenerators(PyObject* states) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(states); ++i) {
    PyObject* both = PyList_GET_ITEM(states, i);
    Ref r(PyObject_CallMethod(PyTuple_GET_ITEM(both, 0), "set_state", "O", PyTuple_GET_ITEM(both, 1)));
    if (!r) return -1;
  }
  return 0;
}

// Torch's own, without the Python wrapper that looks for functorch (guards exclude it).
PyObject* ApplyNode() {
  static PyObject* apply = nullptr;
  if (apply) return apply;
  Ref module(Import("torch.autograd.function")), f(PyCFunction_New(&forward_def, nullptr)),
      b(PyCFunction_New(&backward_def, nullptr));
  Ref base(module ? PyObject_GetAttrString(module.get(), "Function") : nullptr);
  if (!base || !f || !b) return nullptr;
  Ref sf(PyStaticMethod_New(f.get())), sb(PyStaticMethod_New(b.get()));
  // What torch asks of the class by fresh names at each call is found in it at once, not in a base of a base.
  Ref above(PyObject_GetAttrString(module.get(), "_SingleLevelFunction")), names(PyDict_New());
  Ref items(above && names ? PyMapping_Items(reinterpret_cast<PyTypeObject*>(above.get())->tp_dict) : nullptr);
  for (Py_ssize_t i = 0; items && i < PyList_GET_SIZE(items.get()); ++i) {
    PyObject *name = PyTuple_GET_ITEM(PyList_GET_ITEM(items.get(), i), 0),
             *value = PyTuple_GET_ITEM(PyList_GET_ITEM(items.get(), i), 1);
    if (PyUnicode_READ_CHAR(name, 0) != '_' && PyDict_SetItem(names.get(), name, value) < 0) return nullptr;
  }
  Ref of(PyUnicode_FromString("framejit"));
  if (!items || !of || PyDict_SetItemString(names.get(), "__module__", of.get()) < 0 ||
      PyDict_SetItemString(names.get(), "forward", sf.get()) < 0 ||
      PyDict_SetItemString(names.get(), "backward", sb.get()) < 0)
    return nullptr;
  Ref cls(PyObject_CallFunction(reinterpret_cast<PyObject*>(Py_TYPE(base.get())), "s(O)O", "CompiledSegment",
                                base.get(), names.get()));
  if (!cls) return nullptr;
  Ref base_of_nodes(PyObject_GetAttrString(cls.get(), "_backward_cls")), hooks(PyCFunction_New(&hooks_def, nullptr));
  Ref method(hooks ? PyInstanceMethod_New(hooks.get()) : nullptr);
  if (!base_of_nodes || !method) return nullptr;
  // What a node knows of us stands in a slot: so it needs no dict.
  Ref node(PyObject_CallFunction(reinterpret_cast<PyObject*>(Py_TYPE(base_of_nodes.get())), "s(O){s:s,s:O,s:s}",
                                 "CompiledSegmentBackward", base_of_nodes.get(), "__slots__", kState, hooks_def.ml_name,
                                 method.get(), "__module__", "framejit"));
  if (!node || PyObject_SetAttrString(cls.get(), "_backward_cls", node.get()) < 0) return nullptr;
  Ref super(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PySuper_Type), "OO", base.get(), cls.get()));
  apply = super ? PyObject_GetAttrString(super.get(), "apply") : nullptr;
  return apply;
}

PyObject* HiddenScalar(const char* made_by, Device device) {
  Ref torch(Import("torch")), shape(PyTuple_New(0)), args(PyTuple_Pack(1, shape.get()));
  Ref function(torch ? PyObject_GetAttrString(torch.get(), made_by) : nullptr);
  const std::string where = device.kind == DeviceKind::kCuda ? "cuda:" + std::to_string(device.index) : "cpu";
  Ref kwargs(Py_BuildValue("{s:s}", "device", where.c_str()));
  return function && args && kwargs ? PyObject_Call(function.get(), args.get(), kwargs.get()) : nullptr;
}

bool MadeBy(PyObject* node, CallState* head) {
  Ref next, edge, segment;
  if (node && strcmp(Py_TYPE(node)->tp_name, "LiftBackward0") == 0) {  // GiveNode
    next = Ref(PyObject_GetAttrString(node, "next_functions"));
    edge = Ref(next ? PySequence_GetItem(next.get(), 0) : nullptr);
    segment = Ref(edge ? PySequence_GetItem(edge.get(), 0) : nullptr);
    node = segment.get();
  }
  Ref state(node ? PyObject_GetAttr(node, Interned(kState)) : nullptr);
  PyErr_Clear();
  auto* by = reinterpret_cast<CallState*>(state.get());
  return by && (by == head || by->head == reinterpret_cast<PyObject*>(head));
}

// Gives the result if somebody holds it and gradients still come from it to the node that made it, else null: what is
// written where gradients are recorded gets another node, and so does every view of what is written.
Ref SegmentHook::AsMade(CallState* head, int output) {
  if (output >= static_cast<int>(num_outputs())) return Unwritten(head, output);
  Ref own = Alive(head, output), node(own ? PyObject_GetAttrString(own.get(), "grad_fn") : nullptr);
  return MadeBy(node.get(), head) ? std::move(own) : Ref();
}

}  // namespace framejit::tensor
