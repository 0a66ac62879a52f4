// The framework's own derivative of one call, as a callable that graphs have externs of.
#include <absl/container/inlined_vector.h>

#include <map>

#include "tensor/autograd.h"
#include "tensor/call_step.h"
#include "tensor/import.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

namespace {

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

PyObject* Vjp(PyObject* callable, PyObject* const* args, Py_ssize_t n);

bool IsVjp(PyObject* o) {
  return PyCFunction_CheckExact(o) &&
         PyCFunction_GET_FUNCTION(o) == reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Vjp));
}

// The stand-in of an operand, which the gradient is asked for if it is `wanted`. Inside of another derivative it is
// that one's stand-in, if gradients go to it there. New reference.
Ref Leaf(PyObject* o, bool wanted, bool inside) {
  if (inside) {
    Ref tracked(PyObject_GetAttrString(o, "requires_grad"));
    if (!tracked || tracked.get() == Py_True) return tracked ? Ref(Py_NewRef(o)) : Ref();
  }
  Ref leaf(PyObject_CallMethod(o, "detach", nullptr));
  Ref done(leaf && wanted ? PyObject_CallMethod(leaf.get(), "requires_grad_", nullptr) : nullptr);
  return wanted && !done ? Ref() : std::move(leaf);
}

// Gradients, of which torch may know that they are zeros: then they have no memory. New reference.
PyObject* WithMemory(PyObject* grads) {
  Ref made(PyTuple_New(PyTuple_GET_SIZE(grads)));
  for (Py_ssize_t i = 0; made && i < PyTuple_GET_SIZE(grads); ++i) {
    PyObject* g = PyTuple_GET_ITEM(grads, i);
    Ref zero(PyObject_CallMethod(g, "_is_zerotensor", nullptr));
    PyObject* item = !zero ? nullptr : zero.get() == Py_True ? PyObject_CallMethod(g, "clone", nullptr) : Py_NewRef(g);
    if (!item) return nullptr;
    PyTuple_SET_ITEM(made.get(), i, item);
  }
  return made.release();
}

// What torch.autograd.grad gives with zeros for what nothing leads to, from the framework's engine at once: its
// arguments are the derivative's own, in which there is nothing to look for.
PyObject* Gradients(PyObject* outs, PyObject* leaves, PyObject* tangents) {
  static PyObject *const run = ResolveCallee("torch.autograd.Variable._execution_engine.run_backward"),
                         *const zeros = ResolveCallee("torch.zeros_like");
  Ref from(PyList_AsTuple(outs)), to(PyList_AsTuple(leaves)), with(PyList_AsTuple(tangents));
  if (!run || !zeros || !from || !to || !with) return nullptr;
  PyObject* args[] = {from.get(), with.get(), Py_False, Py_False, to.get(), Py_True, Py_False};
  Ref grads(PyObject_Vectorcall(run, args, std::size(args), nullptr));
  if (!grads) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(grads.get()); ++i) {
    if (PyTuple_GET_ITEM(grads.get(), i) != Py_None) continue;
    PyObject* zero = PyObject_CallOneArg(zeros, PyTuple_GET_ITEM(to.get(), i));
    if (!zero) return nullptr;
    Py_DECREF(PyTuple_GET_ITEM(grads.get(), i));
    PyTuple_SET_ITEM(grads.get(), i, zero);
  }
  return WithMemory(grads.get());
}

// Of what was kept of `then`, now[i] is read, if that is a tensor.
bool NoteMoved(PyObject* moved, PyObject* then, PyObject* now, size_t i) {
  PyObject* other = static_cast<Py_ssize_t>(i) < PyTuple_GET_SIZE(now) ? PyTuple_GET_ITEM(now, i) : Py_None;
  if (other == Py_None) return true;
  Ref was(PyObject_CallMethod(then, "detach", nullptr)), pair(was ? PyTuple_Pack(2, was.get(), other) : nullptr);
  return pair && PyList_Append(moved, pair.get()) == 0;
}

// inside: of another derivative, which asks for the derivative of this one.
PyObject* Differentiate(PyObject* callable, PyObject* const* args, Py_ssize_t n, bool inside) {
  if (n != 5 && n != 7) return PyErr_Format(PyExc_TypeError, "framejit: vjp takes 5 or 7 arguments");
  PyObject *which = args[0], *operands = args[1], *grads = args[4];
  ModeSwitch mode;
  ModeState on = ReadMode();
  on.grad = true;
  mode.Set(on);
  std::map<PyObject*, PyObject*> stand_ins;
  std::vector<Ref> held;
  Ref leaves(PyList_New(0)), outs(PyList_New(0)), tangents(PyList_New(0)), autograd(Import("torch.autograd"));
  if (!leaves || !outs || !tangents || !autograd) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(operands); ++i) {
    PyObject* o = PyTuple_GET_ITEM(operands, i);
    bool wanted = false;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(which); ++k)
      wanted = wanted || PyLong_AsSsize_t(PyTuple_GET_ITEM(which, k)) == i;
    Ref leaf = Leaf(o, wanted, inside);
    if (!leaf || (wanted && PyList_Append(leaves.get(), leaf.get()) < 0)) return nullptr;
    stand_ins[o] = leaf.get();
    held.push_back(std::move(leaf));
  }
  Ref a(Substitute(args[2], stand_ins)), k(Substitute(args[3], stand_ins));
  Ref value, standing, moved(PyList_New(0));
  if (!moved) return nullptr;
  for (size_t i = 0; n == 7 && i < held.size(); ++i)
    if (!NoteMoved(moved.get(), held[i].get(), args[5], i)) return nullptr;
  if (n == 7) {
    Ref module(Import("framejit._gradients"));
    standing = Ref(module ? PyObject_CallMethod(module.get(), "standing", "O", moved.get()) : nullptr);
    Ref entered(standing ? PyObject_CallMethod(standing.get(), "__enter__", nullptr) : nullptr);
    if (!entered) return nullptr;
  }
  if (a && k && IsVjp(callable)) {
    value = Ref(Differentiate(PyCFunction_GET_SELF(callable), reinterpret_cast<PyTupleObject*>(a.get())->ob_item,
                              PyTuple_GET_SIZE(a.get()), true));
  } else if (a && k) {
    value = Ref(PyObject_Call(callable, a.get(), k.get()));
  }
  if (standing) {
    SavedError error;
    Ref left(PyObject_CallMethod(standing.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
  }
  if (!value) return nullptr;
  std::vector<PyObject*> flat;
  Flatten(value.get(), &flat);
  for (size_t i = 0; n == 7 && i < flat.size(); ++i)
    if (!NoteMoved(moved.get(), flat[i], args[6], i)) return nullptr;
  for (size_t i = 0; i < flat.size() && static_cast<Py_ssize_t>(i) < PyTuple_GET_SIZE(grads); ++i) {
    PyObject* g = PyTuple_GET_ITEM(grads, i);
    Ref tracked(PyObject_GetAttrString(flat[i], "requires_grad"));
    if (!tracked) return nullptr;
    if (g == Py_None || tracked.get() != Py_True) continue;
    if (PyList_Append(outs.get(), flat[i]) < 0 || PyList_Append(tangents.get(), g) < 0) return nullptr;
  }
  if (PyList_GET_SIZE(outs.get()) > 0) {
    if (!inside) return Gradients(outs.get(), leaves.get(), tangents.get());
    Ref f(PyObject_GetAttrString(autograd.get(), "grad")),
        call(PyTuple_Pack(3, outs.get(), leaves.get(), tangents.get()));
    Ref kwargs(
        Py_BuildValue("{s:O,s:O,s:O}", "allow_unused", Py_True, "materialize_grads", Py_True, "create_graph", Py_True));
    return f && call && kwargs ? PyObject_Call(f.get(), call.get(), kwargs.get()) : nullptr;
  }
  Ref zeros(PyTuple_New(PyList_GET_SIZE(leaves.get())));  // nothing leads there
  Ref torch(Import("torch"));
  for (Py_ssize_t i = 0; zeros && torch && i < PyTuple_GET_SIZE(zeros.get()); ++i) {
    PyObject* z = PyObject_CallMethod(torch.get(), "zeros_like", "O", PyList_GET_ITEM(leaves.get(), i));
    if (!z) return nullptr;
    PyTuple_SET_ITEM(zeros.get(), i, z);
  }
  return torch ? zeros.release() : nullptr;
}

PyObject* Whole(PyObject* callable, PyObject* const* args, Py_ssize_t n) {
  return Differentiate(callable, args, n, false);
}

PyMethodDef whole_def = {"whole", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Whole)), METH_FASTCALL,
                         nullptr};

PyObject* Vjp(PyObject* callable, PyObject* const* args, Py_ssize_t n) {
  if (IsVjp(callable)) return Whole(callable, args, n);
  static PyObject* known = nullptr;
  if (!known) {
    Ref module(Import("framejit._vjp"));
    known = module ? PyObject_GetAttrString(module.get(), "vjp") : nullptr;
  }
  Ref whole(known ? PyCFunction_New(&whole_def, callable) : nullptr);
  if (!whole) return nullptr;
  absl::InlinedVector<PyObject*, 9> all = {whole.get(), callable};
  all.insert(all.end(), args, args + n);
  return PyObject_Vectorcall(known, all.data(), all.size(), nullptr);
}

PyMethodDef vjp_def = {"vjp", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Vjp)), METH_FASTCALL, nullptr};

}  // namespace

PyObject* MakeVjp(const std::string& callee) {
  Ref callable(ResolveCallee(callee));
  return callable ? PyCFunction_New(&vjp_def, callable.get()) : nullptr;
}

}  // namespace framejit::tensor
