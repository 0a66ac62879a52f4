#include <algorithm>

#include "capture/asking.h"
#include "capture/numbers/guess.h"

namespace framejit::capture::wrapping {

Ref Asking::NamedRecipes(PyObject* dict) {
  Ref copy(PyDict_New());
  PyObject *name, *value;
  for (Py_ssize_t at = 0; copy && PyDict_Next(dict, &at, &name, &value);) {
    Ref item = Recipe(value);
    if (!item || PyDict_SetItem(copy.get(), name, item.get()) < 0) return {};
  }
  return copy;
}

Ref Asking::MadeAgain(PyObject* wrapper) {
  PyObject* make = Part("Wrapped");
  Ref args, kwargs, dict, copy(PyDict_New());
  const bool outside = s_.IsOutside(wrapper);
  if (MadeWrapper* its = Made(s_, wrapper)) {
    args = Recipe(its->args.get()), kwargs = args ? NamedRecipes(its->kwargs.get()) : Ref();
    if (!kwargs) return {};
  } else {
    PyObject* described = Part("described");
    SuspendScope off;
    Ref both(described ? PyObject_CallOneArg(described, wrapper) : nullptr);
    if (!both) return {};
    args = Borrow(PyTuple_GET_ITEM(both.get(), 0)), kwargs = Borrow(PyTuple_GET_ITEM(both.get(), 1));
  }
  {
    SuspendScope off;
    dict = Ref(PyObject_GenericGetDict(wrapper, nullptr));
  }
  PyObject *name, *value;
  for (Py_ssize_t at = 0; make && dict && copy && PyDict_Next(dict.get(), &at, &name, &value);) {
    Ref seen(outside ? semantics_->LoadAttr(wrapper, name) : Py_NewRef(value)),
        item = seen ? Recipe(seen.get()) : Ref();
    if (!item || PyDict_SetItem(copy.get(), name, item.get()) < 0) return {};
  }
  if (!make || !dict || !copy) return {};
  SuspendScope off;
  return Ref(PyObject_CallFunctionObjArgs(make, Py_TYPE(wrapper), args.get(), kwargs.get(), copy.get(), nullptr));
}

Ref Asking::Recipe(PyObject* o) {
  o = s_.Resolve(o);
  if (!o) return {};
  if (IsTensor(o) || IsSymInt(o)) {
    slots_.push_back(IsTensor(o) ? Arg::Tensor(AsTensor(o)->id) : Arg::Int(reinterpret_cast<SymInt*>(o)->expr));
    PyObject* make = Part("Slot");
    SuspendScope off;
    return Ref(make ? PyObject_CallFunction(make, "n", static_cast<Py_ssize_t>(slots_.size() - 1)) : nullptr);
  }
  if (IsWrapper(o)) return MadeAgain(o);
  if (PyTuple_CheckExact(o) || PyList_CheckExact(o) || IsSymbolicSize(o)) {
    PyObject* items = s_.IsOutside(o) ? s_.ItemsOf(o) : s_.Settled(o);
    Ref list(items ? PyList_New(0) : nullptr);
    for (Py_ssize_t i = 0; list && i < PySequence_Fast_GET_SIZE(items); ++i) {
      Ref one = Recipe(PySequence_Fast_GET_ITEM(items, i));
      if (!one || PyList_Append(list.get(), one.get()) < 0) return {};
    }
    return list && PyTuple_Check(o) ? Ref(PyList_AsTuple(list.get())) : std::move(list);
  }
  if (s_.IsOutside(o)) {
    PyObject* plain = Part("plain");
    SuspendScope off;
    Ref is(plain ? PyObject_CallOneArg(plain, o) : nullptr);
    if (!is) return {};
    if (is.get() == Py_True) return Borrow(o);
  }
  return ToTorch(o);
}

// The results that gradients go through, as torch has them and as the graph has them.
bool Asking::Differentiable(PyObject* o, std::vector<PyObject*>* stand_ins, std::vector<TraceId>* results) {
  if (PyTuple_Check(o) || PyList_CheckExact(o)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      if (!Differentiable(PySequence_Fast_GET_ITEM(o, i), stand_ins, results)) return false;
    return true;
  }
  auto refuse = [&](const char* why) { return s_.Break(BreakId::kSubclass, why), false; };
  if (tensor::Classify(o) == tensor::Class::kNone) return true;
  PyObject* known = known_.Behind(o);
  SuspendScope off;
  Ref wants(known ? PyObject_GetAttrString(o, "requires_grad") : nullptr);
  if (!wants) return PyErr_Clear(), refuse("a result that torch makes beside wrappers");
  if (wants.get() != Py_True) return refuse("a result without gradients beside one that has some");
  if (!IsTensor(known)) return refuse("gradients of a wrapper");
  const TraceId id = AsTensor(known)->id;
  if (id < custom_.tensors || s_.trace().tensors[id].base < custom_.tensors) return refuse("a result that is a view");
  if (std::find(results->begin(), results->end(), id) != results->end()) return refuse("a result that appears twice");
  stand_ins->push_back(o);
  results->push_back(id);
  return true;
}

// What torch gives for the leaves. Null: Break, or an error.
Ref Asking::Derivative(const std::vector<PyObject*>& stand_ins, const std::vector<TraceId>& results) {
  Ref outputs(PyList_New(0)), inputs(PyList_New(0)), seeds(PyList_New(0));
  if (!outputs || !inputs || !seeds) return {};
  for (PyObject* o : stand_ins)
    if (PyList_Append(outputs.get(), o) < 0) return {};
  for (const auto& [leaf, id] : leaves_)
    if (PyList_Append(inputs.get(), leaf) < 0) return {};
  for (TraceId t : s_.lowering().Tangents(&custom_, results)) {
    Ref proxy(s_.NewProxy(t)), seed = proxy ? StandInOf(proxy.get()) : Ref();
    if (!seed || PyList_Append(seeds.get(), seed.get()) < 0) return {};
  }
  PyObject* pull = Part("pull");
  SuspendScope off;
  return Ref(pull ? PyObject_CallFunctionObjArgs(pull, outputs.get(), inputs.get(), seeds.get(), nullptr) : nullptr);
}

bool Asking::Differentiate(PyObject* result, PyObject* again) {
  std::vector<PyObject*> stand_ins;
  std::vector<TraceId> results;
  bool any = false;
  {
    PyObject* has = Part("has_gradients");
    SuspendScope off;
    Ref answer(has ? PyObject_CallOneArg(has, result) : nullptr);
    if (!answer) return false;
    any = answer.get() == Py_True;
  }
  if (!any) return true;
  if (!Differentiable(result, &stand_ins, &results)) return false;
  const size_t pending = s_.pending().stores().size() + s_.pending().calls().size();
  Ref gradients = Derivative(stand_ins, results);
  if (s_.broken()) return s_.Break(s_.reason().id), false;
  if (!gradients)
    return PyErr_Clear(), s_.Break(BreakId::kFrameworkError, "a derivative on wrappers that raises"), false;
  if (s_.pending().stores().size() + s_.pending().calls().size() != pending)
    return s_.Break(BreakId::kSubclass, "a derivative that writes to an object"), false;
  std::vector<std::optional<TraceId>> inputs, grads;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    inputs.emplace_back(leaves_[i].second);
    grads.emplace_back();
    PyObject* given = PyTuple_GET_ITEM(gradients.get(), static_cast<Py_ssize_t>(i));
    if (given == Py_None) continue;
    Ref g(FromTorch(given, false));
    if (!g) return false;
    if (!IsTensor(g.get())) return s_.Break(BreakId::kSubclass, "a gradient that is a wrapper"), false;
    grads.back() = AsTensor(g.get())->id;
  }
  framejit::Call call;
  call.callee = kCustomCall;
  call.mode = s_.modes.now;
  call.args.emplace_back();
  call.args[0].kind = Arg::Kind::kObject;
  call.args[0].i = shape::Int(static_cast<int64_t>(s_.constants().size()));
  s_.constants().push_back(Py_NewRef(again));
  call.args.insert(call.args.end(), slots_.begin(), slots_.end());
  std::vector<Arg> made;
  for (size_t k = 0; k < results.size(); ++k)
    made.push_back(Arg::Tensor(static_cast<TraceId>(s_.trace().tensors.size() + k)));
  call.result = Arg::Seq(Arg::Kind::kTuple, made);
  const std::vector<TraceId> shown = s_.lowering().EndCustom(&custom_, std::move(call), inputs, grads);
  ++s_.op_count;
  for (size_t k = 0; k < shown.size(); ++k) known_.Show(stand_ins[k], Ref(s_.NewProxy(shown[k])));
  return true;
}

Ref HowAgain(Asking& asking, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  auto [all, named] = Arguments(args, nargs, kwnames, [&](PyObject* o) { return asking.Recipe(o); });
  PyObject* again = all && named ? Part("Again") : nullptr;
  SuspendScope off;
  return Ref(again ? PyObject_CallFunctionObjArgs(again, function, all.get(), named.get(), nullptr) : nullptr);
}

}  // namespace framejit::capture::wrapping
