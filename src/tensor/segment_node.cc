#include "tensor/segment_node.h"

#include "tensor/call_step.h"

namespace framejit::tensor {
namespace {

void Dealloc(PyObject* o) {
  auto* s = reinterpret_cast<CallState*>(o);
  PyObject_GC_UnTrack(o);
  delete s->hook;
  delete s->symbols;
  delete s->used;
  delete s->passes;
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

CallState* StateOf(PyObject* o) {
  if (Py_TYPE(o) == StateType()) return reinterpret_cast<CallState*>(o);
  PyErr_SetString(PyExc_SystemError, "framejit: not a call of a segment");
  return nullptr;
}

PyObject* Forward(PyObject*, PyObject* const* args, Py_ssize_t n) {  // (ctx, state, inputs that want gradients...)
  CallState* s = n >= 2 ? StateOf(args[1]) : nullptr;
  if (!s) return nullptr;
  if (PyObject_SetAttr(args[0], Interned(kSave), s->saved) < 0 ||
      PyObject_SetAttr(args[0], Interned(kOpaque), s->opaque) < 0 ||
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

}  // namespace

PyObject* Interned(const char* text) {
  static std::map<const char*, PyObject*> names;
  PyObject*& n = names[text];
  if (!n) n = PyUnicode_InternFromString(text);
  return n;
}

CallState* NewState(const std::shared_ptr<SegmentHook>& hook, int part, PyObject* head) {
  PyTypeObject* type = StateType();
  auto* s = type ? PyObject_GC_New(CallState, type) : nullptr;
  if (!s) return nullptr;
  s->hook = new std::shared_ptr<SegmentHook>(hook);
  s->symbols = nullptr;
  s->used = nullptr;
  s->passes = nullptr;
  s->part = part;
  s->head = Py_XNewRef(head);
  s->inputs = s->versions = s->watched = s->outputs = s->saved = s->opaque = nullptr;
  return s;
}

// Torch's own, without the Python wrapper that looks for functorch (guards exclude it).
PyObject* ApplyNode() {
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

PyObject* HiddenScalar(const char* made_by, Device device) {
  Ref torch(PyImport_ImportModule("torch")), shape(PyTuple_New(0)), args(PyTuple_Pack(1, shape.get()));
  Ref function(torch ? PyObject_GetAttrString(torch.get(), made_by) : nullptr);
  const std::string where = device.kind == DeviceKind::kCuda ? "cuda:" + std::to_string(device.index) : "cpu";
  Ref kwargs(Py_BuildValue("{s:s}", "device", where.c_str()));
  return function && args && kwargs ? PyObject_Call(function.get(), args.get(), kwargs.get()) : nullptr;
}

}  // namespace framejit::tensor
