#include "capture/object_arrays.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "capture/arg_vector.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "capture/special_calls.h"
#include "tensor/numpy_api.h"

namespace framejit::capture {
namespace {

using tensor::AsArray;
using tensor::IsObjectArray;

// What NumPy looks at by itself: numbers, texts, None, and slices, tuples and lists of the capture's of these.
bool IsPlain(PyObject* o, int depth = 0) {
  if (IsPrimitive(o)) return true;
  if (PySlice_Check(o)) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    return IsPrimitive(s->start) && IsPrimitive(s->stop) && IsPrimitive(s->step);
  }
  if (!(PyTuple_CheckExact(o) || PyList_CheckExact(o)) || depth > 16) return false;
  if (PyList_CheckExact(o) && !Session::Current()->IsFresh(o)) return false;  // nothing guards what it holds
  PyObject* const* items = PySequence_Fast_ITEMS(o);
  return std::all_of(items, items + PySequence_Fast_GET_SIZE(o), [&](PyObject* x) { return IsPlain(x, depth + 1); });
}

bool IsInteger(PyObject* o) {
  return PyLong_CheckExact(o) || IsSymInt(o);
}

// An index of numbers, slices, None and the ellipsis: no mask, and no list of places.
bool IsBasicIndex(PyObject* key) {
  const auto part = [](PyObject* o) {
    return IsInteger(o) || o == Py_None || o == Py_Ellipsis || (PySlice_Check(o) && IsPlain(o));
  };
  if (!PyTuple_CheckExact(key)) return part(key);
  return std::all_of(&PyTuple_GET_ITEM(key, 0), &PyTuple_GET_ITEM(key, 0) + PyTuple_GET_SIZE(key), part);
}

// Does it name one element?
bool IsWholeIndex(PyObject* array, PyObject* key) {
  const int rank = AsArray(array)->nd;
  if (!PyTuple_CheckExact(key)) return rank == 1 && IsInteger(key);
  return PyTuple_GET_SIZE(key) == rank &&
         std::all_of(&PyTuple_GET_ITEM(key, 0), &PyTuple_GET_ITEM(key, 0) + rank, IsInteger);
}

// How an array of objects lies, as a guard compares it: runs no code of Python's.
PyObject* LayoutOfObjects(PyObject*, PyObject* o) {
  if (!IsObjectArray(o)) Py_RETURN_NONE;
  const tensor::NumpyArray* a = AsArray(o);
  std::string text = a->flags & tensor::kNpyInOrder ? "in order" : "in another order";
  for (int i = 0; i < a->nd; ++i) text += "," + std::to_string(a->dims[i]);
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

// Methods that give elements, copies or views, and ask the elements nothing.
constexpr std::array<std::string_view, 14> kReading = {"__copy__", "__len__", "copy",      "flatten", "item",
                                                       "ravel",    "repeat",  "reshape",   "squeeze", "swapaxes",
                                                       "take",     "tolist",  "transpose", "diagonal"};
// Functions that make an array of what they are given, by the name behind "numpy.": in C, and in Python.
constexpr std::array<std::string_view, 6> kMaking = {"array", "asanyarray", "asarray", "empty", "empty_like", "zeros"};
constexpr std::array<std::string_view, 6> kMakingInPython = {"full",      "full_like",  "ones",
                                                             "ones_like", "zeros_like", "copyto"};

template <size_t n>
bool Among(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool AnyObjectArray(PyObject* const* args, Py_ssize_t n) {
  return tensor::bound_numpy && std::any_of(args, args + n, IsObjectArray);
}

bool NamesObjects(PyObject* dtype) {
  if (!tensor::bound_numpy) return false;
  for (PyTypeObject* t : {&PyBaseObject_Type, &PyList_Type, &PyDict_Type, &PyTuple_Type, tensor::bound_numpy->array})
    if (dtype == reinterpret_cast<PyObject*>(t)) return true;
  if (PyUnicode_CheckExact(dtype))
    return !PyUnicode_CompareWithASCIIString(dtype, "O") || !PyUnicode_CompareWithASCIIString(dtype, "object");
  return dtype == tensor::bound_numpy->object_descr;
}

PyObject* ObjectsItem(Session& s, PyObject* array, PyObject* key) {
  if (!IsBasicIndex(key)) return s.Break(BreakId::kUnknownCall, "items of an array of objects");
  return s.Adopt(PyObject_GetItem(array, key));
}

int SetObjectsItem(Session& s, PyObject* array, PyObject* key, PyObject* value) {
  if (!s.IsFresh(array)) return s.Break(BreakId::kSideEffect, "an array of objects"), -1;
  // What is stored to a part, NumPy would look into.
  if (!IsBasicIndex(key) || !value || (!IsWholeIndex(array, key) && !IsPrimitive(value)))
    return s.Break(BreakId::kUnknownCall, "items of an array of objects"), -1;
  return PyObject_SetItem(array, key, value);
}

bool ObjectsForC(Session& s, PyObject* array) {
  Ref items(PyObject_CallMethod(array, "ravel", nullptr));
  if (!items) return false;
  for (int64_t i = 0; i < tensor::NumElements(items.get()); ++i) {
    PyObject *o = tensor::ObjectAt(items.get(), i), *seen = o == array ? o : s.ForC(o);
    if (!seen) return false;
    if (seen != o) return s.Break(BreakId::kUnknownOrigin, "a container of tensors in an array of objects"), false;
  }
  return true;
}

PyObject* Session::AdoptObjects(PyObject* array) {
  for (PyObject* base = AsArray(array)->base; base; base = IsObjectArray(base) ? AsArray(base)->base : nullptr)
    if (!IsFresh(base)) {
      Py_DECREF(array);
      return Break(BreakId::kUnknownOrigin, "a view of an array of objects from outside");
    }
  return MarkFresh(array);
}

// The array from outside as the capture sees it: a copy, of which no view is handed out.
PyObject* Session::ObjectsInput(PyObject* o, const Source* s) {
  constexpr int64_t kMost = 256;
  static PyMethodDef layout_of = {"layout_of_objects", LayoutOfObjects, METH_O, nullptr};
  static PyObject* const describe = PyCFunction_New(&layout_of, nullptr);
  const tensor::NumpyArray* a = AsArray(o);
  const int64_t n = tensor::NumElements(o);
  if (!describe || n > kMost || !(a->flags & tensor::kNpyInOrder))
    return Break(BreakId::kUnsupportedTensor, "an array of many objects, or one that does not lie in order");
  Ref layout(LayoutOfObjects(nullptr, o));
  if (!layout) return nullptr;
  guards_->TypeIs(s, Py_TYPE(o));
  guards_->Equal(guards_->Child(SourceKind::kMember, s, 0, describe), layout.get());
  Py_INCREF(a->descr);
  Ref copy(tensor::bound_numpy->new_from_descr(Py_TYPE(o), a->descr, a->nd, a->dims, nullptr, nullptr, 0, nullptr));
  if (!copy) return nullptr;
  Origin real, copied;
  real.kind = copied.kind = Origin::kOutside;
  real.source = copied.source = s;
  real.proxy = copy.get();
  copied.real = o;
  origins_.Enter(o, real);
  origins_.Enter(copy.get(), copied);
  keep_.push_back(Borrow(o));
  keep_.push_back(copy);
  for (int64_t i = 0; i < n; ++i) {
    PyObject* seen = FromOutside(tensor::ObjectAt(o, i), guards_->Child(SourceKind::kItem, s, static_cast<int>(i)));
    if (!seen) return nullptr;
    PyObject*& place = reinterpret_cast<PyObject**>(AsArray(copy.get())->data)[i];
    Py_XSETREF(place, seen);
  }
  return copy.release();
}

PyObject* ObjectsMaker() {
  static PyObject* const make = tensor::ResolveCallee("framejit._arrays.of_objects");
  return make;
}

Ref PartsOfObjects(Session& s, PyObject* array) {
  const tensor::NumpyArray* a = AsArray(array);
  Ref shape(PyObject_GetAttrString(array, "shape"));
  if (!shape) return {};
  if (PyObject* base = a->base) {  // all of another one, as reshape() gives it
    if (!IsObjectArray(base) || !s.IsFresh(base) || !(a->flags & AsArray(base)->flags & tensor::kNpyInOrder) ||
        a->data != AsArray(base)->data || tensor::NumElements(array) != tensor::NumElements(base))
      return {};
    return Ref(PyTuple_Pack(3, base, shape.get(), Py_None));
  }
  const bool in_order = a->flags & tensor::kNpyInOrder;
  if (!in_order && !(a->flags & tensor::kNpyInFortranOrder)) return {};
  Ref flat(PyObject_CallMethod(array, "ravel", "s", in_order ? "C" : "F"));
  Ref items(flat ? PyObject_CallMethod(flat.get(), "tolist", nullptr) : nullptr);
  Ref order(PyUnicode_InternFromString(in_order ? "C" : "F"));
  if (!items || !order) return {};
  s.Keep(Py_NewRef(items.get()));  // its address is in the memo
  return Ref(PyTuple_Pack(3, items.get(), shape.get(), order.get()));
}

// A call that is given or makes an array of objects. Null without an error: it is none of these.
PyObject* CaptureSemantics::CallOfObjects(PyObject* callable, PyObject* const* args, Py_ssize_t nargs,
                                          PyObject* kwnames) {
  PyObject* self = PyCFunction_Check(callable) ? PyCFunction_GET_SELF(callable) : nullptr;
  const bool bound = self && tensor::bound_numpy && IsObjectArray(self);
  const Py_ssize_t total = nargs + KwCount(kwnames);
  const bool given = bound || AnyObjectArray(args, total);
  constexpr std::array<std::string_view, 3> of_one = {"array", "asanyarray", "asarray"};
  const bool of_nothing = nargs == 1 && !kwnames && args[0] == Py_None && !PyType_Check(callable) &&
                          Among(of_one, tensor::CalleeOf(callable).last());
  const bool made = !given && tensor::bound_numpy && (of_nothing || std::any_of(args, args + total, NamesObjects));
  if (!given && !made) return nullptr;
  const auto plain = [](PyObject* o) { return IsObjectArray(o) || IsPlain(o) || NamesObjects(o); };
  if (OfType(callable, CType::kUfunc)) {
    if (kwnames || !std::all_of(args, args + total, [](PyObject* o) { return IsObjectArray(o) || IsPrimitive(o); }))
      return s_.Break(BreakId::kUnknownCall, "a ufunc of an array of objects");
    for (Py_ssize_t i = 0; i < total; ++i)
      if (IsObjectArray(args[i]) && !ObjectsForC(s_, args[i])) return nullptr;
    return Ended(PyObject_Vectorcall(callable, args, nargs, nullptr));
  }
  PyTypeObject* const array_type = tensor::bound_numpy->array;
  const bool of_type = Py_IS_TYPE(callable, &PyMethodDescr_Type) && PyDescr_TYPE(callable) == array_type;
  if (bound || of_type) {
    PyObject* array = bound ? self : nargs ? args[0] : nullptr;
    if (!array || !IsObjectArray(array)) return nullptr;
    const PyMethodDef* def = bound ? reinterpret_cast<PyCFunctionObject*>(callable)->m_ml
                                   : reinterpret_cast<PyMethodDescrObject*>(callable)->d_method;
    if (!Among(kReading, def->ml_name) || !std::all_of(args + !bound, args + total, plain))
      return s_.Break(BreakId::kUnknownCall, Describe(callable) + " of an array of objects");
    return Ended(PyObject_Vectorcall(callable, args, nargs, kwnames));
  }
  const bool type = callable == reinterpret_cast<PyObject*>(array_type);
  const Callee name = tensor::CalleeOf(callable);
  if (!type && !name.name().starts_with("numpy.")) return nullptr;
  const std::string_view last = name.last();
  static tensor::Named iterator("numpy.nditer");  // one that may only read, as its elements say
  const bool makes = type || (name.space() == "numpy" && Among(kMaking, last)) || (given && callable == iterator.Get());
  if (makes && std::all_of(args, args + total, plain))
    return Ended(PyObject_Vectorcall(callable, args, nargs, kwnames));
  if (!given && !Among(kMakingInPython, last)) return nullptr;
  if (last == "copyto" && nargs == 2 && IsObjectArray(args[0]) && s_.IsFresh(args[0]) && IsPrimitive(args[1]))
    return Ended(PyObject_Vectorcall(callable, args, nargs, kwnames));
  if (PyFunction_Check(callable)) return CallPython(callable, args, nargs, kwnames);
  if (Ref body = BodyOf(callable); body && s_.SourceOf(body.get())) return CallPython(body.get(), args, nargs, kwnames);
  return given ? s_.Break(BreakId::kUnknownCall, Describe(callable) + " of an array of objects") : nullptr;
}

// NumPy has called what the elements are, which may have ended the capture.
PyObject* CaptureSemantics::Ended(PyObject* result) {
  if (!s_.broken()) return s_.Adopt(result);
  Py_XDECREF(result);
  return s_.Break(s_.reason().id);
}

}  // namespace framejit::capture
