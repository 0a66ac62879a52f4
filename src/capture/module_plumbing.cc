// torch.nn.Module's own functions, through which every attribute and every call of a model goes, done without running
// their bytecode: the same reads with the same guards. Only where their code is what framejit/_plumbing.py has, and
// only while they would run none of the user's code in between; what is not handled here is interpreted.
#include "bytecode/code.h"
#include "capture/override.h"
#include "capture/semantics.h"

#include <frameobject.h>

#include <array>

namespace framejit::capture {
namespace {

using bytecode::Op;

PyCodeObject* CodeIn(PyObject* space, const char* name) {
  PyObject* f = space ? PyDict_GetItemString(space, name) : nullptr;
  return f && PyFunction_Check(f) ? reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(f)) : nullptr;
}

bool SameItem(PyObject* a, int i, PyObject* b, int j) {
  if (i >= PyTuple_GET_SIZE(a) || j >= PyTuple_GET_SIZE(b)) return false;
  PyObject *x = PyTuple_GET_ITEM(a, i), *y = PyTuple_GET_ITEM(b, j);
  return x == y || (PyUnicode_CheckExact(x) && PyUnicode_CheckExact(y) && PyUnicode_Compare(x, y) == 0);
}

// Do both begin with the same instructions, up to the first return (whole: all of them)? last_call: where the last call
// with argument lists in them is.
bool SameCode(PyCodeObject* a, PyCodeObject* b, bool whole, int* last_call) {
  constexpr int kForm = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
  if (!a || !b || ((a->co_flags ^ b->co_flags) & kForm) || a->co_argcount != b->co_argcount ||
      a->co_kwonlyargcount != b->co_kwonlyargcount)
    return false;
  const bytecode::Code *x = bytecode::Code::Of(a), *y = bytecode::Code::Of(b);
  if (!x || !y) return PyErr_Clear(), false;
  if (whole && x->size() != y->size()) return false;
  for (int at = 0; at < x->size() && at < y->size();) {
    const bytecode::Instr &i = x->At(at), &j = y->At(at);
    if (i.op != j.op || i.flag != j.flag || !i.length || i.length != j.length || i.target != j.target) return false;
    if (x->FindHandler(at)) return false;
    switch (i.op) {
      case Op::kLoadGlobal:
      case Op::kLoadAttr:
      case Op::kLoadMethod:
        if (!SameItem(a->co_names, i.arg, b->co_names, j.arg)) return false;
        break;
      case Op::kLoadConst:
        if (!SameItem(a->co_consts, i.arg, b->co_consts, j.arg)) return false;
        break;
      case Op::kLoadFast:
      case Op::kStoreFast:
      case Op::kLoadDeref:
      case Op::kStoreDeref:
      case Op::kMakeCell:
        if (!SameItem(a->co_localsplusnames, i.arg, b->co_localsplusnames, j.arg)) return false;
        break;
      default:
        if (i.arg != j.arg) return false;
    }
    if (i.op == Op::kCallEx) *last_call = i.unit;
    if (!whole && i.op == Op::kReturnValue) return true;
    at += i.length;
  }
  return whole;
}

struct Plumbing {
  Ref getattr, wrapped_call, call;  // code objects; null: not the code that we know
  int wrapped_at = 0, call_at = 0;  // units of the calls in them
};

const Plumbing& Known() {
  static Plumbing known;
  static bool looked = false;
  if (looked || !tensor::TorchLoaded()) return known;
  looked = true;
  SuspendScope off;
  Ref ours(PyImport_ImportModule("framejit._plumbing"));
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch.nn.modules.module");
  PyObject* type = module && PyModule_Check(module) ? PyDict_GetItemString(PyModule_GetDict(module), "Module") : nullptr;
  if (!ours || !type || !PyType_Check(type)) return PyErr_Clear(), known;
  Ref space(PyObject_GetAttrString(type, "__dict__"));  // a mappingproxy
  Ref theirs(space ? PyDict_New() : nullptr);
  if (!theirs || PyDict_Update(theirs.get(), space.get()) < 0) return PyErr_Clear(), known;
  auto check = [&](const char* name, bool whole, Ref* out, int* at) {
    PyCodeObject* code = CodeIn(theirs.get(), name);
    if (SameCode(code, CodeIn(PyModule_GetDict(ours.get()), name), whole, at))
      *out = Ref::Borrow(reinterpret_cast<PyObject*>(code));
  };
  int none;
  check("__getattr__", true, &known.getattr, &none);
  check("_wrapped_call_impl", true, &known.wrapped_call, &known.wrapped_at);
  check("_call_impl", false, &known.call, &known.call_at);
  return known;
}

// A frame of `f` that an exception has passed through.
void AddTraceback(PyFunctionObject* f, int unit) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  auto* code = reinterpret_cast<PyCodeObject*>(f->func_code);
  Ref frame(reinterpret_cast<PyObject*>(PyFrame_New(PyThreadState_Get(), code, f->func_globals, nullptr)));
  Ref entry(frame ? PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyTraceBack_Type), "OOii",
                                          traceback ? traceback : Py_None, frame.get(), 2 * unit,
                                          PyCode_Addr2Line(code, 2 * unit))
                  : nullptr);
  if (!entry) PyErr_Clear();
  if (entry) Py_XSETREF(traceback, entry.release());
  PyErr_Restore(type, value, traceback);
}

#define NAME(variable, text) static PyObject* const variable = PyUnicode_InternFromString(text)

}  // namespace

// An attribute that the instance's dict or its class has, found without running Python code. Null without an error:
// there is none of that kind.
PyObject* CaptureSemantics::PlainAttr(PyObject* o, PyObject* name) {
  PyObject* d = _PyType_Lookup(Py_TYPE(o), name);
  if (d && !PyFunction_Check(d) && (Py_TYPE(d)->tp_descr_get || Py_TYPE(d)->tp_descr_set)) return nullptr;
  bool missing;
  return FindAttr(o, name, &missing);
}

PyObject* CaptureSemantics::ModulePlumbing(PyFunctionObject* f, PyObject* const* args, Py_ssize_t nargs,
                                           PyObject* kwnames, bool* handled) {
  const Plumbing& known = Known();
  *handled = false;
  if (!nargs) return nullptr;
  if (f->func_code == known.getattr.get()) return nargs == 2 && !kwnames ? ModuleItem(args[0], args[1], handled) : nullptr;
  if (f->func_code != known.wrapped_call.get() || !known.call) return nullptr;
  NAME(self_name, "self");
  if (kwnames && PySequence_Contains(kwnames, self_name)) return nullptr;
  return CallModule(f, args, nargs, kwnames, handled);
}

// Module.__getattr__.
PyObject* CaptureSemantics::ModuleItem(PyObject* self, PyObject* name, bool* handled) {
  NAME(dict_name, "__dict__");
  NAME(parameters, "_parameters");
  NAME(buffers, "_buffers");
  NAME(modules, "_modules");
  NAME(hook_name, "__getattribute__");
  PyTypeObject* type = Py_TYPE(self);
  PyObject *own = _PyType_Lookup(type, dict_name), *hook = _PyType_Lookup(type, hook_name);
  if (!own || !Py_IS_TYPE(own, &PyGetSetDescr_Type) || (hook && PyFunction_Check(hook)) || !PyUnicode_CheckExact(name))
    return nullptr;
  s_.NoteType(type);
  const Source* source;
  PyObject* dict = InstanceDict(self, &source);
  if (!dict || !source || !PyDict_CheckExact(dict)) return nullptr;
  *handled = true;
  Ref seen(s_.FromOutside(dict, source));
  if (!seen) return nullptr;
  for (PyObject* kind : {parameters, buffers, modules}) {
    bool found;
    Ref items(s_.ReadDictItem(dict, source, kind, &found));
    if (s_.broken() || PyErr_Occurred()) return nullptr;
    if (!found) continue;
    if ((!PyDict_CheckExact(items.get()) && !PyODict_CheckExact(items.get())) || !s_.IsOutside(items.get())) {
      *handled = false;
      return nullptr;
    }
    PyObject* v = s_.ReadDictItem(items.get(), s_.SourceOf(items.get()), name, &found);
    if (found || s_.broken() || PyErr_Occurred()) return v;
  }
  *handled = false;  // the real AttributeError
  return nullptr;
}

// Module.__call__ of a module without hooks.
PyObject* CaptureSemantics::CallModule(PyFunctionObject* f, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                                       bool* handled) {
  NAME(compiled_name, "_compiled_call_impl");
  NAME(call_name, "_call_impl");
  NAME(forward_name, "forward");
  NAME(torch_name, "torch");
  NAME(c_name, "_C");
  NAME(tracing_name, "_get_tracing_state");
  static const std::array<PyObject*, 4> own = {
      PyUnicode_InternFromString("_backward_hooks"), PyUnicode_InternFromString("_backward_pre_hooks"),
      PyUnicode_InternFromString("_forward_hooks"), PyUnicode_InternFromString("_forward_pre_hooks")};
  static const std::array<PyObject*, 4> global = {
      PyUnicode_InternFromString("_global_backward_pre_hooks"), PyUnicode_InternFromString("_global_backward_hooks"),
      PyUnicode_InternFromString("_global_forward_hooks"), PyUnicode_InternFromString("_global_forward_pre_hooks")};
  NAME(hook_name, "__getattribute__");
  PyObject* self = args[0];
  PyTypeObject* type = Py_TYPE(self);
  PyObject* hook = _PyType_Lookup(type, hook_name);
  if ((hook && PyFunction_Check(hook)) || !(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return nullptr;
  Ref compiled(PlainAttr(self, compiled_name));
  if (compiled.get() != Py_None) return nullptr;
  Ref bound(PlainAttr(self, call_name));
  if (!bound || !PyMethod_Check(bound.get()) || PyMethod_GET_SELF(bound.get()) != self ||
      !PyFunction_Check(PyMethod_GET_FUNCTION(bound.get())) || s_.IsOutside(bound.get()))
    return nullptr;
  auto* call = reinterpret_cast<PyFunctionObject*>(PyMethod_GET_FUNCTION(bound.get()));
  if (call->func_code != Known().call.get() || s_.IsFresh(PyMethod_GET_FUNCTION(bound.get()))) return nullptr;
  if (!NoteFunction(call)) return nullptr;
  Ref torch(LoadGlobal(call->func_globals, call->func_builtins, torch_name));
  if (!torch || !PyModule_CheckExact(torch.get())) return nullptr;
  Ref c(ModuleAttr(torch.get(), c_name));
  if (!c || !PyModule_CheckExact(c.get())) return nullptr;
  Ref tracing(ModuleAttr(c.get(), tracing_name));
  if (!tracing || !PyCFunction_Check(tracing.get())) return nullptr;
  Ref state(Call(tracing.get(), nullptr, 0, nullptr));
  if (state.get() != Py_None) return nullptr;
  Ref forward(PlainAttr(self, forward_name));
  if (!forward) return nullptr;
  auto empty = [&](PyObject* hooks) {  // a dict of nothing
    return hooks && PyDict_Check(hooks) && (PyDict_CheckExact(hooks) || PyODict_CheckExact(hooks)) && Truth(hooks) == 0;
  };
  for (PyObject* name : own) {
    Ref hooks(PlainAttr(self, name));
    if (!empty(hooks.get())) return nullptr;
  }
  for (PyObject* name : global) {
    Ref hooks(LoadGlobal(call->func_globals, call->func_builtins, name));
    if (!empty(hooks.get())) return nullptr;
  }
  *handled = true;
  PyObject* r = Call(forward.get(), args + 1, nargs - 1, kwnames);
  if (!r && !s_.broken() && PyErr_Occurred()) {
    AddTraceback(call, Known().call_at);
    AddTraceback(f, Known().wrapped_at);
  }
  return r;
}

}  // namespace framejit::capture
