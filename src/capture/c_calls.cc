// This file has the calls of C functions: they run for real when a table (builtins.h) says what they may do.
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "capture/arg_vector.h"
#include "capture/builtins.h"
#include "capture/called.h"
#include "capture/callees.h"
#include "capture/class_attributes.h"
#include "capture/containers.h"
#include "capture/identity.h"
#include "capture/modes.h"
#include "capture/numbers/number_slots.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "capture/special_calls.h"
#include "capture/unread_text.h"
#include "capture/wrappers/wrappers.h"
#include "guard/source.h"

namespace framejit::capture {
namespace {

bool HoldsTensor(PyObject* o) {  // or what only a run knows otherwise
  if (!PyTuple_Check(o)) return IsTensor(o) || IsUnseen(o);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
    if (HoldsTensor(PyTuple_GET_ITEM(o, i))) return true;
  return false;
}

}  // namespace

// One such call. Both forms become one: an unbound function plus all its arguments.
class CCall {
 public:
  CCall(CaptureSemantics& sem, Session& s, PyObject* callable, PyObject* self, PyObject* const* args, Py_ssize_t nargs,
        PyObject* kwnames)
      : sem_(sem),
        s_(s),
        callable_(callable),
        self_(self),
        kwnames_(kwnames),
        nargs_(nargs + (self != nullptr)),
        total_(nargs_ + KwCount(kwnames)),
        vector_(self, args, nargs + KwCount(kwnames)),
        args_(vector_.data()) {
    if (self) args_[0] = s_.Resolve(self);
  }
  PyObject* Run();

 private:
  // The phases follow in the order in which they run. Each tells whether the call is over with it, and then result_ is
  // what it gave.
  bool Identify();          // whose function it is, by what name, with what effect
  bool AnsweredByObject();  // This is the protocol of attributes, modules, types and contexts.
  bool AnsweredByDict();    // Dicts from outside are read one key at a time.
  bool AnsweredByName();    // single functions of the frameworks
  PyObject* ByEffect();
  PyObject* Mutate();
  PyObject* OfNumber();
  bool MovesItemsOf(PyObject* o) const;
  bool AsksForClass() const;
  bool PickledByValue() const;
  bool MakesText();
  PyObject* Pure(Py_ssize_t first);  // reads its arguments from `first` on, takes in those before
  PyObject* Invoke();
  PyObject* AskedAgain(PyObject* refusal);  // steals
  bool MayRead();                           // false (Break): no guard covers what it would read
  bool Done(PyObject* result) {
    result_ = result;
    return true;
  }

  CaptureSemantics& sem_;
  Session& s_;
  PyObject *const callable_, *const self_, *const kwnames_;
  const Py_ssize_t nargs_, total_;
  Vector vector_;
  std::vector<Ref> numbers_;  // of AskedAgain
  PyObject** const args_;
  const char* name_ = nullptr;
  PyTypeObject* owner_ = nullptr;
  Effect effect_ = Effect::kUnknown;
  PyObject* result_ = nullptr;
};

bool CCall::Identify() {
  if (PyInstanceMethod_Check(callable_))
    return Done(sem_.CallC(PyInstanceMethod_GET_FUNCTION(callable_), nullptr, args_, nargs_, kwnames_));
  if (!PyCFunction_Check(callable_)) {
    if (!IsMethodDescriptor(callable_)) return Done(s_.Break(BreakId::kUnknownCall, Describe(callable_)));
    owner_ = PyDescr_TYPE(callable_);
    name_ = PyUnicode_AsUTF8(PyDescr_NAME(callable_));
    return false;
  }
  name_ = reinterpret_cast<PyCFunctionObject*>(callable_)->m_ml->ml_name;
  if (self_) {
    Bound bound = UnbindBuiltin(callable_);  // What is bound to a class is a method of its metaclass.
    owner_ = bound.descriptor ? PyDescr_TYPE(bound.descriptor.get()) : PyType_Check(self_) ? nullptr : Py_TYPE(self_);
  }
  if (owner_) return false;
  effect_ = EffectOfFunction(callable_);
  if (!self_) return false;
  auto* t = reinterpret_cast<PyTypeObject*>(self_);  // a builtin classmethod or __new__
  if (!strcmp(name_, "__new__") && nargs_ >= 2 && PyType_Check(args_[1])) {
    if (!IsPureType(t) || t == &PyType_Type) return Done(s_.Break(BreakId::kUnknownCall, Describe(callable_)));
    static PyObject* const destructor = PyUnicode_InternFromString("__del__");
    if (_PyType_Lookup(reinterpret_cast<PyTypeObject*>(args_[1]), destructor))
      return Done(s_.Break(BreakId::kSideEffect, "an object with a destructor is made"));
    Ref made(PyObject_Vectorcall(callable_, args_ + 1, nargs_ - 1, kwnames_));
    return Done(made ? s_.MarkFresh(made.release()) : nullptr);
  }
  if (!IsPureType(t) && EffectOfMethod(t, name_) != Effect::kPure) return false;
  return Done(sem_.ForC(args_ + 1, total_ - 1) && (total_ < 2 || s_.Pin(args_[1]))
                  ? s_.Adopt(PyObject_Vectorcall(callable_, args_ + 1, nargs_ - 1, kwnames_))
                  : nullptr);
}

// Does functools.cached_property call? On CPython 3.11 it takes a lock while it computes, which later versions do
// without.
static bool InCachedProperty() {
  PyFrameObject* frame = PyEval_GetFrame();
  if (!frame) return false;
  Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame))), globals(PyFrame_GetGlobals(frame));
  PyObject* module = PyDict_GetItemString(globals.get(), "__name__");
  return PyUnicode_CompareWithASCIIString(reinterpret_cast<PyCodeObject*>(code.get())->co_qualname,
                                          "cached_property.__get__") == 0 &&
         module && PyUnicode_Check(module) && PyUnicode_CompareWithASCIIString(module, "functools") == 0;
}

bool CCall::AnsweredByObject() {
  if (owner_ == &PyBaseObject_Type && !strcmp(name_, "__getattribute__") && nargs_ == 2)
    return Done(IsTensor(args_[0]) ? sem_.LoadAttr(args_[0], args_[1]) : sem_.GenericGetAttr(args_[0], args_[1]));
  if (owner_ == &PyBaseObject_Type && !strcmp(name_, "__setattr__") && nargs_ == 3) {
    if (sem_.GenericSetAttr(args_[0], args_[1], args_[2]) < 0) return Done(nullptr);
    return Done(Py_NewRef(Py_None));
  }
  if (owner_ == &PyBaseObject_Type && !strcmp(name_, "__delattr__") && nargs_ == 2) {
    if (sem_.GenericSetAttr(args_[0], args_[1], nullptr) < 0) return Done(nullptr);
    return Done(Py_NewRef(Py_None));
  }
  if (owner_ == &PyBaseObject_Type && !strcmp(name_, "__reduce_ex__") && nargs_ == 2 && !kwnames_)
    return Done(sem_.Reduced(args_[0], args_[1]));
  if (owner_ == &PyModule_Type && !strcmp(name_, "__getattribute__") && nargs_ == 2)
    return Done(sem_.LoadAttr(args_[0], args_[1]));
  if (owner_ == &PyType_Type && !strcmp(name_, "__call__") && PyType_Check(args_[0]))
    return Done(sem_.CallType(reinterpret_cast<PyTypeObject*>(args_[0]), args_ + 1, nargs_ - 1, kwnames_, true));
  if (owner_ == &PyWrapperDescr_Type && !strcmp(name_, "__get__") && (nargs_ == 2 || nargs_ == 3) && !kwnames_ &&
      Py_IS_TYPE(args_[0], &PyWrapperDescr_Type) && !PyType_Check(args_[1]) &&
      PyObject_TypeCheck(args_[1], PyDescr_TYPE(args_[0])) && !IsTensor(args_[1]))  // object.__setattr__.__get__(self)
    return Done(PyWrapperDescr_Type.tp_descr_get(args_[0], args_[1], reinterpret_cast<PyObject*>(Py_TYPE(args_[1]))));
  if ((owner_ == &PyMemberDescr_Type || owner_ == &PyGetSetDescr_Type) && !strcmp(name_, "__get__") && nargs_ >= 2 &&
      PyDescr_TYPE(args_[0]) == &PyType_Type) {  // type.__dict__["__mro__"].__get__(cls)
    PyObject* of = args_[1];
    if (PyType_Check(of)) return Done(sem_.ClassFact(reinterpret_cast<PyTypeObject*>(of), PyDescr_NAME(args_[0])));
    if (of != Py_None && nargs_ == total_) {  // It raises, whatever is in an object that is no class.
      Ref type(sem_.CallType(&PyType_Type, &of, 1, nullptr));
      if (type)
        PyErr_Format(PyExc_TypeError, "descriptor '%U' for 'type' objects doesn't apply to a '%.100s' object",
                     PyDescr_NAME(args_[0]), reinterpret_cast<PyTypeObject*>(type.get())->tp_name);
      return Done(nullptr);
    }
  }
  if (!strcmp(owner_->tp_name, "_thread.RLock") && InCachedProperty()) {
    if (!strcmp(name_, "__enter__")) return Done(Py_NewRef(Py_True));
    if (!strcmp(name_, "__exit__")) return Done(Py_NewRef(Py_None));
  }
  if (OfType(owner_, CType::kContextVar)) return Done(ContextVarCall(s_, args_[0], name_, args_ + 1, nargs_ - 1));
  if (OfType(owner_, CType::kTorchDevice) && !strcmp(name_, "__enter__")) {
    Ref text(PyObject_Str(args_[0]));
    const char* device = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
    if (!device) return Done(nullptr);
    s_.modes.default_devices.push_back(device);
    return Done(Py_NewRef(args_[0]));
  }
  if (OfType(owner_, CType::kTorchDevice) && !strcmp(name_, "__exit__")) {
    if (s_.modes.default_devices.size() < 2)
      return Done(s_.Break(BreakId::kThreadState, callees::kDevice + ".__exit__"));
    s_.modes.default_devices.pop_back();
    return Done(Py_NewRef(Py_None));
  }
  return false;
}

// The keys of an outside dict as the program sees it, a list. Which keys it has is guarded. It is null after a Break.
static Ref KeysThere(Session& s, PyObject* dict) {
  if (!s.Reads(dict)) return {};
  guard::Row row{guard::Kind::kKeys, s.SourceOf(dict)};
  Ref keys(PyDict_Keys(dict)), now(keys ? PyDict_New() : nullptr);
  if (!now) return {};
  row.object = keys.get();
  row.here = true;
  s.guards().Add(std::move(row));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(keys.get()); ++i)
    if (!s.NoteKey(PyList_GET_ITEM(keys.get(), i), s.SourceOf(dict), static_cast<int>(i)) ||
        PyDict_SetItem(now.get(), PyList_GET_ITEM(keys.get(), i), Py_None) < 0)
      return {};
  for (const PendingStore& st : s.pending().stores()) {
    if (st.dict.get() != dict) continue;
    if ((st.value ? PyDict_SetItem(now.get(), st.key.get(), Py_None) : PyDict_DelItem(now.get(), st.key.get())) < 0)
      return {};
  }
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(now.get(), &at, &key, &value);)
    if (!IsPrimitive(key) && !guard::IsText(key)) return s.Break(BreakId::kSideEffect, "dict.clear"), Ref();
  return Ref(PyDict_Keys(now.get()));
}

bool CCall::AnsweredByDict() {
  // A dict read by one key is a guard on that key alone.
  if (nargs_ >= 2 && nargs_ <= 3 && PyDict_Check(args_[0]) && s_.IsOutside(args_[0]) && owner_ == &PyDict_Type &&
      (!strcmp(name_, "get") || !strcmp(name_, "__getitem__") || !strcmp(name_, "__contains__") ||
       ((!strcmp(name_, "pop") || !strcmp(name_, "setdefault")) && !kwnames_ && PyDict_CheckExact(args_[0]) &&
        ComparesAsItIs(args_[1]))) &&
      s_.GuardsKey(args_[0], args_[1])) {
    const bool pops = !strcmp(name_, "pop"), sets = !strcmp(name_, "setdefault");
    bool found;
    Ref r(s_.ReadDictItem(args_[0], s_.SourceOf(args_[0]), args_[1], &found));
    if (s_.broken() || PyErr_Occurred()) return Done(nullptr);
    if (!strcmp(name_, "__contains__")) return Done(PyBool_FromLong(found));
    if (!found && (!strcmp(name_, "__getitem__") || (pops && nargs_ == 2)))
      return Done((PyErr_SetObject(PyExc_KeyError, args_[1]), nullptr));
    if (!found) r = Borrow(nargs_ == 3 ? args_[2] : Py_None);
    if ((found && pops) || (!found && sets)) {
      if (s_.WriteDictItem(args_[0], args_[1], pops ? nullptr : r.get()) < 0) return Done(nullptr);
    }
    return Done(r.release());
  }
  // Of a subclass SetItem would call its own __setitem__, which may be who calls the dict's here.
  if (PyDict_CheckExact(args_[0]) && s_.IsOutside(args_[0]) && owner_ == &PyDict_Type &&
      !strcmp(name_, "__setitem__") && nargs_ == 3) {
    if (sem_.SetItem(args_[0], args_[1], args_[2]) < 0) return Done(nullptr);
    return Done(Py_NewRef(Py_None));
  }
  if (IsPlainDict(args_[0]) && s_.IsOutside(args_[0]) && owner_ == &PyDict_Type && !strcmp(name_, "update") &&
      (nargs_ == 1 || (nargs_ == 2 && PyDict_CheckExact(args_[1]) && !s_.pending().Has(args_[1])))) {
    Ref with(nargs_ == 2 ? Spread(s_, args_[1]) : PyDict_New());
    Ref all(with ? PyDict_Copy(with.get()) : nullptr);
    for (Py_ssize_t i = nargs_; all && i < total_; ++i)
      if (PyDict_SetItem(all.get(), PyTuple_GET_ITEM(kwnames_, i - nargs_), args_[i]) < 0) return Done(nullptr);
    return Done(all ? sem_.UpdateDict(args_[0], all.get()) : nullptr);
  }
  if (PyDict_CheckExact(args_[0]) && s_.IsOutside(args_[0]) && !strcmp(name_, "clear") && nargs_ == 1 && !kwnames_) {
    Ref keys = KeysThere(s_, args_[0]);
    if (!keys) return Done(nullptr);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(keys.get()); ++i)
      if (s_.WriteDictItem(args_[0], PyList_GET_ITEM(keys.get(), i), nullptr) < 0) return Done(nullptr);
    return Done(Py_NewRef(Py_None));
  }
  return false;
}

// repr(x), format(x, "...") and "...".format(x), whose text only a run may know.
bool CCall::MakesText() {
  const std::string_view name = name_;
  if (owner_ == &PyUnicode_Type && name == "format") {
    result_ = UnreadFields(sem_, s_, args_, nargs_, kwnames_);
  } else if (!owner_ && !kwnames_ && nargs_ && (name == "repr" || name == "format") &&
             Describe(callable_).starts_with("builtins.")) {
    if (nargs_ > (name == "format" ? 2 : 1)) return false;
    result_ = UnreadFormat(s_, args_[0], name == "repr" ? 2 : 0, nargs_ > 1 ? args_[1] : nullptr);
  }
  return result_ || s_.broken() || PyErr_Occurred();
}

bool CCall::AnsweredByName() {
  if (effect_ == Effect::kUnknown && !owner_ && !strcmp(name_, "_make_extobj") &&
      std::all_of(args_, args_ + total_, IsPrimitive))  // of numpy.errstate
    return Done(s_.MarkFresh(PyObject_Vectorcall(callable_, args_, nargs_, kwnames_)));
  if (effect_ == Effect::kPure && !owner_ && total_ == 1 && !strcmp(name_, "callable") && !IsTensor(args_[0]) &&
      !IsUnseen(args_[0]) && !s_.pending().WritesClass(Py_TYPE(args_[0])))  // of its class alone
    return s_.NoteType(Py_TYPE(args_[0])), Done(PyBool_FromLong(PyCallable_Check(args_[0])));
  if (effect_ == Effect::kPure && !owner_ && nargs_ == 2 && !kwnames_ && !strcmp(name_, "_abc_instancecheck") &&
      (PyTuple_CheckExact(args_[1]) || PyList_CheckExact(args_[1]) || PyDict_CheckExact(args_[1])))
    return Done(PyObject_Vectorcall(callable_, args_, nargs_, nullptr));  // of its class alone
  if (!owner_ && !self_ && !strcmp(name_, "dumps") && Describe(callable_) == "_pickle.dumps" && nargs_ == total_)
    return PickledByValue() &&
           Done(sem_.ForC(args_, total_) ? s_.Adopt(PyObject_Vectorcall(callable_, args_, nargs_, nullptr)) : nullptr);
  if (!owner_ && !self_ && !strcmp(name_, "_getframe") && total_ <= 1 && Describe(callable_) == "sys._getframe") {
    PyFrameObject* frame = PyEval_GetFrame();
    const long up = !total_ ? 0 : PyLong_CheckExact(args_[0]) ? PyLong_AsLong(args_[0]) : -1;
    return Done(frame && up >= 0 ? sem_.FrameAbove(frame, up) : s_.Break(BreakId::kUnknownCall, "sys._getframe"));
  }
  if (MakesText()) return true;
  if (effect_ == Effect::kPure && !owner_ && total_ == 1 && !strcmp(name_, "hash") && PyCFunction_Check(args_[0]))
    return Done(PyObject_Vectorcall(callable_, args_, 1, nullptr));  // where it lies
  if (!owner_ && total_ == 1 && !strcmp(name_, "abs") && IsWrapper(args_[0]))
    return Done(CallSpecial(s_, "__abs__", args_, 1));
  // Of torch._C._autograd: which hooks there are is not for captured code to change. It is refused where there are
  // some.
  if (!strncmp(name_, "_saved_tensors_hooks_", 21) && Describe(callable_).starts_with(callees::kTorchC)) {
    static PyObject* const top = tensor::ResolveCallee("torch._C._autograd._top_saved_tensors_default_hooks");
    PyObject* const each = Py_False;
    if (!strcmp(name_ + 21, "disable")) return Done(top ? sem_.Asked(top, &each, 1, nullptr) : nullptr);
    if (strcmp(name_ + 21, "get_disabled_error_message")) return Done(Py_NewRef(Py_None));
    return Done(PyObject_Vectorcall(callable_, nullptr, 0, nullptr));
  }
  return false;
}

bool CCall::MayRead() {
  if (nargs_ >= 2 && s_.IsOutside(args_[0]) &&
      (PyDict_Check(args_[0]) || PyAnySet_Check(args_[0]))) {  // looked up by identity
    for (Py_ssize_t i = 1; i < total_; ++i)
      if (IsTensor(args_[i])) return s_.Break(BreakId::kTensorItem, "a tensor as key of a dict or set"), false;
    if (!PyDict_CheckExact(args_[0]) && !strcmp(name_, "__getitem__"))
      return s_.Break(BreakId::kUnknownCall, "__missing__"), false;
  }
  for (const char* n : {"repr", "format", "ascii", "__repr__", "__str__", "__format__"})
    for (Py_ssize_t i = 0; i < total_ && !strcmp(name_, n); ++i)
      if (!sem_.NoteText(args_[i])) return false;
  if ((!strcmp(name_, "hash") || !strcmp(name_, "__hash__")) && nargs_ && HoldsTensor(args_[0]))
    return s_.Break(BreakId::kUnknownOrigin, "hash() of a tensor"), false;
  return true;
}

PyObject* CCall::Invoke() {
  static PyObject* const zero = PyLong_FromLong(0);
  if (!owner_ && nargs_ && total_ <= 2 && !strcmp(name_, "sum") && Describe(callable_) == "builtins.sum") {
    PyObject* start = total_ == 2 ? args_[1] : zero;
    const bool named = kwnames_ && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames_, 0), "start");
    if (!named && SumsFloats(start)) return SumOfFloats(args_[0], start);
  }
  if (!self_ || !PyCFunction_Check(callable_)) return PyObject_Vectorcall(callable_, args_, nargs_, kwnames_);
  if (args_[0] == self_) return PyObject_Vectorcall(callable_, args_ + 1, nargs_ - 1, kwnames_);
  Ref method(PyObject_GetAttrString(args_[0], name_));  // self was replaced by its private copy
  return method ? PyObject_Vectorcall(method.get(), args_ + 1, nargs_ - 1, kwnames_) : nullptr;
}

// math.cos of a number that changes, say, or max of several. It is null without an error where it is none of these.
PyObject* CCall::OfNumber() {
  const bool least = !strcmp(name_, "min");
  if (!owner_ && total_ > 1 && nargs_ == total_ && PyCFunction_Check(callable_) && (least || !strcmp(name_, "max")))
    if (Describe(callable_) == (least ? "builtins.min" : "builtins.max")) {
      std::vector<PyObject*> numbers(args_, args_ + nargs_);
      for (PyObject*& o : numbers)
        if (!(o = s_.Resolve(o))) return nullptr;
      return Extreme(numbers.data(), nargs_, least);
    }
  if (owner_ || total_ != 1 || nargs_ != 1 || !PyCFunction_Check(callable_)) return nullptr;
  PyObject *number = s_.Resolve(args_[0]), *module = reinterpret_cast<PyCFunctionObject*>(callable_)->m_module;
  if (!number || !module || !PyUnicode_Check(module)) return nullptr;
  if (IsSymInt(number) && Describe(callable_) == "_operator.index") return Py_NewRef(number);
  if (PyUnicode_CompareWithASCIIString(module, "math")) return nullptr;
  if (IsItemFloat(number)) return ItemFunction(name_, number);
  return IsSymFloat(number) || IsSymInt(number) ? FloatFunction(name_, number) : nullptr;
}

// Is what pickle makes of the arguments decided by their values? It writes an object that it meets again as a
// reference, so no two strings may be equal.
bool CCall::PickledByValue() const {
  std::vector<PyObject*> texts;
  auto flat = [&](PyObject* o) {
    if (IsSymInt(o) || IsSymFloat(o) || PyCode_Check(o) || !IsPrimitive(o)) return false;
    if (!PyUnicode_CheckExact(o) && !PyBytes_CheckExact(o)) return true;
    for (PyObject* known : texts)
      if (PyObject_RichCompareBool(known, o, Py_EQ)) return false;
    texts.push_back(o);
    return true;
  };
  if (nargs_ < 1 || !std::all_of(args_ + 1, args_ + nargs_, flat)) return false;
  PyObject* o = args_[0];
  if (flat(o)) return true;
  PyObject *key, *value;
  if (PyDict_CheckExact(o)) {
    for (Py_ssize_t at = 0; PyDict_Next(o, &at, &key, &value);)
      if (!flat(key) || !flat(value)) return false;
    return !s_.pending().Has(o);
  }
  if (!PyTuple_CheckExact(o) && !PyList_CheckExact(o)) return false;
  return std::all_of(PySequence_Fast_ITEMS(o), PySequence_Fast_ITEMS(o) + PySequence_Fast_GET_SIZE(o), flat);
}

// Does it ask for the class of its argument, and for nothing else?
bool CCall::AsksForClass() const {
  const std::string_view name = name_;
  return owner_ ? owner_ == &PyType_Type && name == "__instancecheck__"
                : name == "callable" || name == "_abc_instancecheck";
}

// A dict made here of which this method takes out or puts elsewhere what is in it, and does not look into that.
bool CCall::MovesItemsOf(PyObject* o) const {
  static constexpr std::string_view kMoving = " get __getitem__ __contains__ __len__ copy update ";
  return owner_ == &PyDict_Type && PyDict_CheckExact(o) &&
         kMoving.find(" " + std::string(name_) + " ") != kMoving.npos && s_.IsPrivate(o);
}

// Is it a number of NumPy's that was made here, and that is one of Python's, too?
static bool IsPythonsNumber(Session& s, PyObject* o) {
  if (!IsTensor(o)) return false;
  const TensorMeta& m = s.meta(AsTensor(o)->id);
  return m.framework == Framework::kNumpy && m.is_scalar &&
         (m.dtype == DType::kFloat64 || m.dtype == DType::kComplex128);
}

// A slot of a number that C code has asked by itself, (2).__add__(n), does not know stand-ins: it is asked with
// numbers.
PyObject* CCall::AskedAgain(PyObject* refusal) {
  for (Py_ssize_t i = 0; i < total_; ++i) {
    if (IsItemFloat(args_[i]) || IsPythonsNumber(s_, args_[i]))
      return Py_DECREF(refusal), s_.Break(BreakId::kTensorItem, "a number that a tensor holds");
    if (!IsSymInt(args_[i]) && !IsSymFloat(args_[i])) continue;
    numbers_.emplace_back(Concrete(args_[i]));
    if (!numbers_.back()) return Py_DECREF(refusal), nullptr;
    args_[i] = numbers_.back().get();
  }
  return numbers_.empty() ? refusal : (Py_DECREF(refusal), Invoke());
}

PyObject* CCall::Pure(Py_ssize_t first) {
  if (!MayRead()) return nullptr;
  if (PyObject* r = OfNumber(); r || PyErr_Occurred()) return r;
  std::optional<SuspendScope> off;
  if (owner_ && FactsOf(owner_).Has(TypeFacts::kOfNumpy)) {  // a number's methods are an array's, in Python
    if (std::any_of(args_, args_ + total_, IsTensor)) return s_.Break(BreakId::kUnknownCall, Describe(callable_));
    off.emplace();
  }
  // A view of a private dict reads nothing by itself (Session::ForC looks then).
  if (total_ == 1 && owner_ == &PyDict_Type && PyDict_CheckExact(args_[0]) && s_.IsPrivate(args_[0]) &&
      (!strcmp(name_, "items") || !strcmp(name_, "values") || !strcmp(name_, "keys")))
    return s_.Adopt(PyObject_CallMethod(args_[0], name_, nullptr));
  // What a container takes in is asked nothing, and neither is a dict that is read.
  const Py_ssize_t asked_nothing = first || AsksForClass() ? total_ : owner_ && PyDict_Check(args_[0]);
  if (owner_ == &PyUnicode_Type && !strncmp(name_, "format", 6))  // "{0.x}": it reads attributes
    for (Py_ssize_t i = 0; i < total_; ++i) {
      auto* type = reinterpret_cast<PyTypeObject*>(args_[i]);
      if (s_.pending().WritesClass(PyType_Check(args_[i]) ? type : Py_TYPE(args_[i])))
        return s_.Break(BreakId::kSideEffect, "C code reads a class whose attributes were written");
    }
  if (PyObject** given = GivenToCall(owner_, name_, args_, nargs_, kwnames_))
    if (PyObject* called = ForCaller(s_, *given)) s_.Keep(*given = called);
  for (Py_ssize_t i = first; i < total_; ++i)
    if (!MovesItemsOf(args_[i]) && !sem_.ForC(args_ + i, 1, asked_nothing > i - first)) return nullptr;
  if (const Compares what = WhatCompares(owner_, name_); what != Compares::kNone)
    for (Py_ssize_t i = what == Compares::kKey; i < (what == Compares::kKey ? std::min<Py_ssize_t>(2, total_) : total_);
         ++i)
      if (!s_.Pin(args_[i])) return nullptr;
  PyObject* r = Invoke();
  if (r == Py_NotImplemented) r = AskedAgain(r);
  if (r && s_.broken()) {
    Py_DECREF(r);
    return s_.Break(s_.reason().id);
  }
  s_.NoteViewed(args_, total_, r);
  if (r == Py_False && !owner_ && !strncmp(name_, "_abc_", 5) && !s_.NoteAbstract()) return nullptr;
  return s_.Adopt(r);
}

PyObject* CCall::Mutate() {
  if (nargs_ < 1) return Pure(1);
  if (!kwnames_ && owner_ && s_.Defer(owner_, name_, args_, nargs_)) Py_RETURN_NONE;
  if (IsListOrDeque(args_[0]) && s_.IsOutside(args_[0]) && !(args_[0] = s_.WriteList(args_[0]))) return nullptr;
  if (!s_.IsPrivate(args_[0]) && !IsPrimitive(args_[0]))
    return s_.Break(PyIter_Check(args_[0]) ? BreakId::kIteratorState : BreakId::kSideEffect, Describe(callable_));
  return Pure(1);
}

PyObject* CCall::ByEffect() {
  switch (effect_) {
    case Effect::kSpecial: {
      bool handled = false;
      PyObject* r = kwnames_ ? nullptr : Special(sem_, s_, name_, args_, nargs_, &handled);
      return handled ? r : s_.Break(BreakId::kUnknownCall, Describe(callable_));
    }
    case Effect::kMutatesSelf: return Mutate();
    case Effect::kPure: return Pure(0);
    case Effect::kAsks: return sem_.Asked(callable_, args_, nargs_, kwnames_);
    case Effect::kNothing: Py_RETURN_NONE;
    case Effect::kOutput: {
      PyObject* r = sem_.Output(callable_, name_, args_, nargs_, kwnames_);
      return r || s_.broken() || PyErr_Occurred() ? r : s_.Break(BreakId::kOutput, name_);
    }
    case Effect::kRandom: return s_.draws.Draw(s_, callable_, args_, nargs_, kwnames_);
    default: return s_.Break(BreakId::kUnknownCall, Describe(callable_));
  }
}

PyObject* CCall::Run() {
  if (Identify()) return result_;
  if (owner_ && nargs_ >= 1) {
    if (AnsweredByObject() || AnsweredByDict()) return result_;
    if (!kwnames_ && IsSymbolicSize(args_[0])) return SizeMethod(s_, args_[0], name_, args_ + 1, nargs_ - 1);
    effect_ = EffectOfMethod(owner_, name_);
  }
  return AnsweredByName() ? result_ : ByEffect();
}

// The dict does not have the key. A class of the program may answer in Python, and a class of C would store an answer.
PyObject* CaptureSemantics::MissingItem(PyObject* dict, PyObject* key) {
  static PyObject* const missing_name = PyUnicode_InternFromString("__missing__");
  PyObject* missing = _PyType_Lookup(Py_TYPE(dict), missing_name);
  if (!missing) {
    Ref arguments(PyTuple_Pack(1, key));  // a tuple would be all of them
    return arguments ? PyErr_SetObject(PyExc_KeyError, arguments.get()), nullptr : nullptr;
  }
  PyObject* args[] = {dict, key};
  if (PyFunction_Check(missing)) return Call(missing, args, 2, nullptr);
  if (!OfType(Py_TYPE(dict), CType::kDefaultDict)) return s_.Break(BreakId::kUnknownCall, "__missing__");
  static PyObject* const factory_name = Interned("default_factory");
  Ref factory(LoadAttr(dict, factory_name));
  if (!factory) return nullptr;
  if (factory.get() == Py_None) {
    Ref arguments(PyTuple_Pack(1, key));
    return arguments ? PyErr_SetObject(PyExc_KeyError, arguments.get()), nullptr : nullptr;
  }
  Ref value(Call(factory.get(), nullptr, 0, nullptr));
  return value && SetItem(dict, key, value.get()) == 0 ? value.release() : nullptr;
}

PyObject* CaptureSemantics::CallC(PyObject* callable, PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                                  PyObject* kwnames) {
  return CCall(*this, s_, callable, self, args, nargs, kwnames).Run();
}

// Does the text of the exception that is set name a class of framejit's, of which the program must not hear? C code
// that was given a proxy says so of what it does not take.
static bool NamesOurs() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* args =
      value && PyExceptionInstance_Check(value) ? reinterpret_cast<PyBaseExceptionObject*>(value)->args : nullptr;
  PyObject* text = args && PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, 0) : value;
  const char* said = text && PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : nullptr;
  if (!said) PyErr_Clear();
  const bool ours = said && (strstr(said, "'framejit.") || strstr(said, UnreadTextType.tp_name));
  PyErr_Restore(type, value, traceback);
  return ours;
}

bool CaptureSemantics::MayHandle() {
  if (!s_.broken() && (NamesOurs() || NamesClasses(s_.pending()))) s_.Break(BreakId::kException);
  return !s_.broken();
}

}  // namespace framejit::capture
