#include "capture/wrappers/collectives.h"

#include <algorithm>

#include "capture/arg_vector.h"
#include "capture/builtins.h"
#include "capture/gradients.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/wrappers/overrides.h"
#include "capture/wrappers/wrappers.h"

namespace framejit::capture {
namespace {

// Is it a function of one of the modules that have such functions?
bool IsOfDistributed(PyObject* function) {
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* globals = PyFunction_GET_GLOBALS(function);
  static PyObject* const names[] = {PyUnicode_InternFromString("torch.distributed.distributed_c10d"),
                                    PyUnicode_InternFromString("torch.distributed._functional_collectives")};
  for (PyObject* name : names) {
    PyObject* module = PyDict_GetItemWithError(modules, name);
    if (module && PyModule_Check(module) && PyModule_GetDict(module) == globals) return true;
  }
  return false;
}

// Gives groups and reductions in the form in which operators are told of them, and other objects as they are. It is
// null where the object cannot be taken.
Ref AsTold(Session& s, PyObject* o) {
  static PyObject* const plain = FromModule("framejit._distributed", "plain");
  if (IsTensor(o) || PyTuple_CheckExact(o) || PyList_CheckExact(o) || IsPrimitive(o) || !plain) return Borrow(o);
  SuspendScope off;
  Ref told(PyObject_CallOneArg(plain, o));
  if (!told || told.get() == Py_None) return PyErr_Clear(), Ref();
  if (const Source* source = s.SourceOf(o)) s.guards().Is(source, o);
  return told;
}

}  // namespace

PyObject* CallCollective(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  if (!IsOfDistributed(function) || s.vmap.open() || s.in_custom) return nullptr;
  static PyObject* const meaning = FromModule("framejit._distributed", "meaning");
  static PyObject* const state = FromModule("framejit._distributed", "state");
  if (!meaning || !state) return PyErr_Clear(), nullptr;
  const Py_ssize_t total = nargs + KwCount(kwnames);
  if (AnyWrapper(args, total)) return nullptr;
  Ref ours, now;
  {
    SuspendScope off;
    ours = Ref(PyObject_CallOneArg(meaning, function));
    now = Ref(PyObject_CallOneArg(state, Py_None));
  }
  if (!ours || !now || ours.get() == Py_None) return PyErr_Clear(), nullptr;
  const bool answered = ours.get() == Py_True;
  std::vector<Ref> held;
  std::vector<PyObject*> told;
  for (Py_ssize_t i = 0; i < total; ++i) {
    if (IsTensor(args[i]) && s.modes.now.grad && WantsGradient(s, args[i])) return nullptr;
    const bool none = args[i] == Py_None;
    const bool names =
        i >= nargs ? !PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i - nargs), "group") : true;
    held.push_back(answered || !none || !names ? AsTold(s, args[i]) : Ref(PyUnicode_InternFromString("")));
    if (!held.back()) return nullptr;
    told.push_back(answered ? args[i] : held.back().get());
  }
  s.guards().Is(s.guards().Child(SourceKind::kMember, s.guards().Const(state), 0, state), now.get());
  if (!answered)
    return s.SourceOf(ours.get()) ? CurrentSemantics()->Call(ours.get(), told.data(), nargs, kwnames) : nullptr;
  SuspendScope off;
  Ref answer(PyObject_Vectorcall(function, told.data(), nargs, kwnames));
  return answer && IsPrimitive(answer.get()) ? answer.release() : (PyErr_Clear(), nullptr);
}

}  // namespace framejit::capture
