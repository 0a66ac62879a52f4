// This file has the operators of torch.library that are more than a function of their arguments: those that write to
// them, and those with a gradient of the user's. framejit._functions says what they are. One that writes is a call on
// copies, whose new values are written to the arguments. One with a gradient is a torch.autograd.Function.
#include <algorithm>
#include <optional>

#include "capture/arg_vector.h"
#include "capture/asking.h"
#include "capture/kernel_reads.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

const Callee kWritten{"framejit._functions.written"}, kCopy{"torch.Tensor.copy_"};

// Calls f with each tensor in these arguments, also in lists.
template <typename F>
void EachTensorIn(PyObject* o, F f) {
  if (IsTensor(o)) return f(o);
  if (!PyTuple_CheckExact(o) && !PyList_CheckExact(o)) return;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) EachTensorIn(PySequence_Fast_GET_ITEM(o, i), f);
}

struct Plan {
  PyObject *op, *names, *defaults, *absent, *writes, *returned, *function, *defined;
};

// What the function was made of may be registered anew.
bool NoteFormulas(Session& s, PyObject* defined) {
  const Source* dict = s.guards().Child(SourceKind::kInstanceDict, s.guards().Const(defined));
  for (const char* name : {"_backward_fn", "_setup_context_fn"}) {
    Ref key(PyUnicode_InternFromString(name)), now(key ? PyObject_GetAttr(defined, key.get()) : nullptr);
    if (!now) return false;
    s.guards().Is(s.guards().Child(SourceKind::kDictItem, dict, 0, key.get()), now.get());
  }
  return true;
}

// Is the kernel of this operator a function of Python, by torch.library.custom_op? It is empty where that raised.
std::optional<bool> HasPythonKernel(PyObject* op) {
  static PyObject* const function = FromModule("framejit._operators", "has_python_kernel");
  SuspendScope off;
  Ref answer(function ? PyObject_CallOneArg(function, op) : nullptr);
  return answer ? std::optional(answer.get() == Py_True) : std::nullopt;
}

// Is it one of framejit's own, whose kernels read nothing of the program's?
bool IsOurs(PyObject* op) {
  static PyObject* const ours = PyUnicode_InternFromString("_ops.framejit");
  Ref module(PyObject_GetAttrString(op, "__module__"));
  if (!module) PyErr_Clear();
  return module && PyUnicode_Check(module.get()) &&
         PyUnicode_Tailmatch(module.get(), ours, 0, PyUnicode_GET_LENGTH(module.get()), 1) == 1;
}

// Is the operator in this set of framejit._kernels? Known since KernelReads has looked at it.
bool IsIn(const char* set, PyObject* op) {
  SuspendScope off;  // operators hash in Python
  Ref all(FromModule("framejit._kernels", set));
  return all && PySet_Contains(all.get(), op) == 1;
}

// Gives all arguments in the order of the plan. It is empty where they do not fit.
std::vector<PyObject*> InOrder(const Plan& plan, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  std::vector<PyObject*> all(args, args + nargs);
  const Py_ssize_t n = PyTuple_GET_SIZE(plan.names);
  if (nargs > n) return {};
  Py_ssize_t used = 0;
  for (Py_ssize_t i = nargs; i < n; ++i) {
    PyObject* value = PyTuple_GET_ITEM(plan.defaults, i);
    for (Py_ssize_t k = 0; k < KwCount(kwnames); ++k)
      if (PyUnicode_Compare(PyTuple_GET_ITEM(kwnames, k), PyTuple_GET_ITEM(plan.names, i)) == 0)
        value = args[nargs + k], ++used;
    if (value == plan.absent) return {};
    all.push_back(value);
  }
  return used == KwCount(kwnames) ? all : std::vector<PyObject*>();
}

// Do two arguments lie in the same memory, as far as is known here, so that a write to one shows in the other?
bool ShareMemory(Session& s, const std::vector<PyObject*>& all) {
  std::vector<TraceId> bases;
  for (PyObject* o : all)
    EachTensorIn(o, [&](PyObject* t) { bases.push_back(s.trace().tensors[AsTensor(t)->id].base); });
  std::sort(bases.begin(), bases.end());
  return std::adjacent_find(bases.begin(), bases.end()) != bases.end();
}

PyObject* CallWriting(Session& s, const Plan& plan, const std::vector<PyObject*>& all) {
  const Py_ssize_t n = PyTuple_GET_SIZE(plan.returned);
  Py_ssize_t own = 0;
  for (Py_ssize_t i = 0; i < n; ++i) own += PyLong_AsLong(PyTuple_GET_ITEM(plan.returned, i)) < 0;
  Ref count(PyLong_FromSsize_t(own));
  std::vector<PyObject*> given = {plan.op, plan.writes, count.get()};
  given.insert(given.end(), all.begin(), all.end());
  Ref made(s.CallFramework(kWritten, given.data(), static_cast<Py_ssize_t>(given.size()), nullptr));
  if (!made) return nullptr;
  if (!PyTuple_Check(made.get())) return s.Break(BreakId::kUnknownCall, kWritten);
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plan.writes); ++i) {
    std::vector<PyObject*> to;
    EachTensorIn(all[PyLong_AsLong(PyTuple_GET_ITEM(plan.writes, i))], [&](PyObject* t) { to.push_back(t); });
    for (PyObject* t : to) {
      PyObject* args[] = {t, PyTuple_GetItem(made.get(), at++)};
      if (!args[1] || !Ref(s.CallFramework(kCopy, args, 2, nullptr))) return nullptr;
    }
  }
  Ref results(PyTuple_New(n));
  for (Py_ssize_t i = 0; results && i < n; ++i) {
    const long argument = PyLong_AsLong(PyTuple_GET_ITEM(plan.returned, i));
    PyObject* one = argument >= 0 ? all[argument] : PyTuple_GetItem(made.get(), at++);
    if (!one) return nullptr;
    PyTuple_SET_ITEM(results.get(), i, Py_NewRef(one));
  }
  if (!results) return nullptr;
  if (n == 0) Py_RETURN_NONE;
  return n == 1 ? Py_NewRef(PyTuple_GET_ITEM(results.get(), 0)) : s.MarkFresh(results.release());
}

}  // namespace

// An operator that is broken down by a function of the program's: that is captured as if it had been called.
PyObject* CaptureSemantics::CallComposite(PyObject* composite, PyObject* const* args, Py_ssize_t nargs,
                                          PyObject* kwnames) {
  Plan plan;
  if (!PyTuple_Check(composite)) return s_.Break(BreakId::kUnknownCall, "a composite operator in Python");
  if (!PyArg_ParseTuple(composite, "OOOO", &plan.function, &plan.names, &plan.defaults, &plan.absent)) return nullptr;
  const std::vector<PyObject*> all = InOrder(plan, args, nargs, kwnames);
  if (all.empty()) return s_.Break(BreakId::kUnknownCall, "a composite operator in Python");
  s_.Keep(Py_NewRef(composite));
  s_.SourceOf(plan.function);
  return Call(plan.function, all.data(), all.size(), nullptr);
}

PyObject* CaptureSemantics::CallOperator(PyObject* op, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static PyObject* const plan_of = FromModule("framejit._functions", "plan_of");
  const std::optional<bool> in_python = HasPythonKernel(op);
  if (!in_python) return nullptr;
  std::vector<PyObject*> tensors, given(args, args + nargs + KwCount(kwnames));
  std::vector<Ref> lists;
  for (PyObject*& o : given) {
    if ((PyTuple_Check(o) && !PyTuple_CheckExact(o)) || (PyList_Check(o) && !PyList_CheckExact(o))) {
      PyObject** first = PySequence_Fast_ITEMS(o);
      if (!std::all_of(first, first + PySequence_Fast_GET_SIZE(o), IsPrimitive))  // as those of a torch.Size are
        return s_.Break(BreakId::kUnknownCall, std::string("an operator that is given a ") + Py_TYPE(o)->tp_name);
    }
    if ((PyTuple_CheckExact(o) || PyList_CheckExact(o)) && s_.IsOutside(o)) {  // what stands for the tensors in it
      PyObject* items = s_.ItemsOf(o);
      if (!items) return nullptr;
      PyObject** first = PySequence_Fast_ITEMS(items);
      const Py_ssize_t n = PySequence_Fast_GET_SIZE(items);
      lists.emplace_back(PyTuple_Check(items) ? BuildTuple(first, n) : BuildList(first, n));
      if (!(o = lists.back().get())) return nullptr;
    }
    EachTensorIn(o, [&](PyObject* t) { tensors.push_back(t); });
  }
  args = given.data();
  if (*in_python) {
    if (!s_.options().whole && !s_.guessing().made().empty())  // With fullgraph=True it is called again.
      return s_.Break(BreakId::kSideEffect, "an operator in Python, which a wrong guess must not call");
    if (!IsOurs(op) && !s_.kernels.Call(s_, op, tensors)) return nullptr;
  }
  bool tracked =
      std::any_of(tensors.begin(), tensors.end(), [&](PyObject* t) { return s_.meta(AsTensor(t)->id).requires_grad; });
  if (tracked && *in_python && !IsOurs(op) && IsIn("asking", op))
    return s_.Break(BreakId::kSideEffect, "an operator in Python that asks for the gradients of what it is given");
  if (*in_python && !IsOurs(op) && IsIn("wondering", op))
    return s_.Break(BreakId::kSideEffect, "an operator in Python that asks how what it is given was made");
  if (*in_python && !IsOurs(op) && IsIn("moving", op))
    return s_.Break(BreakId::kSideEffect, "an operator in Python that may have tensors lie in other memory");
  tracked &= s_.modes.now.grad && !s_.modes.now.inference;
  Ref told;
  {
    SuspendScope off;
    told = Ref(plan_of ? PyObject_CallFunctionObjArgs(plan_of, op, tracked ? Py_True : Py_False, nullptr) : nullptr);
  }
  if (!told || told.get() == Py_None) return PyErr_Clear(), s_.kernels.Lend(s_, tensors), nullptr;
  if (told.get() == Py_True) {
    if (!IsOurs(op)) {
      Ref function(CompositeOf(op));
      if (!function) return nullptr;
      if (function.get() != Py_None) return CallComposite(function.get(), args, nargs, kwnames);
    }
    const bool may = !s_.vmap.open() && !s_.later && !s_.in_custom && !s_.modes.now.autocast.any();
    return may ? wrapping::CallDispatch(s_, op, args, nargs, kwnames) : nullptr;
  }
  Plan plan;
  if (!PyArg_ParseTuple(told.get(), "OOOOOOOO", &plan.op, &plan.names, &plan.defaults, &plan.absent, &plan.writes,
                        &plan.returned, &plan.function, &plan.defined))
    return nullptr;
  std::vector<PyObject*> all = InOrder(plan, args, nargs, kwnames);
  if (all.empty()) return nullptr;
  if (plan.function == Py_None && s_.kernels.Keeps(op))  // it writes to copies
    return s_.Break(BreakId::kSideEffect, "an operator in Python that may keep what it writes to");
  if (plan.function == Py_None) return s_.vmap.open() || ShareMemory(s_, all) ? nullptr : CallWriting(s_, plan, all);
  if (!NoteFormulas(s_, plan.defined)) return nullptr;
  s_.SourceOf(plan.function);
  all.insert(all.begin(), plan.function);
  s_.kernels.Lend(s_, tensors);
  return LendResults(CallCustom(all.data(), static_cast<Py_ssize_t>(all.size()), nullptr));
}

PyObject* CaptureSemantics::LendResults(PyObject* results) {
  std::vector<PyObject*> tensors;
  if (results) EachTensorIn(results, [&](PyObject* t) { tensors.push_back(t); });
  s_.kernels.Lend(s_, tensors);
  return results;
}

}  // namespace framejit::capture
