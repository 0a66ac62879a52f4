#include "capture/wrappers/wrappers.h"

#include <algorithm>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "capture/asking.h"
#include "capture/builtins.h"
#include "capture/wrappers/overrides.h"
#include "capture/wrappers/tape.h"

namespace framejit::capture {

using namespace wrapping;  // NOLINT(google-build-using-namespace): this file is the other half of it

namespace {

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
// What a wrapper says of itself.
PyObject* Fact(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Asking asking(s, CurrentSemantics());
  const bool knows = TapeOf(s) && tensor::AsksItsClass(args[0]);
  Ref self = knows ? asking.ToTorch(args[0]) : Borrow(args[0]);
  if (!self) return nullptr;
  auto [rest, named] = Arguments(args + 1, nargs - 1, kwnames, [&](PyObject* o) { return asking.ToTorch(o); });
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

PyObject* wrapping::CallDispatch(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs,
                                 PyObject* kwnames) {
  frame::Semantics* semantics = CurrentSemantics();
  PyObject* perform = Part("perform");
  if (!perform || !semantics) return s.Break(BreakId::kSubclass, "__torch_dispatch__");
  if (s.vmap.open() || (s.in_custom && !Asking::current) || s.later || s.modes.now.autocast.any())
    return s.Break(BreakId::kSubclass, "__torch_dispatch__ under another mode");
  Asking asking(s, semantics);
  auto [all, named] = Arguments(args, nargs, kwnames, [&](PyObject* o) { return asking.ToTorch(o); });
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

bool AnyWrapper(PyObject* const* args, Py_ssize_t n) {
  if (!Wrappers::seen) return false;
  return std::any_of(args, args + n, [&](PyObject* o) {
    if (PyTuple_CheckExact(o)) return AnyWrapper(&PyTuple_GET_ITEM(o, 0), PyTuple_GET_SIZE(o));
    if (PyList_CheckExact(o)) return PyList_GET_SIZE(o) && AnyWrapper(&PyList_GET_ITEM(o, 0), PyList_GET_SIZE(o));
    return IsWrapper(o);
  });
}

bool OfTorch(PyTypeObject* type) {
  static PyObject* const name = Interned("__module__");
  PyObject* module = _PyType_Lookup(type, name);
  const char* text = module && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
  return text && std::string_view(text).starts_with("torch.");
}

bool IsRagged(PyObject* o) {
  static tensor::Named type("torch.SymInt");
  return Wrappers::seen && reinterpret_cast<PyObject*>(Py_TYPE(o)) == type.Get();
}

bool NoteWrapper(Session& s, PyObject* o, const Source* source) {
  tensor::Meta m;
  const char* why = nullptr;
  const bool modelled = tensor::IsWrapperClass(Py_TYPE(o));
  bool knows = false;  // Its class makes its sizes of the tensors in it: guards for these are enough.
  {
    SuspendScope off;
    const bool asks = modelled && !TapeOf(s) && !tensor::ReadWrapper(o, &m, &why);
    const bool read = modelled && tensor::ReadAnyWrapper(o, &m, &why);
    knows = modelled && !read && tensor::AsksItsClass(o) && OfTorch(Py_TYPE(o));
    if ((read || knows) && !TapeOf(s) &&
        (asks || MadeInC(Py_TYPE(o)) || (m.requires_grad && s.modes.now.grad && !s.modes.now.inference)))
      return Tape::Ask(s, knows), s.Break(BreakId::kSubclass, Py_TYPE(o)->tp_name), false;
    if (!read && !knows)
      return s.Break(BreakId::kSubclass, std::string(Py_TYPE(o)->tp_name) + (why ? std::string(", ") + why : "")),
             false;
  }
  if (!s.libraries.Use(s, Library::kTorch)) return false;
  if (knows) return Wrappers::seen = TapeOf(s)->symbolic = true;
  TensorMeta meta;
  meta.framework = Framework::kTorch;
  meta.dtype = m.dtype;
  meta.device = m.device;
  meta.requires_grad = m.requires_grad;
  meta.is_inference = m.is_inference;
  meta.sizes = shape::Ints(m.sizes, m.sizes + m.rank);
  meta.strides = shape::Ints(m.strides, m.strides + m.rank);
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
  auto [rest, named] = Arguments(args + 1, nargs - 1, kwnames, [&](PyObject* o) { return asking.ToTorch(o); });
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
  return TapeOf(s) ? TapeOf(s)->Call(function, args, nargs, kwnames) : CallDispatch(s, function, args, nargs, kwnames);
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
  // The first has an argument for each result, the second pairs of an argument and a result.
  PyObject *written, *views;
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
