#include "capture/asking.h"

#include <algorithm>
#include <cstring>

#include "capture/builtins.h"
#include "capture/wrappers/tape.h"
#include "tensor/import.h"

namespace framejit::capture::wrapping {
namespace {

PyObject* Dispatched(PyObject*, PyObject* const* args, Py_ssize_t n);
PyObject* Symbolic(PyObject*, PyObject* const* args, Py_ssize_t n);
PyObject* Knows(PyObject*, PyObject* o) {
  return PyBool_FromLong(tensor::AsksItsClass(o));
}

}  // namespace

PyObject* Part(const char* name) {
  static PyMethodDef methods[] = {
      {"dispatched", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Dispatched)), METH_FASTCALL, nullptr},
      {"symbolic", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Symbolic)), METH_FASTCALL, nullptr},
      {"knows_its_sizes", Knows, METH_O, nullptr}};
  static PyObject* const module = [] {
    SuspendScope off;
    Ref m(tensor::Import("framejit._wrappers"));
    for (PyMethodDef& method : methods) {
      Ref f(m ? PyCFunction_New(&method, nullptr) : nullptr);
      if (!f || PyObject_SetAttrString(m.get(), method.ml_name, f.get()) < 0) return static_cast<PyObject*>(nullptr);
    }
    return m.release();
  }();
  PyObject* part = module ? PyDict_GetItemString(PyModule_GetDict(module), name) : nullptr;
  if (!part && !PyErr_Occurred()) PyErr_Format(PyExc_ImportError, "framejit._wrappers.%s", name);
  return part;
}

std::pair<Ref, Ref> Arguments(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                              absl::FunctionRef<Ref(PyObject*)> convert) {
  Ref all(PyTuple_New(nargs)), named(PyDict_New());
  if (!all || !named) return {};
  for (Py_ssize_t i = 0; i < nargs; ++i) {
    Ref one = convert(args[i]);
    if (!one) return {};
    PyTuple_SET_ITEM(all.get(), i, one.release());
  }
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) {
    Ref one = convert(args[nargs + i]);
    if (!one || PyDict_SetItem(named.get(), PyTuple_GET_ITEM(kwnames, i), one.get()) < 0) return {};
  }
  return {std::move(all), std::move(named)};
}

MadeWrapper* Made(Session& s, PyObject* o) {
  auto at = s.pending().wrappers.find(o);
  return at == s.pending().wrappers.end() ? nullptr : &at->second;
}

bool Tracked(const MadeWrapper* made) {
  return made && PyDict_GetItemString(made->kwargs.get(), "requires_grad") == Py_True;
}

thread_local Asking* Asking::current = nullptr;

Asking::Asking(Session& s, frame::Semantics* semantics)
    : s_(s), semantics_(semantics), outer_(std::exchange(current, this)), known_(TapeOf(s) ? TapeOf(s)->known : own_) {}

// Makes a torch.SymInt for a symbol: what torch does with it is done with the symbol.
Ref Asking::Number(shape::Int n) {
  Tape* const tape = TapeOf(s_);
  if (tape && !tape->symbolic) return Ref(PyLong_FromLongLong(s_.env().Specialize(n)));
  Ref number(s_.SymIntObject(n));
  if (!number || !IsSymInt(number.get())) return number;
  if (tape) return symbolic = true, tape->Symbol(number.get());
  PyObject* make = Part("symbol");
  symbolic = true;
  SuspendScope off;
  return Ref(make ? PyObject_CallOneArg(make, number.get()) : nullptr);
}

Ref Asking::StandInOf(PyObject* o) {
  if (PyObject* stands = known_.StandIn(o)) return Borrow(stands);
  const char* refused = "gradients of what a __torch_dispatch__ computes";
  Ref made;
  if (IsTensor(o)) {
    const TensorMeta m = s_.meta(AsTensor(o)->id);
    if (m.framework != Framework::kTorch) return s_.Break(BreakId::kSubclass, "an array beside a wrapper"), Ref();
    const bool tracked = m.requires_grad && (TapeOf(s_) || (s_.modes.now.grad && !s_.modes.now.inference));
    if (!TapeOf(s_) && tracked && (answering_ || !s_.options().derivatives))
      return s_.Break(BreakId::kSubclass, refused), Ref();
    auto numbers = [&](const shape::Ints& all) {
      Ref tuple(PyTuple_New(static_cast<Py_ssize_t>(all.size())));
      for (size_t i = 0; tuple && i < all.size(); ++i) PyTuple_SET_ITEM(tuple.get(), i, Number(all[i]).release());
      return tuple;
    };
    Ref sizes = numbers(m.sizes), strides = numbers(m.strides), dtype(tensor::DTypeObject(Framework::kTorch, m.dtype));
    Ref device(TensorAttr(s_, o, Interned("device")));
    PyObject* make = Part("stand_in");
    SuspendScope off;
    made = Ref(make && sizes && strides && dtype && device
                   ? PyObject_CallFunction(make, "OOiOOO", sizes.get(), strides.get(), 0, dtype.get(), device.get(),
                                           tracked ? Py_True : Py_False)
                   : nullptr);
    if (made && tracked && TapeOf(s_))
      TapeOf(s_)->AddLeaf(made.get(), o);
    else if (made && tracked)
      leaves_.emplace_back(made.get(), AsTensor(o)->id);
  } else if (TapeOf(s_)) {
    return TapeOf(s_)->Made(o) ? Borrow(o) : TapeOf(s_)->DoubleOf(*this, o);
  } else {
    tensor::Meta m;
    SuspendScope off;
    if (!Made(s_, o) && !tensor::ReadWrapper(o, &m)) return s_.Break(BreakId::kSubclass, Py_TYPE(o)->tp_name), Ref();
    if ((Tracked(Made(s_, o)) || m.requires_grad) && s_.modes.now.grad)
      return Tape::Ask(s_), s_.Break(BreakId::kSubclass, refused), Ref();
    PyObject* make = Part("like");
    made = Ref(make ? PyObject_CallOneArg(make, o) : nullptr);
  }
  if (!made) return Ref();
  known_.Add(made, Borrow(o));
  return made;
}

Ref Asking::Items(PyObject* o) {
  PyObject* items = s_.IsOutside(o) ? s_.ItemsOf(o) : s_.Settled(o);
  if (!items) return {};
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(items);
  Ref list(PyList_New(0));
  for (Py_ssize_t i = 0; list && i < n; ++i) {
    Ref one = ToTorch(PySequence_Fast_GET_ITEM(items, i));
    if (!one || PyList_Append(list.get(), one.get()) < 0) return {};
  }
  return list && PyTuple_Check(o) ? Ref(PyList_AsTuple(list.get())) : std::move(list);
}

Ref Asking::ToTorch(PyObject* o) {
  o = s_.Resolve(o);
  if (!o) return {};
  if (IsTensor(o) || IsWrapper(o)) return StandInOf(o);
  if (IsRagged(o)) return Borrow(o);
  if (IsSymInt(o)) return Number(reinterpret_cast<SymInt*>(o)->expr);
  if (IsSymFloat(o)) return Ref(PyFloat_FromDouble(s_.numbers().Specialize(reinterpret_cast<SymFloat*>(o)->symbol)));
  if (IsItemFloat(o)) return s_.Break(BreakId::kTensorItem, "a number that a tensor holds, beside a wrapper"), Ref();
  if (PyTuple_CheckExact(o) || PyList_CheckExact(o) || IsSymbolicSize(o)) return Items(o);
  if (PySlice_Check(o)) {
    auto* slice = reinterpret_cast<PySliceObject*>(o);
    Ref start = ToTorch(slice->start), stop = ToTorch(slice->stop), step = ToTorch(slice->step);
    return start && stop && step ? Ref(PySlice_New(start.get(), stop.get(), step.get())) : Ref();
  }
  if (TapeOf(s_) && s_.IsOutside(o)) return s_.guards().Is(s_.SourceOf(o), o), Borrow(o);
  if (!IsPrimitive(o) && !IsValue(o) && !IsConstantKind(o) && !OfType(o, CType::kTorchSize))
    return s_.Break(BreakId::kUnknownCall, std::string("a ") + Py_TYPE(o)->tp_name + " beside a wrapper"), Ref();
  return Borrow(o);
}

// Notes of what a result is a view. False: it cannot be rebuilt so.
PyObject* Asking::ViewOf(PyObject* stand_in, PyObject* o) {
  SuspendScope off;
  Ref base(PyObject_GetAttrString(stand_in, "_base"));
  if (!base) return nullptr;
  PyObject* of = base.get() == Py_None ? nullptr : known_.Behind(base.get());
  if (!of || of == o) return o;
  MadeWrapper* made = IsWrapper(o) ? Made(s_, o) : nullptr;
  if (!made || !IsWrapper(of)) {
    return IsTensor(o) && IsTensor(of) ? o : s_.Break(BreakId::kSubclass, "a view of a wrapper that is none");
  }
  const MadeWrapper* behind = Made(s_, of);
  made->view_of = behind && behind->view_of ? behind->view_of : of;
  return o;
}

// A tensor that torch made of a number of the call: the same in the graph. It is null without an error where it is
// another one.
PyObject* Asking::NumberTensor(PyObject* o) {
  static const Callee make("torch.tensor");
  tensor::Meta m;
  Ref number, dtype, names;
  {
    SuspendScope off;
    if (tensor::Classify(o) != tensor::Class::kTorch || !tensor::ReadMeta(o, &m) || m.rank || m.requires_grad ||
        m.device.kind != DeviceKind::kCpu)
      return nullptr;
    number = Ref(PyObject_CallMethod(o, "item", nullptr));
    dtype = Ref(tensor::DTypeObject(Framework::kTorch, m.dtype));
    names = Ref(Py_BuildValue("(s)", "dtype"));
  }
  if (!number || !dtype || !names) return nullptr;
  PyObject* args[] = {number.get(), dtype.get()};
  return s_.CallFramework(make, args, 1, names.get());
}

namespace {

// What a torch.SymInt, SymBool or SymFloat of ours stands for. Nothing: it is something else.
std::optional<Ref> SymbolIn(PyObject* o) {
  static PyObject* const of = Part("number_in");
  if (PyLong_Check(o) || PyTuple_Check(o) || PyList_Check(o) || PyUnicode_Check(o) || !of) return std::nullopt;
  SuspendScope off;
  Ref number(PyObject_CallOneArg(of, o));
  if (!number || number.get() == Py_None) return std::nullopt;
  return number;
}

}  // namespace

PyObject* Asking::FromTorch(PyObject* o, bool result) {
  if (PyObject* known = known_.Behind(o)) {
    if (result && !TapeOf(s_) && !ViewOf(o, known)) return nullptr;
    return Py_NewRef(known);
  }
  if (auto symbol = SymbolIn(o)) return s_.Adopt(symbol->release());
  if (IsRagged(o)) return s_.Keep(Py_NewRef(o)), s_.MarkFresh(Py_NewRef(o));
  if (PyTuple_Check(o) || PyList_CheckExact(o)) {
    Ref list(PyList_New(0));
    for (Py_ssize_t i = 0; list && i < PySequence_Fast_GET_SIZE(o); ++i) {
      Ref one(FromTorch(PySequence_Fast_GET_ITEM(o, i), result));
      if (!one || PyList_Append(list.get(), one.get()) < 0) return nullptr;
    }
    if (!list) return nullptr;
    if (PyList_CheckExact(o)) return s_.MarkFresh(list.release());
    Ref tuple(PyList_AsTuple(list.get()));
    if (!tuple || PyTuple_CheckExact(o)) return s_.MarkFresh(tuple.release());
    if (OfType(o, CType::kTorchSize)) {
      Ref none(PyTuple_New(0));
      return none ? SizeConcat(s_, none.get(), s_.MarkFresh(tuple.release())) : nullptr;
    }
    SuspendScope off;
    return s_.MarkFresh(PyObject_CallOneArg(reinterpret_cast<PyObject*>(Py_TYPE(o)), tuple.get()));
  }
  if (PyDict_CheckExact(o)) {
    Ref dict(PyDict_New());
    PyObject *key, *value;
    for (Py_ssize_t at = 0; dict && PyDict_Next(o, &at, &key, &value);) {
      Ref one(FromTorch(value, result));
      if (!one || PyDict_SetItem(dict.get(), key, one.get()) < 0) return nullptr;
    }
    return s_.MarkFresh(dict.release());
  }
  if (Ref number(NumberTensor(o)); number || s_.broken() || PyErr_Occurred()) {
    if (number) known_.Add(Borrow(o), Borrow(number.get()));
    return number.release();
  }
  if (TapeOf(s_) && tensor::IsWrapperClass(Py_TYPE(o))) return TapeOf(s_)->Take(o);
  if (tensor::Classify(o) != tensor::Class::kNone)
    return s_.Break(BreakId::kSubclass, "a tensor that torch makes beside wrappers");
  if (IsPrimitive(o) || IsValue(o) || IsConstantKind(o)) return s_.Adopt(Py_NewRef(o));
  if (!TapeOf(s_))
    return s_.Break(BreakId::kUnknownCall, std::string("a ") + Py_TYPE(o)->tp_name + " in an operation on wrappers");
  s_.constants().push_back(Py_NewRef(o));  // part of what a wrapper is: the same in each run
  return s_.FromOutside(o, s_.guards().Const(o));
}

namespace {

// What is done with the numbers of framejit._wrappers.Number: (name, number, number) -> number or truth.
PyObject* Symbolic(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (!Asking::current || n != 3)
    return PyErr_Format(PyExc_RuntimeError, "framejit: a symbol of a finished capture was used");
  Session& s = Asking::current->session();
  shape::Env& env = s.env();
  auto number = [](PyObject* o) {
    return IsSymInt(o) ? reinterpret_cast<SymInt*>(o)->expr : shape::Int(static_cast<int64_t>(PyLong_AsLongLong(o)));
  };
  const shape::Int a = number(args[1]), b = number(args[2]);
  const char* name = PyUnicode_AsUTF8(args[0]);
  if (!name || PyErr_Occurred()) return nullptr;
  struct Relation {
    const char* name;
    shape::Cmp cmp;
    bool swap;
  };
  static constexpr Relation kRelations[] = {{"eq", shape::Cmp::kEq, false}, {"ne", shape::Cmp::kNe, false},
                                            {"lt", shape::Cmp::kLt, false}, {"le", shape::Cmp::kLe, false},
                                            {"gt", shape::Cmp::kLt, true},  {"ge", shape::Cmp::kLe, true}};
  for (const Relation& r : kRelations)
    if (!strcmp(name, r.name)) return PyBool_FromLong(r.swap ? env.Ask(r.cmp, b, a) : env.Ask(r.cmp, a, b));
  struct Operation {
    const char* name;
    shape::Int (*of)(shape::Int, shape::Int);
  };
  using shape::Int;
  static constexpr Operation kOperations[] = {{"add", [](Int x, Int y) { return x + y; }},
                                              {"sub", [](Int x, Int y) { return x - y; }},
                                              {"mul", [](Int x, Int y) { return x * y; }},
                                              {"int_floordiv", shape::FloorDiv},
                                              {"mod", shape::Mod},
                                              {"sym_min", shape::Min},
                                              {"sym_max", shape::Max}};
  if (!strcmp(name, "text")) return PyUnicode_FromString(a.str().c_str());
  for (const Operation& op : kOperations)
    if (!strcmp(name, op.name)) return s.SymIntObject(op.of(a, b));
  return PyLong_FromLongLong(env.Specialize(a));
}

}  // namespace

namespace {

// The classes of wrappers among these, as torch asks them: each once, a subclass before its base.
void Classes(PyObject* o, std::vector<PyTypeObject*>* out) {
  if (PyTuple_Check(o) || PyList_Check(o)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) Classes(PySequence_Fast_GET_ITEM(o, i), out);
    return;
  }
  if (!IsWrapper(o) || std::find(out->begin(), out->end(), Py_TYPE(o)) != out->end()) return;
  auto at = std::find_if(out->begin(), out->end(), [&](PyTypeObject* t) { return PyType_IsSubtype(Py_TYPE(o), t); });
  out->insert(at, Py_TYPE(o));
}

}  // namespace

PyObject* Asking::Operation(PyObject* func, PyObject* args, PyObject* kwargs) {
  static PyObject* const method_name = Interned("__torch_dispatch__");
  OverrideScope on(semantics_);
  Ref made(FromTorch(args, false)), named(made ? FromTorch(kwargs, false) : nullptr);
  if (!named) return nullptr;
  Ref known(s_.FromOutside(func, s_.guards().Const(func)));
  if (!known) return nullptr;
  std::vector<PyTypeObject*> classes;
  Classes(made.get(), &classes);
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(named.get(), &at, &key, &value);) Classes(value, &classes);
  if (classes.empty()) return semantics_->CallEx(func, made.get(), named.get());
  Ref types(PyTuple_New(static_cast<Py_ssize_t>(classes.size())));
  for (size_t i = 0; types && i < classes.size(); ++i) {
    auto* type = reinterpret_cast<PyObject*>(classes[i]);
    s_.SourceOf(type);
    PyTuple_SET_ITEM(types.get(), i, Py_NewRef(type));
  }
  if (!types) return nullptr;
  PyObject* given[] = {func, s_.MarkFresh(types.get()), made.get(), named.get()};
  for (PyTypeObject* type : classes) {
    Ref method(semantics_->LoadAttr(reinterpret_cast<PyObject*>(type), method_name));
    PyObject* result = method ? semantics_->Call(method.get(), given, 4, nullptr) : nullptr;
    if (result != Py_NotImplemented) return result;
    Py_DECREF(result);
  }
  return s_.Break(BreakId::kFrameworkError, "no class has an implementation");
}

bool Asking::NoteWrites() {
  if (s_.modes.now.inference) return true;  // no versions are counted
  SuspendScope off;
  static PyObject* const increment = tensor::ResolveCallee("torch.autograd.graph.increment_version");
  for (auto& [stand_in, o] : known_.pairs()) {
    tensor::Meta m;
    MadeWrapper* made = IsWrapper(o.get()) ? Made(s_, o.get()) : nullptr;
    PyObject* counts = made && made->view_of ? made->view_of : o.get();  // a view counts with its base
    if (!IsWrapper(counts) || !s_.IsOutside(counts)) continue;  // what is made here begins to count at the exit
    if (!increment || (!tensor::ReadAnyWrapper(counts, &m, nullptr) && !tensor::AsksItsClass(counts))) return false;
    Ref version(m.is_inference ? nullptr : PyObject_GetAttrString(stand_in.get(), "_version"));
    if (!version && !m.is_inference) return false;
    const long writes = version ? PyLong_AsLong(version.get()) : 0;
    if (writes > 0 && tensor::AsksItsClass(counts))  // it may count with the tensors in it, or for itself
      return PyErr_SetString(PyExc_RuntimeError, "a nested tensor from outside"), false;
    for (long i = writes; i > 0; --i) {
      PendingCall call{Borrow(increment), {}};
      call.args.push_back(Borrow(counts));
      s_.pending().Call(std::move(call));
    }
  }
  return true;
}

// Where torch notes what is done, each result of an operation is one of its own, but for what is written.
PyObject* Asking::Distinct(PyObject* func, PyObject* o) {
  static const Callee detach("torch.Tensor.detach");
  if (PyTuple_CheckExact(o) || PyList_CheckExact(o)) {
    Ref list(PyList_New(0));
    for (Py_ssize_t i = 0; list && i < PySequence_Fast_GET_SIZE(o); ++i) {
      Ref one(Distinct(func, PySequence_Fast_GET_ITEM(o, i)));
      if (!one || PyList_Append(list.get(), one.get()) < 0) return nullptr;
    }
    return list && PyTuple_Check(o) ? PyList_AsTuple(list.get()) : list.release();
  }
  PyObject* known = IsTensor(o) ? known_.StandIn(o) : nullptr;
  if (!known) return Py_NewRef(o);
  PyObject* part = Part("may_return_itself");
  Ref itself;
  {
    SuspendScope off;
    itself = Ref(part ? PyObject_CallOneArg(part, func) : nullptr);
  }
  if (!itself) return nullptr;
  return itself.get() == Py_True ? Py_NewRef(o) : s_.CallFramework(detach, &o, 1, nullptr);
}

PyObject* Asking::Answer(PyObject* func, PyObject* o) {
  Ref distinct;
  if (TapeOf(s_)) {
    const Tape::Inside inside(TapeOf(s_));
    distinct = Ref(Distinct(func, o));
    if (!distinct) return nullptr;
    if (PyTuple_CheckExact(o) || PyList_CheckExact(o)) s_.MarkFresh(distinct.get());
    o = distinct.get();
  }
  answering_ = true;
  Ref answer = ToTorch(o);
  answering_ = false;
  return answer.release();
}

namespace {

// Called by a stand-in's class for each operation: (func, args, kwargs).
PyObject* Dispatched(PyObject*, PyObject* const* args, Py_ssize_t n) {
  Asking* asking = Asking::current;
  if (!asking || n != 3) return PyErr_Format(PyExc_RuntimeError, "framejit: a stand-in of a finished capture was used");
  Session& s = asking->session();
  if (s.broken()) return s.Break(s.reason().id);
  asking->within = Keys::Now();
  const KeyScope as_before(asking->before);
  if (!as_before.on()) return nullptr;
  // What the class does is beneath autograd.
  const bool grad = std::exchange(s.modes.now.grad, false);
  Ref result;
  {
    const Tape::Inside inside(TapeOf(s));
    result = Ref(asking->Operation(args[0], args[1], args[2]));
  }
  s.modes.now.grad = grad;
  if (!result || s.broken()) return s.broken() ? s.Break(s.reason().id) : nullptr;
  OverrideScope on(asking->semantics());
  return asking->Answer(args[0], result.get());
}

}  // namespace
}  // namespace framejit::capture::wrapping
