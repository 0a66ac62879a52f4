// Hooks of results, and retain_grad(). All results of a segment hang on one node: those of which others were made get a
// part of their gradients inside of it. The pass is cut there, so that hooks see all that eager's see.
#include <algorithm>

#include "tensor/call_step.h"
#include "tensor/segment_node.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {
namespace {

// What the hooks of a dict make of a gradient. Null with the exception set.
Ref Through(PyObject* hooks, Ref grad) {
  Ref all(PyDict_Values(hooks));
  for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(all.get()); ++i) {
    Ref other(PyObject_CallOneArg(PyList_GET_ITEM(all.get(), i), grad.get()));
    if (!other) return {};
    if (other.get() != Py_None) grad = std::move(other);
  }
  return all ? grad : Ref();
}

PyObject* CallHooks(PyObject* hooks, PyObject* grad) {  // as a hook: nothing arrived, nobody is told
  return grad == Py_None ? Py_NewRef(Py_None) : Through(hooks, Ref::Borrow(grad)).release();
}
PyMethodDef call_hooks = {"framejit_hooks", CallHooks, METH_O, nullptr};

// What a weak reference refers to, if that keeps its gradient; else null.
Ref Retaining(PyObject* weak) {
  Ref tensor(PyObject_CallNoArgs(weak));
  Ref answer(tensor && tensor.get() != Py_None ? PyObject_GetAttrString(tensor.get(), "retains_grad") : nullptr);
  PyErr_Clear();
  return answer && answer.get() == Py_True ? tensor : Ref();
}

}  // namespace

bool SegmentHook::HasInner(size_t output) const {
  return std::any_of(t_.made_of.begin(), t_.made_of.end(), [&](auto& of) { return of[output]; });
}

// own: the dict that torch's node gets in place of the tensor's.
int SegmentHook::AddHooks(CallState* s, PyObject* tensor, PyObject* hooks, PyObject* own) {
  Ref number(PyObject_GetAttrString(tensor, "output_nr")), key(PyLong_FromLong(0));
  const long i = number ? PyLong_AsLong(number.get()) : -1;
  if (i < 0 || !key) return -1;
  if (HasInner(i)) return s->hooks->insert_or_assign(static_cast<int>(i), Ref::Borrow(hooks)), 0;
  Ref caller(PyCFunction_New(&call_hooks, hooks));
  return caller ? PyDict_SetItem(own, key.get(), caller.get()) : -1;
}

// What arrives from outside at results of which others were made: their hooks are called here, unless a gradient comes
// from those others, too. These are the stops.
int SegmentHook::Inner(CallState* s, const std::vector<bool>& tangents, std::vector<Ref>* grads,
                       std::vector<bool>* stops) {
  for (auto& [i, weak] : *s->retained) {
    auto at = s->hooks->find(i);
    PyObject* hooks = at == s->hooks->end() || !PyDict_Size(at->second.get()) ? nullptr : at->second.get();
    if (!hooks && !Retaining(weak.get())) continue;
    bool inner = false;
    for (size_t k = 0; k < tangents.size(); ++k) inner |= tangents[k] && t_.made_of[k][i];
    if (inner) {
      stops->resize(tangents.size());
      (*stops)[i] = true;
    } else if (Ref& grad = (*grads)[i]; hooks && grad) {
      Ref given = grad;
      grad = Through(hooks, grad);
      if (!grad || Retain(s, i, grad.get(), given.get()) < 0) return -1;
    }
  }
  return 0;
}

// A result keeps its gradient, if it was asked to. given: what torch has added to it already.
int SegmentHook::Retain(CallState* s, size_t output, PyObject* total, PyObject* given) {
  if (total == Py_None || total == given) return 0;
  Ref tensor = Retaining(s->retained->at(static_cast<int>(output)).get());
  if (!tensor) return 0;
  Ref now(PyObject_GetAttrString(tensor.get(), "grad")), sum;
  if (!now) return -1;
  if (now.get() == Py_None) {
    sum = Ref::Borrow(total);
  } else if (!given) {
    sum = Ref(PyNumber_Add(now.get(), total));
  } else {
    Ref same(PyObject_CallMethod(now.get(), "equal", "O", given));
    Ref more(same ? PyNumber_Subtract(total, given) : nullptr);
    if (!more) return -1;
    sum = same.get() == Py_True ? Ref::Borrow(total) : Ref(PyNumber_Add(now.get(), more.get()));
  }
  return sum ? PyObject_SetAttrString(tensor.get(), "grad", sum.get()) : -1;
}

// The hooks of a result are those of the tensor that stands for it in a replay. The list that its gradient goes to
// then.
Ref SegmentHook::Hang(CallState* s, size_t output, PyObject* tensor) {
  Ref kept(PyList_New(0));
  std::vector<Ref> hooks;
  if (auto at = s->hooks->find(static_cast<int>(output)); at != s->hooks->end())
    hooks.emplace_back(PyCFunction_New(&call_hooks, at->second.get()));
  hooks.emplace_back(kept ? PyObject_GetAttrString(kept.get(), "append") : nullptr);
  for (const Ref& hook : hooks) {
    Ref handle(hook ? PyObject_CallMethod(tensor, "register_hook", "O", hook.get()) : nullptr);
    if (!handle) return {};
  }
  return kept;
}

// From one stop to those before it, the last of the program first: a graph for each way, which is compiled when it is
// first asked for.
int SegmentHook::InStages(CallState* s, PyObject* saved, const std::vector<bool>& stops, std::vector<Ref> grads,
                          Pass* pass) {
  const size_t n = stops.size(), inputs = t_.wanted.size();
  std::vector<size_t> order;
  for (size_t i = 0; i < n; ++i)
    if (stops[i]) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return t_.seen[a] > t_.seen[b]; });
  std::vector<Ref> sums(inputs), outside = grads;
  auto add = [](Ref& sum, const Ref& more) {
    if (more) sum = sum ? Ref(PyNumber_Add(sum.get(), more.get())) : more;
    return sum || !more;
  };
  std::vector<bool> left = stops, tangents(n);
  for (size_t i = 0; i < n; ++i) tangents[i] = grads[i] && !stops[i];
  for (size_t stage = 0; stage <= order.size(); ++stage) {
    if (stage) {
      const size_t i = order[stage - 1];
      tangents.assign(n, false);
      tangents[i] = bool(grads[i]);
      left[i] = false;
      if (!grads[i]) continue;
      if (auto at = s->hooks->find(static_cast<int>(i)); at != s->hooks->end()) {
        grads[i] = Through(at->second.get(), grads[i]);
        if (!grads[i]) return -1;
      }
      if (Retain(s, i, grads[i].get(), outside[i].get()) < 0) return -1;
    }
    if (std::find(tangents.begin(), tangents.end(), true) == tangents.end()) continue;
    Compiled* c = For(tangents, left);
    Pass part;
    const int fits = c ? Prepare(s, saved, c, grads, &part) : -1;
    if (fits > 0)
      PyErr_SetString(PyExc_RuntimeError, "framejit: a gradient of another type or shape than its tensor's");
    if (fits || Go(s, 0, &part) < 0) return -1;
    for (size_t i = 0; i < inputs; ++i)
      if (!add(sums[i], part.grads[i])) return -1;
    for (size_t i = 0; i < n; ++i)
      if (!add(grads[i], part.grads[inputs + i])) return -1;
  }
  pass->grads = std::move(sums);
  return 0;
}

}  // namespace framejit::tensor
