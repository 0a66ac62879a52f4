// This file has the Python floats that change between calls. Arithmetic on them is noted and done before each run.
// Comparisons of floats from outside are guarded by their answer. Anything else happens on the number itself, which is
// then guarded.
#include <algorithm>
#include <cmath>
#include <optional>

#include "capture/callees.h"
#include "capture/numbers/number_slots.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "tensor/told_once.h"

namespace framejit::capture {
namespace {

SymFloat* As(PyObject* o) {
  return reinterpret_cast<SymFloat*>(o);
}

// The number that Python's float arithmetic sees.
std::optional<double> Number(PyObject* o) {
  if (PyFloat_CheckExact(o)) return PyFloat_AS_DOUBLE(o);
  if (!PyLong_CheckExact(o) && !PyBool_Check(o)) return std::nullopt;
  const double d = PyLong_AsDouble(o);
  if (d == -1 && PyErr_Occurred()) return PyErr_Clear(), std::nullopt;
  constexpr double kExact = int64_t{1} << 53;  // beyond it Python divides integers with more digits
  return std::fabs(d) <= kExact ? std::optional(d) : std::nullopt;
}

bool Operand(Session* s, PyObject* o, int64_t* symbol, double* number) {
  if (IsSymFloat(o)) return *symbol = As(o)->symbol, true;
  if (IsSymInt(o)) {
    auto known = s->numbers().OfInt(reinterpret_cast<SymInt*>(o)->expr);
    if (known) *symbol = *known;
    return known.has_value();
  }
  auto d = Number(o);
  if (d) *number = *d;
  return d.has_value();
}

template <char kOp, binaryfunc kF>
PyObject* Binary(PyObject* a, PyObject* b) {
  if (IsTensor(a) || IsTensor(b)) Py_RETURN_NOTIMPLEMENTED;
  return OnFloats(kOp, a, b, kF);
}
PyObject* Power(PyObject* a, PyObject* b, PyObject* m) {
  if (IsTensor(a) || IsTensor(b)) Py_RETURN_NOTIMPLEMENTED;
  PyObject* r = m == Py_None ? FloatBinary('^', a, b) : nullptr;
  if (r || PyErr_Occurred()) return r;
  Ref x(Concrete(a)), y(Concrete(b));
  return x && y ? PyNumber_Power(x.get(), y.get(), m) : nullptr;
}
template <char kOp>
PyObject* Unary(PyObject* a) {
  Session* s = LiveNumber(a);
  if (!s) return nullptr;
  FloatOp op;
  op.op = kOp;
  op.a = As(a)->symbol;
  return s->SymFloatObject(op);  // always a float
}
int Bool(PyObject* a) {
  Session* s = LiveNumber(a);
  return s ? s->numbers().Compare(As(a)->symbol, 0.0, Py_NE) : -1;
}
PyObject* Compare(PyObject* a, PyObject* b, int op) {
  if (IsTensor(b) || b == Py_None) Py_RETURN_NOTIMPLEMENTED;
  Session* s = LiveNumber(a);
  if (!s) return nullptr;
  if (PyFloat_CheckExact(b)) return PyBool_FromLong(s->numbers().Compare(As(a)->symbol, PyFloat_AS_DOUBLE(b), op));
  constexpr long kExact = 1L << 53;
  if (PyLong_CheckExact(b)) {
    int overflow;
    const long v = PyLong_AsLongAndOverflow(b, &overflow);
    if (!overflow && v >= -kExact && v <= kExact)
      return PyBool_FromLong(s->numbers().Compare(As(a)->symbol, static_cast<double>(v), op));
  }
  return CompareConcrete(a, b, op);
}
PyObject* Positive(PyObject* a) {
  return Py_NewRef(a);
}

PyNumberMethods number = {
    .nb_add = Binary<'+', PyNumber_Add>,
    .nb_subtract = Binary<'-', PyNumber_Subtract>,
    .nb_multiply = Binary<'*', PyNumber_Multiply>,
    .nb_remainder = Other<PyNumber_Remainder>,
    .nb_divmod = Other<PyNumber_Divmod>,
    .nb_power = Power,
    .nb_negative = Unary<'n'>,
    .nb_positive = Positive,
    .nb_absolute = Unary<'a'>,
    .nb_bool = Bool,
    .nb_int = Converted<PyNumber_Long>,
    .nb_float = Converted<PyNumber_Float>,
    .nb_floor_divide = Other<PyNumber_FloorDivide>,
    .nb_true_divide = Binary<'/', PyNumber_TrueDivide>,
};

// Would float() of this tensor warn in each run?
bool WarnsOfFloat(Session& s, PyObject* tensor) {
  const TensorMeta& m = s.meta(AsTensor(tensor)->id);
  if (m.framework != Framework::kTorch || !m.requires_grad || !s.modes.now.grad) return false;
  SuspendScope off;
  return !tensor::FloatsAreTold();
}

}  // namespace

PyTypeObject SymFloatType = NumberType("float", sizeof(SymFloat), &number, Compare);

PyObject* OnFloats(char kind, PyObject* a, PyObject* b, binaryfunc f) {
  PyObject* r = FloatBinary(kind, a, b);
  if (r || PyErr_Occurred()) return r;
  Ref x(FloatOfCount(a)), y(PyErr_Occurred() ? nullptr : FloatOfCount(b));
  if (PyErr_Occurred()) return nullptr;
  return x || y ? f(x ? x.get() : a, y ? y.get() : b) : OnNumbers(a, b, f);
}

PyObject* FloatBinary(char kind, PyObject* a, PyObject* b) {
  Session* s = LiveNumber(IsSymFloat(a) || IsSymInt(a) ? a : b);
  FloatOp op;
  op.op = kind;
  if (!s || !s->options().dynamic_floats || !Operand(s, a, &op.a, &op.x) || !Operand(s, b, &op.b, &op.y))
    return nullptr;
  return s->SymFloatObject(op);
}

// A number of NumPy's beside torch's tensors: one that was drawn is found where the draws are, another one is what a
// tensor of it holds. Null: it is none of these, or there was a Break.
static Ref NumberIn(Session& s, PyObject* o) {
  const TensorMeta m = s.meta(AsTensor(o)->id);
  if (!m.is_scalar || !s.libraries.torch || !(m.dtype == DType::kFloat64 || m.dtype == DType::kInt64)) return {};
  Ref drawn(s.draws.ItemOf(s, o));
  if (drawn || s.broken() || PyErr_Occurred()) return drawn;
  static const Callee array("numpy.array");
  Ref held(s.CallFramework(array, &o, 1, nullptr));
  PyObject* one = held.get();
  return held ? Ref(s.CallFramework(callees::kFromNumpy, &one, 1, nullptr)) : Ref();
}

PyObject* FloatOf(PyObject* number) {
  if (IsSymFloat(number) || IsItemFloat(number)) return Py_NewRef(number);
  if (IsTensor(number)) {
    Session* s = AsTensor(number)->session;
    if (s && s == Session::Current() && s->meta(AsTensor(number)->id).framework == Framework::kNumpy) {
      Ref in(AsEver(*s, number, "__float__") ? NumberIn(*s, number) : Ref());
      return in && PyFloat_CheckExact(in.get()) ? in.release() : in ? FloatOf(in.get()) : nullptr;
    }
    return s && s == Session::Current() && AsEver(*s, number, "__float__") && !WarnsOfFloat(*s, number)
               ? NewItemFloat(*s, number)
               : nullptr;
  }
  Session* s = IsSymInt(number) ? LiveNumber(number) : nullptr;
  if (!s) return nullptr;
  auto known = s->options().dynamic_floats ? s->numbers().OfInt(reinterpret_cast<SymInt*>(number)->expr) : std::nullopt;
  return known ? NewSymFloat(s, *known) : FloatOfCount(number);
}

PyObject* RoundedToInt(PyObject* number, bool up) {
  if (IsSymInt(number)) return Py_NewRef(number);
  Session* s = LiveNumber(number);
  auto n = s ? s->numbers().Rounded(As(number)->symbol, up) : std::nullopt;
  return n ? s->SymIntObject(*n) : nullptr;
}

PyObject* IntOf(PyObject* number) {
  if (IsSymInt(number) || IsSymFloat(number)) return RoundedToInt(number, false);
  if (IsItemFloat(number)) return IntOfItem(number);
  if (!IsTensor(number)) return nullptr;
  Session* s = AsTensor(number)->session;
  if (!s || s != Session::Current() || !AsEver(*s, number, "__int__")) return nullptr;
  const TensorMeta m = s->meta(AsTensor(number)->id);
  if (m.framework == Framework::kNumpy) {
    Ref in(NumberIn(*s, number));
    if (!in || PyLong_CheckExact(in.get())) return in.release();
    PyObject* n = IntOf(in.get());
    return n || !IsSymFloat(in.get()) || PyErr_Occurred() ? n : PyNumber_Long(in.get());  // of this value alone
  }
  if (m.framework != Framework::kTorch || IsBool(m.dtype)) return nullptr;
  if (IsInteger(m.dtype)) return s->data_sizes().ItemOf(AsTensor(number)->id, false);
  Ref item(IsFloat(m.dtype) ? NewItemFloat(*s, number) : nullptr);
  return item ? IntOfItem(item.get()) : nullptr;
}

PyObject* FloatFunction(std::string_view name, PyObject* a) {
  // What `math` calls, and nothing else, where it raises no error.
  static constexpr std::pair<std::string_view, double (*)(double)> kFunctions[] = {
      {"acos", std::acos}, {"asin", std::asin}, {"atan", std::atan}, {"cos", std::cos},     {"cosh", std::cosh},
      {"exp", std::exp},   {"fabs", std::fabs}, {"log", std::log},   {"log10", std::log10}, {"log2", std::log2},
      {"sin", std::sin},   {"sinh", std::sinh}, {"sqrt", std::sqrt}, {"tan", std::tan},     {"tanh", std::tanh}};
  const auto* at = std::find_if(std::begin(kFunctions), std::end(kFunctions), [&](auto& f) { return f.first == name; });
  Session* s = at == std::end(kFunctions) ? nullptr : LiveNumber(a);
  FloatOp op;
  op.op = 'f';
  if (name == "floor" || name == "ceil" || name == "trunc") return RoundedToInt(a, name == "ceil");
  if (!s || !s->options().dynamic_floats || !Operand(s, a, &op.a, &op.x)) return nullptr;
  op.function = at->second;
  return s->SymFloatObject(op);
}

PyObject* NewSymFloat(Session* s, uint32_t symbol, const guard::Source* source) {
  auto* p = PyObject_New(SymFloat, &SymFloatType);
  if (p) p->session = s, p->symbol = symbol, p->source = source;
  return reinterpret_cast<PyObject*>(p);
}

}  // namespace framejit::capture
