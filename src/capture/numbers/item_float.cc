// This file has the Python floats that tensors hold: what .item() and float() of a tensor give. In the graph such a
// number is a tensor of one float64, and Python's arithmetic on it is the graph's. Where the number goes back into an
// operation on tensors it never leaves the graph. What does leave it is read behind the run. Any other use of the
// number ends the capture there.
#include <initializer_list>
#include <limits>
#include <optional>
#include <utility>

#include "capture/callees.h"
#include "capture/checkpoint.h"
#include "capture/numbers/number_slots.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "surface/promote.h"

namespace framejit::capture {
namespace {

struct ItemFloat {
  PyObject_HEAD Session* session;
  PyObject* tensor;  // borrowed: the session keeps its proxies
};

ItemFloat* As(PyObject* o) {
  return reinterpret_cast<ItemFloat*>(o);
}

Session* Live(PyObject* o) {
  return Live(As(o)->session, "number");
}

std::nullptr_t Ask(PyObject* o) {
  Session* s = Live(o);
  return s ? s->Break(BreakId::kTensorItem, "a number that a tensor holds") : nullptr;
}

// A call that gradients do not see, and whose result may be read where they are on again.
PyObject* Made(Session& s, Callee callee, std::initializer_list<PyObject*> args) {
  const bool grad = std::exchange(s.modes.now.grad, false);
  const bool inference = std::exchange(s.modes.now.inference, false);
  PyObject* r = s.CallFramework(callee, args.begin(), static_cast<Py_ssize_t>(args.size()), nullptr);
  s.modes.now.grad = grad;
  s.modes.now.inference = inference;
  return r;
}

PyObject* Of(Session& s, PyObject* tensor) {  // steals
  if (!tensor) return nullptr;
  s.Keep(tensor);
  auto* p = PyObject_New(ItemFloat, &ItemFloatType);
  if (!p) return nullptr;
  p->session = &s;
  p->tensor = tensor;
  return s.MarkFresh(reinterpret_cast<PyObject*>(p));
}

// Can it be an operand of the framework with the value that Python's float arithmetic sees? An integer can if it is
// exactly a float.
bool IsOperand(PyObject* o) {
  if (IsItemFloat(o) || PyFloat_CheckExact(o) || IsSymFloat(o) || PyBool_Check(o)) return true;
  int overflow;
  constexpr long kExact = 1L << 53;
  const long v = PyLong_CheckExact(o) ? PyLong_AsLongAndOverflow(o, &overflow) : -1;
  return PyLong_CheckExact(o) && !overflow && v >= -kExact && v <= kExact;
}

// The float that Python makes of an integer that changes, as a tensor. Null without an error: it may not be one.
PyObject* Filled(Session& s, SymInt* n) {
  constexpr int64_t kExact = int64_t{1} << 53;  // beyond it Python divides integers with more digits
  if (!s.env().Le(-kExact, n->expr) || !s.env().Le(n->expr, kExact)) return nullptr;
  static const Callee full("torch.full");
  static PyObject *const names = Py_BuildValue("(ss)", "dtype", "device"), *const cpu = PyUnicode_FromString("cpu"),
                         *const dtype = tensor::ResolveCallee("torch.float64");
  Ref size(s.MarkFresh(PyTuple_New(0)));
  if (!size || !names || !cpu || !dtype) return nullptr;
  PyObject* args[] = {size.get(), reinterpret_cast<PyObject*>(n), dtype, cpu};
  return Of(s, s.CallFramework(full, args, 2, names));
}

// An integer that changes, beside such a number.
Ref WithFloats(Session& s, PyObject* o) {
  return IsSymInt(o) ? Ref(Filled(s, reinterpret_cast<SymInt*>(o))) : Borrow(o);
}

PyObject* Operand(PyObject* o) {
  return IsItemFloat(o) ? As(o)->tensor : o;
}

// Gives the operand as a tensor that can stand at the left, as a new reference.
PyObject* AsLeft(Session& s, PyObject* o, PyObject* other) {
  if (IsItemFloat(o)) return Py_NewRef(As(o)->tensor);
  static const Callee full("torch.Tensor.new_full");
  Ref size(s.MarkFresh(PyTuple_New(0))), number(PyBool_Check(o) ? PyNumber_Float(o) : Py_NewRef(o));
  return size && number ? Made(s, full, {As(other)->tensor, size.get(), number.get()}) : nullptr;
}

constexpr const char *kAdd = "torch.Tensor.add", *kSub = "torch.Tensor.sub", *kMul = "torch.Tensor.mul",
                     *kDiv = "torch.Tensor.div", *kNeg = "torch.Tensor.neg", *kPow = "torch.Tensor.pow",
                     *kAbs = "torch.Tensor.abs";

template <const char* const* kName>
PyObject* Binary(PyObject* a, PyObject* b) {
  if (IsTensor(a) || IsTensor(b)) Py_RETURN_NOTIMPLEMENTED;
  PyObject* item = IsItemFloat(a) ? a : b;
  Session* s = Live(item);
  if (!s) return nullptr;
  Ref x = WithFloats(*s, a), y = WithFloats(*s, b);
  if (PyErr_Occurred() || s->broken()) return nullptr;
  if (!x || !y || !IsOperand(x.get()) || !IsOperand(y.get())) return Ask(item);
  Ref left(AsLeft(*s, x.get(), item));
  return left ? Of(*s, Made(*s, Callee(*kName), {left.get(), Operand(y.get())})) : nullptr;
}

// A truth that is taken for granted and checked, or ends the capture.
int Truth(Session& s, PyObject* tensor, bool raises) {  // steals
  Ref held(tensor);
  if (!held) return -1;
  Ref guess(s.guessing().Value(AsTensor(tensor)->id, true, raises));
  if (!guess && !PyErr_Occurred()) s.Break(BreakId::kTensorBool, "a number that a tensor holds");
  return guess ? guess.get() == Py_True : -1;
}

int Compared(Session& s, PyObject* a, PyObject* b, int op, bool raises = false) {  // a: an ItemFloat
  static const Callee callees[] = {Callee("torch.Tensor.lt"), Callee("torch.Tensor.le"), Callee("torch.Tensor.eq"),
                                   Callee("torch.Tensor.ne"), Callee("torch.Tensor.gt"), Callee("torch.Tensor.ge")};
  return Truth(s, Made(s, callees[op], {As(a)->tensor, Operand(b)}), raises);
}

int IsNotZero(PyObject* a, bool raises) {
  Session* s = Live(a);
  Ref zero(PyFloat_FromDouble(0));
  return s && zero ? Compared(*s, a, zero.get(), Py_NE, raises) : -1;
}

int Bool(PyObject* a) {
  return IsNotZero(a, false);
}

// Python raises where it divides by zero.
PyObject* Divide(PyObject* a, PyObject* b) {
  if (IsTensor(a) || IsTensor(b)) Py_RETURN_NOTIMPLEMENTED;
  if (IsItemFloat(b)) {
    const int truth = IsNotZero(b, true);
    if (truth <= 0) return truth ? nullptr : Ask(b);
  } else if (!PyFloat_CheckExact(b) && !PyLong_CheckExact(b) && !IsSymInt(b)) {
    return Ask(IsItemFloat(a) ? a : b);
  } else if (PyObject_IsTrue(b) != 1) {
    return Ask(a);
  }
  return Binary<&kDiv>(a, b);
}

template <const char* const* kName>
PyObject* Unary(PyObject* a) {
  Session* s = Live(a);
  return s ? Of(*s, Made(*s, Callee(*kName), {As(a)->tensor})) : nullptr;
}

PyObject* Compare(PyObject* a, PyObject* b, int op) {
  if (IsTensor(b) || b == Py_None) Py_RETURN_NOTIMPLEMENTED;
  Session* s = Live(a);
  if (!s) return nullptr;
  Ref other = WithFloats(*s, b);
  if (PyErr_Occurred() || s->broken()) return nullptr;
  if (!other || !IsOperand(other.get())) return Ask(a);
  const int r = Compared(*s, a, other.get(), op);
  return r < 0 ? nullptr : PyBool_FromLong(r);
}

PyObject* NeededOfTwo(PyObject* a, PyObject* b) {
  if (IsTensor(a) || IsTensor(b)) Py_RETURN_NOTIMPLEMENTED;
  return Ask(IsItemFloat(a) ? a : b);
}
// Python raises where a power is too large or of zero, and makes a complex number of one of a negative number: of what
// is above zero, and finite, it is a float.
PyObject* Power(PyObject* a, PyObject* b, PyObject* modulus) {
  if (IsTensor(a) || IsTensor(b)) Py_RETURN_NOTIMPLEMENTED;
  PyObject* item = IsItemFloat(a) ? a : b;
  Session* s = Live(item);
  if (!s) return nullptr;
  if (modulus != Py_None || !IsOperand(a) || !IsOperand(b) || IsSymFloat(a) || IsSymFloat(b)) return Ask(item);
  Ref zero(PyFloat_FromDouble(0)), most(PyFloat_FromDouble(std::numeric_limits<double>::max()));
  if (!zero || !most) return nullptr;
  const int above =
      IsItemFloat(a) ? Compared(*s, a, zero.get(), Py_GT, true) : PyObject_RichCompareBool(a, zero.get(), Py_GT);
  if (above <= 0) return above ? nullptr : Ask(item);
  // With a number as its exponent the framework multiplies (x * x * x), which rounds otherwise than C's pow.
  Ref left(AsLeft(*s, a, item)), right(AsLeft(*s, b, item));
  Ref power(left && right ? Of(*s, Made(*s, Callee(kPow), {left.get(), right.get()})) : nullptr);
  const int finite = power ? Compared(*s, power.get(), most.get(), Py_LE, true) : -1;
  return finite > 0 ? power.release() : finite ? nullptr : Ask(item);
}
PyObject* Positive(PyObject* a) {
  return Py_NewRef(a);
}
PyObject* GetAttr(PyObject* a, PyObject* name) {
  if (PyUnicode_CompareWithASCIIString(name, "__class__") == 0)
    return Py_NewRef(reinterpret_cast<PyObject*>(&PyFloat_Type));
  return Ask(a);
}

constexpr const char *kCeil = "torch.Tensor.ceil", *kFloor = "torch.Tensor.floor", *kRound = "torch.Tensor.round";

// math.ceil(x), math.floor(x), round(x): the integer that int() makes of what is rounded.
template <const char* const* kName>
PyObject* Rounded(PyObject* a, PyObject* digits) {
  if (PyTuple_GET_SIZE(digits) && PyTuple_GET_ITEM(digits, 0) != Py_None) return Ask(a);
  Ref whole(Unary<kName>(a));
  return whole ? IntOfItem(whole.get()) : nullptr;
}
PyObject* Truncated(PyObject* a, PyObject*) {
  return IntOfItem(a);
}

using Needed = Asks<Ask>;
PyMethodDef methods[] = {{"__format__", Needed::Binary, METH_VARARGS, nullptr},
                         {"__round__", Rounded<&kRound>, METH_VARARGS, nullptr},
                         {"__trunc__", Truncated, METH_NOARGS, nullptr},
                         {"__floor__", Rounded<&kFloor>, METH_VARARGS, nullptr},
                         {"__ceil__", Rounded<&kCeil>, METH_VARARGS, nullptr},
                         {"__reduce_ex__", Needed::Binary, METH_VARARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyNumberMethods number = {
    .nb_add = Binary<&kAdd>,
    .nb_subtract = Binary<&kSub>,
    .nb_multiply = Binary<&kMul>,
    .nb_remainder = NeededOfTwo,
    .nb_divmod = NeededOfTwo,
    .nb_power = Power,
    .nb_negative = Unary<&kNeg>,
    .nb_positive = Positive,
    .nb_absolute = Unary<&kAbs>,
    .nb_bool = Bool,
    .nb_int = Needed::Unary,
    .nb_float = Needed::Unary,
    .nb_floor_divide = NeededOfTwo,
    .nb_true_divide = Divide,
};

}  // namespace

PyTypeObject ItemFloatType = {
    .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
    .tp_name = "float",
    .tp_basicsize = sizeof(ItemFloat),
    .tp_dealloc = FreeStandIn,
    .tp_repr = Needed::Unary,
    .tp_as_number = &number,
    .tp_hash = Needed::Hash,
    .tp_str = Needed::Unary,
    .tp_getattro = GetAttr,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_richcompare = Compare,
    .tp_methods = methods,
};

TraceId TensorOfItem(PyObject* item) {
  return AsTensor(As(item)->tensor)->id;
}

PyObject* NewItemFloat(Session& s, PyObject* proxy) {
  const TensorMeta m = s.meta(AsTensor(proxy)->id);
  if (m.framework != Framework::kTorch || IsComplex(m.dtype) || s.vmap.open() || m.device.kind == DeviceKind::kMeta ||
      (s.lowering().IsHidden(AsTensor(proxy)->id) && !s.in_custom))
    return nullptr;
  for (shape::Int n : m.sizes)
    if (!(n == shape::Int(1))) return nullptr;
  LeaveCheckpoints("a number that a tensor holds");
  static const Callee reshape("torch.Tensor.reshape");
  Ref at(Made(s, callees::kTensorDetach, {proxy})), shape(s.MarkFresh(PyTuple_New(0)));
  if (at && !m.sizes.empty()) at = Ref(Made(s, reshape, {at.get(), shape.get()}));
  if (!at) return nullptr;
  return Of(s, Made(s, m.dtype == DType::kFloat64 ? callees::kTensorClone : callees::kTensorDouble,
                    {at.get()}));  // it may be written to
}

PyObject* ItemFunction(std::string_view name, PyObject* item) {
  if (name == "fabs") return Unary<&kAbs>(item);
  if (name != "sqrt") return nullptr;
  // Rounded once, as C's. Python raises where it is below zero.
  static constexpr const char* kSqrt = "torch.Tensor.sqrt";
  Session* s = Live(item);
  Ref zero(PyFloat_FromDouble(0));
  const int fits = s && zero ? Compared(*s, item, zero.get(), Py_GE, true) : -1;
  return fits > 0 ? Unary<&kSqrt>(item) : fits ? nullptr : Ask(item);
}

PyObject* FiniteOrZero(PyObject* item) {
  Session* s = Live(item);
  Ref nothing(s ? Binary<&kSub>(item, item) : nullptr), zero(PyFloat_FromDouble(0));
  static const Callee equal("torch.Tensor.eq");
  Ref finite(nothing && zero ? Made(*s, equal, {As(nothing.get())->tensor, zero.get()}) : nullptr);
  return finite ? Of(*s, Made(*s, callees::kWhere, {finite.get(), As(item)->tensor, zero.get()})) : nullptr;
}

PyObject* FloatOfCount(PyObject* number) {
  if (!IsSymInt(number)) return nullptr;
  auto* n = reinterpret_cast<SymInt*>(number);
  Session& s = *n->session;
  return &s == Session::Current() && s.env().AtRun(n->expr) ? Filled(s, n) : nullptr;
}

// What no integer of 64 bits holds, and what is no number, is zero in the graph. A run that finds such a number ends,
// and Python raises or goes on.
PyObject* IntOfItem(PyObject* item) {
  constexpr double kMost = 0x1p62;
  static const Callee less("torch.Tensor.lt");
  Session* s = Live(item);
  if (!s) return nullptr;
  Ref size(Made(*s, Callee(kAbs), {As(item)->tensor})), most(PyFloat_FromDouble(kMost)), zero(PyFloat_FromDouble(0));
  Ref fits(size && most && zero ? Made(*s, less, {size.get(), most.get()}) : nullptr);
  if (!fits || Truth(*s, Py_NewRef(fits.get()), true) <= 0) return nullptr;
  Ref number(Made(*s, callees::kWhere, {fits.get(), As(item)->tensor, zero.get()}));
  Ref whole(number ? Made(*s, callees::kTensorLong, {number.get()}) : nullptr);
  PyObject* n = whole ? s->data_sizes().ItemOf(AsTensor(whole.get())->id, false) : nullptr;
  return n || PyErr_Occurred() ? n : Ask(item);
}

PyObject* ItemFor(Session& s, PyObject* item, const TensorMeta& beside) {
  std::optional<DType> to;
  if (beside.framework != Framework::kTorch) return nullptr;
  if (beside.dtype == DType::kFloat32 || beside.dtype == DType::kFloat64) {
    if (beside.sizes.empty()) to = beside.dtype;
  } else if (IsInteger(beside.dtype) || IsBool(beside.dtype)) {
    to = s.modes.now.default_float;
  } else {
    return nullptr;  // the framework does not round numbers to 16 bits before it computes
  }
  PyObject* tensor = As(item)->tensor;
  if (!to || *to == DType::kFloat64) return Py_NewRef(tensor);
  if (*to != DType::kFloat32) return nullptr;
  static const Callee narrowed("torch.Tensor.float");
  return Made(s, narrowed, {tensor});
}

PyObject* ItemAsFactor(Session& s, PyObject* item, const TensorMeta& beside) {
  if (!IsFloat(beside.dtype)) return nullptr;  // of integers it would have to be known whether it fits
  Ref size(Unary<&kAbs>(item)), most(PyFloat_FromDouble(surface::LargestFloat(beside.dtype)));
  if (!size || !most || Compared(s, size.get(), most.get(), Py_LE, true) <= 0) return nullptr;
  return Py_NewRef(As(item)->tensor);
}

}  // namespace framejit::capture
