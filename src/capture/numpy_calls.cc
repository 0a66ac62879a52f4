// Calls of NumPy's that are no plain functions of it: methods of ufuncs, functions with a Python body that is captured
// where the graph has no node for them, questions about types.
#include <algorithm>
#include <array>
#include <cstring>

#include "capture/arg_vector.h"
#include "capture/callees.h"
#include "capture/modes.h"
#include "capture/object_arrays.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "graph/effects.h"
#include "surface/numpy_transforms.h"
#include "tensor/numpy_api.h"

namespace framejit::capture {
namespace {

bool Dispatches(PyObject* callable) {
  return OfType(callable, CType::kNumpyFunction);
}

// Functions whose Python body is a few operations that the graph has, and better than a call of them.
struct Followed {
  enum When { kAlways, kWithAxis, kWithoutAxis, kOfOneArray } when = kAlways;
  std::string_view name;
  int axis = -1;  // the number of this argument
};
constexpr Followed kFollowed[] = {
    {Followed::kAlways, "numpy.append"},
    {Followed::kAlways, "numpy.diff"},
    {Followed::kOfOneArray, "numpy.gradient"},  // of another one it asks whether its steps are equal
    {Followed::kAlways, "numpy.hstack"},
    {Followed::kWithAxis, "numpy.linalg.norm", 2},
    {Followed::kAlways, "numpy.polyval"},
    {Followed::kWithoutAxis, "numpy.roll", 2},
    {Followed::kWithAxis, "numpy.take_along_axis", 2},
    {Followed::kAlways, "numpy.tensordot"},
    {Followed::kAlways, "numpy.tile"},
    {Followed::kAlways, "numpy.trapezoid"},
    {Followed::kAlways, "numpy.trapz"},
    {Followed::kAlways, "numpy.vstack"},
};

bool HasComplex(Session& s, PyObject* o) {  // the graph computes with no such array
  if (IsTensor(o)) return IsComplex(s.meta(AsTensor(o)->id).dtype);
  if (!PyTuple_CheckExact(o) && !PyList_CheckExact(o)) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
    if (HasComplex(s, PySequence_Fast_GET_ITEM(o, i))) return true;
  return false;
}

bool Follows(Session& s, const Callee& name, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const auto* row = std::find_if(std::begin(kFollowed), std::end(kFollowed),
                                 [&](const Followed& f) { return f.name == name.name(); });
  if (row == std::end(kFollowed)) return false;
  const Py_ssize_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  int arrays = 0;
  for (Py_ssize_t i = 0; i < nargs + keywords; ++i) {
    if (HasComplex(s, args[i])) return false;
    arrays += IsTensor(args[i]);
  }
  bool axis = row->axis >= 0 && nargs > row->axis && args[row->axis] != Py_None;
  for (Py_ssize_t i = 0; i < keywords; ++i)
    if (!PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "axis")) axis = args[nargs + i] != Py_None;
  switch (row->when) {
    case Followed::kAlways: return true;
    case Followed::kWithAxis: return axis;
    case Followed::kWithoutAxis: return !axis;
    case Followed::kOfOneArray: return arrays <= 1;
  }
  return false;
}

// Would NumPy's function hand the call over to the argument (CuPy's arrays, classes with __array_function__)?
bool Overrides(Session& s, PyObject* o, int depth = 0) {
  static PyObject* const name = PyUnicode_InternFromString("__array_function__");
  if (IsTensor(o)) {
    const TensorMeta& m = s.meta(AsTensor(o)->id);
    return m.framework == Framework::kNumpy && m.device.kind == DeviceKind::kCuda;
  }
  if ((PyTuple_Check(o) || PyList_Check(o)) && depth < 2)
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      if (Overrides(s, PySequence_Fast_GET_ITEM(o, i), depth + 1)) return true;
  return tensor::Classify(o) != tensor::Class::kNumpyArray && _PyType_Lookup(Py_TYPE(o), name);
}

// Is this captured for framejit.grad, vmap or the like? A function that is no operation of the graph has no rule then.
bool InTransform() {
  Ref frame(reinterpret_cast<PyObject*>(Py_XNewRef(PyEval_GetFrame())));
  while (frame) {
    auto* f = reinterpret_cast<PyFrameObject*>(frame.get());
    Ref globals(PyFrame_GetGlobals(f));
    PyObject* name = globals ? PyDict_GetItemString(globals.get(), "__name__") : nullptr;
    if (name && PyUnicode_Check(name) && !PyUnicode_CompareWithASCIIString(name, "framejit._transforms")) return true;
    frame = Ref(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
  }
  return false;
}

// An array, no scalar of NumPy's.
bool IsNumpyArray(Session& s, PyObject* o) {
  if (!IsTensor(o)) return false;
  const TensorMeta& m = s.meta(AsTensor(o)->id);
  return m.framework == Framework::kNumpy && !m.is_scalar && m.device.kind == DeviceKind::kCpu;
}

// Of a list or tuple the array that NumPy's functions make of it. Null: it is another object, or there was a Break.
Ref ArrayOfNumbers(Session& s, PyObject* o) {
  static const Callee array("numpy.asarray");
  PyObject* list = s.Resolve(o);
  bool declined = false;
  if (!list || !(PyList_CheckExact(list) || PyTuple_CheckExact(list))) return {};
  return Ref(s.CallFramework(array, &list, 1, nullptr, &declined));
}

// May a function of SciPy be one call of the graph with this argument? It computes with arrays, numbers and texts,
// writes into none of them, and returns no more than their sizes say.
bool ComputesWith(Session& s, PyObject* o, std::string_view parameter) {
  if (parameter.starts_with("overwrite")) return o == Py_False;
  if (parameter == "output") return o == Py_None || PyUnicode_CheckExact(o);  // an array, or which form is wanted
  if (parameter == "out" || parameter == "distances" || parameter == "indices" || parameter == "subset_by_value")
    return o == Py_None;
  if (IsTensor(o)) {  // A number of the graph's may decide a size. SciPy makes a window read-only (ShortTimeFFT).
    const TensorMeta& m = s.meta(AsTensor(o)->id);
    return m.framework == Framework::kNumpy && !m.sizes.empty() && parameter != "window";
  }
  if (!PyTuple_CheckExact(o) && !PyList_CheckExact(o)) return IsPrimitive(o);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) {
    PyObject* item = s.Resolve(PySequence_Fast_GET_ITEM(o, i));
    if (!item || !ComputesWith(s, item, "")) return false;
  }
  return true;
}

bool IsUfunc(PyObject* o) {
  return o && OfType(o, CType::kUfunc);
}

// numpy.add(a, b, c) is numpy.add(a, b, out=c). Null without an error: it is another call, or NumPy warns of this form.
PyObject* OutByPosition(Session& s, PyObject* callable, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  if (nargs < 2 || !IsUfunc(callable) || !IsNumpyArray(s, args[nargs - 1])) return nullptr;
  const Callee name = tensor::CalleeOf(callable);
  Ref operands(name.empty() ? nullptr : PyObject_GetAttrString(callable, "nin"));
  if (!operands || PyLong_AsSsize_t(operands.get()) != nargs - 1) return PyErr_Clear(), nullptr;
  if (name.last() == "maximum" || name.last() == "minimum") return nullptr;
  const Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  Ref names(PyTuple_New(named + 1));
  if (!names) return nullptr;
  std::vector<PyObject*> given(args, args + nargs - 1);
  for (Py_ssize_t i = 0; i < named; ++i) {
    given.push_back(args[nargs + i]);
    PyTuple_SET_ITEM(names.get(), i, Py_NewRef(PyTuple_GET_ITEM(kwnames, i)));
    if (!PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "out")) return nullptr;  // NumPy refuses it
  }
  given.push_back(args[nargs - 1]);
  PyTuple_SET_ITEM(names.get(), named, PyUnicode_InternFromString("out"));
  return PyTuple_GET_ITEM(names.get(), named) ? s.CallFramework(name, given.data(), nargs - 1, names.get()) : nullptr;
}

// Calls that mean others, which a function of framejit._numpy_calls makes: with an order of the elements that is not
// C's.
struct Meaning {
  enum Order { kNone = -2, kKeyword = -1 };  // where the order stands among the arguments
  Callee name;
  const char* function;
  int order;
};

const Meaning* MeaningOf(Session& s, const Callee& name, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const auto& meanings = *new std::array<Meaning, 6>{{
      {Callee("numpy.broadcast_shapes"), "broadcast_shapes", Meaning::kNone},
      {Callee("numpy.ndarray.reshape"), "reshape", Meaning::kKeyword},
      {Callee("numpy.reshape"), "reshape_function", 2},
      {Callee("numpy.ndarray.ravel"), "ravel", 1},
      {Callee("numpy.ravel"), "ravel", 1},
      {Callee("numpy.ndarray.flatten"), "flatten", 1},
  }};
  const auto* m = std::find_if(meanings.begin(), meanings.end(), [&](const Meaning& a) { return a.name == name; });
  if (m == meanings.end()) return nullptr;
  if (m->order == Meaning::kNone) return kwnames ? nullptr : m;
  PyObject* order = m->order >= 0 && nargs == m->order + 1 ? args[m->order] : nullptr;
  for (Py_ssize_t i = 0; i < KwCount(kwnames); ++i)
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "order"))
      return nullptr;
    else
      order = args[nargs + i];
  const bool other = order && PyUnicode_CheckExact(order) && PyUnicode_CompareWithASCIIString(order, "C");
  return other && nargs && IsNumpyArray(s, args[0]) ? m : nullptr;
}

// x.view() of an array that is of NumPy's own class already, whatever the class is called that is asked for.
bool ViewsAsItIs(Session& s, const Callee& name, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const Callee view("numpy.ndarray.view");
  const tensor::NumpyApi* api = tensor::Numpy();
  const Py_ssize_t named = KwCount(kwnames);
  if (name != view || nargs + named != 2 || nargs < 1 || !api || args[1] != reinterpret_cast<PyObject*>(api->array))
    return false;
  return IsNumpyArray(s, args[0]) &&
         (!named || !PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "type"));
}

}  // namespace

// Gives the Python function behind a function of NumPy that dispatches on its arguments' types. Null: it has none.
Ref BodyOf(PyObject* callable) {
  Ref body(PyObject_GetAttrString(callable, "_implementation"));
  if (!body) PyErr_Clear();
  return body && PyFunction_Check(body.get()) ? std::move(body) : Ref();
}

// numpy.add.reduce(...) and the like. It is null without an error where it is none of them.
PyObject* CaptureSemantics::UfuncMethod(PyObject* callable, PyObject* const* args, Py_ssize_t nargs,
                                        PyObject* kwnames) {
  PyObject* self = nullptr;
  const char* method = nullptr;
  if (Py_TYPE(callable) == &PyMethodDescr_Type && nargs > 0 && IsUfunc(args[0])) {
    self = args[0];
    method = reinterpret_cast<PyMethodDescrObject*>(callable)->d_method->ml_name;
    ++args, --nargs;
  } else if (PyCFunction_Check(callable) && IsUfunc(PyCFunction_GET_SELF(callable))) {
    self = PyCFunction_GET_SELF(callable);
    method = reinterpret_cast<PyCFunctionObject*>(callable)->m_ml->ml_name;
  }
  const Callee name = self ? tensor::CalleeOf(self) : Callee();
  if (name.empty()) return nullptr;
  if (nargs == 2 && !kwnames && !strcmp(method, "outer") && IsNumpyArray(s_, args[0]) && IsNumpyArray(s_, args[1]))
    return Outer(name, args[0], args[1]);
  return s_.CallFramework(Callee(name + "." + method), args, nargs, kwnames);
}

// numpy.add.outer(a, b) is numpy.add(a[..., None, None], b) for a `b` of two axes.
PyObject* CaptureSemantics::Outer(const Callee& ufunc, PyObject* a, PyObject* b) {
  const Py_ssize_t rank = static_cast<Py_ssize_t>(s_.meta(AsTensor(b)->id).sizes.size());
  Ref index(PyTuple_New(rank + 1));
  if (!index) return nullptr;
  PyTuple_SET_ITEM(index.get(), 0, Py_NewRef(Py_Ellipsis));
  for (Py_ssize_t i = 0; i < rank; ++i) PyTuple_SET_ITEM(index.get(), i + 1, Py_NewRef(Py_None));
  PyObject* item[] = {a, index.get()};
  Ref wide(s_.CallFramework(Callee("numpy.ndarray.__getitem__"), item, 2, nullptr));
  if (!wide) return nullptr;
  PyObject* both[] = {wide.get(), b};
  return s_.CallFramework(ufunc, both, 2, nullptr);
}

// numpy.ndarray(shape, dtype) is numpy.empty(shape, dtype). Null without an error: it is another call.
PyObject* CaptureSemantics::NewArray(PyObject* callable, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const tensor::NumpyApi* api = tensor::Numpy();
  if (!api || callable != reinterpret_cast<PyObject*>(api->array) || nargs > 2) return nullptr;
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) {
    PyObject* name = PyTuple_GET_ITEM(kwnames, i);
    if (PyUnicode_CompareWithASCIIString(name, "shape") && PyUnicode_CompareWithASCIIString(name, "dtype"))
      return nullptr;
  }
  return s_.CallFramework(Callee("numpy.empty"), args, nargs, kwnames);
}

// Answers numpy.result_type and its like: in place of arrays their types are asked, and what they answer of other
// arguments hangs on nothing else. It is null without an error where it is none of them.
PyObject* CaptureSemantics::TypeQuestion(PyObject* callable, PyObject* const* args, Py_ssize_t nargs,
                                         PyObject* kwnames) {
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  std::vector<Ref> types;
  std::vector<PyObject*> raw;
  for (Py_ssize_t i = 0; i < total; ++i) {
    PyObject* a = args[i];
    const bool tensor = IsTensor(a) && s_.meta(AsTensor(a)->id).framework == Framework::kNumpy;
    if (tensor)
      types.emplace_back(tensor::DTypeObject(Framework::kNumpy, s_.meta(AsTensor(a)->id).dtype));
    else if (IsSymInt(a))  // any int of 64 bits is of the type of 0
      types.emplace_back(PyLong_FromLong(0));
    else if (IsSymFloat(a))
      types.emplace_back(PyFloat_FromDouble(0));
    else if (tensor::DTypeOf(a) || PyType_Check(a) || IsPrimitive(a))
      types.emplace_back(Py_NewRef(a));
    else
      return nullptr;
    raw.push_back(types.back().get());
  }
  SuspendScope off;
  return s_.Adopt(PyObject_Vectorcall(callable, raw.data(), nargs, kwnames));
}

// A function of SciPy that computes is one call of the graph, whatever it is written in. Null without an error: it is
// none of these, or stand-ins do not show what it returns.
PyObject* CaptureSemantics::ScipyCall(const Callee& name, PyObject* callable, PyObject* const* args, Py_ssize_t nargs,
                                      PyObject* kwnames) {
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  if (!name.Has(kSizedByShapes | kSizedByNumbers) || s_.libraries.torch || s_.vmap.open() || InTransform())
    return nullptr;
  if (s_.modes.numpy.open() || s_.modes.warning_scopes) return nullptr;  // What it warns of, or raises, goes by these.
  static PyObject* const ask = tensor::ResolveCallee("framejit._functions.parameters_by_position");
  Ref told;
  {
    SuspendScope off;
    told = Ref(ask ? PyObject_CallOneArg(ask, callable) : nullptr);
    if (!told) PyErr_Clear();
  }
  if (!told || told.get() == Py_None) return nullptr;
  PyObject* names = PyTuple_GET_ITEM(told.get(), 0);
  const bool more = PyTuple_GET_ITEM(told.get(), 1) == Py_True;
  for (Py_ssize_t i = 0; i < total; ++i) {
    PyObject* parameter = i >= nargs                    ? PyTuple_GET_ITEM(kwnames, i - nargs)
                          : i < PyTuple_GET_SIZE(names) ? PyTuple_GET_ITEM(names, i)
                                                        : nullptr;
    if ((!parameter && !more) || !ComputesWith(s_, args[i], parameter ? PyUnicode_AsUTF8(parameter) : ""))
      return nullptr;
  }
  bool declined = false;
  PyObject* r = s_.CallFramework(name, args, nargs, kwnames, &declined);
  return declined ? nullptr : r;
}

// What NumPy's Python code calls below its own functions: the function of C behind one that dispatches (numpy.block
// calls concatenate so), and the method of the array that is made of a list. It is null without an error where it is
// neither.
static PyObject* InnerCall(CaptureSemantics& sem, Session& s, PyObject* callable, PyObject* const* args,
                           Py_ssize_t nargs, PyObject* kwnames) {
  static tensor::Named method_of_list("numpy._core.fromnumeric._wrapit");
  if (PyFunction_Check(callable)) {
    if (nargs < 2 || callable != method_of_list.Get() || !PyUnicode_CheckExact(args[1])) return nullptr;
    Ref array = ArrayOfNumbers(s, args[0]);
    Ref method(array ? sem.LoadAttr(array.get(), args[1]) : nullptr);
    return method ? sem.Call(method.get(), args + 2, nargs - 2, kwnames) : nullptr;
  }
  if (!PyCFunction_Check(callable) || !tensor::bound_numpy) return nullptr;
  PyObject* module = reinterpret_cast<PyCFunctionObject*>(callable)->m_module;
  if (!module || !PyUnicode_Check(module) || PyUnicode_CompareWithASCIIString(module, "numpy._core._multiarray_umath"))
    return nullptr;
  const char* name = reinterpret_cast<PyCFunctionObject*>(callable)->m_ml->ml_name;
  Ref named(PyObject_GetAttrString(tensor::bound_numpy->module, name));
  Ref behind(named && Dispatches(named.get()) ? PyObject_GetAttrString(named.get(), "_implementation") : nullptr);
  PyErr_Clear();
  return behind.get() == callable ? sem.Call(named.get(), args, nargs, kwnames) : nullptr;
}

PyObject* CaptureSemantics::NumpyCall(PyObject* callable, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  if (PyObject* r = CallOfObjects(callable, args, nargs, kwnames); r || s_.broken() || PyErr_Occurred()) return r;
  if (PyObject* r = InnerCall(*this, s_, callable, args, nargs, kwnames); r || s_.broken() || PyErr_Occurred())
    return r;
  if (PyObject* r = UfuncMethod(callable, args, nargs, kwnames); r || s_.broken() || PyErr_Occurred()) return r;
  if (PyObject* r = OutByPosition(s_, callable, args, nargs, kwnames); r || s_.broken() || PyErr_Occurred()) return r;
  if (PyObject* r = NewArray(callable, args, nargs, kwnames); r || s_.broken() || PyErr_Occurred()) return r;
  const bool function = PyFunction_Check(callable), dispatches = Dispatches(callable);
  const bool multimethod = !strcmp(Py_TYPE(callable)->tp_name, "uarray._Function");  // of scipy.fft
  const Callee name = tensor::CalleeOf(callable);
  static const Callee copied("numpy.ndarray.__copy__"), deeply("numpy.ndarray.__deepcopy__"), copy("numpy.copy");
  if ((name == copied || name == deeply) && nargs == 1 + (name == deeply) && !kwnames && IsTensor(args[0]))
    return s_.CallFramework(copy, args, 1, nullptr);  // in the order of the array, as copy.copy and copy.deepcopy do
  if (ViewsAsItIs(s_, name, args, nargs, kwnames)) return s_.CallFramework(name, args, 1, nullptr);
  if (const Meaning* m = MeaningOf(s_, name, args, nargs, kwnames)) {
    Ref means(FromModule("framejit._numpy_calls", m->function));
    if (!means || !s_.SourceOf(means.get())) return s_.Break(BreakId::kUnknownCall, name);
    Ref made(CallPython(means.get(), args, nargs, kwnames));
    return made.get() == Py_NotImplemented ? s_.Break(BreakId::kUnknownCall, name) : made.release();
  }
  if (name == callees::kPromoteTypes) return TypeQuestion(callable, args, nargs, kwnames);
  if (!function && !dispatches && !multimethod) return nullptr;
  if (name.name().starts_with("scipy.")) {
    PyObject* r = ScipyCall(name, callable, args, nargs, kwnames);
    const bool over = r || s_.broken() || PyErr_Occurred();
    return over || !multimethod ? r : s_.Break(BreakId::kUnknownCall, name);
  }
  if (!callees::IsNumpys(name)) return nullptr;
  if (name == callees::kResultType || name == callees::kCanCast) return TypeQuestion(callable, args, nargs, kwnames);
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  bool declined = false;
  if (function) {  // what NumPy makes of numbers alone is best made by its own functions
    if (s_.libraries.torch || surface::HasRow(name) || !total || !std::all_of(args, args + total, IsPrimitive))
      return nullptr;
    PyObject* r = s_.CallFramework(name, args, nargs, kwnames, &declined);
    return declined ? nullptr : r;
  }
  Ref body = BodyOf(callable);
  if (std::any_of(args, args + total, [&](PyObject* a) { return Overrides(s_, a); })) return nullptr;
  Ref array(nargs && name.Has(kSizedByData) ? ArrayOfNumbers(s_, args[0]) : Ref());
  if (s_.broken() || PyErr_Occurred()) return nullptr;
  std::vector<PyObject*> with(args, args + total);
  if (array) with[0] = array.get();
  if (!body) return array ? s_.CallFramework(name, with.data(), nargs, kwnames) : nullptr;
  const bool ruled = surface::HasNumpyDerivative(name) && !surface::HasRow(name);  // errors name the program's line
  if (Follows(s_, name, args, nargs, kwnames) && !(ruled && InTransform()) && s_.SourceOf(body.get()))
    return CallPython(body.get(), args, nargs, kwnames);
  const bool plain = name.space() == "numpy";  // below the bodies of numpy.linalg and numpy.fft are functions of C
  if (plain && !surface::HasRow(name) && !surface::HasNumpyDerivative(name) && s_.SourceOf(body.get()) && InTransform())
    return CallPython(body.get(), args, nargs, kwnames);
  PyObject* r = s_.CallFramework(name, with.data(), nargs, kwnames, &declined);
  if (!declined) return r;
  // What the graph has no node for is captured as it is written.
  return s_.SourceOf(body.get()) ? CallPython(body.get(), args, nargs, kwnames) : nullptr;
}

}  // namespace framejit::capture
