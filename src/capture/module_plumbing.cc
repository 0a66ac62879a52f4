// This file does what torch.nn.Module's own functions do, through which every attribute and every call of a model goes,
// without running their bytecode: it makes the same reads with the same guards. It does so only where the code is what
// framejit/_plumbing.py has, and where none of the user's code would run in between. Everything else is interpreted.
#include <Python.h>
#include <frameobject.h>

#include <array>

#include "bytecode/code.h"
#include "capture/callees.h"
#include "capture/outcomes.h"
#include "capture/override.h"
#include "capture/semantics.h"
#include "guard/program.h"
#include "tensor/import.h"

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
  Ref getattr, wrapped_call, call;  // These are code objects, and null where the code is not what we know.
  int wrapped_at = 0, call_at = 0;  // units of the calls in them
};

// Gives what is in a class's namespace. It is null with an error set where it fails, or there is no class.
Ref SpaceOf(PyObject* type) {
  Ref view(type ? PyObject_GetAttrString(type, "__dict__") : nullptr);
  Ref space(view ? PyDict_New() : nullptr);
  return space && PyDict_Update(space.get(), view.get()) == 0 ? std::move(space) : Ref();
}

const Plumbing& Known() {
  static Plumbing known;
  static bool looked = false;
  if (looked || !tensor::TorchLoaded()) return known;
  looked = true;
  SuspendScope off;
  Ref module(tensor::Import("framejit._plumbing"));
  Ref type(module ? PyObject_GetAttrString(module.get(), "Module") : nullptr);
  Ref ours = SpaceOf(type.get());
  Ref theirs = ours ? SpaceOf(reinterpret_cast<PyObject*>(tensor::ModuleType())) : Ref();
  if (!ours) return Report("framejit._plumbing: " + tensor::TakeErrorText()), known;
  if (!theirs) return PyErr_Clear(), known;
  auto check = [&](const char* name, bool whole, Ref* out, int* at) {
    PyCodeObject* code = CodeIn(theirs.get(), name);
    if (SameCode(code, CodeIn(ours.get(), name), whole, at)) *out = Ref::Borrow(reinterpret_cast<PyObject*>(code));
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

PyObject* CaptureSemantics::ModulePlumbing(PyFunctionObject* f, PyObject* const* args, Py_ssize_t nargs,
                                           PyObject* kwnames, bool* handled) {
  const Plumbing& known = Known();
  *handled = false;
  if (!nargs) return nullptr;
  if (f->func_code == known.getattr.get())
    return nargs == 2 && !kwnames ? ModuleItem(args[0], args[1], handled) : nullptr;
  if (f->func_code != known.wrapped_call.get() || !known.call) return nullptr;
  NAME(self_name, "self");
  if (kwnames && PySequence_Contains(kwnames, self_name)) return nullptr;
  return CallModule(f, args, nargs, kwnames, handled);
}

// Answers Module.__getattr__.
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
  if (!dict || !source || !PyDict_CheckExact(dict) || s_.pending().Has(dict)) return nullptr;
  s_.guards().TypeIs(source, &PyDict_Type);
  for (PyObject* kind : {parameters, buffers, modules}) {
    bool found;
    PyObject* items;
    const Source* at = s_.InnerDict(dict, source, kind, false, &items, &found);
    if (s_.broken() || PyErr_Occurred()) return nullptr;
    Ref seen;
    if (!at && found) {  // known already
      seen = Ref(s_.ReadDictItem(dict, source, kind, &found));
      items = seen.get();
      if (!items || !s_.IsOutside(items) || !(PyDict_CheckExact(items) || PyODict_CheckExact(items))) return nullptr;
      at = s_.SourceOf(items);
    }
    if (!found) continue;
    PyObject* v = s_.ReadDictItem(items, at, name, &found);
    if (found || s_.broken() || PyErr_Occurred()) return *handled = true, v;
  }
  return nullptr;  // the real AttributeError
}

// The function that an attribute of `self` is bound from, or null: another thing. read: it is known that the object
// has no such attribute of its own.
PyFunctionObject* CaptureSemantics::MethodBehind(PyObject* self, PyObject* dict, const Source* source, PyObject* name,
                                                 bool read) {
  PyObject* d = _PyType_Lookup(Py_TYPE(self), name);
  if (!d || !PyFunction_Check(d)) return nullptr;
  bool found = false;
  Ref own(read ? nullptr : s_.ReadDictItem(dict, source, name, &found));
  if (found || s_.broken() || PyErr_Occurred()) return nullptr;
  s_.SourceOf(d);
  return reinterpret_cast<PyFunctionObject*>(d);
}

// What a call of a module asks of its dict, where nothing is in the way of `forward`: what is not there, and what is
// empty.
static PyObject* EntriesOfCalls() {
  static PyObject* const entries =
      Py_BuildValue("((sss)(ssss))", "_compiled_call_impl", "_call_impl", "forward", "_backward_hooks",
                    "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks");
  return entries;
}

// read: these are known to be empty.
bool CaptureSemantics::NoOwnHooks(PyObject* self, PyObject* dict, const Source* source, bool read) {
  for (PyObject* name : guard::EntryNames(EntriesOfCalls(), true)) {
    bool found;
    PyObject* hooks;
    PyObject* d = _PyType_Lookup(Py_TYPE(self), name);
    if (d && Py_TYPE(d)->tp_descr_set) return false;
    if (read || s_.InnerDict(dict, source, name, true, &hooks, &found)) continue;
    if (s_.broken() || PyErr_Occurred() || !found) return false;
    Ref seen(s_.ReadDictItem(dict, source, name, &found));
    if (!seen || !(PyDict_CheckExact(seen.get()) || PyODict_CheckExact(seen.get())) || Truth(seen.get()) != 0)
      return false;
  }
  return true;
}

bool CaptureSemantics::NoGlobalHooks(PyFunctionObject* call) {
  NAME(torch_name, "torch");
  NAME(c_name, "_C");
  NAME(tracing_name, "_get_tracing_state");
  static const std::array<PyObject*, 4> names = {
      PyUnicode_InternFromString("_global_backward_pre_hooks"), PyUnicode_InternFromString("_global_backward_hooks"),
      PyUnicode_InternFromString("_global_forward_hooks"), PyUnicode_InternFromString("_global_forward_pre_hooks")};
  if (call == no_global_hooks_ && writes_then_ == s_.pending().count()) return true;
  Ref torch(LoadGlobal(call->func_globals, call->func_builtins, torch_name));
  if (!torch) PyErr_Clear();
  if (!torch || !PyModule_CheckExact(torch.get())) return false;
  Ref c(ModuleAttr(torch.get(), c_name));
  if (!c || !PyModule_CheckExact(c.get())) return false;
  Ref tracing(ModuleAttr(c.get(), tracing_name));
  if (!tracing || !PyCFunction_Check(tracing.get())) return false;
  Ref state(Call(tracing.get(), nullptr, 0, nullptr));
  if (state.get() != Py_None) return false;
  for (PyObject* name : names) {
    Ref hooks(LoadGlobal(call->func_globals, call->func_builtins, name));
    if (!hooks) PyErr_Clear();
    if (!hooks || !(PyDict_CheckExact(hooks.get()) || PyODict_CheckExact(hooks.get())) || Truth(hooks.get()) != 0)
      return false;
  }
  no_global_hooks_ = call;
  writes_then_ = s_.pending().count();
  return true;
}

// Does what Module.__call__ does for a module without hooks.
PyObject* CaptureSemantics::CallModule(PyFunctionObject* f, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                                       bool* handled) {
  NAME(compiled_name, "_compiled_call_impl");
  NAME(call_name, "_call_impl");
  NAME(forward_name, "forward");
  NAME(hook_name, "__getattribute__");
  PyObject* self = args[0];
  PyTypeObject* type = Py_TYPE(self);
  PyObject* hook = _PyType_Lookup(type, hook_name);
  if (hook && PyFunction_Check(hook)) return nullptr;
  s_.NoteType(type);
  const Source* source;
  PyObject* dict = InstanceDict(self, &source);
  if (!dict || !source || s_.pending().Has(dict) || s_.pending().WritesClass(type) ||
      _PyType_Lookup(type, compiled_name) != Py_None)
    return nullptr;
  const bool read = s_.ReadEntries(dict, source, EntriesOfCalls());
  if (s_.broken()) return nullptr;
  bool found = false;
  Ref compiled(read ? nullptr : s_.ReadDictItem(dict, source, compiled_name, &found));
  if (found ? compiled.get() != Py_None : s_.broken() || PyErr_Occurred()) return nullptr;
  PyFunctionObject* call = MethodBehind(self, dict, source, call_name, read);
  if (!call || call->func_code != Known().call.get() || s_.IsFresh(reinterpret_cast<PyObject*>(call)) ||
      !NoteFunction(call) || !NoGlobalHooks(call) || !NoOwnHooks(self, dict, source, read))
    return nullptr;
  PyFunctionObject* forward = MethodBehind(self, dict, source, forward_name, read);
  if (!forward) return nullptr;
  *handled = true;
  s_.hidden_calls.push_back({PyEval_GetFrame(), call, f, Known().call_at, Known().wrapped_at});
  PyObject* r = this->Call(reinterpret_cast<PyObject*>(forward), args, nargs, kwnames);
  s_.hidden_calls.pop_back();
  if (!r && !s_.broken() && PyErr_Occurred()) {
    AddTraceback(call, Known().call_at);
    AddTraceback(f, Known().wrapped_at);
  }
  return r;
}

}  // namespace framejit::capture
