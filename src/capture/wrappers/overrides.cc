#include "capture/wrappers/overrides.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "capture/callees.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/wrappers/tape.h"
#include "capture/wrappers/wrappers.h"
#include "guard/versions.h"
#include "tensor/overrides.h"

namespace framejit::capture {
namespace {

PyTypeObject* ClassOf(Session& s, PyObject* proxy) {
  const TraceId id = AsTensor(proxy)->id;
  const int input = s.trace().tensors[id].input;
  PyTypeObject* type = input >= 0 ? Py_TYPE(s.input_tensors()[input]) : MadeClass(s, id);
  return type && tensor::Overrides(type) ? type : nullptr;
}

// Arguments with stand-ins in place of proxies. It is null with an error set.
Ref StandIns(Session& s, PyObject* o) {
  static PyObject* const make = FromModule("framejit._overrides", "stand_in");
  if (!make) return {};
  if (IsTensor(o) || IsWrapper(o)) {
    auto* type = reinterpret_cast<PyObject*>(Asked(s, o));
    return Ref(PyObject_CallOneArg(make, type ? type : Py_None));
  }
  if (IsSymInt(o)) return Ref(PyLong_FromLongLong(s.env().Hint(reinterpret_cast<SymInt*>(o)->expr)));
  if (IsSymFloat(o)) return Ref(PyFloat_FromDouble(0.5));  // any number does
  if (!PyTuple_CheckExact(o) && !PyList_CheckExact(o)) return Borrow(o);
  Ref list(PyList_New(0));
  for (Py_ssize_t i = 0; list && i < PySequence_Fast_GET_SIZE(o); ++i) {
    PyObject* item = s.Resolve(PySequence_Fast_GET_ITEM(o, i));
    Ref one = item ? StandIns(s, item) : Ref();
    if (!one || PyList_Append(list.get(), one.get()) < 0) return {};
  }
  return list && PyTuple_CheckExact(o) ? Ref(PyList_AsTuple(list.get())) : list;
}

struct Call {
  Ref args, kwargs;  // kwargs: a dict
};

template <typename F>  // of each argument
Call Gathered(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, F f) {
  Call c{Ref(PyTuple_New(nargs)), Ref(PyDict_New())};
  for (Py_ssize_t i = 0; c.args && i < nargs; ++i) {
    Ref one = f(args[i]);
    if (!one) return {};
    PyTuple_SET_ITEM(c.args.get(), i, one.release());
  }
  for (Py_ssize_t i = 0; c.kwargs && kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) {
    Ref one = f(args[nargs + i]);
    if (!one || PyDict_SetItem(c.kwargs.get(), PyTuple_GET_ITEM(kwnames, i), one.get()) < 0) return {};
  }
  return c;
}

}  // namespace

PyTypeObject* MadeClass(Session& s, TraceId id) {
  static PyObject* const class_name = Interned("__class__");
  auto own = s.pending().attributes.find(id);
  if (own == s.pending().attributes.end()) return nullptr;
  for (auto& [name, value] : own->second)
    if (name.get() == class_name) return reinterpret_cast<PyTypeObject*>(value.get());
  return nullptr;
}

PyTypeObject* Asked(Session& s, PyObject* proxy) {
  if (s.modes.overrides_off) return nullptr;
  if (IsWrapper(proxy) && TapeOf(s) && OfTorch(Py_TYPE(proxy))) return nullptr;  // torch asks, in the call
  if (IsWrapper(proxy)) return tensor::OverridesFunctions(Py_TYPE(proxy)) ? Py_TYPE(proxy) : nullptr;
  return tensor::OverridesOff::seen && IsTensor(proxy) ? ClassOf(s, proxy) : nullptr;
}

bool AnyAsked(Session& s, PyObject* const* args, Py_ssize_t n) {
  if (!(tensor::OverridesOff::seen || Wrappers::seen) || s.modes.overrides_off) return false;
  return std::any_of(args, args + n, [&](PyObject* o) {
    if (IsTensor(o) || IsWrapper(o)) return Asked(s, o) != nullptr;
    if (PyTuple_CheckExact(o)) return AnyAsked(s, &PyTuple_GET_ITEM(o, 0), PyTuple_GET_SIZE(o));
    return PyList_CheckExact(o) && PyList_GET_SIZE(o) && AnyAsked(s, &PyList_GET_ITEM(o, 0), PyList_GET_SIZE(o));
  });
}

PyObject* CallOverride(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                       bool* asked) {
  static PyObject* const ask = FromModule("framejit._overrides", "ask");
  static PyObject* const method_name = Interned("__torch_function__");
  frame::Semantics* semantics = CurrentSemantics();
  *asked = true;
  if (!ask || !semantics) return s.Break(BreakId::kSubclass, "__torch_function__");
  Ref told;
  {
    SuspendScope off;
    Call real = Gathered(args, nargs, kwnames, [&](PyObject* o) { return StandIns(s, o); });
    if (s.broken()) return nullptr;
    told = Ref(real.kwargs ? PyObject_CallFunctionObjArgs(ask, function, real.args.get(), real.kwargs.get(), nullptr)
                           : nullptr);
    if (!told) return PyErr_Clear(), s.Break(BreakId::kSubclass, "a call that torch refuses, or by data");
  }
  if (told.get() == Py_None) return *asked = false, nullptr;
  PyObject *func, *types;
  int keywords;
  if (!PyArg_ParseTuple(told.get(), "OOp", &func, &types, &keywords)) return nullptr;
  s.Keep(Py_NewRef(func));
  if (!s.SourceOf(func)) s.MarkFresh(func);
  s.MarkFresh(types);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types); ++i) s.SourceOf(PyTuple_GET_ITEM(types, i));
  Call made = Gathered(args, nargs, kwnames, [](PyObject* o) { return Borrow(o); });
  if (!made.kwargs) return nullptr;
  PyObject* given[] = {func, types, s.MarkFresh(made.args.get()), s.MarkFresh(made.kwargs.get())};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types); ++i) {
    Ref method(semantics->LoadAttr(PyTuple_GET_ITEM(types, i), method_name));
    PyObject* result = method ? semantics->Call(method.get(), given, keywords ? 4 : 3, nullptr) : nullptr;
    if (result != Py_NotImplemented) return result;
    Py_DECREF(result);
  }
  return s.Break(BreakId::kFrameworkError, "no class has an implementation");
}

PyObject* OwnAttribute(Session& s, PyObject* proxy, PyObject* name, bool* found) {
  *found = false;
  if (!tensor::OverridesOff::seen) return nullptr;
  PyTypeObject* type = ClassOf(s, proxy);
  if (!type) return nullptr;
  static auto* base = reinterpret_cast<PyTypeObject*>(PlainTensorClass(false));
  PyObject* d = s.NoteLookup(type, name);
  const bool own = d && d != s.NoteLookup(base, name) && !IsPrimitive(d);
  const bool fact = d && !strcmp(Py_TYPE(d)->tp_name, "getset_descriptor");
  const bool property = d && PyObject_TypeCheck(d, &PyProperty_Type);
  frame::Semantics* semantics = CurrentSemantics();
  *found = true;
  if (property && (own || Asked(s, proxy))) {
    Ref getter(PyObject_GetAttrString(d, "fget"));
    if (!getter || !PyFunction_Check(getter.get())) return s.Break(BreakId::kSubclass, "a property without a getter");
    s.SourceOf(getter.get());
    return semantics->Call(getter.get(), &proxy, 1, nullptr);
  }
  const char* text = PyUnicode_AsUTF8(name);
  if (fact && Asked(s, proxy) && strcmp(text, "__class__") && strcmp(text, "__dict__")) {
    Ref getter(PyObject_GetAttrString(d, "__get__"));
    bool asked = false;
    PyObject* r = getter ? CallOverride(s, getter.get(), &proxy, 1, nullptr, &asked) : nullptr;
    if (r || asked || PyErr_Occurred()) return r;
  }
  if (d && (Py_IS_TYPE(d, &PyClassMethod_Type) || Py_IS_TYPE(d, &PyStaticMethod_Type))) {
    Ref f(PyObject_GetAttrString(d, "__func__"));
    if (!f) return nullptr;
    s.SourceOf(f.get());
    if (Py_IS_TYPE(d, &PyStaticMethod_Type)) return f.release();
    s.SourceOf(reinterpret_cast<PyObject*>(type));
    return PyMethod_New(f.get(), reinterpret_cast<PyObject*>(type));
  }
  *found = false;
  return nullptr;
}

bool OverridesFit(Session& s, PyTypeObject* type) {
  static constexpr std::string_view kModelled[] = {"__new__",
                                                   "__init__",
                                                   "__module__",
                                                   "__doc__",
                                                   "__dict__",
                                                   "__weakref__",
                                                   "__repr__",
                                                   "__annotations__",
                                                   "__qualname__",
                                                   "__slots__",
                                                   "__str__",
                                                   "__format__",
                                                   "__deepcopy__",
                                                   "__parameters__",
                                                   "__torch_function__",
                                                   "__init_subclass__",
                                                   "__reduce_ex__",
                                                   "__firstlineno__",
                                                   "__static_attributes__"};
  static auto* base = reinterpret_cast<PyTypeObject*>(PlainTensorClass(false));
  static auto* parameter = reinterpret_cast<PyTypeObject*>(PlainTensorClass(true));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* level = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i));
    if (level == base) break;
    if (level == parameter) continue;
    PyObject *name, *value, *dict = guard::TypeDict(level);
    for (Py_ssize_t at = 0; dict && PyDict_Next(dict, &at, &name, &value);) {
      const char* text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : "";
      const std::string_view t = text ? text : "";
      const bool special = t.starts_with("__") && t.ends_with("__");
      const bool modelled = std::find(std::begin(kModelled), std::end(kModelled), t) != std::end(kModelled);
      const bool replaces = _PyType_Lookup(base, name) || t == "__getattr__";
      if (!modelled && special && replaces)
        return s.Break(BreakId::kSubclass, std::string(type->tp_name) + " with its own " + std::string(t)), false;
    }
  }
  return s.NoteType(type);
}

bool QuietFits(Session& s, PyTypeObject* type) {
  static constexpr std::string_view kHarmless[] = {
      "__new__",        "__init__",           "__module__",        "__doc__",      "__dict__",
      "__weakref__",    "__annotations__",    "__repr__",          "__qualname__", "__slots__",
      "__parameters__", "__torch_function__", "__init_subclass__", "__deepcopy__", "__reduce_ex__"};
  auto *plain = reinterpret_cast<PyTypeObject*>(PlainTensorClass(false)),
       *parameter = reinterpret_cast<PyTypeObject*>(PlainTensorClass(true));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* level = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i));
    if (level == plain) break;
    if (level == parameter) continue;
    PyObject *name, *value, *dict = guard::TypeDict(level);
    for (Py_ssize_t at = 0; dict && PyDict_Next(dict, &at, &name, &value);) {
      const char* text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : "";
      if (!text || std::find(std::begin(kHarmless), std::end(kHarmless), text) != std::end(kHarmless)) continue;
      PyObject* replaced = _PyType_Lookup(plain, name);
      const bool method = PyFunction_Check(value) && strncmp(text, "__", 2) && replaced &&
                          (PyFunction_Check(replaced) || Py_IS_TYPE(replaced, &PyMethodDescr_Type));
      if ((replaced && !method) || !strcmp(text, "__getattr__"))
        return s.Break(BreakId::kSubclass, std::string(type->tp_name) + " with its own " + text), false;
    }
  }
  return s.NoteType(type);
}

PyObject* AsClass(Session& s, PyObject* proxy, PyTypeObject* type) {
  if (!IsTensor(proxy)) return s.Break(BreakId::kSubclass, "as_subclass of a wrapper");
  static PyObject *const class_name = Interned("__class__"), *const takes = FromModule("framejit._overrides", "takes");
  auto* object = reinterpret_cast<PyObject*>(type);
  const bool plain = object == PlainTensorClass(false);
  if (s.vmap.open() || s.in_custom || s.later || s.lowering().IsHidden(AsTensor(proxy)->id))
    return s.Break(BreakId::kSubclass, type->tp_name);
  if (!plain) {
    if (!tensor::Overrides(type)) return s.Break(BreakId::kSubclass, type->tp_name);
    SuspendScope off;
    Ref fits(takes ? PyObject_CallOneArg(takes, object) : nullptr);
    if (!fits) return nullptr;
    if (fits.get() != Py_True) return s.Break(BreakId::kSubclass, type->tp_name);
  }
  if (!plain && !OverridesFit(s, type)) return nullptr;
  PyObject* args[] = {proxy, proxy};
  const auto before = std::exchange(s.modes.overrides_off, true);  // as_subclass asks no class
  Ref alias(s.CallFramework(callees::kTensorViewAs, args, 2, nullptr));
  s.modes.overrides_off = before;
  if (!alias || plain) return alias.release();
  if (!s.SourceOf(object)) return s.Break(BreakId::kSubclass, "a class that was made here");
  tensor::OverridesOff::seen = true;
  s.pending().attributes[AsTensor(alias.get())->id].emplace_back(Borrow(class_name), Borrow(object));
  return alias.release();
}

// May what is made here get this class at the exit? False, perhaps with a Break or an exception: it may not.
static bool MayBecome(Session& s, PyTypeObject* type) {
  static PyObject* const takes = FromModule("framejit._overrides", "takes");
  auto *object = reinterpret_cast<PyObject*>(type), *plain = PlainTensorClass(false);
  if (!PyType_Check(object) || !PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(plain)) ||
      !tensor::IsQuietClass(type) || tensor::Overrides(type) || !s.SourceOf(object))
    return false;
  SuspendScope off;
  Ref fits(takes ? PyObject_CallOneArg(takes, object) : nullptr);
  return fits.get() == Py_True;
}

// Tensor._make_subclass(type, computed), as of nn.Parameter: what detach() gives, of that class from the exit on, and a
// leaf if it is asked to be.
PyObject* AsParameter(Session& s, PyObject* type, PyObject* data, PyObject* tracked) {
  static PyObject* const class_name = Interned("__class__");
  static const Callee track("torch.Tensor.requires_grad_");
  data = s.Resolve(data);
  tracked = data ? s.Resolve(tracked) : nullptr;
  if (!tracked) return nullptr;
  auto* made_class = reinterpret_cast<PyTypeObject*>(type);
  const bool plain = type == PlainTensorClass(true);
  if ((!plain && !MayBecome(s, made_class)) || !IsTensor(data) || !PyBool_Check(tracked) || s.vmap.open() ||
      s.in_custom || s.later || s.meta(AsTensor(data)->id).framework != Framework::kTorch ||
      s.lowering().IsHidden(AsTensor(data)->id))
    return PyErr_Clear(), s.Break(BreakId::kSubclass, "torch.Tensor._make_subclass");
  if (!plain && !QuietFits(s, made_class)) return nullptr;
  Ref made(s.CallFramework(callees::kTensorDetach, &data, 1, nullptr));
  if (made && tracked == Py_True) {
    PyObject* leaf = made.get();
    made = Ref(s.CallFramework(track, &leaf, 1, nullptr));
  }
  if (!made) return nullptr;
  const TraceId id = AsTensor(made.get())->id;
  s.pending().attributes[id].emplace_back(Borrow(class_name), Borrow(type));
  return made.release();
}

}  // namespace framejit::capture
