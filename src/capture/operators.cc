// Operators, items, iteration, building of containers, names. Each rule: resolve the operands, take the guards that
// follow from looking at them, let tensors go to the session, and otherwise let CPython do it on private objects.
#include "absl/functional/function_ref.h"
#include "capture/builtins.h"
#include "capture/changed_sets.h"
#include "capture/containers.h"
#include "capture/identity.h"
#include "capture/object_arrays.h"
#include "capture/persistent.h"
#include "capture/policy/generators.h"
#include "capture/policy/rounds.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "capture/unread_text.h"
#include "capture/wrappers/wrappers.h"
#include "diag/diag.h"
#include "guard/source.h"
#include "tensor/numpy_api.h"

namespace framejit::capture {
namespace {

PyObject* (*const kBinary[])(PyObject*, PyObject*) = {PyNumber_Add,
                                                      PyNumber_And,
                                                      PyNumber_FloorDivide,
                                                      PyNumber_Lshift,
                                                      PyNumber_MatrixMultiply,
                                                      PyNumber_Multiply,
                                                      PyNumber_Remainder,
                                                      PyNumber_Or,
                                                      nullptr,
                                                      PyNumber_Rshift,
                                                      PyNumber_Subtract,
                                                      PyNumber_TrueDivide,
                                                      PyNumber_Xor,
                                                      PyNumber_InPlaceAdd,
                                                      PyNumber_InPlaceAnd,
                                                      PyNumber_InPlaceFloorDivide,
                                                      PyNumber_InPlaceLshift,
                                                      PyNumber_InPlaceMatrixMultiply,
                                                      PyNumber_InPlaceMultiply,
                                                      PyNumber_InPlaceRemainder,
                                                      PyNumber_InPlaceOr,
                                                      nullptr,
                                                      PyNumber_InPlaceRshift,
                                                      PyNumber_InPlaceSubtract,
                                                      PyNumber_InPlaceTrueDivide,
                                                      PyNumber_InPlaceXor};
constexpr int kPower = 8, kInPlacePower = 21, kFirstInPlace = 13;

// Builtin objects with no state, or private ones: C code may work on them.
bool Container(PyObject* o) {
  return PyList_Check(o) || PyTuple_Check(o) || PyDict_Check(o) || PyAnySet_Check(o);
}
}  // namespace

#define RESOLVE(x)                                    \
  do {                                                \
    if (s_.broken()) return s_.Break(s_.reason().id); \
    (x) = s_.Resolve(x);                              \
    if (!(x)) return nullptr;                         \
  } while (0)
#define RESOLVE_INT(x)                                    \
  do {                                                    \
    if (s_.broken()) return s_.Break(s_.reason().id), -1; \
    (x) = s_.Resolve(x);                                  \
    if (!(x)) return -1;                                  \
  } while (0)

PyObject* CaptureSemantics::Binary(int op, PyObject* a, PyObject* b) {
  RESOLVE(a);
  RESOLVE(b);
  if (IsWrapper(a) || IsWrapper(b)) return WrapperBinary(s_, op, a, b);
  PyObject* text = UnreadOperator(*this, s_, kBinary[op], a, b);
  if (text || s_.broken() || PyErr_Occurred()) return text;
  if (IsTensor(a)) {
    if (IsTensor(b) || !(Py_TYPE(b)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return TensorBinary(s_, op, a, b);
  } else if (IsTensor(b) && (IsPrimitive(a) || Container(a) || s_.IsNumpyNumber(a))) {
    return TensorBinary(s_, op, a, b);
  }
  if (tensor::IsObjectArray(a) || tensor::IsObjectArray(b)) {
    for (PyObject* o : {a, b})  // NumPy would look into anything else
      if (!tensor::IsObjectArray(o) && !IsPrimitive(o))
        return s_.Break(BreakId::kUnknownCall, "an operator of an array of objects");
  }
  if (!IsPrimitive(a) || !IsPrimitive(b)) {
    if (op >= kFirstInPlace && IsListOrDeque(a) && s_.IsOutside(a) && !(a = s_.WriteList(a))) return nullptr;
    if (op >= kFirstInPlace && s_.IsOutside(a) && !PyTuple_Check(a) && !PyFrozenSet_CheckExact(a))
      return s_.Break(BreakId::kSideEffect, "in-place operator on an outside object");
    a = s_.ForC(a);
    b = a ? s_.ForC(b) : nullptr;
    if (!b) return nullptr;
    if (PyAnySet_Check(a) && !s_.NoteContents(a)) return nullptr;
    if (PyAnySet_Check(b) && !s_.NoteContents(b)) return nullptr;
    s_.NoteType(Py_TYPE(a));
    s_.NoteType(Py_TYPE(b));
  }
  if (kBinary[op] == PyNumber_Remainder && PyUnicode_Check(a) && !NoteText(b)) return nullptr;
  if ((op == 0 || op == kFirstInPlace) && (IsSymbolicSize(a) || IsSymbolicSize(b)) && PyTuple_Check(a) &&
      PyTuple_Check(b))
    return SizeConcat(s_, a, b);
  if (op == kPower) return s_.Adopt(PyNumber_Power(a, b, Py_None));
  if (op == kInPlacePower) return s_.Adopt(PyNumber_InPlacePower(a, b, Py_None));
  return s_.Adopt(kBinary[op](a, b));
}

PyObject* CaptureSemantics::Unary(int kind, PyObject* a) {
  RESOLVE(a);
  if (IsWrapper(a)) return CallSpecial(s_, kind == '-' ? "__neg__" : kind == '+' ? "__pos__" : "__invert__", &a, 1);
  s_.NoteType(Py_TYPE(a));
  if (!s_.ForC(a)) return nullptr;
  return s_.Adopt(kind == '-' ? PyNumber_Negative(a) : kind == '+' ? PyNumber_Positive(a) : PyNumber_Invert(a));
}

PyObject* CaptureSemantics::Compare(PyObject* a, PyObject* b, int op) {
  RESOLVE(a);
  RESOLVE(b);
  if (IsWrapper(a) || IsWrapper(b)) return WrapperCompare(s_, a, b, op);
  if (IsTensor(a) || IsTensor(b)) return TensorCompare(s_, a, b, op);
  auto exact = [](PyObject* x) { return UsesContext(x) || PyLong_CheckExact(x); };
  if (exact(a) && exact(b)) return PyObject_RichCompare(a, b, op);  // decimals compare without their context
  if (!IsPrimitive(a) || !IsPrimitive(b)) {
    // A comparison of containers looks at everything inside.
    for (PyObject** x : {&a, &b}) {
      if (!(*x = s_.Settled(*x))) return nullptr;
      if (Container(*x) && (!s_.NoteContents(*x, true) || !s_.Pin(*x))) return nullptr;
      *x = s_.ForC(*x);
      if (!*x) return nullptr;
      s_.NoteType(Py_TYPE(*x));
    }
    if (s_.SourceOf(a) && s_.SourceOf(b) && (s_.IsOutside(a) || s_.IsOutside(b)) && !Container(a)) Is(a, b);
  }
  return s_.Adopt(PyObject_RichCompare(a, b, op));
}

// An input whose place holds nothing (cached_inputs.h): a guard would compare that.
static bool IsAskedOfCache(const Source* s) {
  if (s->kind != SourceKind::kItem || s->base->kind != SourceKind::kConst) return false;
  PyObject* places = s->base->object;
  return PyList_CheckExact(places) && s->index < PyList_GET_SIZE(places) &&
         PyList_GET_ITEM(places, s->index) == Py_None;
}

int CaptureSemantics::Is(PyObject* a, PyObject* b) {
  if (const std::optional<int> known = IsOfValues(s_, a, b)) return *known;
  RESOLVE_INT(a);
  RESOLVE_INT(b);
  for (PyObject** o : {&a, &b})  // a list that is written to is the one from outside
    if (const Origin* g = s_.Find(*o); g && g->real) *o = g->real;
  if (PyObject* text = WhichTextIs(a, b)) return AskUnreadText(text), -1;
  if (IsPrimitive(a) || IsPrimitive(b) || a == b) {
    // What was read before is guarded by equality. Which of equal ints and strings are one object is not promised.
    return a == b;
  }
  if (IsUnseen(a) || IsUnseen(b)) return AskUnseen(IsUnseen(a) ? a : b), -1;
  const Source *p = nullptr, *q = nullptr;
  for (PyObject* o : {a, b})  // a container that a cache gives
    if (const Origin* g = s_.Find(o); g && g->kind == Origin::kFresh && g->source && Py_TYPE(a) == Py_TYPE(b))
      return s_.Break(BreakId::kUnknownCall, "which object a functools.lru_cache has"), -1;
  // A function that is made anew for each call is known by its code, a dtype of another byte order by its value: beside
  // one that is known as the object that it is, it may be that next time.
  const bool alike = Py_TYPE(a) == Py_TYPE(b) && (s_.IsOutside(a) || s_.IsOutside(b));
  for (auto [o, s] : {std::pair{a, &p}, {b, &q}}) {
    if (IsTensor(o)) {
      for (auto& t : s_.trace().tensors)
        if (t.id == AsTensor(o)->id && t.input >= 0) *s = s_.input_sources()[t.input];
    } else if (alike || s_.IsOutside(o)) {
      *s = s_.SourceOf(o);
    } else if (PySlice_Check(o)) {  // one whose bounds change
      *s = s_.WhereFound(o);
    }
  }
  if (p && q) {
    if (IsAskedOfCache(p) || IsAskedOfCache(q))
      return s_.Break(BreakId::kUnknownCall, "which object a functools.lru_cache has"), -1;
    guard::Row row{guard::Kind::kDifferentObject, p, q};
    row.here = true;
    s_.guards().Add(std::move(row));
  }
  return 0;
}

bool CaptureSemantics::Raises(PyObject* exception) {  // its traceback and its context are written
  if (s_.IsOutside(exception)) s_.Break(BreakId::kSideEffect, "an exception from outside is raised");
  return !s_.broken();
}

bool CaptureSemantics::Catches(PyObject* classes) {
  if (PyType_Check(classes)) return s_.NoteType(reinterpret_cast<PyTypeObject*>(classes));
  return s_.NoteContents(classes);
}

int CaptureSemantics::Contains(PyObject* container, PyObject* value) {
  static PyObject* contains_name = PyUnicode_InternFromString("__contains__");
  RESOLVE_INT(container);
  RESOLVE_INT(value);
  if (IsTensor(container)) {  // (container == value).any()
    if (!AsEver(s_, container, "__contains__")) return -1;
    const bool number = IsPrimitive(value) && (PyLong_Check(value) || PyFloat_Check(value));
    Ref same(number || IsTensor(value) ? TensorCompare(s_, container, value, Py_EQ) : nullptr);
    if (PyErr_Occurred()) return -1;
    if (!same || !IsTensor(same.get())) return s_.Break(BreakId::kTensorBool, "`in` on a tensor"), -1;
    PyObject* one = same.get();
    Ref any(s_.CallFramework(MethodOf(s_, one, "any"), &one, 1, nullptr));
    return any ? Truth(any.get()) : -1;
  }
  if (!(container = s_.Settled(container))) return -1;
  PyObject* own = _PyType_Lookup(Py_TYPE(container), contains_name);
  if (PyDict_Check(container) && s_.IsOutside(container) && !(own && PyFunction_Check(own)) &&
      s_.GuardsKey(container, value)) {
    bool found;
    Ref v(s_.ReadDictItem(container, s_.SourceOf(container), value, &found));
    return s_.broken() || PyErr_Occurred() ? -1 : found;
  }
  if (IsTensor(value) && (PyDict_Check(container) || PyAnySet_Check(container)) && s_.IsOutside(container))
    return s_.Break(BreakId::kTensorItem, "a tensor as key of a dict or set"), -1;
  if (auto known = Member(s_, container, value)) return *known;
  const AsItWas before(s_, container, value);
  const bool keys = PyDict_CheckExact(container) && !s_.IsOutside(container);  // its values are not asked
  if (Container(container) && !keys && !s_.NoteContents(container, true)) return -1;
  PyObject* c = keys || (own && PyFunction_Check(own)) ? container : s_.ForC(container, true);
  if (!c) return -1;
  if (s_.IsOutside(c) && PyIter_Check(c)) return s_.Break(BreakId::kSideEffect, "an outside iterator is advanced"), -1;
  s_.NoteType(Py_TYPE(c));
  s_.NoteType(Py_TYPE(value));
  if (!(own && PyFunction_Check(own)) && !(s_.Pin(value) && (PyDict_Check(c) || s_.Pin(c)))) return -1;
  return PySequence_Contains(c, value);
}

int CaptureSemantics::Truth(PyObject* a) {
  RESOLVE_INT(a);
  if (IsTensor(a)) return PyObject_IsTrue(a);
  if (IsUnreadText(a) || IsUnreadMap(a)) return 1;
  if (IsWrapper(a)) return s_.Break(BreakId::kTensorBool, "a wrapper"), -1;
  if (!IsPrimitive(a)) {
    if (!(a = Counted(s_, a))) return -1;
    s_.NoteType(Py_TYPE(a));
    if (!s_.NoteLength(a) || (!Container(a) && !s_.ForC(a))) return -1;
  }
  return PyObject_IsTrue(a);
}

PyObject* CaptureSemantics::GetItem(PyObject* o, PyObject* key) {
  RESOLVE(o);
  RESOLVE(key);
  if (IsWrapper(o)) {
    PyObject* args[] = {o, key};
    return CallSpecial(s_, "__getitem__", args, 2);
  }
  if (IsTensor(o)) return PyObject_GetItem(o, key);
  if (IsTensor(key) && !PyDict_Check(o) && !PyType_Check(o)) return s_.Break(BreakId::kTensorItem, "index");
  if (tensor::IsObjectArray(o)) return ObjectsItem(s_, o, key);
  s_.NoteType(Py_TYPE(o));
  if (PyObject* last = s_.Appended(o, key)) return Py_NewRef(last);
  if (!WasThere(s_, o, key) && !(o = s_.Settled(o))) return nullptr;
  const Source* s = s_.IsOutside(o) ? s_.SourceOf(o) : nullptr;
  if (s && (PyList_CheckExact(o) || ReadsAsTuple(o)) && (PyLong_CheckExact(key) || IsSymInt(key))) {
    Ref index(PyNumber_Index(key));
    Py_ssize_t i = index ? PyLong_AsSsize_t(index.get()) : -1, n = PySequence_Fast_GET_SIZE(o);
    if (i == -1 && PyErr_Occurred()) return nullptr;
    if (PyList_Check(o) && !s_.Reads(o, index.get())) return nullptr;
    if (i < 0) {
      if (!s_.NoteLength(o)) return nullptr;
      i += n;
    }
    if (i < 0 || i >= n) {
      if (!s_.NoteLength(o)) return nullptr;
      return PyObject_GetItem(o, index.get());  // the real IndexError
    }
    return s_.FromOutside(PySequence_Fast_GET_ITEM(o, i), s_.guards().Child(SourceKind::kItem, s, static_cast<int>(i)),
                          true);
  }
  if (IsSymbolicSize(o)) return SizeItem(s_, o, key);
  static PyObject* getitem_name = PyUnicode_InternFromString("__getitem__");
  PyObject* d = _PyType_Lookup(Py_TYPE(o), getitem_name);
  if (s && PyDict_Check(o) && !(d && PyFunction_Check(d)) && s_.GuardsKey(o, key)) {
    bool found;
    PyObject* v = s_.ReadDictItem(o, s, key, &found);
    if (found || s_.broken() || PyErr_Occurred()) return v;
    return MissingItem(o, key);
  }
  if (PyType_Check(o)) {  // List[int]
    static PyObject* const getter = PyUnicode_InternFromString("__class_getitem__");
    s_.NoteType(Py_TYPE(o));
    s_.NoteLookup(reinterpret_cast<PyTypeObject*>(o), getter);
    return s_.Adopt(PyObject_GetItem(o, key));
  }
  if (!(d && PyFunction_Check(d)) && !s_.Pin(key)) return nullptr;
  const bool own = (PyDict_CheckExact(o) || PyTuple_CheckExact(o) || PyList_CheckExact(o)) && !s_.IsOutside(o);
  PyObject* c = own || (d && PyFunction_Check(d)) ? o : s_.ForC(o, true);
  if (!c) return nullptr;
  if (s && PyDict_Check(o) && !(d && PyFunction_Check(d))) {
    if (IsTensor(key)) return s_.Break(BreakId::kTensorItem, "a tensor as key of a dict");
    PyObject* v = PyDict_GetItemWithError(c, key);  // not __missing__, which would store outside
    if (v) return s_.Adopt(Py_NewRef(v));
    if (PyErr_Occurred()) return nullptr;
    return MissingItem(o, key);
  }
  if (s_.IsOutside(c) && !Container(c) && !IsPersistent(Py_TYPE(c)) && !(d && PyFunction_Check(d)))
    return s_.Break(BreakId::kUnknownCall, std::string("item of a ") + Py_TYPE(o)->tp_name);
  return s_.Adopt(PyObject_GetItem(c, key));
}

int CaptureSemantics::SetItem(PyObject* o, PyObject* key, PyObject* value) {
  RESOLVE_INT(o);
  RESOLVE_INT(key);
  if (value) RESOLVE_INT(value);
  if (value && (IsWrapper(o) || (IsTensor(o) && IsWrapper(value)))) {
    PyObject* args[] = {o, key, value};
    return Ref(CallSpecial(s_, "__setitem__", args, 3)) ? 0 : -1;
  }
  if (IsTensor(o)) return value ? PyObject_SetItem(o, key, value) : PyObject_DelItem(o, key);
  if (tensor::IsObjectArray(o)) return SetObjectsItem(s_, o, key, value);
  s_.NoteType(Py_TYPE(o));
  if (s_.IsOutside(o)) {
    static PyObject* const setitem_name = PyUnicode_InternFromString("__setitem__");
    static PyObject* const delitem_name = PyUnicode_InternFromString("__delitem__");
    PyObject* d = _PyType_Lookup(Py_TYPE(o), value ? setitem_name : delitem_name);
    if (IsPlainDict(o) && ComparesAsItIs(key) && (value || s_.GuardsKey(o, key))) {
      if (!value) {
        bool found;
        Ref old(s_.ReadDictItem(o, s_.SourceOf(o), key, &found));
        if (s_.broken() || PyErr_Occurred()) return -1;
        if (!found) return PyErr_SetObject(PyExc_KeyError, key), -1;
      }
      return s_.WriteDictItem(o, key, value);
    }
    if (IsPlainDict(o) && !PyODict_Check(o) && value && IsTensor(key) && s_.GuardsKey(o, key)) {
      Ref tensor = s_.AsKey(key);
      return tensor ? s_.WriteDictItem(o, tensor.get(), value) : -1;
    }
    if (IsListOrDeque(o)) {
      if (!(o = s_.WriteList(o))) return -1;
    } else if (!(d && PyFunction_Check(d))) {
      return s_.Break(BreakId::kSideEffect, std::string("item of a ") + Py_TYPE(o)->tp_name), -1;
    }
  }
  if (!s_.Pin(key)) return -1;
  if (value && PySlice_Check(key) && !IsTensor(value)) {  // it is gone through
    const bool own = (PyTuple_CheckExact(value) || PyList_CheckExact(value)) && !s_.IsOutside(value);
    if (!own && !(value = s_.ForC(value, true))) return -1;
  }
  return value ? PyObject_SetItem(o, key, value) : PyObject_DelItem(o, key);
}

// outside.update(made here): what is stored where it was already stays as it is.
PyObject* CaptureSemantics::UpdateDict(PyObject* dict, PyObject* with) {
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(with, &at, &key, &value);) {
    if (!IsPrimitive(key) && !guard::IsText(key)) return s_.Break(BreakId::kSideEffect, "dict.update");
    bool found;
    Ref before(s_.ReadDictItem(dict, s_.SourceOf(dict), key, &found));
    if (s_.broken() || PyErr_Occurred()) return nullptr;
    if ((!found || before.get() != value) && SetItem(dict, key, value) < 0) return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* CaptureSemantics::Iter(PyObject* o) {
  RESOLVE(o);
  if (IsTensor(o)) return TensorIter(s_, o);
  if (tensor::IsObjectArray(o)) return s_.Adopt(PyObject_GetIter(o));
  s_.NoteType(Py_TYPE(o));
  static PyObject* const iter_name = Interned("__iter__");
  const bool asked = PythonFunctionIn(Py_TYPE(o), iter_name);
  // An iterator answers with itself, unless the program says otherwise. Only advancing it needs to be looked at.
  if ((s_.IsFresh(o) && GoesOver(o)) || (!asked && PyIter_Check(o) && s_.IsOutside(o))) return Py_NewRef(o);
  PyObject* dict = DictOfView(o);
  const bool own = dict ? s_.IsFresh(o) && s_.IsFresh(dict)  // its items as they are
                        : (PyTuple_CheckExact(o) || PyList_CheckExact(o)) && !s_.IsOutside(o);
  PyObject* c = own || asked ? o : s_.ItemsOf(o);
  if (!c) return nullptr;
  if (PyAnySet_Check(c) && !s_.NoteContents(c)) return nullptr;
  Ref made(s_.Adopt(PyObject_GetIter(c)));
  if (made && !PyList_Check(o)) s_.NoteViewed(&o, 1, made.get());                      // a list's copy is gone through
  if (made && PySet_CheckExact(c) && s_.IsOutside(o)) s_.Keep(Py_NewRef(made.get()));  // for Session::Defer
  return made.release();
}

PyObject* CaptureSemantics::Next(PyObject* it) {
  PyObject* r = NextOrEnd(it);
  if (!r && !s_.broken() && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_StopIteration)) PyErr_Clear();
  return r;
}

PyObject* CaptureSemantics::NextOrEnd(PyObject* it) {
  RESOLVE(it);
  if (Counting* counting = Counting::now; counting && counting->Gives(it)) {
    Ref further(PyLong_FromLong(++counting->taken * counting->step));
    return further ? Binary(0, counting->number, further.get()) : nullptr;
  }
  if (s_.IsOutside(it)) {
    static PyObject* next_name = PyUnicode_InternFromString("__next__");
    PyObject* d = _PyType_Lookup(Py_TYPE(it), next_name);
    if (!(d && PyFunction_Check(d))) return s_.Break(BreakId::kSideEffect, "an outside iterator is advanced");
  }
  iternextfunc next = Py_TYPE(it)->tp_iternext;
  if (!PyIter_Check(it))
    return PyErr_Format(PyExc_TypeError, "'%.200s' object is not an iterator", Py_TYPE(it)->tp_name);
  PyObject* r = next(it);
  if (!r) {
    if (s_.broken()) return s_.Break(s_.reason().id);
    return nullptr;
  }
  return s_.Adopt(r);
}

// The method in Python that a class has for a text of this conversion (0: format, 1: str, 2: repr), or null. What
// object has of these asks the next one. `formats`: it is given the spec.
static PyObject* TextFunction(PyTypeObject* type, int conversion, PyObject* spec, bool* formats) {
  static PyObject* const names[] = {Interned("__format__"), Interned("__str__"), Interned("__repr__")};
  for (int i = conversion; i < 3; ++i) {
    *formats = !i;
    PyObject* method = _PyType_Lookup(type, names[i]);
    if (method && PyFunction_Check(method)) return method;
    if (method != _PyType_Lookup(&PyBaseObject_Type, names[i]) || (!i && spec)) return nullptr;
  }
  return nullptr;
}

PyObject* CaptureSemantics::Format(PyObject* value, int conversion, PyObject* spec) {
  RESOLVE(value);
  if (spec) RESOLVE(spec);
  if (PyObject* text = UnreadFormat(s_, value, conversion, spec); text || s_.broken() || PyErr_Occurred()) return text;
  bool formats;
  if (PyObject* in_python = IsPrimitive(value) || IsTensor(value) || s_.IsFresh(value)
                                ? nullptr
                                : TextFunction(Py_TYPE(value), conversion, spec, &formats)) {
    static PyObject* const nothing = PyUnicode_FromString("");
    s_.NoteType(Py_TYPE(value));
    PyObject* args[] = {value, spec ? spec : nothing};
    Ref text(Call(in_python, args, formats ? 2 : 1, nullptr));
    if (text && !PyUnicode_CheckExact(text.get()))
      return s_.Break(BreakId::kUnknownCall, std::string("text of a ") + Py_TYPE(value)->tp_name);
    return text && conversion && spec ? frame::Semantics::Format(text.get(), 0, spec) : text.release();
  }
  if (!IsPrimitive(value)) {
    if (!(value = s_.Settled(value))) return nullptr;
    s_.NoteType(Py_TYPE(value));
    if (!NoteText(value)) return nullptr;
    if (Container(value) && !s_.NoteContents(value, true)) return nullptr;
    if (s_.IsOutside(value) && !Container(value)) {
      // repr of an outside object may show its address or anything else
      return s_.Break(BreakId::kUnknownCall, std::string("text of a ") + Py_TYPE(value)->tp_name);
    }
  }
  return frame::Semantics::Format(value, conversion, spec);
}

int CaptureSemantics::Send(PyObject* receiver, PyObject* value, PyObject** result) {
  RESOLVE_INT(receiver);
  RESOLVE_INT(value);
  if (s_.IsOutside(receiver)) return s_.Break(BreakId::kIteratorState, "an outside iterator is advanced"), -1;
  return frame::Semantics::Send(receiver, value, result);
}

PyObject* CaptureSemantics::LoadGlobal(PyObject* globals, PyObject* builtins, PyObject* name) {
  if (s_.broken()) return s_.Break(s_.reason().id);
  bool found;
  PyObject* v = s_.ReadDictItem(globals, s_.guards().Const(globals), name, &found);
  if (found || s_.broken() || PyErr_Occurred()) return v;
  v = s_.ReadDictItem(builtins, s_.guards().Const(builtins), name, &found);
  if (found || s_.broken() || PyErr_Occurred()) return v;
  static PyObject* const name_of = Interned("name");
  Ref text(PyUnicode_FromFormat("name '%.200U' is not defined", name));
  Ref error(text ? PyObject_CallOneArg(PyExc_NameError, text.get()) : nullptr);
  if (error && PyObject_SetAttr(error.get(), name_of, name) == 0) PyErr_SetObject(PyExc_NameError, error.get());
  return nullptr;
}

int CaptureSemantics::StoreGlobal(PyObject* globals, PyObject* name, PyObject* value) {
  if (value) RESOLVE_INT(value);
  if (!value) {
    bool found;
    Ref old(s_.ReadDictItem(globals, s_.guards().Const(globals), name, &found));
    if (!found) return s_.Break(BreakId::kInstruction, "del of a missing global"), -1;
  }
  Ref seen(s_.FromOutside(globals, s_.guards().Const(globals)));
  return seen ? s_.WriteDictItem(globals, name, value) : -1;
}

// --- building: the parts are resolved, the container is private -----------------------------------------------------

#define RESOLVED(items, n)                                 \
  std::vector<PyObject*> resolved((items), (items) + (n)); \
  if (s_.broken()) return s_.Break(s_.reason().id);        \
  if (!s_.ResolveAll(resolved.data(), (n))) return nullptr

PyObject* CaptureSemantics::BuildTuple(PyObject* const* items, Py_ssize_t n) {
  RESOLVED(items, n);
  return s_.MarkFresh(frame::Semantics::BuildTuple(resolved.data(), n));
}
PyObject* CaptureSemantics::BuildList(PyObject* const* items, Py_ssize_t n) {
  RESOLVED(items, n);
  return s_.MarkFresh(frame::Semantics::BuildList(resolved.data(), n));
}
PyObject* CaptureSemantics::BuildSet(PyObject* const* items, Py_ssize_t n) {
  RESOLVED(items, n);
  for (PyObject* o : resolved)
    if (!s_.Pin(o)) return nullptr;
  return s_.MarkFresh(frame::Semantics::BuildSet(resolved.data(), n));
}
PyObject* CaptureSemantics::BuildMap(PyObject* const* kv, Py_ssize_t n, Py_ssize_t stride) {
  RESOLVED(kv, 2 * n);
  if (PyObject* map = UnreadMap(s_, resolved.data(), n, stride)) return map;
  for (Py_ssize_t i = 0; i < n; ++i)
    if (!s_.Pin(resolved[i * stride])) return nullptr;
  return s_.MarkFresh(frame::Semantics::BuildMap(resolved.data(), n, stride));
}
PyObject* CaptureSemantics::BuildSlice(PyObject* a, PyObject* b, PyObject* c) {
  RESOLVE(a);
  RESOLVE(b);
  if (c) RESOLVE(c);
  return s_.MarkFresh(PySlice_New(a, b, c));
}
PyObject* CaptureSemantics::BuildString(PyObject* const* parts, Py_ssize_t n) {
  RESOLVED(parts, n);
  PyObject* r = UnreadJoined(s_, resolved.data(), n);
  return r ? r : frame::Semantics::BuildString(resolved.data(), n);
}
// What is being filled is private, unless the capture began in the middle of filling it.
#define TARGET(x) \
  RESOLVE_INT(x); \
  if (s_.IsOutside(x)) return s_.Break(BreakId::kSideEffect, "a container that was begun before this graph"), -1

// A comprehension in whose round the capture begins: what it adds waits as other writes do.
int CaptureSemantics::ListAppend(PyObject* list, PyObject* v) {
  RESOLVE_INT(list);
  RESOLVE_INT(v);
  PyObject* const args[] = {list, v};
  if (s_.IsOutside(list) && s_.Defer(&PyList_Type, "append", args, 2)) return 0;
  TARGET(list);
  return PyList_Append(list, v);
}
// Gives each item to `add`. It is -1 after a Break or an exception.
static int ForEach(
    CaptureSemantics& s, PyObject* iterable, absl::FunctionRef<bool(PyObject*)> add,
    absl::FunctionRef<bool()> begun = [] { return true; }) {
  Ref it(s.Iter(iterable));
  if (!it || !begun()) return -1;
  for (;;) {
    Ref x(s.Next(it.get()));
    if (!x) return PyErr_Occurred() ? -1 : 0;
    if (!add(x.get())) return -1;
  }
}
int CaptureSemantics::ListExtend(PyObject* list, PyObject* iterable) {
  TARGET(list);
  RESOLVE_INT(iterable);
  static PyObject *const length = Interned("__len__"), *const hint = Interned("__length_hint__");
  PyTypeObject* t = Py_TYPE(iterable);
  const bool sized = PythonFunctionIn(t, length) || PythonFunctionIn(t, hint);  // CPython asks how many there will be.
  const auto ask = [&] { return !sized || (PyObject_LengthHint(iterable, 0) >= 0 && !s_.broken()); };
  return ForEach(*this, iterable, [&](PyObject* x) { return PyList_Append(list, x) == 0; }, ask);
}
int CaptureSemantics::SetAdd(PyObject* set, PyObject* v) {
  RESOLVE_INT(set);
  RESOLVE_INT(v);
  PyObject* const args[] = {set, v};
  if (s_.IsOutside(set) && s_.Defer(&PySet_Type, "add", args, 2)) return 0;
  TARGET(set);
  return s_.Pin(v) ? PySet_Add(set, v) : -1;
}
int CaptureSemantics::SetUpdate(PyObject* set, PyObject* iterable) {
  TARGET(set);
  RESOLVE_INT(iterable);
  const bool whole = PyAnySet_CheckExact(iterable) || PyDict_CheckExact(iterable);  // Both tables decide the order.
  const auto add = [&](PyObject* x) { return s_.Pin(x) && (whole || PySet_Add(set, x) == 0); };
  if (int failed = ForEach(*this, iterable, add); failed || !whole) return failed;
  iterable = s_.IsOutside(iterable) ? s_.ForC(iterable, true) : iterable;
  return iterable ? frame::Semantics::SetUpdate(set, iterable) : -1;
}
int CaptureSemantics::MapAdd(PyObject* dict, PyObject* k, PyObject* v) {
  RESOLVE_INT(dict);
  RESOLVE_INT(k);
  RESOLVE_INT(v);
  if (s_.IsOutside(dict) && PyDict_CheckExact(dict)) return SetItem(dict, k, v);
  TARGET(dict);
  return s_.Pin(k) ? PyDict_SetItem(dict, k, v) : -1;
}
int CaptureSemantics::DictUpdate(PyObject* dict, PyObject* other) {
  TARGET(dict);
  RESOLVE_INT(other);
  Ref items(Spread(s_, other));
  return items ? frame::Semantics::DictUpdate(dict, items.get()) : -1;
}
int CaptureSemantics::DictMerge(PyObject* dict, PyObject* other, PyObject* callee) {
  TARGET(dict);
  RESOLVE_INT(other);
  RESOLVE_INT(callee);
  Ref items(Spread(s_, other));
  return items ? frame::Semantics::DictMerge(dict, items.get(), callee) : -1;
}
PyObject* CaptureSemantics::ListToTuple(PyObject* list) {
  RESOLVE(list);
  if (!PyList_CheckExact(list) || s_.IsOutside(list)) list = s_.ForC(list, true);
  if (!list) return nullptr;
  return s_.MarkFresh(PyList_AsTuple(list));
}

int CaptureSemantics::Unpack(PyObject* seq, int before, int after, PyObject** items) {
  RESOLVE_INT(seq);
  if (IsTensor(seq) || tensor::IsObjectArray(seq)) {
    Ref it(Iter(seq));
    Ref list(it ? PySequence_List(it.get()) : nullptr);
    return list ? frame::Semantics::Unpack(list.get(), before, after, items) : -1;
  }
  s_.NoteType(Py_TYPE(seq));
  const bool own = (PyTuple_CheckExact(seq) || PyList_CheckExact(seq)) && !s_.IsOutside(seq);  // its items as they are
  static PyObject* const iter_name = Interned("__iter__");
  PyObject* c = own || PythonFunctionIn(Py_TYPE(seq), iter_name) ? seq : s_.ItemsOf(seq);
  if (!c) return -1;
  if (s_.IsOutside(c) && PyIter_Check(c)) return s_.Break(BreakId::kSideEffect, "an outside iterator is advanced"), -1;
  if (frame::Semantics::Unpack(c, before, after, items) < 0) return -1;
  int n = before + (after >= 0 ? 1 + after : 0);
  for (int i = 0; i < n; ++i) {
    PyObject* x = s_.Adopt(items[i]);
    if (!x) {
      for (int j = 0; j < n; ++j)
        if (j != i) Py_DECREF(items[j]);
      return -1;
    }
    items[i] = x;
  }
  return 0;
}

PyObject* CaptureSemantics::LoadSuperAttr(PyObject* super, PyObject* cls, PyObject* self, PyObject* name) {
  RESOLVE(super);
  RESOLVE(cls);
  RESOLVE(self);
  PyObject* args[] = {nullptr, cls, self};
  Ref object(Call(super, args + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  return object ? LoadAttr(object.get(), name) : nullptr;
}

bool CaptureSemantics::MayHandOver(FjFrame* frame, int index) {
  s_.Break(BreakId::kInstruction,
           std::string(PyUnicode_AsUTF8(fj_code(frame)->co_qualname)) + " at " + std::to_string(2 * index));
  return false;
}

bool CaptureSemantics::Before(FjFrame* frame, int index) {
  const bool back = frame == current_ && index <= index_;
  current_ = frame;
  index_ = index;
  if (frame == s_.root()) {
    if (!s_.root_frame) s_.root_frame = PyEval_GetFrame();
    if (loops_.EndsAt(index, root_instructions_)) return false;
    if (root_instructions_ && LeavesAt(frame, index) != Leaving::kNo) return false;
    if (loops_.GoesOn(index)) return false;
    if (s_.options().stop_after >= 0 && root_instructions_ >= s_.options().stop_after) return false;
    if (Ref(PyErr_GetHandledException()).get() == handled_) clean_instructions_ = root_instructions_;
    ++root_instructions_;
    root_index_ = index;
  }
  ++instructions_;
  if (instructions_ == max_instructions_ || (back && !loops_.Back(frame, index, instructions_))) {
    s_.Break(BreakId::kUnroll);
    return false;
  }
  return true;
}

}  // namespace framejit::capture
