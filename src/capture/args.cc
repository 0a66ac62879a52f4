// Turns Python arguments into framejit::Arg and back.
#include <cstring>
#include <string_view>

#include "capture/arg_reader.h"
#include "capture/proxy.h"
#include "tensor/torch_api.h"

namespace framejit::capture {
namespace {

constexpr Py_ssize_t kLongestRange = 1024;

// Is it a numpy.float32 that is a number beside torch's tensors, as Python's floats become tensors of its type? Zeros,
// whose signs no guard tells apart, are not, and neither is what is no number.
bool IsFloat32(PyObject* o) {
  constexpr int8_t kFloat = 6;  // c10::ScalarType
  if (std::string_view(Py_TYPE(o)->tp_name) != "numpy.float32" || tensor::Classify(o) != tensor::Class::kNumpyScalar)
    return false;
  const tensor::TorchApi* t = tensor::Torch();
  const double value = PyFloat_AsDouble(o);
  return t && t->default_dtype && t->default_dtype() == kFloat && value != 0 && value == value;
}

bool SetText(Arg* out, Arg::Kind kind, const char* text) {
  *out = Arg::Str(text);
  out->kind = kind;
  return true;
}

}  // namespace

const char* NameOfDType(DType t) {
  static constexpr const char* kNames[] = {
      "bool",    "uint8",    "int8",    "int16",   "int32",     "int64",      "uint16",        "uint32",      "uint64",
      "float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "int4"};
  return kNames[static_cast<int>(t)];
}

std::optional<bool> ArgReader::Number(PyObject* o, Arg* out) {
  if (PyBool_Check(o)) return *out = Arg::Bool(o == Py_True), true;
  if (IsSymInt(o)) return *out = Arg::Int(reinterpret_cast<SymInt*>(o)->expr), true;
  if (IsSymFloat(o)) return *out = Arg::Float(s_.numbers().Specialize(reinterpret_cast<SymFloat*>(o)->symbol)), true;
  if (PyLong_CheckExact(o)) {
    int overflow;
    long long v = PyLong_AsLongLongAndOverflow(o, &overflow);
    if (overflow) return s_.Break(BreakId::kFrameworkError, "an integer wider than 64 bits"), false;
    return *out = Arg::Int(shape::Int(static_cast<int64_t>(v))), true;
  }
  // A member of an IntEnum, say: torch reads its number, and asks for a float where it wants one.
  if (PyLong_Check(o) && Py_TYPE(o)->tp_as_number->nb_float == PyLong_Type.tp_as_number->nb_float) {
    int_of_class_ = true;
    Ref number(_PyLong_Copy(reinterpret_cast<PyLongObject*>(o)));
    return number && s_.Pin(o) && Read(number.get(), out);
  }
  if (s_.IsNumpyNumber(o) && !PyFloat_Check(o)) {
    numpy_integer_ = true;  // elements of their own dtype are int64, float32 and bool in torch, too
    if (IsFloat32(o)) return numpy_single_ = true, *out = Arg::Float(PyFloat_AsDouble(o)), true;
    if (OfType(o, CType::kNumpyBool)) return numpy_bool_ = true, *out = Arg::Bool(PyObject_IsTrue(o) == 1), true;
    Ref number(PyNumber_Index(o));
    return number && Read(number.get(), out);
  }
  numpy_number_ |= s_.IsNumpyNumber(o);
  if (PyFloat_CheckExact(o) || s_.IsNumpyNumber(o)) return *out = Arg::Float(PyFloat_AS_DOUBLE(o)), true;
  if (!PyComplex_CheckExact(o)) return {};
  *out = {};
  out->kind = Arg::Kind::kComplex;
  out->f = PyComplex_RealAsDouble(o), out->imag = PyComplex_ImagAsDouble(o);
  return true;
}

// numpy._CopyMode, a class of Python's, says what True, False and, since NumPy 2.0, None say.
static PyObject* AsCopyMode(PyObject* o) {
  if (strcmp(Py_TYPE(o)->tp_name, "_CopyMode")) return nullptr;
  static auto* modes = new tensor::Named("numpy._CopyMode");
  if (modes->Get() != reinterpret_cast<PyObject*>(Py_TYPE(o))) return nullptr;
  Ref value(PyObject_GetAttrString(o, "_value_"));
  if (!value) return PyErr_Clear(), nullptr;
  return PyBool_Check(value.get()) ? value.get() : Py_None;
}

std::optional<bool> ArgReader::Description(PyObject* o, Arg* out) {
  if (PyObject* mode = AsCopyMode(o)) return s_.Pin(o) && Read(mode, out);
  if (auto d = tensor::DTypeOf(o)) return SetText(out, Arg::Kind::kDType, NameOfDType(*d));
  if (PyType_Check(o)) {
    const char* text = o == (PyObject*)&PyFloat_Type  ? "float64"
                       : o == (PyObject*)&PyLong_Type ? "int64"
                       : o == (PyObject*)&PyBool_Type ? "bool"
                                                      : nullptr;
    if (text) return SetText(out, Arg::Kind::kDType, text);
  }
  const CType type = FactsOf(Py_TYPE(o)).type;
  const Arg::Kind kind = type == CType::kTorchDevice         ? Arg::Kind::kDevice
                         : type == CType::kTorchLayout       ? Arg::Kind::kLayout
                         : type == CType::kTorchMemoryFormat ? Arg::Kind::kMemoryFormat
                                                             : Arg::Kind::kNone;
  if (kind == Arg::Kind::kNone) return {};
  Ref text(PyObject_Str(o));
  const char* c = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (!c) return false;
  constexpr std::string_view kModule = "torch.";
  return SetText(out, kind, std::string_view(c).starts_with(kModule) ? c + kModule.size() : c);
}

bool ArgReader::Sequence(PyObject* o, Arg* out) {
  if (!(o = s_.Settled(o)) || !s_.NoteContents(o)) return false;
  *out = Arg::Seq(PyTuple_Check(o) ? Arg::Kind::kTuple : Arg::Kind::kList, {});
  Origin* g = s_.Find(o);
  const Source* source = g && g->kind == Origin::kOutside ? g->source : nullptr;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) {
    PyObject* x = PySequence_Fast_GET_ITEM(o, i);
    Py_INCREF(x);
    Ref item(source ? s_.FromOutside(x, s_.guards().Child(SourceKind::kItem, source, static_cast<int>(i)), true)
                    : s_.Adopt(x));
    if (source) Py_DECREF(x);
    Arg a;
    if (!item || !Read(item.get(), &a)) return false;
    out->items.push_back(std::move(a));
  }
  return true;
}

bool ArgReader::Dict(PyObject* o, Arg* out) {
  *out = Arg::Seq(Arg::Kind::kDict, {});
  PyObject *k, *v;
  Py_ssize_t pos = 0;
  while (PyDict_Next(o, &pos, &k, &v)) {
    Arg a, b;
    Py_INCREF(v);
    Ref item(s_.Adopt(v));
    if (!item || !Read(k, &a) || !Read(item.get(), &b)) return false;
    out->items.push_back(std::move(a));
    out->items.push_back(std::move(b));
  }
  return true;
}

std::optional<bool> ArgReader::Container(PyObject* o, Arg* out) {
  if (PyTuple_Check(o) || PyList_Check(o)) return Sequence(o, out);
  if (PySlice_Check(o)) {
    auto* sl = reinterpret_cast<PySliceObject*>(o);
    *out = Arg::Seq(Arg::Kind::kSlice, std::vector<Arg>(3));
    return Read(sl->start, &out->items[0]) && Read(sl->stop, &out->items[1]) && Read(sl->step, &out->items[2]);
  }
  if (PyDict_CheckExact(o) && s_.NoteContents(o)) return Dict(o, out);
  if (s_.broken()) return false;
  if (!PyRange_Check(o) || !ranges_as_lists_) return {};
  Ref items(PySequence_List(o));
  return items && PyList_GET_SIZE(items.get()) <= kLongestRange && Read(s_.MarkFresh(items.get()), out);
}

bool ArgReader::Read(PyObject* o, Arg* out) {
  o = s_.Resolve(o);
  if (!o) return false;
  if (IsTensor(o)) return *out = Arg::Tensor(AsTensor(o)->id), true;
  if (o == Py_None) return *out = Arg::None(), true;
  if (auto read = Number(o, out)) return *read;
  if (PyUnicode_Check(o)) {
    const char* c = PyUnicode_AsUTF8(o);
    if (!c) return false;
    return *out = Arg::Str(c), true;
  }
  if (o == Py_Ellipsis) return *out = Arg{}, out->kind = Arg::Kind::kEllipsis, true;
  if (auto read = Description(o, out)) return *read;
  if (auto read = Container(o, out)) return *read;
  if (!IsConstantKind(o))
    return s_.Break(BreakId::kUnknownCall, std::string("an argument of type ") + Py_TYPE(o)->tp_name), false;
  *out = {};
  out->kind = Arg::Kind::kObject;
  out->i = shape::Int(static_cast<int64_t>(s_.constants().size()));
  s_.constants().push_back(Py_NewRef(o));
  return true;
}

bool Session::IsNumpyNumber(PyObject* o) const {
  if (!libraries.torch || IsPrimitive(o)) return false;
  return PyFloat_Check(o) || OfType(o, CType::kNumpyInt64) || OfType(o, CType::kNumpyBool) || IsFloat32(o);
}

bool Session::ToArg(PyObject* o, Arg* out) {
  return ArgReader(*this).Read(o, out);
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
    case Arg::Kind::kSlice: {
      Ref bounds[3];
      for (int i = 0; i < 3; ++i)
        if (!(bounds[i] = Ref(FromArg(a.items[i])))) return nullptr;
      return MarkFresh(PySlice_New(bounds[0].get(), bounds[1].get(), bounds[2].get()));
    }
    case Arg::Kind::kEllipsis: return Py_NewRef(Py_Ellipsis);
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

}  // namespace framejit::capture
