#include "capture/wrappers.h"

#include <algorithm>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "capture/builtins.h"
#include "capture/override.h"
#include "capture/overrides.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

PyObject* Dispatched(PyObject*, PyObject* const* args, Py_ssize_t n);
PyObject* Symbolic(PyObject*, PyObject* const* args, Py_ssize_t n);

// Of framejit._wrappers; borrowed, null with an error.
PyObject* Part(const char* name) {
  static PyMethodDef methods[] = {
      {"dispatched", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Dispatched)), METH_FASTCALL, nullptr},
      {"symbolic", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Symbolic)), METH_FASTCALL, nullptr}};
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

MadeWrapper* Made(Session& s, PyObject* o) {
  auto at = s.pending().wrappers.find(o);
  return at == s.pending().wrappers.end() ? nullptr : &at->second;
}

bool Tracked(const MadeWrapper* made) {
  return made && PyDict_GetItemString(made->kwargs.get(), "requires_grad") == Py_True;
}

bool Among(std::string_view name, std::string_view names) {
  return names.find(" " + std::string(name) + " ") != names.npos;
}

// What a wrapper says of itself without asking its class.
constexpr std::string_view kFacts =
    " size stride dim ndimension numel nelement element_size is_floating_point is_complex is_signed is_contiguous "
    "get_device is_inference has_names shape dtype device layout ndim itemsize nbytes is_cuda is_cpu is_meta is_xpu "
    "is_mps is_sparse is_sparse_csr is_quantized is_mkldnn is_nested requires_grad ";
// What is more than an operation on its values.
constexpr std::string_view kNoOperations =
    " requires_grad_ backward register_hook register_post_accumulate_grad_hook retain_grad numpy tolist share_memory_ "
    "is_shared pin_memory apply_ map_ map2_ storage untyped_storage storage_offset data_ptr as_subclass _make_subclass "
    "set_ resize_ detach_ names rename rename_ _version _base data grad _grad grad_fn is_leaf output_nr ";

// Which parts of the dispatcher are on for the thread.
struct Keys {
  Ref include, exclude;
  static Keys Now() {
    static PyObject* const include = tensor::ResolveCallee("torch._C._dispatch_tls_local_include_set");
    static PyObject* const exclude = tensor::ResolveCallee("torch._C._dispatch_tls_local_exclude_set");
    return {Ref(include ? PyObject_CallNoArgs(include) : nullptr),
            Ref(exclude ? PyObject_CallNoArgs(exclude) : nullptr)};
  }
  bool known() const { return include && exclude; }
};

class KeyScope {
 public:
  explicit KeyScope(const Keys& keys) {
    static PyObject* const type = tensor::ResolveCallee("torch._C._ForceDispatchKeyGuard");
    scope_ =
        Ref(type && keys.known() ? PyObject_CallFunctionObjArgs(type, keys.include.get(), keys.exclude.get(), nullptr)
                                 : nullptr);
    Ref entered(scope_ ? PyObject_CallMethod(scope_.get(), "__enter__", nullptr) : nullptr);
    if (!entered) scope_ = Ref();
  }
  ~KeyScope() {
    if (!scope_) return;
    tensor::SavedError saved;
    Ref left(PyObject_CallMethod(scope_.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
    PyErr_Clear();
  }
  KeyScope(const KeyScope&) = delete;
  bool on() const { return static_cast<bool>(scope_); }

 private:
  Ref scope_;
};

// A call that torch makes on stand-ins while its operations are captured.
class Asking {
 public:
  Asking(Session& s, frame::Semantics* semantics)
      : s_(s), semantics_(semantics), outer_(std::exchange(current, this)) {}
  ~Asking() { current = outer_; }
  Asking(const Asking&) = delete;
  static thread_local Asking* current;

  // The object as torch may have it. Null: Break, or an error.
  Ref ToTorch(PyObject* o);
  // What stands for what torch has. New reference; result: of the whole call.
  PyObject* FromTorch(PyObject* o, bool result);
  // An operation that reaches the classes, or is one on tensors beside them.
  PyObject* Operation(PyObject* func, PyObject* args, PyObject* kwargs);
  bool NoteWrites();              // to wrappers from outside. False: an error
  PyObject* Answer(PyObject* o);  // of an operation, as torch may have it. New reference
  // A call with tensors that gradients go to is captured like a torch.autograd.Function. Its backward is what torch
  // does with the stand-ins of its results.
  bool tracks() const { return !leaves_.empty(); }
  void Begin() { s_.lowering().BeginCustom(&custom_); }
  // An argument, as framejit._wrappers.Again makes it again where torch replays the call. Null: Break, or an error.
  Ref Recipe(PyObject* o);
  bool Differentiate(PyObject* result,
                     PyObject* again);  // the results stand for others then. False: Break, or an error
  Session& session() { return s_; }
  frame::Semantics* semantics() { return semantics_; }
  const Keys before = Keys::Now();  // the call: so what is captured is looked at
  Keys within;                      // an operation of it: so a call inside of that is made
  bool symbolic = false;            // torch was given symbols
  Asking* outer() { return outer_; }

 private:
  Ref StandInOf(PyObject* o);
  Ref Items(PyObject* o);
  PyObject* ViewOf(PyObject* stand_in, PyObject* o);
  PyObject* Behind(PyObject* stand_in);
  PyObject* NumberTensor(PyObject* o);
  Ref Number(shape::Int n);
  Ref MadeAgain(PyObject* wrapper);
  Ref NamedRecipes(PyObject* dict);
  bool Differentiable(PyObject* o, std::vector<PyObject*>* stand_ins, std::vector<TraceId>* results);
  Ref Derivative(const std::vector<PyObject*>& stand_ins, const std::vector<TraceId>& results);

  Session& s_;
  frame::Semantics* const semantics_;
  Asking* const outer_;
  std::vector<std::pair<Ref, Ref>> known_;             // stand-in, what it stands for
  std::vector<std::pair<PyObject*, TraceId>> leaves_;  // stand-ins of tensors that gradients go to
  std::vector<Arg> slots_;                             // tensors and symbols of the recipes
  surface::Lowering::Custom custom_;
  bool answering_ = false;
};
thread_local Asking* Asking::current = nullptr;

PyObject* Asking::Behind(PyObject* stand_in) {
  for (auto& [stands, o] : known_)
    if (stands.get() == stand_in) return o.get();
  return nullptr;
}

// A torch.SymInt for a symbol: what torch does with it is done with the symbol.
Ref Asking::Number(shape::Int n) {
  Ref number(s_.SymIntObject(n));
  if (!number || !IsSymInt(number.get())) return number;
  PyObject* make = Part("symbol");
  symbolic = true;
  SuspendScope off;
  return Ref(make ? PyObject_CallOneArg(make, number.get()) : nullptr);
}

Ref Asking::StandInOf(PyObject* o) {
  for (auto& [stands, known] : known_)
    if (known.get() == o) return Borrow(stands.get());
  const char* refused = "gradients of what a __torch_dispatch__ computes";
  Ref made;
  if (IsTensor(o)) {
    const TensorMeta m = s_.meta(AsTensor(o)->id);
    if (m.framework != Framework::kTorch) return s_.Break(BreakId::kSubclass, "an array beside a wrapper"), Ref();
    const bool tracked = m.requires_grad && s_.modes.now.grad && !s_.modes.now.inference;
    if (tracked && (answering_ || !s_.options().derivatives)) return s_.Break(BreakId::kSubclass, refused), Ref();
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
    if (made && tracked) leaves_.emplace_back(made.get(), AsTensor(o)->id);
  } else {
    tensor::Meta m;
    SuspendScope off;
    if (!Made(s_, o) && !tensor::ReadWrapper(o, &m)) return s_.Break(BreakId::kSubclass, Py_TYPE(o)->tp_name), Ref();
    if ((Tracked(Made(s_, o)) || m.requires_grad) && s_.modes.now.grad)
      return s_.Break(BreakId::kSubclass, refused), Ref();
    PyObject* make = Part("like");
    made = Ref(make ? PyObject_CallOneArg(make, o) : nullptr);
  }
  if (!made) return Ref();
  known_.emplace_back(Borrow(made.get()), Borrow(o));
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
  if (IsSymInt(o)) return Number(reinterpret_cast<SymInt*>(o)->expr);
  if (IsSymFloat(o)) return Ref(PyFloat_FromDouble(s_.numbers().Specialize(reinterpret_cast<SymFloat*>(o)->symbol)));
  if (IsItemFloat(o)) return s_.Break(BreakId::kTensorItem, "a number that a tensor holds, beside a wrapper"), Ref();
  if (PyTuple_CheckExact(o) || PyList_CheckExact(o) || IsSymbolicSize(o)) return Items(o);
  if (PySlice_Check(o)) {
    auto* slice = reinterpret_cast<PySliceObject*>(o);
    Ref start = ToTorch(slice->start), stop = ToTorch(slice->stop), step = ToTorch(slice->step);
    return start && stop && step ? Ref(PySlice_New(start.get(), stop.get(), step.get())) : Ref();
  }
  if (!IsPrimitive(o) && !IsValue(o) && !IsConstantKind(o) && !OfType(o, CType::kTorchSize))
    return s_.Break(BreakId::kUnknownCall, std::string("a ") + Py_TYPE(o)->tp_name + " beside a wrapper"), Ref();
  return Borrow(o);
}

// Notes of what a result is a view. False: it cannot be rebuilt so.
PyObject* Asking::ViewOf(PyObject* stand_in, PyObject* o) {
  SuspendScope off;
  Ref base(PyObject_GetAttrString(stand_in, "_base"));
  if (!base) return nullptr;
  PyObject* of = base.get() == Py_None ? nullptr : Behind(base.get());
  if (!of || of == o) return o;
  MadeWrapper* made = IsWrapper(o) ? Made(s_, o) : nullptr;
  if (!made || !IsWrapper(of)) {
    return IsTensor(o) && IsTensor(of) ? o : s_.Break(BreakId::kSubclass, "a view of a wrapper that is none");
  }
  const MadeWrapper* behind = Made(s_, of);
  made->view_of = behind && behind->view_of ? behind->view_of : of;
  return o;
}

// A tensor that torch made of a number of the call: the same in the graph. Null without an error: another one.
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

// What a torch.SymInt, SymBool or SymFloat of ours stands for. Nothing: it is something else.
std::optional<Ref> SymbolIn(PyObject* o) {
  static PyObject* const of = Part("number_in");
  if (PyLong_Check(o) || PyTuple_Check(o) || PyList_Check(o) || PyUnicode_Check(o) || !of) return std::nullopt;
  SuspendScope off;
  Ref number(PyObject_CallOneArg(of, o));
  if (!number || number.get() == Py_None) return std::nullopt;
  return number;
}

PyObject* Asking::FromTorch(PyObject* o, bool result) {
  if (PyObject* known = Behind(o)) {
    if (result && !ViewOf(o, known)) return nullptr;
    return Py_NewRef(known);
  }
  if (auto symbol = SymbolIn(o)) return s_.Adopt(symbol->release());
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
    if (number) known_.emplace_back(Borrow(o), Borrow(number.get()));
    return number.release();
  }
  if (tensor::Classify(o) != tensor::Class::kNone)
    return s_.Break(BreakId::kSubclass, "a tensor that torch makes beside wrappers");
  if (IsPrimitive(o) || IsValue(o) || IsConstantKind(o)) return s_.Adopt(Py_NewRef(o));
  return s_.Break(BreakId::kUnknownCall, std::string("a ") + Py_TYPE(o)->tp_name + " in an operation on wrappers");
}

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
  for (const Operation& op : kOperations)
    if (!strcmp(name, op.name)) return s.SymIntObject(op.of(a, b));
  return PyLong_FromLongLong(env.Specialize(a));
}

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
  for (auto& [stand_in, o] : known_) {
    tensor::Meta m;
    MadeWrapper* made = IsWrapper(o.get()) ? Made(s_, o.get()) : nullptr;
    PyObject* counts = made && made->view_of ? made->view_of : o.get();  // a view counts with its base
    if (!IsWrapper(counts) || !s_.IsOutside(counts)) continue;  // what is made here begins to count at the exit
    if (!increment || !tensor::ReadWrapper(counts, &m)) return false;
    Ref version(m.is_inference ? nullptr : PyObject_GetAttrString(stand_in.get(), "_version"));
    if (!version && !m.is_inference) return false;
    for (long i = version ? PyLong_AsLong(version.get()) : 0; i > 0; --i) {
      PendingCall call{Borrow(increment), {}};
      call.args.push_back(Borrow(counts));
      s_.pending().Call(std::move(call));
    }
  }
  return true;
}

PyObject* Asking::Answer(PyObject* o) {
  answering_ = true;
  Ref answer = ToTorch(o);
  answering_ = false;
  return answer.release();
}

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
  PyObject* known = Behind(o);
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
  for (size_t k = 0; k < shown.size(); ++k)
    for (auto& [stands, known] : known_)
      if (stands.get() == stand_ins[k]) known = Ref(s_.NewProxy(shown[k]));
  return true;
}

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
  Ref result(asking->Operation(args[0], args[1], args[2]));
  s.modes.now.grad = grad;
  if (!result || s.broken()) return s.broken() ? s.Break(s.reason().id) : nullptr;
  OverrideScope on(asking->semantics());
  return asking->Answer(result.get());
}

// The arguments of a call, as Asking has them: (positional, keywords).
std::pair<Ref, Ref> ForTorch(Asking& asking, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Ref all(PyTuple_New(nargs)), named(PyDict_New());
  for (Py_ssize_t i = 0; all && i < nargs; ++i) {
    Ref one = asking.ToTorch(args[i]);
    if (!one) return {};
    PyTuple_SET_ITEM(all.get(), i, one.release());
  }
  for (Py_ssize_t i = 0; named && kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) {
    Ref one = asking.ToTorch(args[nargs + i]);
    if (!one || PyDict_SetItem(named.get(), PyTuple_GET_ITEM(kwnames, i), one.get()) < 0) return {};
  }
  return {std::move(all), std::move(named)};
}

// How torch makes a call again: framejit._wrappers.Again. Null: Break, or an error.
Ref HowAgain(Asking& asking, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Ref all(PyTuple_New(nargs)), named(PyDict_New());
  for (Py_ssize_t i = 0; all && i < nargs; ++i) {
    Ref one = asking.Recipe(args[i]);
    if (!one) return {};
    PyTuple_SET_ITEM(all.get(), i, one.release());
  }
  for (Py_ssize_t i = 0; named && kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) {
    Ref one = asking.Recipe(args[nargs + i]);
    if (!one || PyDict_SetItem(named.get(), PyTuple_GET_ITEM(kwnames, i), one.get()) < 0) return {};
  }
  PyObject* again = Part("Again");
  SuspendScope off;
  return Ref(again && all && named ? PyObject_CallFunctionObjArgs(again, function, all.get(), named.get(), nullptr)
                                   : nullptr);
}

PyObject* CallDispatch(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  frame::Semantics* semantics = CurrentSemantics();
  PyObject* perform = Part("perform");
  if (!perform || !semantics) return s.Break(BreakId::kSubclass, "__torch_dispatch__");
  if (s.vmap.open() || (s.in_custom && !Asking::current) || s.later || s.modes.now.autocast.any())
    return s.Break(BreakId::kSubclass, "__torch_dispatch__ under another mode");
  Asking asking(s, semantics);
  auto [all, named] = ForTorch(asking, args, nargs, kwnames);
  if (!named) return s.broken() || PyErr_Occurred() ? nullptr : s.Break(BreakId::kSubclass, "an argument");
  const bool tracked = asking.tracks();
  Ref again = tracked ? HowAgain(asking, function, args, nargs, kwnames) : Ref(), result;
  if (tracked && !again) return s.broken() || PyErr_Occurred() ? nullptr : s.Break(BreakId::kSubclass, "an argument");
  if (tracked) asking.Begin();
  s.in_custom += tracked;
  const absl::Cleanup end = [&] {
    s.in_custom -= tracked;
    s.symbols_refused |= asking.symbolic && s.broken() && s.reason().id == BreakId::kFrameworkError;
  };
  {
    SuspendScope off;
    std::optional<KeyScope> inside;
    if (asking.outer()) inside.emplace(asking.outer()->within);
    result = Ref(PyObject_CallFunctionObjArgs(perform, function, all.get(), named.get(), tracked ? Py_True : Py_False,
                                              s.modes.now.inference ? Py_True : Py_False, nullptr));
  }
  if (s.broken()) return s.Break(s.reason().id);
  if (!result) return PyErr_Clear(), s.Break(BreakId::kFrameworkError, "an operation on wrappers that raises");
  try {
    if (tracked && !asking.Differentiate(result.get(), again.get())) return nullptr;
  } catch (const surface::Decline& d) {
    return s.Break(BreakId::kSubclass, std::string("gradients beside a wrapper: ") + d.what());
  }
  return asking.NoteWrites() ? asking.FromTorch(result.get(), true) : nullptr;
}

// What a wrapper says of itself.
PyObject* Fact(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Asking asking(s, CurrentSemantics());
  Ref self = Borrow(args[0]);
  auto [rest, named] = ForTorch(asking, args + 1, nargs - 1, kwnames);
  Ref first(PyTuple_Pack(1, self.get())), all(first && rest ? PySequence_Concat(first.get(), rest.get()) : nullptr);
  PyObject* ask = Part("ask");
  if (!all || !named || !ask) return s.broken() || PyErr_Occurred() ? nullptr : s.Break(BreakId::kSubclass, "a fact");
  Ref answer;
  {
    SuspendScope off;
    answer = Ref(PyObject_CallFunctionObjArgs(ask, function, all.get(), named.get(), nullptr));
  }
  return answer ? asking.FromTorch(answer.get(), false) : nullptr;
}

PyTypeObject* ClassOf(Session& s, PyObject* o) {
  if (!IsTensor(o)) return Py_TYPE(o);
  Ref type(TensorClass(s, o));
  return reinterpret_cast<PyTypeObject*>(type.get());  // the class lives on
}

}  // namespace

bool AnyWrapper(PyObject* const* args, Py_ssize_t n) {
  if (!Wrappers::seen) return false;
  return std::any_of(args, args + n, [&](PyObject* o) {
    if (PyTuple_CheckExact(o)) return AnyWrapper(&PyTuple_GET_ITEM(o, 0), PyTuple_GET_SIZE(o));
    if (PyList_CheckExact(o)) return PyList_GET_SIZE(o) && AnyWrapper(&PyList_GET_ITEM(o, 0), PyList_GET_SIZE(o));
    return IsWrapper(o);
  });
}

bool NoteWrapper(Session& s, PyObject* o, const Source* source) {
  tensor::Meta m;
  const char* why = nullptr;
  const bool modelled = tensor::IsWrapperClass(Py_TYPE(o));
  {
    SuspendScope off;
    if (!modelled || !tensor::ReadWrapper(o, &m, &why))
      return s.Break(BreakId::kSubclass, std::string(Py_TYPE(o)->tp_name) + (why ? std::string(", ") + why : "")),
             false;
  }
  if (!s.libraries.Use(s, Library::kTorch)) return false;
  TensorMeta meta;
  meta.framework = Framework::kTorch;
  meta.dtype = m.dtype;
  meta.device = m.device;
  meta.requires_grad = m.requires_grad;
  meta.is_inference = m.is_inference;
  for (int i = 0; i < m.rank; ++i) {
    meta.sizes.push_back(m.sizes[i]);
    meta.strides.push_back(m.strides[i]);
  }
  guard::Row row{guard::Kind::kTensor, source};
  row.tensor = std::make_shared<guard::TensorExpect>(meta, m.key_set, false, true);
  row.here = true;
  s.guards().Add(std::move(row));
  return Wrappers::seen = true;
}

PyObject* MakeWrapper(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  if (nargs < 2 || !PyType_Check(args[0]) || std::any_of(args, args + total, IsTensor) || AnyWrapper(args, total) ||
      s.modes.now.inference != s.modes.entry.inference || !s.SourceOf(args[0]))
    return s.Break(BreakId::kSubclass, "torch.Tensor._make_wrapper_subclass");
  for (Py_ssize_t i = 0; i < total - nargs; ++i) {
    const char* keyword = PyUnicode_AsUTF8(PyTuple_GET_ITEM(kwnames, i));
    if (keyword && Among(keyword, " dispatch_sizes_strides_policy dispatch_device dispatch_layout data_ptr ") &&
        args[nargs + i] != Py_None && args[nargs + i] != Py_False)
      return s.Break(BreakId::kSubclass, std::string("torch.Tensor._make_wrapper_subclass with ") + keyword);
  }
  Asking asking(s, CurrentSemantics());
  auto [rest, named] = ForTorch(asking, args + 1, nargs - 1, kwnames);
  if (!named) return s.broken() || PyErr_Occurred() ? nullptr : s.Break(BreakId::kSubclass, "an argument");
  Ref first(PyTuple_Pack(1, args[0])), all(first ? PySequence_Concat(first.get(), rest.get()) : nullptr), made;
  if (!all) return nullptr;
  {
    SuspendScope off;
    made = Ref(PyObject_Call(function, all.get(), named.get()));
  }
  if (!made) return nullptr;
  if (!tensor::IsWrapperClass(Py_TYPE(made.get()))) return s.Break(BreakId::kSubclass, Py_TYPE(made.get())->tp_name);
  Wrappers::seen = true;
  Ref its_args(asking.FromTorch(rest.get(), false)), its_kwargs(asking.FromTorch(named.get(), false));
  if (!its_args || !its_kwargs) return nullptr;
  s.pending().wrappers[made.get()] = {std::move(its_args), std::move(its_kwargs)};
  return s.MarkFresh(made.release());
}

PyObject* CallWrapped(Session& s, PyObject* function, std::string_view name, PyObject* const* args, Py_ssize_t nargs,
                      PyObject* kwnames) {
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  if (AnyAsked(s, args, total)) {
    bool asked = false;
    PyObject* r = CallOverride(s, function, args, nargs, kwnames, &asked);
    if (r || asked || s.broken() || PyErr_Occurred()) return r;
  }
  if (name.find("has_torch_function") != name.npos) Py_RETURN_FALSE;
  if (Among(name, kNoOperations)) return s.Break(BreakId::kSubclass, std::string("tensor.").append(name));
  if (nargs && IsWrapper(args[0]) && Among(name, kFacts)) return Fact(s, function, args, nargs, kwnames);
  return CallDispatch(s, function, args, nargs, kwnames);
}

PyObject* WrapperAttr(Session& s, PyObject* wrapper, PyObject* name, bool* found) {
  static auto* base = reinterpret_cast<PyTypeObject*>(PlainTensorClass(false));
  static PyObject* const hook = Interned("__getattribute__");
  const char* text = PyUnicode_AsUTF8(name);
  PyObject* d = _PyType_Lookup(Py_TYPE(wrapper), name);
  *found = text && d && Py_IS_TYPE(d, &PyGetSetDescr_Type) && d == _PyType_Lookup(base, name) &&
           strcmp(text, "__class__") && strcmp(text, "__dict__") && !PythonFunctionIn(Py_TYPE(wrapper), hook);
  if (!*found) return nullptr;
  s.NoteType(Py_TYPE(wrapper));
  Ref getter(PyObject_GetAttrString(d, "__get__"));
  if (!getter) return nullptr;
  if (Asked(s, wrapper)) {
    bool asked = false;
    PyObject* r = CallOverride(s, getter.get(), &wrapper, 1, nullptr, &asked);
    if (r || asked || s.broken() || PyErr_Occurred()) return r;
  }
  tensor::Meta m;
  const MadeWrapper* made = Made(s, wrapper);
  const bool tracked = made ? Tracked(made) : !tensor::ReadWrapper(wrapper, &m) || m.requires_grad;
  if (!tracked && !strcmp(text, "grad_fn")) Py_RETURN_NONE;
  if (!tracked && !strcmp(text, "is_leaf")) Py_RETURN_TRUE;
  return CallWrapped(s, getter.get(), text, &wrapper, 1, nullptr);
}

bool WrapperTakes(Session& s, PyObject* wrapper, PyObject* name) {
  PyObject* d = _PyType_Lookup(Py_TYPE(wrapper), name);
  if (!d || !Py_IS_TYPE(d, &PyGetSetDescr_Type)) return true;
  return s.Break(BreakId::kSideEffect, "an attribute of a wrapper"), false;
}

PyObject* CallSpecial(Session& s, const char* method, PyObject* const* args, Py_ssize_t nargs) {
  Ref name(PyUnicode_InternFromString(method));
  PyTypeObject* type = ClassOf(s, args[0]);
  if (!name || !type) return nullptr;
  s.NoteType(type);
  PyObject* d = _PyType_Lookup(type, name.get());
  if (!d) return s.Break(BreakId::kSubclass, std::string(type->tp_name) + " without " + method);
  if (!s.SourceOf(d)) return s.Break(BreakId::kSubclass, std::string(type->tp_name) + "." + method);
  return CurrentSemantics()->Call(d, args, nargs, nullptr);
}

namespace {

bool OfTensor(PyObject* o) {
  return IsTensor(o) || IsWrapper(o);
}

// Does Python ask the right operand first, whose class is a subclass of the left one's with a method of its own?
bool RightFirst(Session& s, PyObject* a, PyObject* b, const std::string& method) {
  PyTypeObject *mine = ClassOf(s, a), *theirs = ClassOf(s, b);
  Ref name(PyUnicode_InternFromString(method.c_str()));
  return mine != theirs && PyType_IsSubtype(theirs, mine) &&
         _PyType_Lookup(mine, name.get()) != _PyType_Lookup(theirs, name.get());
}

PyObject* Answer(Session& s, PyObject* result, const std::string& method) {
  if (result != Py_NotImplemented) return result;
  Py_DECREF(result);
  return s.Break(BreakId::kSubclass, method + " of a wrapper, which has no answer");
}

}  // namespace

PyObject* WrapperBinary(Session& s, int nb_op, PyObject* a, PyObject* b) {
  static constexpr const char* kNames[] = {"add", "and", "floordiv", "lshift", "matmul",  "mul", "mod",
                                           "or",  "pow", "rshift",   "sub",    "truediv", "xor"};
  constexpr int kInPlace = 13;
  const std::string name = kNames[nb_op % kInPlace];
  const bool left = OfTensor(a);
  if (!left && !IsPrimitive(a))
    return s.Break(BreakId::kSubclass, std::string("a wrapper and a ") + Py_TYPE(a)->tp_name);
  std::string method = "__" + (left && nb_op >= kInPlace ? "i" + name : left ? name : "r" + name) + "__";
  if (left && OfTensor(b) && RightFirst(s, a, b, "__r" + name + "__")) return s.Break(BreakId::kSubclass, method);
  PyObject* args[] = {left ? a : b, left ? b : a};
  return Answer(s, CallSpecial(s, method.c_str(), args, 2), method);
}

PyObject* WrapperCompare(Session& s, PyObject* a, PyObject* b, int op) {
  static const char* const kNames[] = {"__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__"};
  static const int kSwapped[] = {Py_GT, Py_GE, Py_EQ, Py_NE, Py_LT, Py_LE};
  if (!OfTensor(a) || (OfTensor(b) && RightFirst(s, a, b, kNames[kSwapped[op]]))) {
    std::swap(a, b);
    op = kSwapped[op];
  }
  PyObject* args[] = {a, b};
  return Answer(s, CallSpecial(s, kNames[op], args, 2), kNames[op]);
}

PyObject* CorrectAliasing(Session& s, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* aliases = Part("aliases");
  if (nargs != 4 || kwnames || !aliases || !PyTuple_Check(args[1]) || !PyDict_Check(args[2])) return nullptr;
  PyObject *all = args[1], *named = args[2], *out = args[3];
  Ref told;
  {
    SuspendScope off;
    Ref names(PySequence_List(named));
    told = Ref(names ? PyObject_CallFunctionObjArgs(aliases, args[0], names.get(), nullptr) : nullptr);
  }
  if (!told) return PyErr_Clear(), s.Break(BreakId::kSubclass, "return_and_correct_aliasing");
  if (told.get() == Py_None) return s.Break(BreakId::kSubclass, "an operation that changes sizes in place");
  PyObject *written, *views;  // an argument for each result; pairs of an argument and a result
  if (!PyArg_ParseTuple(told.get(), "O!O!", &PyTuple_Type, &written, &PyTuple_Type, &views)) return nullptr;
  auto result = [&](Py_ssize_t i) { return PyTuple_CheckExact(out) ? PyTuple_GetItem(out, i) : out; };
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(views); ++i) {
    Py_ssize_t from, to;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(views, i), "nn", &from, &to)) return nullptr;
    PyObject *of = from < PyTuple_GET_SIZE(all) ? PyTuple_GET_ITEM(all, from) : nullptr, *made = result(to);
    if (!of || !made) return PyErr_Clear(), s.Break(BreakId::kSubclass, "return_and_correct_aliasing");
    auto share = [&](PyObject* one) {
      MadeWrapper* its = Made(s, one);
      if (!its || !IsWrapper(of)) return false;
      its->shares = of;
      return true;
    };
    bool shared = true;
    if (PyList_CheckExact(made))
      for (Py_ssize_t k = 0; k < PyList_GET_SIZE(made); ++k) shared &= share(PyList_GET_ITEM(made, k));
    else
      shared = share(made);
    if (!shared) return s.Break(BreakId::kSubclass, "a view of a wrapper that is none");
  }
  const Py_ssize_t n = PyTuple_GET_SIZE(written);
  if (!n) return Py_NewRef(out);
  Ref inputs(PyTuple_New(n));
  for (Py_ssize_t i = 0; inputs && i < n; ++i) {
    PyObject* at = PyTuple_GET_ITEM(written, i);
    PyObject* one =
        PyUnicode_Check(at) ? PyDict_GetItemWithError(named, at) : PyTuple_GetItem(all, PyLong_AsSsize_t(at));
    if (!one) return PyErr_Clear(), s.Break(BreakId::kSubclass, "return_and_correct_aliasing");
    PyTuple_SET_ITEM(inputs.get(), i, Py_NewRef(one));
  }
  if (!inputs) return nullptr;
  if (n == 1) return Py_NewRef(PyTuple_GET_ITEM(inputs.get(), 0));
  return s.MarkFresh(PyList_CheckExact(out) ? PySequence_List(inputs.get()) : inputs.release());
}

std::pair<PyObject*, Ref> WrapperRecipe(Session& s, PyObject* wrapper) {
  MadeWrapper* its = Made(s, wrapper);
  PyObject* make = Part("made");
  if (!its || !make || !s.SourceOf(make)) return {};
  Ref dict(PyObject_GenericGetDict(wrapper, nullptr));
  if (!dict) return {};
  s.MarkFresh(dict.get());
  auto or_none = [](PyObject* o) { return o ? o : Py_None; };
  Ref args(PyTuple_Pack(6, Py_TYPE(wrapper), its->args.get(), its->kwargs.get(), or_none(its->view_of),
                        or_none(its->shares), dict.get()));
  return {make, std::move(args)};
}

}  // namespace framejit::capture
