// Python arguments <-> framejit::Arg, and the one way a framework call is recorded.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "capture/callees.h"
#include "capture/gradients.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "graph/arguments.h"

namespace framejit::capture {

PyObject* TensorQuery(Session& s, PyObject* proxy, const std::string& method, PyObject* const* args, Py_ssize_t nargs,
                      PyObject* kwnames, bool* handled);

namespace {

constexpr Py_ssize_t kLongestRange = 1024;

// What the frameworks call their element types, in DType order.
constexpr const char* kDTypeText[] = {"bool",    "uint8",     "int8",       "int16",         "int32",       "int64",
                                      "uint16",  "uint32",    "uint64",     "float16",       "bfloat16",    "float32",
                                      "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "int4"};

// Of numbers, without effects: the ufuncs, which have no rows all.
bool IsNumpyFunction(Callee callee) {
  Ref function(callee.name().starts_with("numpy.") ? tensor::ResolveCallee(callee) : nullptr);
  if (!function) PyErr_Clear();
  return function && !strcmp(Py_TYPE(function.get())->tp_name, "numpy.ufunc");
}

bool AllNumbers(const Call& call) {
  return call.kwargs.empty() &&
         std::all_of(call.args.begin(), call.args.end(), [](const Arg& a) { return a.is_number(); });
}

}  // namespace

bool Session::IsNumpyNumber(PyObject* o) const {
  if (!uses_torch || IsPrimitive(o)) return false;
  const char* name = Py_TYPE(o)->tp_name;
  return PyFloat_Check(o) || !strcmp(name, "numpy.int64") || !strcmp(name, "numpy.bool");
}

bool Session::ToArg(PyObject* o, Arg* out) {
  o = Resolve(o);
  if (!o) return false;
  if (IsTensor(o)) return *out = Arg::Tensor(AsTensor(o)->id), true;
  if (o == Py_None) return *out = Arg::None(), true;
  if (PyBool_Check(o)) return *out = Arg::Bool(o == Py_True), true;
  if (IsSymInt(o)) return *out = Arg::Int(reinterpret_cast<SymInt*>(o)->expr), true;
  if (IsSymFloat(o)) return *out = Arg::Float(SpecializeFloat(reinterpret_cast<SymFloat*>(o)->symbol)), true;
  if (PyLong_CheckExact(o)) {
    int overflow;
    long long v = PyLong_AsLongLongAndOverflow(o, &overflow);
    if (overflow) return Break(BreakId::kFrameworkError, "an integer wider than 64 bits"), false;
    return *out = Arg::Int(shape::Int(static_cast<int64_t>(v))), true;
  }
  if (IsNumpyNumber(o) && !PyFloat_Check(o)) {
    numpy_integer_ = true;  // elements of their own dtype are int64 and bool in torch, too
    if (Py_TYPE(o)->tp_name[6] == 'b') return *out = Arg::Bool(PyObject_IsTrue(o) == 1), true;
    Ref number(PyNumber_Index(o));
    return number && ToArg(number.get(), out);
  }
  numpy_number_ |= IsNumpyNumber(o);
  if (PyFloat_CheckExact(o) || IsNumpyNumber(o)) return *out = Arg::Float(PyFloat_AS_DOUBLE(o)), true;
  if (PyComplex_CheckExact(o)) {
    *out = {};
    out->kind = Arg::Kind::kComplex;
    out->f = PyComplex_RealAsDouble(o), out->imag = PyComplex_ImagAsDouble(o);
    return true;
  }
  if (PyUnicode_Check(o)) {
    const char* c = PyUnicode_AsUTF8(o);
    if (!c) return false;
    return *out = Arg::Str(c), true;
  }
  if (o == Py_Ellipsis) return *out = Arg{}, out->kind = Arg::Kind::kEllipsis, true;
  if (auto d = tensor::DTypeOf(o)) {
    *out = Arg::Str(kDTypeText[static_cast<int>(*d)]);
    out->kind = Arg::Kind::kDType;
    return true;
  }
  if (PyType_Check(o)) {
    const char* text = o == (PyObject*)&PyFloat_Type  ? "float64"
                       : o == (PyObject*)&PyLong_Type ? "int64"
                       : o == (PyObject*)&PyBool_Type ? "bool"
                                                      : nullptr;
    if (text) return *out = Arg::Str(text), out->kind = Arg::Kind::kDType, true;
  }
  const char* tn = Py_TYPE(o)->tp_name;
  bool device = !strcmp(tn, "torch.device"), layout = !strcmp(tn, "torch.layout"),
       format = !strcmp(tn, "torch.memory_format");
  if (device || layout || format) {
    Ref text(PyObject_Str(o));
    const char* c = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
    if (!c) return false;
    if (!strncmp(c, "torch.", 6)) c += 6;
    *out = Arg::Str(c);
    out->kind = device ? Arg::Kind::kDevice : layout ? Arg::Kind::kLayout : Arg::Kind::kMemoryFormat;
    return true;
  }
  if (PyTuple_Check(o) || PyList_Check(o)) {
    if (!(o = Settled(o)) || !NoteContents(o)) return false;
    *out = Arg::Seq(PyTuple_Check(o) ? Arg::Kind::kTuple : Arg::Kind::kList, {});
    Origin* g = Find(o);
    const Source* s = g && g->kind == Origin::kOutside ? g->source : nullptr;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) {
      PyObject* x = PySequence_Fast_GET_ITEM(o, i);
      Py_INCREF(x);
      Ref item(s ? FromOutside(x, guards_->Child(SourceKind::kItem, s, static_cast<int>(i)), true) : Adopt(x));
      if (s) Py_DECREF(x);
      Arg a;
      if (!item || !ToArg(item.get(), &a)) return false;
      out->items.push_back(std::move(a));
    }
    return true;
  }
  if (PySlice_Check(o)) {
    auto* sl = reinterpret_cast<PySliceObject*>(o);
    *out = Arg::Seq(Arg::Kind::kSlice, std::vector<Arg>(3));
    return ToArg(sl->start, &out->items[0]) && ToArg(sl->stop, &out->items[1]) && ToArg(sl->step, &out->items[2]);
  }
  if (PyDict_CheckExact(o) && NoteContents(o)) {
    *out = Arg::Seq(Arg::Kind::kDict, {});
    PyObject *k, *v;
    Py_ssize_t pos = 0;
    while (PyDict_Next(o, &pos, &k, &v)) {
      Arg a, b;
      Py_INCREF(v);
      Ref item(Adopt(v));
      if (!item || !ToArg(k, &a) || !ToArg(item.get(), &b)) return false;
      out->items.push_back(std::move(a));
      out->items.push_back(std::move(b));
    }
    return true;
  }
  if (broken_) return false;
  if (PyRange_Check(o) && ranges_as_lists_) {
    Ref items(PySequence_List(o));
    return items && PyList_GET_SIZE(items.get()) <= kLongestRange && ToArg(MarkFresh(items.get()), out);
  }
  if (IsConstantKind(o)) {
    *out = {};
    out->kind = Arg::Kind::kObject;
    out->i = shape::Int(static_cast<int64_t>(constants_.size()));
    Py_INCREF(o);
    constants_.push_back(o);
    return true;
  }
  return Break(BreakId::kUnknownCall, std::string("an argument of type ") + tn), false;
}

PyObject* Session::FromArg(const Arg& a) {
  switch (a.kind) {
    case Arg::Kind::kTensor: return NewProxy(a.t);
    case Arg::Kind::kInt: return SymIntObject(a.i);
    case Arg::Kind::kBool: return PyBool_FromLong(a.b);
    case Arg::Kind::kFloat: return PyFloat_FromDouble(a.f);
    case Arg::Kind::kString: return PyUnicode_FromStringAndSize(a.s.data(), a.s.size());
    case Arg::Kind::kTuple:
    case Arg::Kind::kList: {
      Ref seq(a.is(Arg::Kind::kTuple) ? PyTuple_New(a.items.size()) : PyList_New(a.items.size()));
      if (!seq) return nullptr;
      for (size_t i = 0; i < a.items.size(); ++i) {
        PyObject* x = FromArg(a.items[i]);
        if (!x) return nullptr;
        if (a.is(Arg::Kind::kTuple))
          PyTuple_SET_ITEM(seq.get(), i, x);
        else
          PyList_SET_ITEM(seq.get(), i, x);
      }
      if (!a.s.empty() && a.is(Arg::Kind::kTuple)) {  // a named tuple of the framework
        Ref type(tensor::ResolveCallee(a.s));
        if (type && PyObject_HasAttrString(type.get(), "_make"))
          return MarkFresh(PyObject_CallMethod(type.get(), "_make", "(O)", seq.get()));
        if (type) return MarkFresh(PyObject_CallOneArg(type.get(), seq.get()));
        PyErr_Clear();
      }
      return MarkFresh(seq.release());
    }
    default: Py_RETURN_NONE;
  }
}

// torch's encoder leaves out, while it is compiled, what makes its padded rows zeros.
static bool AskedByEncoder() {
  PyFrameObject* frame = PyEval_GetFrame();
  if (!frame) return false;
  Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  PyObject* name = reinterpret_cast<PyCodeObject*>(code.get())->co_qualname;
  return PyUnicode_CompareWithASCIIString(name, "TransformerEncoder.forward") == 0;
}

std::optional<Arg> Session::ConstantAnswer(Callee callee) {
  switch (callee.effects().answer) {
    case Answer::kNone: return std::nullopt;
    case Answer::kNothing: return Arg::None();
    case Answer::kNo: return Arg::Bool(false);
    case Answer::kYes: break;
  }
  if (AskedByEncoder()) return Arg::Bool(false);
  asked_compiling_ = true;  // what is true is that the program is being compiled
  return Arg::Bool(options_.compiling);
}

namespace {

// NumPy's type of that name, if it is one of ours.
void NameDType(Arg* a) {
  if (!a->is(Arg::Kind::kString)) return;
  static PyObject* type = tensor::ResolveCallee("numpy.dtype");
  Ref dtype(type ? PyObject_CallFunction(type, "s", a->s.c_str()) : nullptr);
  auto d = dtype ? tensor::DTypeOf(dtype.get()) : std::nullopt;
  PyErr_Clear();
  if (!d) return;
  *a = Arg::Str(kDTypeText[static_cast<int>(*d)]);
  a->kind = Arg::Kind::kDType;
}

// The list of a few integers, one by one. Null without an exception: no.
PyObject* ListOf(Session& s, PyObject* proxy) {
  constexpr int64_t kMost = 64;
  const TensorMeta m = s.meta(AsTensor(proxy)->id);
  if (m.framework != Framework::kTorch || m.sizes.size() != 1 || !m.sizes[0].is_const() || m.sizes[0].value() > kMost ||
      !IsInteger(m.dtype) || IsBool(m.dtype))
    return nullptr;
  Ref list(PyList_New(0));
  for (int64_t i = 0; list && i < m.sizes[0].value(); ++i) {
    Ref index(PyLong_FromLongLong(i));
    PyObject* args[] = {proxy, index.get()};
    Ref one(s.CallFramework(callees::kTensorGetItem, args, 2, nullptr));
    if (!one || !IsTensor(one.get())) return nullptr;
    Ref number(s.ItemOf(AsTensor(one.get())->id, false));
    if (!number || PyList_Append(list.get(), number.get()) < 0) return nullptr;
  }
  return s.MarkFresh(list.release());
}

// NumPy's arrays among the indices of torch's tensors are tensors of their numbers. New reference; `key` itself: there
// are none; null without an exception: not of that kind.
PyObject* TorchIndex(Session& s, PyObject* key, bool alone = true) {
  if (PyTuple_CheckExact(key) && alone && !s.IsOutside(key)) {
    Ref all(PyTuple_New(PyTuple_GET_SIZE(key)));
    bool same = true;
    for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(key); ++i) {
      PyObject* one = TorchIndex(s, PyTuple_GET_ITEM(key, i), false);
      if (!one) return nullptr;
      same &= one == PyTuple_GET_ITEM(key, i);
      PyTuple_SET_ITEM(all.get(), i, one);
    }
    return same ? Py_NewRef(key) : s.MarkFresh(all.release());
  }
  key = s.Resolve(key);
  if (!key || !IsTensor(key) || s.meta(AsTensor(key)->id).framework == Framework::kTorch) return Py_XNewRef(key);
  const TensorMeta m = s.meta(AsTensor(key)->id);
  const bool mask = IsBool(m.dtype), rows = alone && m.sizes.size() > 1;  // those would be a tuple
  if (rows || m.sizes.empty() || m.read_only || !(mask || IsInteger(m.dtype)) || m.dtype == DType::kUInt8)
    return nullptr;
  Ref tensor(s.CallFramework(callees::kFromNumpy, &key, 1, nullptr));
  PyObject* of = tensor.get();
  return of && !mask && m.dtype != DType::kInt64 ? s.CallFramework(callees::kTensorLong, &of, 1, nullptr)
                                                 : tensor.release();
}

// torch.equal, torch.allclose: all elements of a comparison. Null without an error: not one of them, or not to be
// guessed.
PyObject* Comparison(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const bool torch = callee.space() == "torch" || callee.space() == "torch.Tensor";
  const bool equal = torch && callee.last() == "equal", close = torch && callee.last() == "allclose";
  if (!(equal || close) || nargs < 2 || !IsTensor(args[0]) || !IsTensor(args[1]) || s.depth == 0) return nullptr;
  const TraceTensor &a = s.trace().tensors[AsTensor(args[0])->id], &b = s.trace().tensors[AsTensor(args[1])->id];
  if (equal) {  // of the same memory it does not look at the elements
    if (a.base == b.base || (a.input >= 0 && b.input >= 0)) return nullptr;
    if (kwnames || a.meta.dtype != b.meta.dtype || a.meta.device != b.meta.device) return nullptr;
    const shape::Ints mine = a.meta.sizes, theirs = b.meta.sizes;
    if (mine.size() != theirs.size()) return Py_NewRef(Py_False);
    for (size_t d = 0; d < mine.size(); ++d)
      if (!s.env().Eq(mine[d], theirs[d])) return Py_NewRef(Py_False);
  }
  Ref same(s.CallFramework(equal ? callees::kEq : callees::kIsClose, args, nargs, kwnames));
  PyObject* one = same.get();
  Ref all(one && IsTensor(one) ? s.CallFramework(callees::kTensorAll, &one, 1, nullptr) : nullptr);
  return all ? s.ItemOf(AsTensor(all.get())->id, true) : nullptr;
}

}  // namespace

PyObject* Session::CallFramework(Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                                 bool* declined) {
  if (broken_) return Break(reason_.id);
  if (auto answer = ConstantAnswer(callee)) return FromArg(*answer);
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  if (callee == callees::kAutogradGrad && options_.derivatives) return GradientsOf(*this, args, nargs, kwnames);
  const int level = vmap.open() ? BatchLevel(*this, args, total) : 0;
  const bool layout = level && (callee.last() == "is_contiguous" || callee.last() == "stride");
  const bool member = callee.name().find(".Tensor.") != std::string::npos || callee.space() == "torch";
  if (nargs > 0 && IsTensor(args[0]) && member && !layout) {  // torch.is_floating_point(x) is x.is_floating_point()
    bool handled = false;
    PyObject* r = TensorQuery(*this, args[0], std::string(callee.last()), args + 1, nargs - 1, kwnames, &handled);
    if (handled) return r;
  }
  if (level) return CallBatched(*this, level, callee, args, nargs, kwnames);
  if (vmap.open() && NeedsVmap(*this, callee, args, nargs))
    return Break(BreakId::kUnsupportedTensor, callee + " under torch.vmap");
  const BreakId refusal = callee.effects().ends;
  const bool asks = refusal == BreakId::kTensorItem || refusal == BreakId::kTensorBool;
  if (asks && nargs == 1 && !kwnames && IsTensor(args[0]) && (callee.last() == "item" || callee.last() == "__bool__"))
    if (PyObject* guess = ItemOf(AsTensor(args[0])->id, callee.last() == "__bool__")) return guess;
  if (asks && nargs == 1 && !kwnames && IsTensor(args[0]) && callee == callees::kTensorToList) {
    if (PyObject* list = ListOf(*this, args[0])) return list;
    if (broken_) return nullptr;
  }
  if (refusal == BreakId::kTensorBool) {
    if (PyObject* truth = Comparison(*this, callee, args, nargs, kwnames)) return truth;
    if (broken_ || PyErr_Occurred()) return nullptr;
  }
  if (refusal != BreakId::kInternal) {
    if (!declined) return Break(refusal, callee);
    *declined = true;
    return nullptr;
  }
  if (nargs >= 2 && uses_numpy && (callee == callees::kTensorGetItem || callee == callees::kTensorSetItem)) {
    Ref key(TorchIndex(*this, args[1]));
    if (broken_ || PyErr_Occurred()) return nullptr;
    if (key && key.get() != args[1]) {
      PyObject* with[] = {args[0], key.get(), nargs > 2 ? args[2] : nullptr};
      return CallFramework(callee, with, nargs, kwnames, declined);
    }
  }
  if (!data_views_.empty() && total > 0 && IsTensor(args[0]) && ChangesFirst(callee) &&
      data_views_.contains(AsTensor(args[0])->id))
    return Break(BreakId::kSideEffect, "a write through tensor.data, which the tensor's version does not tell of");
  Call call;
  call.callee = callee;
  call.mode = mode;
  bool changing = false;  // it has floats that may be others in the next run
  const bool torch = FrameworkOf(callee) == Framework::kTorch;
  bool cupy = OfCupy(callee);
  const bool takes = callee.Has(kTakesFloatSymbols) && (torch || !uses_torch);
  auto to_arg = [&](PyObject* o, Arg* a, bool factor) {
    PyObject* seen = takes ? Resolve(o) : nullptr;
    if (takes && !seen) return false;
    if (!takes || !IsSymFloat(seen)) {
      if (!ToArg(o, a)) return false;
      // torch takes no dtypes of NumPy.
      PyObject* type = torch && a->is(Arg::Kind::kDType) ? Resolve(o) : nullptr;
      const bool foreign =
          type && (PyType_Check(type) ? !strncmp(reinterpret_cast<PyTypeObject*>(type)->tp_name, "numpy.", 6)
                                      : strcmp(Py_TYPE(type)->tp_name, "torch.dtype") != 0);
      return !foreign || (Break(BreakId::kFrameworkError, callee + ": a dtype of NumPy"), false);
    }
    const uint32_t symbol = reinterpret_cast<SymFloat*>(seen)->symbol;
    // torch refuses factors that its floats cannot hold
    constexpr double kMost = std::numeric_limits<float>::max();
    if (factor && !(CompareFloat(symbol, kMost, Py_LE) && CompareFloat(symbol, -kMost, Py_GE))) return ToArg(o, a);
    a->kind = Arg::Kind::kSymFloat;
    a->i = shape::Int::Symbol(symbol);
    return changing = true;
  };
  numpy_number_ = numpy_integer_ = false;
  ranges_as_lists_ = callee.Has(kTakesSequences);
  call.args.reserve(nargs);
  for (Py_ssize_t i = 0; i < nargs; ++i) {
    Arg a;
    if (!to_arg(args[i], &a, i > 1)) return nullptr;
    call.args.push_back(std::move(a));
  }
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) {
    Arg a;
    const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(kwnames, i));
    if (!torch && !strcmp(Py_TYPE(args[nargs + i])->tp_name, "_NoValueType")) continue;  // as if it was not given
    if (!name || !to_arg(args[nargs + i], &a, !strcmp(name, "alpha"))) return nullptr;
    call.kwargs.emplace_back(name, std::move(a));
  }
  if (callee == callees::kTensorNew && nargs == 2) {  // a tuple is data there, but a torch.Size the size
    PyObject* shape = Resolve(args[1]);
    if (!shape) return nullptr;
    if (IsSymbolicSize(shape) || !strcmp(Py_TYPE(shape)->tp_name, "torch.Size")) {
      const std::vector<Arg> sizes = call.args[1].items;
      if (sizes.empty()) return Break(BreakId::kUnknownCall, callee);
      call.args.pop_back();
      call.args.insert(call.args.end(), sizes.begin(), sizes.end());
    }
  }
  if (!torch) {  // "float32", "f4"
    if (callee.last() == "astype" && call.args.size() > 1) NameDType(&call.args[1]);
    for (auto& [name, a] : call.kwargs)
      if (name == "dtype") NameDType(&a);
    auto own = [](Arg& a) {  // not torch's of that name
      if (a.is(Arg::Kind::kDType) && !a.s.starts_with("numpy.")) a.s = "numpy." + a.s;
    };
    for (Arg& a : call.args) own(a);
    for (auto& [name, a] : call.kwargs) own(a);
  }
  if (numpy_number_ && callee.Has(kReadsDType) && call.args.size() < 2 &&
      std::none_of(call.kwargs.begin(), call.kwargs.end(), [](auto& k) { return k.first == "dtype"; })) {
    Arg type;  // what these calls make of NumPy's number; for others it is any number
    type.kind = Arg::Kind::kDType;
    type.s = "float64";
    call.kwargs.emplace_back("dtype", std::move(type));
  }
  if (!torch && !cupy) numpy_devices.insert(default_devices.back());
  if (!default_devices.back().empty() && callee.Has(kOnDefaultDevice) &&
      (callee.space() == "torch" || callee.space() == "torch.fft")) {
    auto at = std::find_if(call.kwargs.begin(), call.kwargs.end(), [](auto& k) { return k.first == "device"; });
    if (at == call.kwargs.end()) at = call.kwargs.emplace(at, "device", Arg::None());
    if (at->second.is(Arg::Kind::kNone)) {
      at->second = Arg::Str(default_devices.back());
      at->second.kind = Arg::Kind::kDevice;
    }
  }
  if (PyFrameObject* f = PyEval_GetFrame()) {
    Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
    if (const char* c = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code.get())->co_filename)) call.file = c;
    call.line = PyFrame_GetLineNumber(f);
  }
  if (!torch && uses_torch && AllNumbers(call) && !callee.effects().refused() &&
      (surface::HasRow(callee) || IsNumpyFunction(callee))) {  // math beside torch's tensors
    Ref function(tensor::ResolveCallee(callee));
    std::vector<Ref> numbers;
    std::vector<PyObject*> raw;
    for (Py_ssize_t i = 0; i < nargs; ++i) {
      PyObject* o = Resolve(args[i]);
      if (!o) return nullptr;
      const bool symbol = IsSymInt(o) || IsSymFloat(o);
      numbers.emplace_back(!symbol ? Py_NewRef(o) : IsSymInt(o) ? PyNumber_Long(o) : PyNumber_Float(o));
      if (!numbers.back()) return nullptr;
      raw.push_back(numbers.back().get());
    }
    Ref value(function ? PyObject_Vectorcall(function.get(), raw.data(), nargs, nullptr) : nullptr);
    if (!value || tensor::Classify(value.get()) != tensor::Class::kNumpyArray) return Adopt(value.release());
  }
  if (!torch && !cupy) {  // NumPy's functions hand CuPy's arrays to CuPy
    EachTensor(call, [&](TraceId t) { cupy |= meta(t).device.kind == DeviceKind::kCuda; });
  }
  if (!torch &&
      (numpy_number_ || numpy_integer_))  // a value and not a tensor here, but one whose type counts for NumPy
    return Break(BreakId::kUnsupportedTensor, "a number of NumPy's and arrays beside torch's tensors");
  const bool cuda = torch && std::any_of(call.args.begin(), call.args.end(), [&](const Arg& a) {
                      return a.is(Arg::Kind::kTensor) && meta(a.t).device.kind == DeviceKind::kCuda;
                    });
  if (torch ? !SwitchesFit(callee, cuda) : !cupy && !NoteNumpyState()) return nullptr;
  if (!UseLibrary(torch ? Library::kTorch : cupy ? Library::kCupy : Library::kNumpy)) return nullptr;
  try {
    bool done = false;
    if (changing) {
      Call as_made = call;
      try {
        ApplyByData(call);
        done = true;
      } catch (const surface::Decline&) {  // with the number that it is now
        call = std::move(as_made);
        auto fix = [&](Arg& a) {
          if (a.is(Arg::Kind::kSymFloat)) a = Arg::Float(SpecializeFloat(*a.i.as_symbol()));
        };
        for (Arg& a : call.args) fix(a);
        for (auto& [name, a] : call.kwargs) fix(a);
      }
    }
    if (!done && !SizesAmong(call).empty()) {
      Call as_made = call;
      try {
        ApplyByData(call);
        done = true;
      } catch (const surface::Decline&) {
        call = std::move(as_made);
        if (!GuessSizes(&call)) return Break(BreakId::kTensorItem, callee);
      }
    }
    if (!done) ApplyByData(call);
  } catch (const surface::Decline& d) {
    if (declined) {
      *declined = true;
      return nullptr;
    }
    mixes_casts |= d.cause == surface::Decline::Cause::kMixedCasts;
    const bool data = d.cause == surface::Decline::Cause::kData;
    return Break(data ? BreakId::kDataDependent : BreakId::kFrameworkError, callee + ": " + d.what());
  } catch (const std::exception& e) {
    return Break(BreakId::kInternal, callee + ": " + e.what());
  }
  ++op_count;
  const bool data = callee == callees::kTensorData;
  if (data || !data_views_.empty())
    for (TraceId r : call.results)
      EachTensor(call, [&](TraceId t) {
        if ((data || data_views_.contains(t)) && trace_.tensors[r].base == trace_.tensors[t].base)
          data_views_.insert(r);
      });
  return FromArg(call.result);
}

}  // namespace framejit::capture
