// Here are the builtins that have rules of their own.
#include "capture/special_calls.h"

#include <algorithm>

#include "capture/builtins.h"
#include "capture/called.h"
#include "capture/class_attributes.h"
#include "capture/containers.h"
#include "capture/drops.h"
#include "capture/modes.h"
#include "capture/numbers/unseen.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/unread_text.h"
#include "capture/wrappers/wrappers.h"
#include "graph/opaque.h"
#include "guard/source.h"
#include "guard/versions.h"
#include "tensor/no_collection.h"
#include "tensor/numpy_api.h"

namespace framejit::capture {
namespace {

// Code that compares what id() gives with what it gave before, and never lets it out: copy.deepcopy's memo, and what a
// __deepcopy__ asks of it.
bool AsksIdentityOnly() {
  PyFrameObject* f = PyEval_GetFrame();
  Ref globals(f ? PyFrame_GetGlobals(f) : nullptr), code(f ? reinterpret_cast<PyObject*>(PyFrame_GetCode(f)) : nullptr);
  if (!globals || !code) return false;
  if (!PyUnicode_CompareWithASCIIString(reinterpret_cast<PyCodeObject*>(code.get())->co_name, "__deepcopy__"))
    return true;
  PyObject* name = PyDict_GetItemString(globals.get(), "__name__");
  return name && PyUnicode_Check(name) && !PyUnicode_CompareWithASCIIString(name, "copy");
}

// The object behind what id() is asked of, and where it comes from. Of tensors parameters alone have one in every call.
std::pair<PyObject*, const Source*> IdentityOf(Session& s, PyObject* o) {
  if (!IsTensor(o)) return {o, s.SourceOf(o)};
  const int input = s.trace().tensors[s.pending().Original(AsTensor(o)->id)].input;
  if (input < 0 || !s.meta(s.trace().inputs[input]).is_parameter) return {o, nullptr};
  return {s.input_tensors()[input], s.input_sources()[input]};
}

// Does an abstract class answer in code of its own, which reads what nobody here sees? The standard library's hooks
// look at the class that they are asked about.
bool HasOwnHook(PyObject* info) {
  static PyObject* const name = PyUnicode_InternFromString("__subclasshook__");
  PyObject* found = PyType_Check(info) ? _PyType_Lookup(reinterpret_cast<PyTypeObject*>(info), name) : nullptr;
  if (!found || found == _PyType_Lookup(&PyBaseObject_Type, name)) return false;
  SuspendScope off;
  Ref function(PyObject_GetAttrString(found, "__func__"));
  Ref home(PyObject_GetAttrString(function ? function.get() : found, "__module__"));
  PyErr_Clear();
  if (!home || !PyUnicode_Check(home.get())) return true;
  for (const char* library : {"collections.abc", "contextlib", "os", "typing", "abc", "io", "importlib.abc"})
    if (!PyUnicode_CompareWithASCIIString(home.get(), library)) return false;
  return true;
}

// isinstance and issubclass ask the metaclasses of all that they are given.
bool NoteClassInfo(Session& s, PyObject* info, bool tensor, int depth = 0) {
  if (depth > 100) return s.Break(BreakId::kUnknownOrigin, "classes nested more than 100 deep"), false;
  if (PyTuple_Check(info)) {
    if (!s.NoteContents(info)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(info); ++i)
      if (!NoteClassInfo(s, PyTuple_GET_ITEM(info, i), tensor, depth + 1)) return false;
    return true;
  }
  if (OfType(info, CType::kUnionType)) {
    Ref parts(PyObject_GetAttrString(info, "__args__"));
    return parts && NoteClassInfo(s, parts.get(), tensor, depth + 1);
  }
  if (tensor && OfType(info, CType::kTorchTensorType)) return true;  // OfTensorType
  if (HasOwnHook(info))
    return s.Break(BreakId::kUnknownCall,
                   std::string("__subclasshook__ of ") + reinterpret_cast<PyTypeObject*>(info)->tp_name),
           false;
  return s.NoteType(PyType_Check(info) ? reinterpret_cast<PyTypeObject*>(info) : Py_TYPE(info)) &&
         s.NoteType(Py_TYPE(info));
}

// The class of what a proxy stands for. Null without an error: it is the object itself.
Ref ClassBehind(Session& s, PyObject* o) {
  if (IsTensor(o)) return Ref(TensorClass(s, o));
  if (IsSymInt(o)) return Borrow(reinterpret_cast<PyObject*>(&PyLong_Type));
  if (IsUnreadText(o)) return Borrow(reinterpret_cast<PyObject*>(&PyUnicode_Type));
  if (IsUnreadMap(o)) return Borrow(reinterpret_cast<PyObject*>(&PyDict_Type));
  if (IsSymFloat(o) || IsItemFloat(o)) return Borrow(reinterpret_cast<PyObject*>(&PyFloat_Type));
  return {};
}

// isinstance(x, torch.FloatTensor) goes by the element type and the device of the tensor: one without elements is
// asked.
int OfTensorType(Session& s, PyObject* o, PyObject* info) {
  const TensorMeta m = s.meta(AsTensor(o)->id);
  if (m.framework != Framework::kTorch) return 0;
  if (IsOpaque(m) || IsWrapper(o) || s.vmap.open())
    return s.Break(BreakId::kTensorProtocol, "isinstance of a torch.FloatTensor or the like"), -1;
  static PyObject *const empty = tensor::ResolveCallee("torch.empty"), *const names =
                                                                           Py_BuildValue("(ss)", "dtype", "device");
  Ref none(PyLong_FromLong(0)), dtype(PyObject_GetAttrString(o, "dtype")), device(PyObject_GetAttrString(o, "device"));
  if (!empty || !names || !none || !dtype || !device) return -1;
  PyObject* args[] = {none.get(), dtype.get(), device.get()};
  SuspendScope off;
  Ref like(PyObject_Vectorcall(empty, args, 1, names));
  return like ? PyObject_IsInstance(like.get(), info) : -1;
}

// Arrays of NumPy's own class, and its numbers, have no attributes of their own: what a protocol may ask of one,
// another one says as well. Null: it is neither.
Ref ArrayLike(Session& s, PyObject* o) {
  const tensor::NumpyApi* api = tensor::Numpy();
  if (!IsTensor(o) || !api) return {};
  const TensorMeta& m = s.meta(AsTensor(o)->id);
  if (m.framework != Framework::kNumpy || m.device.kind != DeviceKind::kCpu) return {};
  const std::vector<int64_t> sizes(m.sizes.size(), 0);
  Ref array(tensor::NewArray(*api, m.dtype, static_cast<int>(sizes.size()), sizes.data(), nullptr));
  Ref whole(array && m.is_scalar ? PyTuple_New(0) : nullptr);
  return whole ? Ref(PyObject_GetItem(array.get(), whole.get())) : std::move(array);
}

// Is it a protocol that typing asks about without a write to it? Where a protocol does not keep its attributes (before
// 3.12), typing makes the annotations of a class that has none when it first reads them.
bool IsSettledProtocol(PyObject* info) {
  static PyObject* const protocol = tensor::ResolveCallee("typing._ProtocolMeta");
  static PyObject *const annotations = Interned("__annotations__"), *const kept = Interned("__protocol_attrs__");
  if (!protocol) return PyErr_Clear(), false;
  if (reinterpret_cast<PyObject*>(Py_TYPE(info)) != protocol) return false;
  const auto has = [](PyObject* type, PyObject* name) {
    return PyDict_GetItemWithError(guard::TypeDict(reinterpret_cast<PyTypeObject*>(type)), name) != nullptr;
  };
  if (has(info, kept)) return true;
  PyObject* mro = reinterpret_cast<PyTypeObject*>(info)->tp_mro;
  return std::all_of(&PyTuple_GET_ITEM(mro, 0), &PyTuple_GET_ITEM(mro, 0) + PyTuple_GET_SIZE(mro), [&](PyObject* base) {
    const std::string_view name = reinterpret_cast<PyTypeObject*>(base)->tp_name;
    return name == "object" || name == "Protocol" || name == "Generic" || has(base, annotations);
  });
}

// isinstance(o, info), where abstract classes and those of typing are asked about the class that o stands for: they go
// by the methods that a class has, and a proxy's has more of them.
int InstanceOf(Session& s, PyObject* o, PyObject* info) {
  if (IsUnseen(o)) return AskUnseen(o), -1;
  static PyObject *const abstract = tensor::ResolveCallee("abc.ABCMeta"), *const asked = Interned("__instancecheck__");
  Ref parts = PyTuple_Check(info)               ? Borrow(info)
              : OfType(info, CType::kUnionType) ? Ref(PyObject_GetAttrString(info, "__args__"))
                                                : Ref();
  if (PyErr_Occurred()) return -1;
  if (parts) {
    int r = 0;
    for (Py_ssize_t i = 0; !r && i < PyTuple_GET_SIZE(parts.get()); ++i)
      r = InstanceOf(s, o, PyTuple_GET_ITEM(parts.get(), i));
    return r;
  }
  if (IsTensor(o) && OfType(info, CType::kTorchTensorType)) return OfTensorType(s, o, info);
  auto *meta = Py_TYPE(info), *base = reinterpret_cast<PyTypeObject*>(abstract);
  Ref home(PyType_Check(info) ? nullptr : PyObject_GetAttrString(reinterpret_cast<PyObject*>(meta), "__module__"));
  const bool by_methods = PyType_Check(info) ? base && PyType_IsSubtype(meta, base)
                                             : home && PyUnicode_Check(home.get()) &&
                                                   !PyUnicode_CompareWithASCIIString(home.get(), "typing");
  if (const Ref like = IsSettledProtocol(info) ? ArrayLike(s, o) : Ref()) {
    SuspendScope off;  // typing's code goes through the attributes
    return PyObject_IsInstance(like.get(), info);
  }
  if (PyErr_Occurred()) return -1;
  Ref real = by_methods ? ClassBehind(s, o) : Ref();
  if (PyErr_Occurred() || s.broken()) return -1;
  if (!real) return PyObject_IsInstance(o, info);
  const int r = PyObject_IsSubclass(real.get(), info);
  if (r == 1 || !PyType_Check(info)) return r;
  const bool has_attributes = IsTensor(o) && s.meta(AsTensor(o)->id).framework == Framework::kTorch;
  if (!r && (!has_attributes || _PyType_Lookup(meta, asked) == _PyType_Lookup(base, asked))) return r;
  PyErr_Clear();  // a protocol looks at the attributes of the object itself
  return s.Break(BreakId::kUnknownCall, "isinstance of a protocol"), -1;
}

// The functions of `operator` are the operations that they are named after. Null without an error: `name` is none.
PyObject* Operator(CaptureSemantics& c, std::string_view name, PyObject* const* a, Py_ssize_t n) {
  static constexpr std::string_view kBinary[] = {"add", "and_", "floordiv", "lshift", "matmul",  "mul", "mod",
                                                 "or_", "pow",  "rshift",   "sub",    "truediv", "xor"};
  static constexpr std::string_view kInPlace[] = {"iadd", "iand", "ifloordiv", "ilshift", "imatmul",  "imul", "imod",
                                                  "ior",  "ipow", "irshift",   "isub",    "itruediv", "ixor"};
  static constexpr std::string_view kCompared[] = {"lt", "le", "eq", "ne", "gt", "ge"};
  const auto truth = [](int r) { return r < 0 ? nullptr : PyBool_FromLong(r); };
  const auto nothing = [](int r) { return r < 0 ? nullptr : Py_NewRef(Py_None); };
  if (n == 2) {
    for (int i = 0; i < 13; ++i) {
      if (name == kBinary[i]) return c.Binary(i, a[0], a[1]);
      if (name == kInPlace[i]) return c.Binary(13 + i, a[0], a[1]);
    }
    for (int i = 0; i < 6; ++i)
      if (name == kCompared[i]) return c.Compare(a[0], a[1], i);
    if (name == "getitem") return c.GetItem(a[0], a[1]);
    if (name == "delitem") return nothing(c.SetItem(a[0], a[1], nullptr));
    if (name == "contains") return truth(c.Contains(a[0], a[1]));
    if (name == "is_" || name == "is_not") {
      const int r = c.Is(a[0], a[1]);
      return truth(r < 0 ? r : r == (name == "is_"));
    }
  }
  if (n == 3 && name == "setitem") return nothing(c.SetItem(a[0], a[1], a[2]));
  if (n != 1) return nullptr;
  if (name == "neg" || name == "pos" || name == "inv" || name == "invert")
    return c.Unary(name[0] == 'i' ? '~' : name[0] == 'n' ? '-' : '+', a[0]);
  if (name == "truth" || name == "not_") {
    const int r = c.Truth(a[0]);
    return truth(r < 0 ? r : r == (name == "truth"));
  }
  return nullptr;
}

}  // namespace

std::string Describe(PyObject* o) {
  Ref name(PyObject_GetAttrString(o, "__qualname__"));
  if (!name) PyErr_Clear();
  Ref module(PyObject_GetAttrString(o, "__module__"));
  if (!module) PyErr_Clear();
  std::string text;
  if (module && PyUnicode_Check(module.get())) text = std::string(PyUnicode_AsUTF8(module.get())) + ".";
  return text + (name && PyUnicode_Check(name.get()) ? PyUnicode_AsUTF8(name.get()) : Py_TYPE(o)->tp_name);
}

bool IsDisabled(PyObject* function) {
  if (!function || !PyFunction_Check(function)) return false;
  auto* f = reinterpret_cast<PyFunctionObject*>(function);
  if (!guard::SaysDisabled(f)) return false;
  static PyObject* const original = Interned("_torchdynamo_orig_callable");
  PyObject* behind = PyDict_GetItem(f->func_dict, original);
  if (!behind) behind = function;
  return !PyFunction_Check(behind) || !IsCodeOf(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(behind)), "torch");
}

std::string WhyDisabled(PyObject* function) {
  PyObject* told = reinterpret_cast<PyFunctionObject*>(function)->func_dict;
  PyObject* why = PyDict_GetItemString(told, "_torchdynamo_disable_msg");
  const bool given = why && PyUnicode_Check(why);
  return Describe(function) + " is disabled" + (given ? std::string(": ") + PyUnicode_AsUTF8(why) : "");
}

PyObject* BehindDisabled(PyObject* function) {
  PyObject* told = reinterpret_cast<PyFunctionObject*>(function)->func_dict;
  for (const char* name : {"_torchdynamo_orig_callable", "__wrapped__"})
    if (PyObject* behind = PyDict_GetItemString(told, name)) return behind;
  return function;
}

// A generator runs when others ask it, behind the call that made it. The code of one that the program has disabled says
// so in an extra slot, for as long as it lives.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static Py_ssize_t DisabledSlot() {
  static const Py_ssize_t slot = _PyEval_RequestCodeExtraIndex(nullptr);
  return slot;
}
bool RunsDisabled(PyCodeObject* code) {
  void* mark = nullptr;
  return _PyCode_GetExtra(reinterpret_cast<PyObject*>(code), DisabledSlot(), &mark) == 0 && mark;
}
void NoteGenerator(PyCodeObject* code) {
  static char mark;
  if (!(code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR))) return;
  if (_PyCode_SetExtra(reinterpret_cast<PyObject*>(code), DisabledSlot(), &mark) < 0) PyErr_Clear();
}
#pragma GCC diagnostic pop

// A C function that reads state of the process or the thread: its answer, a value or a constant, is guarded.
PyObject* CaptureSemantics::Asked(PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Ref key(PyTuple_New(nargs));
  for (Py_ssize_t i = 0; key && i < nargs; ++i) PyTuple_SET_ITEM(key.get(), i, Py_NewRef(args[i]));
  if (!key) return nullptr;
  const bool values = !kwnames && std::all_of(args, args + nargs, [&](PyObject* a) {
    return (IsPrimitive(a) && !IsSymInt(a) && !IsSymFloat(a)) || (IsConstantKind(a) && s_.SourceOf(a));
  });
  Ref answer;
  if (values) {
    tensor::CollectionAsBefore collection;
    answer = Ref(PyObject_CallObject(function, key.get()));
  }
  if (!answer && PyErr_Occurred()) return nullptr;
  PyObject* found = answer.get();
  bool simple = found && (IsPrimitive(found) || IsConstantKind(found) || IsValue(found));
  if (found && PyTuple_CheckExact(found))
    simple =
        std::all_of(&PyTuple_GET_ITEM(found, 0), &PyTuple_GET_ITEM(found, 0) + PyTuple_GET_SIZE(found), IsPrimitive);
  if (!simple) return s_.Break(BreakId::kThreadState, Describe(function));
  return s_.FromOutside(answer.get(),
                        s_.guards().Child(SourceKind::kAnswer, s_.guards().Const(function), 0, key.get()));
}

PyObject* CaptureSemantics::CallPartial(PyObject* partial, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Ref fn(PyObject_GetAttrString(partial, "func")), pargs(PyObject_GetAttrString(partial, "args")),
      pkw(PyObject_GetAttrString(partial, "keywords"));
  if (!fn || !pargs || !pkw) return nullptr;
  Ref all(PySequence_List(pargs.get())), kw(PyDict_Copy(pkw.get()));
  if (!all || !kw) return nullptr;
  if (const Source* src = s_.IsOutside(partial) ? s_.SourceOf(partial) : nullptr) {
    auto member = [&](const char* text) {
      Ref name(PyUnicode_InternFromString(text));
      return s_.guards().Child(SourceKind::kMember, src, 0, name.get());
    };
    const Source *args_source = member("args"), *kw_source = member("keywords");
    Ref seen(s_.FromOutside(fn.get(), member("func"))), seen_args(s_.FromOutside(pargs.get(), args_source)),
        seen_kw(s_.FromOutside(pkw.get(), kw_source));
    if (!seen || !seen_args || !seen_kw || !s_.NoteContents(pargs.get()) || !s_.NoteContents(pkw.get())) return nullptr;
    fn = std::move(seen);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(all.get()); ++i) {
      PyObject* item = s_.FromOutside(PyList_GET_ITEM(all.get(), i),
                                      s_.guards().Child(SourceKind::kItem, args_source, static_cast<int>(i)));
      if (!item || PyList_SetItem(all.get(), i, item) < 0) return nullptr;
    }
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(pkw.get(), &at, &key, &value);) {
      Ref item(s_.FromOutside(value, s_.guards().Child(SourceKind::kDictItem, kw_source, 0, key)));
      if (!item || PyDict_SetItem(kw.get(), key, item.get()) < 0) return nullptr;
    }
  }
  for (Py_ssize_t i = 0; i < nargs; ++i)
    if (PyList_Append(all.get(), args[i]) < 0) return nullptr;
  for (Py_ssize_t i = 0; i < (kwnames ? PyTuple_GET_SIZE(kwnames) : 0); ++i)
    if (PyDict_SetItem(kw.get(), PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) < 0) return nullptr;
  Ref tuple(PyList_AsTuple(all.get()));
  s_.MarkFresh(tuple.get());
  s_.MarkFresh(kw.get());
  return CallEx(fn.get(), tuple.get(), kw.get());
}

static bool AreTensors(PyObject* o) {
  if (!PyTuple_CheckExact(o) && !PyList_CheckExact(o)) return tensor::Classify(o) != tensor::Class::kNone;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
    if (!AreTensors(PySequence_Fast_GET_ITEM(o, i))) return false;
  return true;
}

// Is what was found at `at` still found there when all that waits is done? Only stores are looked at that replace
// tensors, and tuples and lists of these: what they let go of is on the way to nothing else.
static bool StaysThere(Session& s, const Source* at) {
  const PendingEffects& pending = s.pending();
  if (!pending.MayDrop()) return true;
  if (!pending.calls().empty() || !pending.cells().empty() || !pending.lists().empty()) return false;
  return std::all_of(pending.stores().begin(), pending.stores().end(), [&](const PendingStore& st) {
    PyObject* dict = st.dict.get();
    const Source* source = PyDict_Check(dict) && !IsSlotOf(dict, st.key.get()) ? s.SourceOf(dict) : nullptr;
    PyObject* old = source ? PyDict_GetItemWithError(dict, st.key.get()) : nullptr;
    if (!old) return PyErr_Clear(), source != nullptr;
    if (IsPrimitive(old)) return true;
    const Source* replaced = s.guards().Child(SourceKind::kDictItem, source, 0, st.key.get());
    const Source* way = at;
    while (way && way != replaced) way = way->base;
    return !way && AreTensors(old);
  });
}

// Answers what a weak reference refers to.
PyObject* CaptureSemantics::Referent(PyObject* reference) {
  const Source* referent = s_.guards().Child(SourceKind::kReferent, s_.SourceOf(reference));
  PyObject* o = PyWeakref_GET_OBJECT(reference);
  if (o == Py_None) {
    s_.guards().Absent(referent);
    Py_RETURN_NONE;
  }
  // It may die in this very graph, unless something that the graph does not change holds it.
  const Source* holder = s_.IsOutside(o) ? s_.SourceOf(o) : nullptr;
  if (!holder || holder->kind == SourceKind::kSlot || !StaysThere(s_, holder))
    return s_.Break(BreakId::kUnknownCall, "a weak reference");
  return s_.FromOutside(o, referent);
}

PyObject* CallMethodCaller(CaptureSemantics& c, Session& s, PyObject* caller, PyObject* object) {
  const bool outside = s.IsOutside(caller);
  if (outside) s.guards().Is(s.SourceOf(caller), caller);
  Ref reduced(PyObject_CallMethod(caller, "__reduce__", nullptr));  // (the class or a partial of it, arguments)
  if (!reduced) return nullptr;
  PyObject *made = PyTuple_GetItem(reduced.get(), 0), *rest = PyTuple_GetItem(reduced.get(), 1);
  if (!made || !rest) return nullptr;
  const bool named = OfType(made, CType::kPartial);
  Ref first(named ? PyObject_GetAttrString(made, "args") : PyTuple_New(0)), all(PySequence_List(first.get()));
  Ref keywords(named ? PyObject_GetAttrString(made, "keywords") : PyDict_New());
  if (!all || !keywords || PyList_SetSlice(all.get(), PY_SSIZE_T_MAX, PY_SSIZE_T_MAX, rest) < 0) return nullptr;
  PyObject* const name = PyList_GetItem(all.get(), 0);
  Ref method(name ? c.LoadAttr(object, name) : nullptr), names(PySequence_Tuple(keywords.get()));
  if (!method || !names) return nullptr;
  std::vector<PyObject*> args(&PyList_GET_ITEM(all.get(), 0) + 1,
                              &PyList_GET_ITEM(all.get(), 0) + PyList_GET_SIZE(all.get()));
  const auto positional = args.size();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names.get()); ++i)
    args.push_back(PyDict_GetItem(keywords.get(), PyTuple_GET_ITEM(names.get(), i)));
  std::vector<Ref> seen;
  for (PyObject*& a : args) {
    if (!outside || IsPrimitive(a)) continue;
    seen.emplace_back(s.FromOutside(a, s.guards().Const(a)));
    if (!(a = seen.back().get())) return nullptr;
  }
  return c.Call(method.get(), args.data(), positional, PyTuple_GET_SIZE(names.get()) ? names.get() : nullptr);
}

// operator.attrgetter("a.b", "c"): the reads that it stands for.
PyObject* CaptureSemantics::CallAttrGetter(PyObject* getter, PyObject* object) {
  if (s_.IsOutside(getter)) s_.guards().Is(s_.SourceOf(getter), getter);
  Ref reduced(PyObject_CallMethod(getter, "__reduce__", nullptr));
  PyObject* names = reduced ? PyTuple_GetItem(reduced.get(), 1) : nullptr;
  if (!names) return nullptr;
  const Py_ssize_t n = PyTuple_GET_SIZE(names);
  Ref all(PyTuple_New(n));
  for (Py_ssize_t i = 0; all && i < n; ++i) {
    Ref parts(PyObject_CallMethod(PyTuple_GET_ITEM(names, i), "split", "s", "."));
    Ref at = Borrow(object);
    for (Py_ssize_t k = 0; parts && at && k < PyList_GET_SIZE(parts.get()); ++k)
      at = Ref(LoadAttr(at.get(), PyList_GET_ITEM(parts.get(), k)));
    if (!parts || !at) return nullptr;
    if (n == 1) return at.release();
    PyTuple_SET_ITEM(all.get(), i, at.release());
  }
  return s_.MarkFresh(all.release());
}

// dir(o): of a class, whose version is guarded, or what a __dir__ in Python says.
static PyObject* NamesOf(CaptureSemantics& c, Session& s, PyObject* o, bool* handled) {
  static PyObject* const name = Interned("__dir__");
  PyTypeObject* type = Py_TYPE(o);
  if (!IsTensor(o)) s.NoteType(type);
  if (PyType_Check(o) && _PyType_Lookup(type, name) == _PyType_Lookup(&PyType_Type, name)) {
    auto* as_type = reinterpret_cast<PyTypeObject*>(o);
    s.SourceOf(o);
    s.NoteType(as_type);
    if (s.pending().WritesClass(as_type))
      return s.Break(BreakId::kSideEffect, "a class whose attributes were written is read as a whole");
    return s.MarkFresh(PyObject_Dir(o));
  }
  PyObject* own = IsTensor(o) ? nullptr : PythonFunctionIn(type, name);
  if ((*handled = own != nullptr) == false) return nullptr;
  Ref names(c.Call(own, &o, 1, nullptr));
  if (!names) return nullptr;
  PyObject* list = names.get();
  const auto text = [](PyObject* x) { return PyUnicode_CheckExact(x) != 0; };
  if (!PyList_CheckExact(list) || !s.IsFresh(list) ||
      !std::all_of(&PyList_GET_ITEM(list, 0), &PyList_GET_ITEM(list, 0) + PyList_GET_SIZE(list), text))
    return s.Break(BreakId::kUnknownCall, "builtins.dir of an object with a __dir__");
  Ref sorted(PySequence_List(list));
  return sorted && PyList_Sort(sorted.get()) == 0 ? s.MarkFresh(sorted.release()) : nullptr;
}

PyObject* Special(CaptureSemantics& c, Session& s, const char* n, PyObject* const* a, Py_ssize_t nargs, bool* handled) {
  *handled = true;
  if (!strcmp(n, "len") && nargs == 1) {
    if (IsTensor(a[0]) || IsWrapper(a[0])) {
      const bool sized = IsTensor(a[0]) && !s.meta(AsTensor(a[0])->id).sizes.empty();
      if (sized && AsEver(s, a[0], "__len__")) return s.SymIntObject(s.meta(AsTensor(a[0])->id).sizes[0]);
      if (s.broken() || PyErr_Occurred()) return nullptr;
      Py_ssize_t len = PyObject_Size(a[0]);
      return len < 0 ? nullptr : PyLong_FromSsize_t(len);
    }
    PyObject* counted = Counted(s, a[0]);
    if (!counted || !s.NoteLength(counted)) return nullptr;
    if (!(PyList_Check(counted) || PyTuple_Check(counted) || PyDict_Check(counted) || PyAnySet_Check(counted)) &&
        !s.ForC(counted))
      return nullptr;
    s.NoteType(Py_TYPE(a[0]));
    Py_ssize_t len = PyObject_Size(counted);
    return len < 0 ? nullptr : PyLong_FromSsize_t(len);
  }
  if ((!strcmp(n, "getattr") && (nargs == 2 || nargs == 3)) || (!strcmp(n, "hasattr") && nargs == 2)) {
    PyObject* r = c.LoadAttr(a[0], a[1]);
    bool has = !strcmp(n, "hasattr");
    if (!r) {
      if (s.broken() || !PyErr_ExceptionMatches(PyExc_AttributeError)) return nullptr;
      if (!has && nargs == 2) return nullptr;
      PyErr_Clear();
      if (has) Py_RETURN_FALSE;
      Py_INCREF(a[2]);
      return a[2];
    }
    if (!has) return r;
    Py_DECREF(r);
    Py_RETURN_TRUE;
  }
  if ((!strcmp(n, "setattr") && nargs == 3) || (!strcmp(n, "delattr") && nargs == 2)) {
    if (c.StoreAttr(a[0], a[1], nargs == 3 ? a[2] : nullptr) < 0) return nullptr;
    Py_RETURN_NONE;
  }
  if (!strcmp(n, "isinstance") && nargs == 2) {
    if (!IsTensor(a[0])) s.NoteType(Py_TYPE(a[0]));
    if (!NoteClassInfo(s, a[1], IsTensor(a[0]))) return nullptr;
    const int r = InstanceOf(s, a[0], a[1]);
    return r < 0 ? nullptr : PyBool_FromLong(r);
  }
  if (!strcmp(n, "issubclass") && nargs == 2) {
    if (PyType_Check(a[0])) s.NoteType(reinterpret_cast<PyTypeObject*>(a[0]));
    if (!NoteClassInfo(s, a[1], false)) return nullptr;
    int r = PyObject_IsSubclass(a[0], a[1]);
    return r < 0 ? nullptr : PyBool_FromLong(r);
  }
  if ((!strcmp(n, "any") || !strcmp(n, "all")) && nargs == 1) {  // each truth is a question of its own
    const int stop = !strcmp(n, "any");
    for (Ref it(c.Iter(a[0])); it;) {
      Ref x(c.Next(it.get()));
      if (!x) return PyErr_Occurred() ? nullptr : PyBool_FromLong(!stop);
      const int truth = c.Truth(x.get());
      if (truth < 0) return nullptr;
      if (truth == stop) return PyBool_FromLong(stop);
    }
    return nullptr;
  }
  if (PyObject* r = Operator(c, n, a, nargs); r || s.broken() || PyErr_Occurred()) return r;
  if (!strcmp(n, "iter") && (nargs == 1 || nargs == 2)) return nargs == 1 ? c.Iter(a[0]) : IterUntil(s, a[0], a[1]);
  if (!strcmp(n, "next") && (nargs == 1 || nargs == 2)) {
    PyObject* r = nargs == 2 ? c.Next(a[0]) : c.NextOrEnd(a[0]);
    if (r || s.broken() || PyErr_Occurred()) return r;
    if (nargs == 2) return Py_NewRef(a[1]);
    PyErr_SetNone(PyExc_StopIteration);
    return nullptr;
  }
  if (!strcmp(n, "id") && nargs == 1) {
    if (AsksIdentityOnly() && !s.SourceOf(a[0])) return PyLong_FromVoidPtr(a[0]);
    const auto [object, src] = IdentityOf(s, a[0]);
    if (PyObject* identity = src ? nullptr : NewIdentity(s, a[0])) return identity;
    if (!src || s.draws.IsDrawn(src)) return s.Break(BreakId::kUnknownOrigin, "id() of an object made here");
    s.guards().Is(src, object);
    return PyLong_FromVoidPtr(object);
  }
  if (!strcmp(n, "exc_info") && nargs == 0) {
    if (Ref(PyErr_GetHandledException()).get()) return s.Break(BreakId::kIteratorState, "sys.exc_info()");
    Ref ask(Py_XNewRef(PySys_GetObject("exc_info"))), key(PyTuple_New(0));
    Ref nothing(PyTuple_Pack(3, Py_None, Py_None, Py_None));  // guarded: an except clause of the caller shows here
    if (!ask || !key || !nothing) return nullptr;
    return s.FromOutside(nothing.get(),
                         s.guards().Child(SourceKind::kAnswer, s.guards().Const(ask.get()), 0, key.get()));
  }
  if (!strcmp(n, "__build_class__")) return BuildClass(c, s, a, nargs);
  if (!strcmp(n, "dir") && nargs == 1) return NamesOf(c, s, a[0], handled);
  if (!strcmp(n, "vars") && nargs == 1) {
    static PyObject* dict_name = PyUnicode_InternFromString("__dict__");
    PyObject* r = c.LoadAttr(a[0], dict_name);
    if (!r && !s.broken() && PyErr_ExceptionMatches(PyExc_AttributeError))
      PyErr_SetString(PyExc_TypeError, "vars() argument must have __dict__ attribute");
    return r;
  }
  *handled = false;
  return nullptr;
}

PyObject* CaptureSemantics::LoadBuildClass(PyObject* builtins) {
  static PyObject* const name = Interned("__build_class__");
  bool found;
  PyObject* build = s_.ReadDictItem(builtins, s_.guards().Const(builtins), name, &found);
  return build || s_.broken() || PyErr_Occurred() ? build : s_.Break(BreakId::kInstruction, "class statement");
}

PyObject* CaptureSemantics::LoadSpecial(PyObject* o, PyObject* name) {
  if (s_.broken()) return s_.Break(s_.reason().id);
  if (!(o = s_.Resolve(o))) return nullptr;
  if (IsTensor(o)) return nullptr;
  PyTypeObject* type = Py_TYPE(o);
  s_.NoteType(type);
  PyObject* d = _PyType_Lookup(type, name);
  return d ? ClassValue(d, o, type) : nullptr;
}

}  // namespace framejit::capture
